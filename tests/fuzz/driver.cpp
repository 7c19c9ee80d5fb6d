// Runs one fuzz target (LLVMFuzzerTestOneInput) without libFuzzer: seeds, mutations and edge coverage of our own, under
// g++ with AddressSanitizer and UndefinedBehaviourSanitizer. A report, an exception that leaves the target, a signal or an
// input that takes longer than kSecondsPerInput ends the run; the input is then in crash-<name> of the working folder.
//
//   x_fuzz [--seeds DIR] [--dict FILE] [--seconds N] [--seed N] [--max-length N] [FILE ...]
//
// FILE ...: runs these inputs once and ends. HALFTONE_FUZZ_SECONDS overrides --seconds.
#include <sanitizer/common_interface_defs.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

using Bytes = std::vector<uint8_t>;

namespace {

constexpr unsigned kSecondsPerInput = 10;
constexpr size_t kMapSize = 1 << 14;

// Edges hit: hash of the current and the previous program counter, as in AFL.
std::array<uint8_t, kMapSize> hits;
std::array<uint8_t, kMapSize> seen;
uintptr_t previous_pc = 0;

const Bytes* current = nullptr;
std::string crash_file;

// Called from the sanitizers' death callback and from signal handlers. Not strictly safe there; the process ends anyway.
void save_current() {
  if (current == nullptr) return;
  if (FILE* file = std::fopen(crash_file.c_str(), "wb")) {
    std::fwrite(current->data(), 1, current->size(), file);
    std::fclose(file);
    std::fprintf(stderr, "fuzz: the failing input (%zu bytes) is in %s\n", current->size(), crash_file.c_str());
  }
  current = nullptr;
}

void on_signal(int number) {
  std::fprintf(stderr, "fuzz: signal %d%s\n", number, number == SIGALRM ? " (an input took too long)" : "");
  save_current();
  _exit(1);
}

struct Options {
  std::string seeds, dictionary;
  double seconds = 10;
  uint64_t seed = 1;
  size_t max_length = 1 << 14;
  std::vector<std::string> inputs;
};

Bytes read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return Bytes(std::istreambuf_iterator<char>(file), {});
}

// One token per line; supports \xNN, \n and \\.
std::vector<Bytes> read_dictionary(const std::string& path) {
  std::vector<Bytes> tokens;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    Bytes token;
    for (size_t i = 0; i < line.size(); ++i) {
      if (line[i] == '\\' && i + 3 < line.size() && line[i + 1] == 'x') {
        token.push_back(static_cast<uint8_t>(std::stoi(line.substr(i + 2, 2), nullptr, 16)));
        i += 3;
      } else if (line[i] == '\\' && i + 1 < line.size()) {
        token.push_back(line[i + 1] == 'n' ? '\n' : static_cast<uint8_t>(line[i + 1]));
        i += 1;
      } else {
        token.push_back(static_cast<uint8_t>(line[i]));
      }
    }
    if (!token.empty()) tokens.push_back(token);
  }
  return tokens;
}

// Runs one input; true if it reached a new edge (or a new hit count).
bool run(const Bytes& input) {
  hits.fill(0);
  previous_pc = 0;
  current = &input;
  alarm(kSecondsPerInput);
  // A copy of exactly this size, so that reading one byte too many is detected.
  Bytes exact(input.begin(), input.end());
  exact.shrink_to_fit();
  try {
    LLVMFuzzerTestOneInput(exact.data(), exact.size());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "fuzz: an exception left the target: %s\n", error.what());
    save_current();
    _exit(1);
  }
  alarm(0);
  current = nullptr;
  bool fresh = false;
  for (size_t i = 0; i < kMapSize; ++i) {
    if (hits[i] == 0) continue;
    // Hit counts in powers of two, one bit each: loops that run longer count as new, up to 128 times.
    const uint8_t bucket = static_cast<uint8_t>(1u << (31 - __builtin_clz(static_cast<unsigned>(hits[i]))));
    if ((seen[i] & bucket) == 0) {
      seen[i] |= bucket;
      fresh = true;
    }
  }
  return fresh;
}

class Mutator {
 public:
  Mutator(uint64_t seed, size_t max_length, std::vector<Bytes> dictionary)
      : random_(seed), max_length_(max_length), dictionary_(std::move(dictionary)) {}

  size_t below(size_t n) { return n == 0 ? 0 : std::uniform_int_distribution<size_t>(0, n - 1)(random_); }

  Bytes mutate(Bytes bytes, const std::vector<Bytes>& corpus) {
    const size_t rounds = size_t{1} << below(5);
    for (size_t i = 0; i < rounds; ++i) once(bytes, corpus);
    if (bytes.size() > max_length_) bytes.resize(max_length_);
    return bytes;
  }

 private:
  void once(Bytes& b, const std::vector<Bytes>& corpus) {
    const size_t at = below(b.size());
    switch (below(12)) {
      case 0:
        if (!b.empty()) b[at] ^= static_cast<uint8_t>(1u << below(8));
        break;
      case 1:
        if (!b.empty()) b[at] = static_cast<uint8_t>(below(256));
        break;
      case 2:  // truncate
        b.resize(below(b.size() + 1));
        break;
      case 3:  // delete a range
        b.erase(b.begin() + static_cast<std::ptrdiff_t>(at), b.begin() + static_cast<std::ptrdiff_t>(at + below(b.size() - at + 1)));
        break;
      case 4: {  // repeat a range, which also nests brackets deeper
        const Bytes part = range(b);
        const size_t times = 1 + below(8);
        for (size_t i = 0; i < times && b.size() < max_length_; ++i) insert(b, at, part);
        break;
      }
      case 5: {  // overwrite by a range of another input
        const Bytes part = range(corpus[below(corpus.size())]);
        for (size_t i = 0; i < part.size() && at + i < b.size(); ++i) b[at + i] = part[i];
        break;
      }
      case 6:  // splice: this head, the other's tail
        if (const Bytes& other = corpus[below(corpus.size())]; !other.empty()) {
          b.resize(at);
          b.insert(b.end(), other.begin() + static_cast<std::ptrdiff_t>(below(other.size())), other.end());
        }
        break;
      case 7:
      case 8:
        if (!dictionary_.empty()) insert(b, at, dictionary_[below(dictionary_.size())]);
        break;
      case 9: {  // a little-endian 8-, 4- or 2-byte number with an edge-case value
        static constexpr uint64_t kEdges[] = {0,
                                              1,
                                              8,
                                              127,
                                              128,
                                              255,
                                              256,
                                              65535,
                                              65536,
                                              0x7fffffff,
                                              0x80000000,
                                              0xffffffff,
                                              0x100000000,
                                              0x7fffffffffffffff,
                                              0x8000000000000000,
                                              0xffffffffffffffff};
        const uint64_t value = kEdges[below(std::size(kEdges))] + below(3) - 1;
        const size_t width = size_t{2} << below(3);
        for (size_t i = 0; i < width && at + i < b.size(); ++i) b[at + i] = static_cast<uint8_t>(value >> (8 * i));
        break;
      }
      case 10: {  // a decimal number with an edge-case value
        static const char* const kNumbers[] = {"0",   "-1",         "1e999", "18446744073709551616", "9223372036854775808",
                                               "0.1", "4294967296", "-0"};
        const std::string text = kNumbers[below(std::size(kNumbers))];
        insert(b, at, Bytes(text.begin(), text.end()));
        break;
      }
      default:  // replace a digit, so that lengths and offsets disagree
        for (size_t i = 0; i < b.size(); ++i) {
          uint8_t& byte = b[(at + i) % b.size()];
          if (byte >= '0' && byte <= '9') {
            byte = static_cast<uint8_t>('0' + below(10));
            break;
          }
        }
    }
  }

  Bytes range(const Bytes& b) {
    const size_t from = below(b.size());
    const size_t length = std::min(b.size() - from, size_t{1} << below(8));
    return Bytes(b.begin() + static_cast<std::ptrdiff_t>(from), b.begin() + static_cast<std::ptrdiff_t>(from + length));
  }

  static void insert(Bytes& b, size_t at, const Bytes& part) {
    b.insert(b.begin() + static_cast<std::ptrdiff_t>(at), part.begin(), part.end());
  }

  std::mt19937_64 random_;
  size_t max_length_;
  std::vector<Bytes> dictionary_;
};

Options parse(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name.rfind("--", 0) != 0) {
      o.inputs.push_back(name);
      continue;
    }
    if (i + 1 >= argc) std::fprintf(stderr, "fuzz: %s needs a value\n", argv[i]), std::exit(2);
    const std::string value = argv[++i];
    if (name == "--seeds")
      o.seeds = value;
    else if (name == "--dict")
      o.dictionary = value;
    else if (name == "--seconds")
      o.seconds = std::stod(value);
    else if (name == "--seed")
      o.seed = std::stoull(value);
    else if (name == "--max-length")
      o.max_length = std::stoull(value);
    else
      std::fprintf(stderr, "fuzz: unknown option %s\n", name.c_str()), std::exit(2);
  }
  if (const char* seconds = std::getenv("HALFTONE_FUZZ_SECONDS")) o.seconds = std::stod(seconds);
  return o;
}

}  // namespace

// The compiler calls this at every basic block of the instrumented sources (-fsanitize-coverage=trace-pc).
extern "C" __attribute__((no_sanitize("address", "undefined"))) void __sanitizer_cov_trace_pc() {
  const uintptr_t pc = reinterpret_cast<uintptr_t>(__builtin_return_address(0));
  uint8_t& hit = hits[((pc >> 1) * 0x9e3779b97f4a7c15u ^ previous_pc) >> 3 & (kMapSize - 1)];
  if (hit != 255) ++hit;
  previous_pc = (pc >> 1) * 0x9e3779b97f4a7c15u >> 1;
}

// An allocation above 1 GiB means that a size was used before it was validated.
extern "C" const char* __asan_default_options() { return "max_allocation_size_mb=1024:hard_rss_limit_mb=3072"; }

int main(int argc, char** argv) {
  const Options o = parse(argc, argv);
  crash_file = "crash-" + std::filesystem::path(argv[0]).filename().string();
  __sanitizer_set_death_callback(save_current);
  for (const int number : {SIGABRT, SIGALRM}) signal(number, on_signal);

  std::vector<Bytes> corpus;
  for (const std::string& path : o.inputs) run(read_file(path));
  if (!o.inputs.empty()) {
    std::printf("fuzz: %zu inputs passed\n", o.inputs.size());
    return 0;
  }
  if (!o.seeds.empty()) {
    std::vector<std::filesystem::path> paths;
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(o.seeds, error))
      if (entry.is_regular_file()) paths.push_back(entry.path());
    if (error || paths.empty()) return std::fprintf(stderr, "fuzz: no seeds in %s\n", o.seeds.c_str()), 2;
    std::sort(paths.begin(), paths.end());
    for (const auto& path : paths) corpus.push_back(read_file(path.string()));
  }
  if (corpus.empty()) corpus.push_back({});
  const size_t seeds = corpus.size();
  for (const Bytes& input : corpus) run(input);

  Mutator mutator(o.seed, o.max_length, o.dictionary.empty() ? std::vector<Bytes>{} : read_dictionary(o.dictionary));
  const auto start = std::chrono::steady_clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
  uint64_t executions = seeds;
  while (elapsed() < o.seconds) {
    // Half of the time picks one of the newest inputs, to explore from the latest progress.
    const size_t recent = std::min<size_t>(corpus.size(), 32);
    const size_t pick = mutator.below(2) == 0 ? corpus.size() - 1 - mutator.below(recent) : mutator.below(corpus.size());
    const Bytes input = mutator.mutate(corpus[pick], corpus);
    if (run(input)) corpus.push_back(input);
    ++executions;
  }
  const auto edges = std::count_if(seen.begin(), seen.end(), [](uint8_t s) { return s != 0; });
  std::printf("fuzz: %llu executions in %.1f s, %td edges, %zu inputs kept of which %zu seeds, no report\n",
              static_cast<unsigned long long>(executions), elapsed(), edges, corpus.size(), seeds);
  return 0;
}
