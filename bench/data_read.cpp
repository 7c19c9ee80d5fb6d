// MB/s of text to tokens, on HALFTONE_THREADS threads (2): the tokenizer alone on text in memory, then whole files of every format, in the
// same run and alternating, as ratios to the tokenizer. bench_data_read TOKENIZER [MB of text] [FILE.parquet ...]
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "compress.h"
#include "halftone/base/error.h"
#include "halftone/base/utf8.h"
#include "halftone/data/loader.h"
#include "halftone/data/source.h"
#include "halftone/data/tokenise.h"
#include "halftone/data/tokenizer.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;
constexpr int kRounds = 5;

// Seconds by the clock, and of all threads' processor time: the latter says the cost on a machine that is busy with other work.
struct Cost {
  double wall = 1e30, processor = 1e30;
};
Cost cost_of(const auto& f) {
  const auto processor = [] {
    timespec t{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
  };
  const auto start = std::chrono::steady_clock::now();
  const double before = processor();
  f();
  return {std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), processor() - before};
}

// The checkout's sources and documents, in pieces of 0.5 to 6.5 KB, again and again.
std::vector<std::string> make_documents(size_t bytes) {
  std::vector<std::string> files;
  for (const char* folder : {"src", "tests", "docs", "bench", "python"}) {
    if (!fs::is_directory(folder)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      const std::string suffix = entry.path().extension().string();
      if (suffix != ".cpp" && suffix != ".h" && suffix != ".md" && suffix != ".py" && suffix != ".cu") continue;
      std::ifstream in(entry.path(), std::ios::binary);
      const std::string text{std::istreambuf_iterator<char>(in), {}};
      if (is_valid_utf8(text)) files.push_back(text);
    }
  }
  check(files.size() > 100, "run in the checkout: its sources are the text");
  std::mt19937 random(1);
  std::vector<std::string> out;
  for (size_t total = 0, file = 0; total < bytes; ++file) {
    const std::string& text = files[file % files.size()];
    for (size_t at = 0; at < text.size() && total < bytes;) {
      size_t end = std::min(text.size(), at + 500 + random() % 6000);
      while (end < text.size() && text[end] != '\n') ++end;
      out.push_back(text.substr(at, end - at));
      total += end - at;
      at = end;
    }
  }
  return out;
}

void write_file(const fs::path& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

void run(int argc, char** argv) {
  check(argc >= 2, "usage: bench_data_read TOKENIZER [MB of text] [FILE.parquet ...]");
  const char* asked = std::getenv("HALFTONE_THREADS");
  const int threads = asked != nullptr ? std::max(1, std::atoi(asked)) : 2;
  const auto megabytes = static_cast<size_t>(argc > 2 ? std::max(1, std::atoi(argv[2])) : 64);
  const Tokenizer tokenizer = Tokenizer::load(argv[1]);
  DataloaderConfig reading;
  reading.special_tokens_in_text = false;
  const TextCodec codec = make_text_codec(tokenizer, reading);
  const std::vector<std::string> documents = make_documents(megabytes << 20);
  double text_bytes = 0;
  std::string jsonl;
  for (const std::string& d : documents) {
    text_bytes += static_cast<double>(d.size());
    jsonl += nlohmann::json{{"id", text_bytes}, {"text", d}, {"url", "https"}}.dump() + "\n";
  }
  const fs::path folder = fs::temp_directory_path() / ("halftone_data_read_" + std::to_string(::getpid()));
  fs::create_directories(folder);
  std::vector<std::pair<std::string, fs::path>> files = {{"JSONL", folder / "a.jsonl"},
                                                         {"JSONL .gz", folder / "a.jsonl.gz"},
                                                         {"JSONL .zst", folder / "a.jsonl.zst"},
                                                         {"JSONL .xz", folder / "a.jsonl.xz"}};
  write_file(files[0].second, jsonl), write_file(files[1].second, compress::gzip(jsonl)),
      write_file(files[2].second, compress::zstd(jsonl));
  write_file(files[3].second, compress::xz(jsonl, 1, LZMA_CHECK_CRC64));
  for (int i = 3; i < argc; ++i) files.emplace_back("Parquet " + fs::path(argv[i]).filename().string(), argv[i]);

  // Seconds a byte of text, of the best round each.
  std::map<std::string, Cost> best;
  const auto note = [&](const std::string& name, double bytes, Cost cost) {
    best[name] = {std::min(best[name].wall, cost.wall / bytes), std::min(best[name].processor, cost.processor / bytes)};
  };
  for (int round = 0; round < kRounds; ++round) {
    note("tokenizer", text_bytes, cost_of([&] {
           std::vector<std::thread> pool;
           std::atomic<size_t> next{0};
           for (int t = 0; t < threads; ++t) {
             pool.emplace_back([&] {
               std::vector<int32_t> ids;
               for (size_t i; (i = next++) < documents.size();) {
                 ids.clear();
                 tokenizer.encode_document_append(documents[i], ids, true, true);
               }
             });
           }
           for (std::thread& t : pool) t.join();
         }));
    for (const auto& [name, path] : files) {
      SourceOptions options;
      options.dataset = "auto", options.path = path.string(), options.vocab_size = codec.vocab_size;
      int64_t bytes = 0;
      const Cost cost = cost_of([&] {
        tokenise_source(*open_source(options), codec, width_for(codec.vocab_size), threads,
                        [&](TokenisedShard&& shard) { bytes += shard.text_bytes; });
      });
      note(name, static_cast<double>(bytes), cost);
    }
  }
  fmt::print("{} MB of text in {} documents, {} threads, {} ids; the best of {} rounds\n", megabytes, documents.size(), threads,
             codec.vocab_size, kRounds);
  const Cost alone = best["tokenizer"];
  fmt::print("{:24} {:8} {:>6} {:>24}\n", "", "MB/s", "ratio", "MB per processor second");
  const auto print = [&](const std::string& name, const Cost& c) {
    fmt::print("{:24} {:8.1f} {:6.3f} {:17.1f} {:6.3f}\n", name, 1e-6 / c.wall, alone.wall / c.wall, 1e-6 / c.processor,
               alone.processor / c.processor);
  };
  print("tokenizer, in memory", alone);
  for (const auto& [name, path] : files) print(name, best[name]);
  fs::remove_all(folder);
}

}  // namespace
}  // namespace halftone

int main(int argc, char** argv) {
  try {
    halftone::run(argc, argv);
  } catch (const halftone::Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 2;
  }
}
