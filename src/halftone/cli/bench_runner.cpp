#include "halftone/cli/bench_runner.h"

#include <ATen/Context.h>
#include <ATen/ops/randn.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/headeronly/version.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <ctime>
#include <numeric>

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

// "# halftone bench mm: NVIDIA H200, ...": hardware, versions and date in one line.
std::string description(const char* what, c10::Device device) {
  const std::time_t now = std::time(nullptr);
  char date[32] = {};
  std::strftime(date, sizeof date, "%Y-%m-%d %H:%M UTC", std::gmtime(&now));
  const DeviceInfo info = device_info(device);
  const std::string more =
      device.is_cpu() ? fmt::format("{} threads", max_threads()) : fmt::format("{:.0f} GiB{}", info.capacity_gib, cuda_versions());
  return fmt::format("# halftone bench {}: {} ({}), {}, halftone {}, LibTorch {}, {}", what, info.name, name(hardware_of(device)), more,
                     version(), TORCH_VERSION, date);
}

constexpr int64_t kLargest = 1 << 20;
bool good_size(int64_t size) { return size >= 32 && size <= kLargest && size % 32 == 0; }

}  // namespace

double seconds_of(const std::vector<double>& seconds, int part) {
  if (part != kAll) return seconds[static_cast<size_t>(part)];
  return std::accumulate(seconds.begin(), seconds.end(), 0.0);
}
std::string microseconds(const Measured& r) { return number(seconds_of(r.seconds, kAll) * 1e6, 4); }
std::string rate(const Measured& r) { return r.seconds.empty() ? "" : number(r.work / seconds_of(r.seconds, kAll) * 1e-12, 4); }

std::string number(double value, int digits) {
  if (value == 0) return "";
  int decimals = digits - 1;
  for (double v = value; v >= 10 && decimals > 0; v /= 10) --decimals;
  for (double v = value; v < 1 && v > 0 && decimals < 9; v *= 10) ++decimals;
  return fmt::format("{:.{}f}", value, decimals);
}

Csv::~Csv() {
  if (file_ != nullptr) std::fclose(file_);
}

void Csv::open(const std::string& path) {
  path_ = path, file_ = std::fopen(path.c_str(), "w");
  check(file_ != nullptr, "--csv {}: cannot be written: {}", path_, std::strerror(errno));
}

void Csv::row(const Words& cells) { line(fmt::format("{}", fmt::join(cells, ","))); }

void Csv::line(const std::string& text) {
  if (file_ == nullptr) return;
  // Not within check(): its arguments may be evaluated before the call that sets errno.
  const bool written = std::fputs((text + "\n").c_str(), file_) >= 0 && std::fflush(file_) == 0;
  check(written, "--csv {}: cannot be written: {}", path_, std::strerror(errno));
}

Bench::Bench(Benchmark benchmark)
    : app(benchmark.about, fmt::format("halftone bench {}", benchmark.name)), benchmark_(std::move(benchmark)) {
  app.footer(benchmark_.help);
}

void Bench::add_preset() {
  app.add_option("--preset", preset, "options of the recipes: recommended or alto")
      ->capture_default_str()
      ->check(CLI::IsMember({"recommended", "alto"}));
}

void Bench::add_turn(const char* help) { app.add_option("--turn", turn, help)->capture_default_str()->check(between(0, 10)); }

bool Bench::parse(Arguments args) {
  app.add_option("--device", device_name_, "auto, cpu or cuda")->capture_default_str()->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  const auto named = [](std::string& path) -> std::string { return path.empty() ? "expected the name of a file, found an empty one" : ""; };
  app.add_option("--csv", csv_path_, "also write the figures to this file")->check(CLI::Validator(named, "FILE"));
  app.add_option("--rounds", rounds, "repetitions, of which the median is reported; 0 = 9 on CUDA, 3 on the CPU")
      ->capture_default_str()
      ->check(CLI::Range(0, 10000));
  if (!halftone::parse(app, args)) return false;
  device = select_device(device_name_, 0);
  if (rounds == 0) rounds = device.is_cpu() ? 3 : 9;
  const CLI::Option* given = app.get_option_no_throw("--turn");
  if (device.is_cpu() && given != nullptr && given->count() == 0) turn = 0;
  return true;
}

void Bench::open(const std::string& detail) {
  const std::string title = description(benchmark_.name, device) + detail;
  if (!csv_path_.empty()) {
    csv_.open(csv_path_);
    csv_.line(title);
    Words head;
    for (const Column& c : benchmark_.columns)
      if (c.csv != nullptr) head.emplace_back(c.csv);
    csv_.row(head);
  }
  print(title);
  at::manual_seed(1);
  warm_up(device);
}

std::vector<Measured> Bench::measure(std::vector<Case> cases, const Turns& turns, size_t reference) const {
  std::vector<Measured> out;
  std::vector<Parts> works;
  for (Case& c : cases) {
    if (!c.parts.empty()) works.push_back(std::move(c.parts));
    out.push_back({std::move(c)});
  }
  const auto seconds = time_in_turns(device, works, turns);
  size_t timed = 0;
  for (Measured& r : out)
    if (r.absent.empty()) r.seconds = seconds[timed++];
  for (Measured& r : out) r.reference = out[reference].seconds;
  return out;
}

Words Bench::cells(const char* Column::*heading, const Measured& row) const {
  Words out;
  for (const Column& c : benchmark_.columns)
    if (c.*heading != nullptr) out.push_back(c.cell(row));
  return out;
}

void Bench::record(const std::vector<Measured>& rows) {
  for (const Measured& r : rows)
    if (!r.keys.empty()) csv_.row(cells(&Column::csv, r));
}

void Bench::show(const std::string& title, const std::vector<Measured>& rows) {
  Words head;
  for (const Column& c : benchmark_.columns)
    if (c.text != nullptr) head.emplace_back(head.empty() ? title : c.text);
  TextTable table(head);
  for (const Measured& r : rows)
    if (!r.keys.empty()) table.row(cells(&Column::text, r));
  print("\n" + table.text());
  record(rows);
  std::fflush(stdout);
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

bool read_sizes(const std::string& word, std::span<int64_t> out) {
  const char *at = word.data(), *const end = at + word.size();
  for (size_t i = 0; i < out.size(); ++i) {
    if (i > 0 && (at == end || *at++ != 'x')) return false;
    const auto [next, error] = std::from_chars(at, end, out[i]);
    if (error != std::errc() || *at == '-') return false;
    at = next;
  }
  return at == end;
}

std::vector<Shape> parse_shapes(const Words& words, const char* option) {
  std::vector<Shape> out;
  for (const std::string& word : words) {
    Shape s{};
    bool good = read_sizes(word, s);
    if (!good && read_sizes(word, {s.data(), 1})) s[1] = s[2] = s[0], good = true;
    check(good && std::all_of(s.begin(), s.end(), good_size),
          "{}: expected MxNxK or one number for all three, multiples of 32 from 32 to {}, found '{}'", option, kLargest, word);
    out.push_back(s);
  }
  return out;
}

std::vector<int64_t> parse_sizes(const Words& words, const char* option, const char* what) {
  std::vector<int64_t> out;
  for (const std::string& word : words) {
    const bool good = read_sizes(word, {&out.emplace_back(), 1}) && good_size(out.back());
    check(good, "{}: expected {}, a multiple of 32 from 32 to {}, found '{}'", option, what, kLargest, word);
  }
  return out;
}

Words choose(const Words& wanted, const Words& known, const char* option) {
  if (wanted.empty()) return known;
  const std::vector<std::string_view> views(known.begin(), known.end());
  Words chosen;
  for (const std::string& word : wanted) {
    check(contains(known, word), "{}: there is no '{}'{}; there are {}", option, word, nearest_word(word, views), fmt::join(known, ", "));
    if (!contains(chosen, word)) chosen.push_back(word);
  }
  return chosen;
}

at::Tensor normal(int64_t rows, int64_t cols, at::ScalarType type, c10::Device device) {
  return at::randn({rows, cols}, at::TensorOptions().device(device).dtype(type));
}

}  // namespace halftone::bench
