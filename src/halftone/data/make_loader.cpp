#include <atomic>
#include <cstdlib>
#include <filesystem>

#include "halftone/base/error.h"
#include "halftone/base/log.h"
#include "halftone/base/parallel.h"
#include "halftone/data/data_use.h"
#include "halftone/data/digest.h"
#include "halftone/data/loader.h"
#include "halftone/data/source.h"
#include "halftone/data/tokenizer.h"

namespace halftone {
namespace {

std::shared_ptr<const TokenStore> open_dataset(const JobConfig& config, const std::string& dataset, const std::optional<std::string>& path,
                                               const DataloaderConfig& loader, const TextCodec& codec) {
  SourceOptions options;
  options.dataset = dataset;
  options.path = path.value_or("");
  options.text_key = loader.text_key;
  options.text_split = loader.text_split;
  options.on_bad_line = loader.on_bad_line;
  options.token_dtype = loader.token_dtype;
  options.vocab_size = codec.vocab_size;
  options.bos_id = codec.bos_id, options.eos_id = codec.eos_id;
  const std::unique_ptr<DocumentSource> source = open_source(options);
  const int64_t others = source->files().others;
  if (others > 0) log_info("{}: skipped {} files of other kinds in the folder", source->files().pattern, with_commas(others));
  const int threads = loader.num_workers > 0 ? static_cast<int>(std::min<int64_t>(loader.num_workers, 1024)) : max_threads();
  log_debug("{} {}: {} tokenizer threads", dataset, source->files().pattern, threads);
  return open_token_store(*source, codec, token_cache_folder(config), threads);
}

RowOptions row_options(const DataloaderConfig& loader, int64_t seq_len, const TextCodec& codec) {
  RowOptions options;
  options.packing = parse_packing(loader.packing);
  options.seq_len = seq_len;
  options.bins = loader.num_packing_bins;
  options.document_positions = loader.document_positions;
  options.shuffle = loader.shuffle, options.shuffle_rows = loader.shuffle_rows;
  options.seed = static_cast<uint64_t>(loader.seed);
  options.eos_id = codec.eos_id;
  return options;
}

DataLoader::Options loader_options(const DataloaderConfig& loader, const TextCodec& codec, int64_t dp_rank, int64_t dp_size,
                                   bool pin_memory) {
  DataLoader::Options options;
  options.dp_rank = dp_rank;
  options.dp_size = dp_size;
  options.prefetch = loader.prefetch_factor.value_or(2) * std::max<int64_t>(1, loader.num_workers);
  log_debug("data loader: {} batches ahead", options.prefetch);
  options.pin_memory = pin_memory;
  for (const std::string& text : codec.token_text) options.token_bytes.push_back(static_cast<int32_t>(text.size()));
  return options;
}

}  // namespace

TextCodec make_text_codec(const Tokenizer& tokenizer, const DataloaderConfig& config) {
  TextCodec codec;
  const bool add_bos = config.add_bos.value_or(true), add_eos = config.add_eos.value_or(true);
  const bool special = config.special_tokens_in_text;
  const auto told = std::make_shared<std::atomic<bool>>(special);
  codec.encode_document = [tokenizer, add_bos, add_eos, special, told](std::string_view text, std::vector<int32_t>& out) {
    tokenizer.encode_document_append(text, out, add_bos, add_eos, special);
    if (told->load(std::memory_order_relaxed)) return;
    const std::string_view token = tokenizer.find_special_token(text);
    if (token.empty() || told->exchange(true)) return;
    log_warning(
        "the text spells out the special token {}, which is read as plain text; to read it as a token set "
        "dataloader.special_tokens_in_text (halftone tokenize: --special_tokens_in_text)",
        token);
  };
  codec.encode_chat = [tokenizer, add_bos, add_eos](std::string_view text, std::span<const ByteRange> learned, std::vector<int32_t>& ids,
                                                    std::vector<uint8_t>& loss) {
    text = text.substr(0, text.find_last_not_of('\n') + 1);
    std::vector<size_t> switches;
    for (const ByteRange& range : learned) switches.insert(switches.end(), {range.begin, range.end});
    const auto is_learned = [&](size_t at) { return (std::ranges::upper_bound(switches, at) - switches.begin()) % 2; };
    const auto begin = static_cast<std::ptrdiff_t>(ids.size());
    check(loss.size() == ids.size(), "a conversation behind {} ids with {} marks", ids.size(), loss.size());
    tokenizer.encode_marked_append(text, switches, ids, loss);
    const auto bos = tokenizer.bos_id(), eos = tokenizer.eos_id();
    const bool empty = static_cast<std::ptrdiff_t>(ids.size()) == begin;
    if (add_bos && bos && (empty || ids[static_cast<size_t>(begin)] != *bos)) {
      ids.insert(ids.begin() + begin, *bos);
      loss.insert(loss.begin() + begin, static_cast<uint8_t>(is_learned(0)));
    }
    if (add_eos && eos && (empty || ids.back() != *eos)) {
      ids.push_back(*eos);
      loss.push_back(static_cast<uint8_t>(is_learned(text.size() - std::min<size_t>(text.size(), 1))));
    }
  };
  codec.vocab_size = tokenizer.vocab_size();
  codec.bos_id = tokenizer.bos_id();
  codec.eos_id = tokenizer.eos_id();
  for (int32_t id = 0; id < codec.vocab_size; ++id)
    codec.token_text.emplace_back(tokenizer.is_special(id) ? std::string_view{} : tokenizer.token_bytes(id));
  codec.digest = digest_hex(fmt::format("{}\n{}\nbos={} eos={}{}", tokenizer.tokenizer_json(), tokenizer.tokenizer_config_json(), add_bos,
                                        add_eos, special ? " special" : ""));
  return codec;
}

std::string token_cache_folder(const JobConfig& config) {
  const char* set = std::getenv("HALFTONE_CACHE");
  return set != nullptr && *set != '\0' ? std::string(set) : (std::filesystem::path(config.job.dump_folder) / "cache").string();
}

std::unique_ptr<DataLoader> make_training_loader(const JobConfig& config, const Tokenizer& tokenizer, int64_t global_batch, int64_t dp_rank,
                                                 int64_t dp_size, bool pin_memory) {
  const TrainingConfig& training = config.training;
  const TextCodec codec = make_text_codec(tokenizer, training.dataloader);
  RowOptions rows = row_options(training.dataloader, training.seq_len, codec);
  rows.holdout = config.validation.holdout;
  DataLoader::Options options = loader_options(training.dataloader, codec, dp_rank, dp_size, pin_memory);
  options.name = training.dataset;
  options.local_batch = training.local_batch_size;
  options.global_batch = global_batch;
  options.repeat = training.dataloader.repeat.value_or(true);
  auto store = open_dataset(config, training.dataset, training.dataset_path, training.dataloader, codec);
  auto loader = std::make_unique<DataLoader>(std::make_unique<RowSequence>(std::move(store), rows), std::move(options));
  log_info("Data {}: {}", training.dataset_path.value_or(training.dataset), loader->summary());
  for (const std::string& line : training_data_use(*loader, training.steps)) log_warning("{}", line);
  return loader;
}

std::unique_ptr<DataLoader> make_validation_loader(const JobConfig& config, const Tokenizer& tokenizer, int64_t dp_rank, int64_t dp_size,
                                                   bool pin_memory) {
  const ValidationConfig& validation = config.validation;
  check(validation.steps != 0 && validation.steps >= -1, "validation.steps = {}: expected a number of batches, or -1 for one pass",
        validation.steps);
  const bool held_out = validation.holdout > 0;
  // Held-out documents come from the training source, read and encoded the same way.
  const DataloaderConfig& reading = held_out ? config.training.dataloader : validation.dataloader;
  const TextCodec codec = make_text_codec(tokenizer, reading);
  RowOptions rows = row_options(validation.dataloader, validation.seq_len, codec);
  rows.holdout = validation.holdout;
  rows.held_out = held_out;
  DataLoader::Options options = loader_options(validation.dataloader, codec, dp_rank, dp_size, pin_memory);
  const std::string& dataset = held_out ? config.training.dataset : validation.dataset;
  options.name = held_out ? dataset + " (held out)" : dataset;
  options.local_batch = validation.local_batch_size;
  options.global_batch = validation.local_batch_size * dp_size;
  options.repeat = false;
  options.pad_last = true;
  options.max_steps = validation.steps;
  auto store = open_dataset(config, dataset, held_out ? config.training.dataset_path : validation.dataset_path, reading, codec);
  auto loader = std::make_unique<DataLoader>(std::make_unique<RowSequence>(std::move(store), rows), std::move(options));
  log_info("Validation data: {}, {} steps", loader->summary(), loader->steps_per_pass());
  for (const std::string& line : validation_data_use(*loader)) log_warning("{}", line);
  return loader;
}

}  // namespace halftone
