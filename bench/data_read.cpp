// MB/s of text to tokens, on HALFTONE_THREADS threads (2): the tokenizer alone on text in memory, then whole files of every format, in the
// same run and alternating, as ratios to the tokenizer. bench_data_read TOKENIZER [MB of text] [FILE.parquet ...]
#include <lzma.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "halftone/base/error.h"
#include "halftone/base/log.h"
#include "halftone/data/loader.h"
#include "halftone/data/source.h"
#include "halftone/data/tokenise.h"
#include "halftone/data/tokenizer.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;
constexpr int kRounds = 5;

double seconds_of(const auto& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Text like a web page's: the words of the checkout's documents in random order, with punctuation, line breaks and quotes.
std::vector<std::string> make_documents(size_t bytes) {
  std::vector<std::string> words;
  for (const char* name : {"README.md", "CONTRIBUTING.md", "CHANGELOG.md"}) {
    std::ifstream in(name);
    for (std::string word; in >> word;) words.push_back(word);
  }
  check(words.size() > 1000, "run in the checkout: README.md is the text");
  std::mt19937 random(1);
  std::vector<std::string> out;
  for (size_t total = 0; total < bytes; total += out.back().size()) {
    std::string& text = out.emplace_back();
    const size_t size = 500 + random() % 6000;
    while (text.size() < size) {
      text += words[random() % words.size()];
      text += random() % 60 == 0 ? "\n\n" : random() % 100 == 0 ? " \xE2\x80\x9Cquoted\xE2\x80\x9D " : " ";
    }
  }
  return out;
}

void write_file(const fs::path& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

std::string gzip(const std::string& text) {
  z_stream z{};
  deflateInit2(&z, 6, Z_DEFLATED, MAX_WBITS + 16, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&z, text.size()) + 32, '\0');
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data())), z.avail_in = static_cast<uInt>(text.size());
  z.next_out = reinterpret_cast<Bytef*>(out.data()), z.avail_out = static_cast<uInt>(out.size());
  check(deflate(&z, Z_FINISH) == Z_STREAM_END, "gzip failed");
  out.resize(z.total_out);
  deflateEnd(&z);
  return out;
}

std::string zstd(const std::string& text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

std::string xz(const std::string& text) {
  std::string out(lzma_stream_buffer_bound(text.size()), '\0');
  size_t size = 0;
  check(lzma_easy_buffer_encode(1, LZMA_CHECK_CRC64, nullptr, reinterpret_cast<const uint8_t*>(text.data()), text.size(),
                                reinterpret_cast<uint8_t*>(out.data()), &size, out.size()) == LZMA_OK,
        "xz failed");
  out.resize(size);
  return out;
}

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
  write_file(files[0].second, jsonl), write_file(files[1].second, gzip(jsonl)), write_file(files[2].second, zstd(jsonl));
  write_file(files[3].second, xz(jsonl));
  for (int i = 3; i < argc; ++i) files.emplace_back("Parquet " + fs::path(argv[i]).filename().string(), argv[i]);

  // Bytes of text a second, of the best round each.
  std::map<std::string, double> best;
  const auto note = [&](const std::string& name, double bytes, double seconds) { best[name] = std::max(best[name], bytes / seconds); };
  for (int round = 0; round < kRounds; ++round) {
    note("tokenizer", text_bytes, seconds_of([&] {
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
      const double seconds = seconds_of([&] {
        tokenise_source(*open_source(options), codec, width_for(codec.vocab_size), threads,
                        [&](TokenisedShard&& shard) { bytes += shard.text_bytes; });
      });
      note(name, static_cast<double>(bytes), seconds);
    }
  }
  fmt::print("{} MB of text in {} documents, {} threads, {} ids; the best of {} rounds\n", megabytes, documents.size(), threads,
             codec.vocab_size, kRounds);
  fmt::print("{:24} {:8.1f} MB/s\n", "tokenizer, in memory", best["tokenizer"] / 1e6);
  for (const auto& [name, path] : files) fmt::print("{:24} {:8.1f} MB/s  {:.3f}\n", name, best[name] / 1e6, best[name] / best["tokenizer"]);
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
