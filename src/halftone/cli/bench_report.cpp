#include "halftone/cli/bench_report.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/headeronly/version.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>

#include "halftone/base/error.h"
#include "halftone/base/parallel.h"
#include "halftone/cli/version.h"
#include "halftone/config/names.h"
#include "halftone/ops/device.h"
#include "halftone/ops/hardware.h"

namespace halftone::bench {
namespace {

// 13000 as the driver and the runtime write 13.0; 130100 as cuBLASLt writes 13.1.0.
std::string cuda_versions() {
  std::string out;
  int version = 0;
  static void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (driver != nullptr) {
    const auto get = reinterpret_cast<int (*)(int*)>(dlsym(driver, "cuDriverGetVersion"));
    if (get != nullptr && get(&version) == 0) out += fmt::format(", driver for CUDA {}.{}", version / 1000, version % 1000 / 10);
  }
  if (const auto get = reinterpret_cast<size_t (*)()>(dlsym(RTLD_DEFAULT, "cublasLtGetVersion"))) {
    const size_t v = get();
    out += fmt::format(", cuBLASLt {}.{}.{}", v / 10000, v / 100 % 100, v % 100);
  }
  return out;
}

}  // namespace

void add_preset(CLI::App& app, std::string& preset) {
  app.add_option("--preset", preset, "options of the recipes: recommended or alto")
      ->capture_default_str()
      ->check(CLI::IsMember({"recommended", "alto"}));
}

void add_common(CLI::App& app, Common& common) {
  app.add_option("--device", common.device, "auto, cpu or cuda")->capture_default_str()->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  const auto named = [](std::string& path) -> std::string { return path.empty() ? "expected the name of a file, found an empty one" : ""; };
  app.add_option("--csv", common.csv, "also write the figures to this file")->check(CLI::Validator(named, "FILE"));
  app.add_option("--rounds", common.rounds, "repetitions, of which the median is reported; 0 = 9 on CUDA, 3 on the CPU")
      ->capture_default_str()
      ->check(CLI::Range(0, 10000));
}

CLI::Validator between(double low, double high) {
  const auto check_number = [low, high](std::string& text) -> std::string {
    char* end = nullptr;
    const double x = std::strtod(text.c_str(), &end);
    if (!text.empty() && *end == 0 && x >= low && x <= high) return "";
    return fmt::format("expected a number from {:g} to {:g}, found '{}'", low, high, text);
  };
  return CLI::Validator(check_number, fmt::format("from {:g} to {:g}", low, high));
}

namespace {

bool good_size(long long size) { return size >= 32 && size <= 1 << 20 && size % 32 == 0; }
bool is_digits(const std::string& word) { return !word.empty() && word.find_first_not_of("0123456789") == std::string::npos; }

}  // namespace

std::vector<Shape> parse_shapes(const std::vector<std::string>& words, const char* option) {
  std::vector<Shape> out;
  for (const std::string& word : words) {
    long long m = 0, n = 0, k = 0;
    int used = 0;
    const int found = std::sscanf(word.c_str(), "%lldx%lldx%lld%n", &m, &n, &k, &used);
    bool good = found == 3 && used == static_cast<int>(word.size());
    if (found == 1 && is_digits(word)) n = k = m, good = true;
    for (const long long size : {m, n, k}) good = good && good_size(size);
    check(good, "{}: expected MxNxK or one number for all three, multiples of 32 from 32 to 1048576, found '{}'", option, word);
    out.push_back({m, n, k});
  }
  return out;
}

std::vector<int64_t> parse_sizes(const std::vector<std::string>& words, const char* option, const char* what) {
  std::vector<int64_t> out;
  for (const std::string& word : words) {
    const long long size = is_digits(word) ? std::strtoll(word.c_str(), nullptr, 10) : 0;
    check(good_size(size), "{}: expected {}, a multiple of 32 from 32 to 1048576, found '{}'", option, what, word);
    out.push_back(size);
  }
  return out;
}

std::vector<std::string> choose(const std::vector<std::string>& wanted, const std::vector<std::string>& known, const char* option) {
  if (wanted.empty()) return known;
  const std::vector<std::string_view> views(known.begin(), known.end());
  std::vector<std::string> chosen;
  for (const std::string& word : wanted) {
    check(std::find(known.begin(), known.end(), word) != known.end(), "{}: there is no '{}'{}; there are {}", option, word,
          nearest_word(word, views), fmt::join(known, ", "));
    if (std::find(chosen.begin(), chosen.end(), word) == chosen.end()) chosen.push_back(word);
  }
  return chosen;
}

std::string description(const char* what, c10::Device device) {
  const std::time_t now = std::time(nullptr);
  char date[32] = {};
  std::strftime(date, sizeof date, "%Y-%m-%d %H:%M UTC", std::gmtime(&now));
  const DeviceInfo info = device_info(device);
  const std::string place =
      device.is_cpu() ? fmt::format("{} ({}), {} threads", info.name, name(hardware_of(device)), max_threads())
                      : fmt::format("{} ({}), {:.0f} GiB{}", info.name, name(hardware_of(device)), info.capacity_gib, cuda_versions());
  return fmt::format("# halftone bench {}: {}, halftone {}, LibTorch {}, {}", what, place, version(), TORCH_VERSION, date);
}

Csv::Csv(const Common& common, const std::string& description, const std::vector<std::string>& columns) : path_(common.csv) {
  if (!path_.empty()) {
    file_ = std::fopen(path_.c_str(), "w");
    check(file_ != nullptr, "--csv {}: cannot be written: {}", path_, std::strerror(errno));
    line(description);
    row(columns);
  }
  print(description);
}

Csv::~Csv() {
  if (file_ != nullptr) std::fclose(file_);
}

void Csv::row(const std::vector<std::string>& cells) {
  if (file_ == nullptr) return;
  line(fmt::format("{}", fmt::join(cells, ",")));
}

void Csv::line(const std::string& text) {
  // Not within check(): its arguments may be evaluated before the call that sets errno.
  const bool written = std::fputs((text + "\n").c_str(), file_) >= 0 && std::fflush(file_) == 0;
  check(written, "--csv {}: cannot be written: {}", path_, std::strerror(errno));
}

std::string number(double value, int digits) {
  if (value == 0) return "";
  int decimals = digits - 1;
  for (double v = value; v >= 10 && decimals > 0; v /= 10) --decimals;
  for (double v = value; v < 1 && v > 0 && decimals < 9; v *= 10) ++decimals;
  return fmt::format("{:.{}f}", value, decimals);
}

}  // namespace halftone::bench
