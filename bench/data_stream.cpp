// Rate of a streamed data set up to the batches of a loader, beside the tokenizer's own on text in memory, and the time to the first batch:
//   bench_data_stream TOKENIZER PATH [THREADS [SEQ_LEN [SECONDS]]]
#include <cstdlib>
#include <string>

#include "halftone/base/error.h"
#include "halftone/base/stopwatch.h"
#include "halftone/data/loader.h"
#include "halftone/data/source.h"
#include "halftone/data/tokenizer.h"

using namespace halftone;

int main(int argc, char** argv) try {
  check(argc >= 3, "expected: bench_data_stream TOKENIZER PATH [THREADS [SEQ_LEN [SECONDS]]]");
  JobConfig config;
  config.training.dataset = "auto";
  config.training.dataset_path = argv[2];
  config.training.dataloader.read = "streamed";
  config.training.dataloader.shuffle = true;
  config.training.dataloader.num_workers = argc > 3 ? std::atoi(argv[3]) : 1;
  config.training.seq_len = argc > 4 ? std::atoi(argv[4]) : 2048;
  const double seconds = argc > 5 ? std::atof(argv[5]) : 5;
  const Tokenizer tokenizer = Tokenizer::load(argv[1]);
  const Stopwatch start;
  const auto loader = make_training_loader(config, tokenizer, 8, 0, 1);
  loader->next();
  fmt::print("first batch after {:.2f} s\n", start.seconds());

  const Stopwatch streaming;
  int64_t batches = 0;
  for (; streaming.seconds() < seconds; ++batches) loader->next();
  const double rate = static_cast<double>(batches * 8 * config.training.seq_len) / streaming.seconds();

  SourceOptions options;
  options.dataset = "auto", options.path = argv[2], options.streamed = true, options.vocab_size = tokenizer.vocab_size();
  std::string text;
  struct Enough {};
  try {
    open_source(options)->read_file(0, [&](const Document& d) {
      text += d.text;
      if (text.size() > (4 << 20)) throw Enough{};
    });
  } catch (const Enough&) {}
  const Stopwatch alone;
  int64_t ids = 0;
  for (; alone.seconds() < seconds / 2;) ids += static_cast<int64_t>(tokenizer.encode(text).size());
  const double own = static_cast<double>(ids) / alone.seconds();
  fmt::print("{:.2f} M tokens/s in batches with {} threads, {:.2f} M tokens/s by the tokenizer alone on one thread: {:.2f}\n", rate / 1e6,
             config.training.dataloader.num_workers, own / 1e6, rate / own);
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 2;
}
