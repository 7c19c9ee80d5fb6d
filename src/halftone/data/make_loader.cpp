#include <atomic>
#include <cstdlib>
#include <filesystem>

#include "halftone/base/error.h"
#include "halftone/base/log.h"
#include "halftone/base/parallel.h"
#include "halftone/data/chat_setup.h"
#include "halftone/data/dataset_table.h"
#include "halftone/data/digest.h"
#include "halftone/data/epoch_coverage.h"
#include "halftone/data/lane_feed.h"
#include "halftone/data/loader.h"
#include "halftone/data/source.h"
#include "halftone/data/tokenizer.h"
#include "halftone/data/training_data.h"

namespace halftone {
namespace {

constexpr int kMostStreamThreads = 8;  // of a rank; one keeps up with 500,000 tokens/s

// For messages; "auto" alone names nothing.
std::string shown_name(const std::string& dataset, const std::optional<std::string>& path) {
  return dataset == "auto" ? path.value_or(dataset) : dataset;
}

// A data set as the configuration names it: a kind with a path, or a name of [data.names].
DatasetSettings dataset_settings(const JobConfig& config, const std::string& dataset, const std::optional<std::string>& path,
                                 const DataloaderConfig& loader, const std::string& path_field) {
  DatasetSettings settings{dataset, dataset, path, loader, path_field};
  const auto named = config.data.names.find(dataset);
  if (named == config.data.names.end()) return settings;
  settings.dataset = "auto", settings.path_field = "data.names." + dataset + ".path";
  apply_dataset_table(named->second, "data.names." + dataset, settings, nullptr);
  return settings;
}

// The training data, or each source of a mixture with its share.
std::vector<std::pair<DatasetSettings, SourceShare>> training_datasets(const JobConfig& config) {
  const TrainingConfig& training = config.training;
  const DataloaderConfig& loader = training.dataloader;
  std::vector<std::pair<DatasetSettings, SourceShare>> all;
  if (training.sources.empty())
    all.emplace_back(dataset_settings(config, training.dataset, training.dataset_path, loader, "training.dataset_path"), SourceShare{});
  for (const auto& [name, table] : training.sources) {
    // `dataset` may be one of [data.names], whose options the source's own override.
    const auto named = table.find("dataset");
    const std::string dataset =
        named != table.end() && std::holds_alternative<std::string>(named->second) ? std::get<std::string>(named->second) : "auto";
    DatasetSettings settings = dataset_settings(config, dataset, std::nullopt, loader, "training.sources." + name + ".path");
    const std::string kind = settings.dataset;
    SourceShare share;
    apply_dataset_table(table, "training.sources." + name, settings, &share);
    settings.name = name, settings.dataset = kind;
    all.emplace_back(std::move(settings), share);
  }
  return all;
}

SourceOptions source_options(const JobConfig& config, const DatasetSettings& settings, const TextCodec& codec) {
  SourceOptions options;
  options.dataset = settings.dataset;
  options.path = settings.path.value_or(""), options.path_field = settings.path_field;
  options.text_key = settings.loader.text_key;
  options.text_split = settings.loader.text_split;
  options.subset = settings.loader.subset, options.split = settings.loader.split;
  options.on_bad_line = settings.loader.on_bad_line;
  options.token_dtype = settings.loader.token_dtype;
  options.max_document_bytes = settings.loader.max_document_mib << 20;
  options.vocab_size = codec.vocab_size;
  options.bos_id = codec.bos_id, options.eos_id = codec.eos_id;
  options.streamed = settings.loader.read == "streamed";
  set_chat(options, settings.loader, config.model.hf_assets_path);
  return options;
}

int tokenizer_threads(const DataloaderConfig& loader) {
  return loader.num_workers > 0 ? static_cast<int>(std::min<int64_t>(loader.num_workers, 1024)) : max_threads();
}

std::unique_ptr<RowSequence> open_rows(const JobConfig& config, const TrainingData& data, const TextCodec& codec) {
  const std::unique_ptr<DocumentSource> source = open_source(data.reading);
  const int64_t others = source->files().others;
  if (others > 0) log_info("{}: skipped {} files of other kinds in the folder", source->files().pattern, with_commas(others));
  const int threads = tokenizer_threads(data.loader);
  log_debug("{} {}: {} tokenizer threads", data.name, source->files().pattern, threads);
  return std::make_unique<RowSequence>(open_token_store(*source, codec, token_cache_folder(config), threads), data.rows);
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

// rows: how documents become rows of seq_len tokens.
TrainingData described(const JobConfig& config, const DatasetSettings& settings, const DataloaderConfig& rows, int64_t seq_len,
                       const TextCodec& codec) {
  return {settings.name, settings.loader, source_options(config, settings, codec), row_options(rows, seq_len, codec), {}};
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

// Streams and mixtures: rows by lane.
std::unique_ptr<LaneFeed> make_lane_feed(const JobConfig& config, const std::vector<TrainingData>& all,
                                         const std::vector<TextCodec>& codecs, const std::string& codec_digest,
                                         const DataLoader::Options& batch) {
  const TrainingConfig& training = config.training;
  const DataloaderConfig& loader = training.dataloader;
  LaneFeed::Options options;
  options.lanes = loader.stream_lanes, options.seq_len = training.seq_len;
  options.local_batch = batch.local_batch, options.global_batch = batch.global_batch;
  options.dp_rank = batch.dp_rank, options.dp_size = batch.dp_size;
  options.seed = static_cast<uint64_t>(loader.seed);
  options.mixture = !training.sources.empty();
  options.tokenizer = codec_digest;
  options.described = fmt::format("packing={} num_packing_bins={} seq_len={} shuffle={} shuffle_buffer={} seed={}", loader.packing,
                                  loader.num_packing_bins, training.seq_len, loader.shuffle, loader.shuffle_buffer, loader.seed);
  std::vector<LaneFeed::Source> sources;
  for (size_t i = 0; i < all.size(); ++i) {
    const TrainingData& data = all[i];
    LaneFeed::Source& source = sources.emplace_back();
    // A single one keeps its place whatever its kind is called.
    source.name = options.mixture ? data.name : "the data";
    source.encoding = codecs[i].digest;
    source.weight = WeightSchedule(data.share.weight, "training.sources." + data.name + ".weight");
    source.row_limit = (data.share.tokens + training.seq_len - 1) / training.seq_len;
    if (data.reading.streamed) {
      StreamOptions stream;
      stream.lanes = options.lanes, stream.window = loader.shuffle_buffer, stream.shuffle = loader.shuffle, stream.seed = options.seed;
      stream.epochs = data.share.epochs;
      stream.threads = std::min(kMostStreamThreads, tokenizer_threads(data.loader));
      source.rows = stream_rows(open_source(data.reading), codecs[i], data.rows, stream);
    } else {
      source.rows = indexed_rows(open_rows(config, data, codecs[i]), options.lanes, data.share.epochs);
    }
  }
  const std::vector<bool> owned = lanes_of(options.lanes, batch.local_batch, batch.global_batch, batch.dp_rank, batch.dp_size);
  const int64_t own = std::count(owned.begin(), owned.end(), true);
  if (own * batch.dp_size > options.lanes && own > 1 && batch.dp_size > 1) {
    log_info(
        "Each of {} data-parallel ranks tokenizes {} of the {} lanes; with dataloader.stream_lanes = {} (the rows of a step) each has its "
        "own",
        batch.dp_size, own, options.lanes, batch.global_batch);
  }
  return std::make_unique<LaneFeed>(std::move(sources), std::move(options));
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
  // A letter with its accent apart and a character with another form, which normalisation replaces; no leading blank, which may be added.
  const std::string probe = "e\xCC\x81 \xE2\x84\xAB x";
  codec.keeps_text = tokenizer.decode(tokenizer.encode_document(probe, add_bos, add_eos), true) == probe;
  codec.digest = digest_hex(fmt::format("{}\n{}\nbos={} eos={}{}", tokenizer.tokenizer_json(), tokenizer.tokenizer_config_json(), add_bos,
                                        add_eos, special ? " special" : ""));
  return codec;
}

std::vector<TrainingData> training_data(const JobConfig& config, const std::function<TextCodec(const DataloaderConfig&)>& codec) {
  std::vector<TrainingData> all;
  for (const auto& [settings, share] : training_datasets(config)) {
    TrainingData& data = all.emplace_back(described(config, settings, settings.loader, config.training.seq_len, codec(settings.loader)));
    data.rows.holdout = config.validation.holdout;
    data.share = share;
  }
  return all;
}

StorageOptions storage_options(const JobConfig& config) {
  const DataConfig& data = config.data;
  StorageOptions options;
  options.endpoint_url = data.endpoint_url, options.region = data.region, options.anonymous = data.anonymous;
  options.cache_folder = data.cache_folder.empty() ? token_cache_folder(config) + "/files" : data.cache_folder;
  options.cache_bytes = static_cast<int64_t>(data.cache_gib * static_cast<double>(int64_t{1} << 30));
  options.read_ahead_bytes = data.read_ahead_mib << 20;
  return options;
}

std::string token_cache_folder(const JobConfig& config) {
  const char* set = std::getenv("HALFTONE_CACHE");
  return set != nullptr && *set != '\0' ? std::string(set) : (std::filesystem::path(config.job.dump_folder) / "cache").string();
}

std::unique_ptr<DataLoader> make_training_loader(const JobConfig& config, const Tokenizer& tokenizer, int64_t global_batch, int64_t dp_rank,
                                                 int64_t dp_size, bool pin_memory) {
  const TrainingConfig& training = config.training;
  set_storage_options(storage_options(config));
  std::vector<TextCodec> codecs;
  const std::vector<TrainingData> all =
      training_data(config, [&](const DataloaderConfig& reading) { return codecs.emplace_back(make_text_codec(tokenizer, reading)); });
  DataLoader::Options options = loader_options(training.dataloader, codecs.front(), dp_rank, dp_size, pin_memory);
  options.name = shown_name(training.dataset, training.dataset_path);
  options.local_batch = training.local_batch_size;
  options.global_batch = global_batch;
  options.repeat = training.dataloader.repeat.value_or(true);
  if (!training.sources.empty() || all.front().reading.streamed) {
    if (!training.sources.empty()) options.name = "mixture";
    std::unique_ptr<LaneFeed> feed = make_lane_feed(config, all, codecs, make_text_codec(tokenizer, training.dataloader).digest, options);
    auto loader = std::make_unique<DataLoader>(std::move(feed), std::move(options));
    log_info("Data {}: {}", training.sources.empty() ? training.dataset_path.value_or(training.dataset) : "mixture", loader->summary());
    return loader;
  }
  auto loader = std::make_unique<DataLoader>(open_rows(config, all.front(), codecs.front()), std::move(options));
  log_info("Data {}: {}", training.dataset_path.value_or(training.dataset), loader->summary());
  for (const std::string& line : training_coverage(*loader, training.steps)) log_warning("{}", line);
  return loader;
}

std::unique_ptr<DataLoader> make_validation_loader(const JobConfig& config, const Tokenizer& tokenizer, int64_t dp_rank, int64_t dp_size,
                                                   bool pin_memory) {
  const ValidationConfig& validation = config.validation;
  check(validation.steps != 0 && validation.steps >= -1, "validation.steps = {}: expected a number of batches, or -1 for one pass",
        validation.steps);
  const bool held_out = validation.holdout > 0;
  const std::string& dataset = held_out ? config.training.dataset : validation.dataset;
  const std::optional<std::string>& path = held_out ? config.training.dataset_path : validation.dataset_path;
  // Held-out documents come from the training source, read and encoded the same way.
  DatasetSettings settings = dataset_settings(config, dataset, path, held_out ? config.training.dataloader : validation.dataloader,
                                              held_out ? "training.dataset_path" : "validation.dataset_path");
  settings.loader.read = "indexed";  // every validation reads the same rows
  const TextCodec codec = make_text_codec(tokenizer, settings.loader);
  DataLoader::Options options = loader_options(validation.dataloader, codec, dp_rank, dp_size, pin_memory);
  options.name = shown_name(dataset, path) + (held_out ? " (held out)" : "");
  options.local_batch = validation.local_batch_size;
  options.global_batch = validation.local_batch_size * dp_size;
  options.repeat = false;
  options.pad_last = true;
  options.max_steps = validation.steps;
  TrainingData data = described(config, settings, validation.dataloader, validation.seq_len, codec);
  data.rows.holdout = validation.holdout, data.rows.held_out = held_out;
  auto loader = std::make_unique<DataLoader>(open_rows(config, data, codec), std::move(options));
  log_info("Validation data: {}, {} steps", loader->summary(), loader->steps_per_pass());
  for (const std::string& line : validation_coverage(*loader)) log_warning("{}", line);
  return loader;
}

}  // namespace halftone
