#include "halftone/train/tokenizer_setup.h"

#include <filesystem>

#include "halftone/base/error.h"
#include "halftone/base/log.h"
#include "halftone/base/philox.h"
#include "halftone/base/stopwatch.h"
#include "halftone/data/bpe_trainer.h"
#include "halftone/data/source.h"
#include "halftone/data/training_data.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kSampleBytes = 16 << 20;  // more text barely changes a small vocabulary
constexpr int64_t kSampledFiles = 64;       // of a stream

// Documents of a streamed set up to about `budget` bytes: the first of files spread over it.
void sample_stream(const DocumentSource& source, int64_t budget, std::vector<std::string>& documents) {
  struct Enough {};
  const auto files = static_cast<int64_t>(source.files().files.size()), taken = std::min(files, kSampledFiles);
  for (int64_t i = 0; i < taken; ++i) {
    int64_t left = budget / taken;
    try {
      source.read_file(static_cast<size_t>(i * files / taken), [&](const Document& d) {
        if (d.kind == Document::Kind::bad) return;
        documents.emplace_back(d.text);
        if ((left -= static_cast<int64_t>(d.text.size())) <= 0) throw Enough{};
      });
    } catch (const Enough&) {}
  }
}

// Documents of an indexed set, selected by a hash of their content, up to about `budget` bytes.
void sample_indexed(const DocumentSource& source, int64_t budget, std::vector<std::string>& documents) {
  int64_t total = 0;
  for (int64_t s = 0; s < source.shard_count(); ++s)
    source.read_shard(s, [&](const Document& d) { total += static_cast<int64_t>(d.text.size()); });
  const double share = static_cast<double>(budget) / static_cast<double>(std::max<int64_t>(total, 1));
  for (int64_t s = 0; s < source.shard_count(); ++s) {
    source.read_shard(s, [&](const Document& d) {
      if (d.kind == Document::Kind::bad) return;
      const double draw = static_cast<double>(philox(philox_key(0, "tokenizer"), fnv1a64(d.text))[0]) * 0x1p-32;
      if (draw < share) documents.emplace_back(d.text);
    });
  }
}

// Documents of the training text, or of every source of a mixture, up to about kSampleBytes.
std::vector<std::string> sample_text(const JobConfig& config) {
  std::vector<std::string> documents;
  const std::vector<TrainingData> all = training_data(config, [](const DataloaderConfig&) { return TextCodec{}; });
  const int64_t budget = kSampleBytes / static_cast<int64_t>(all.size());
  for (const TrainingData& data : all) {
    const std::unique_ptr<DocumentSource> source = open_source(data.reading);
    check(source->stored_token_bytes() == 0,
          "model.train_tokenizer: {} holds token ids, no text; set model.hf_assets_path to their tokenizer", data.name);
    data.reading.streamed ? sample_stream(*source, budget, documents) : sample_indexed(*source, budget, documents);
  }
  std::erase_if(documents, [](const std::string& d) { return d.empty(); });
  check(!documents.empty(), "model.train_tokenizer: {} holds no text", config.training.dataset_path.value_or(config.training.dataset));
  return documents;
}

}  // namespace

Tokenizer prepare_tokenizer(const JobConfig& config) {
  const fs::path folder = config.model.hf_assets_path;
  const auto holds = [&](const char* name) { return fs::exists(folder / name); };
  const bool present = holds("tokenizer.json") || holds("vocab.json") || holds("vocab.txt") || fs::is_regular_file(folder) ||
                       config.model.train_tokenizer == 0;
  if (!present) {
    const Stopwatch watch;
    std::vector<std::string> documents = sample_text(config);
    log_info("Training a tokenizer with {} entries on {} documents of the training text", config.model.train_tokenizer, documents.size());
    size_t next = 0;
    BpeTrainerOptions options;
    options.vocab_size = static_cast<int>(config.model.train_tokenizer);
    options.special_tokens = {"<|begin_of_text|>", "<|end_of_text|>"};
    options.special_tokens_in_text = config.training.dataloader.special_tokens_in_text;
    const Tokenizer tokenizer = train_bpe(
        [&](std::string& text) {
          if (next == documents.size()) return false;
          text = std::move(documents[next++]);
          return true;
        },
        options);
    fs::create_directories(folder);
    tokenizer.save(folder);
    log_debug("tokenizer trained and saved in {:.1f} s", watch.seconds());
  }
  Tokenizer tokenizer = Tokenizer::load(folder);
  log_info("Tokenizer {}: {}", folder.string(), tokenizer.description());
  if (!tokenizer.eos_id()) {
    log_warning(
        "the tokenizer at {} has no end-of-document token, so documents are not separated; name one as eos_token in "
        "tokenizer_config.json",
        folder.string());
  }
  return tokenizer;
}

}  // namespace halftone
