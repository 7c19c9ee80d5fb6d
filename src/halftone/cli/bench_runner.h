#pragma once
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include "halftone/cli/bench_timer.h"
#include "halftone/cli/parse.h"
#include "halftone/cli/text_table.h"

// The runner of `halftone bench`: options, cases in turns, a text table and a CSV of the medians.
namespace halftone::bench {

using Words = std::vector<std::string>;
using Shape = std::array<int64_t, 3>;  // M, N, K

// A measurement. The unit of `work` is a benchmark's own: bytes or FLOP.
struct Case {
  Words keys;  // what was measured; none: only a reference, which is not printed
  Parts parts;
  double work = 0;
  std::string reads{}, absent{};  // form of the operands; why there are no parts
};
struct Measured : Case {
  std::vector<double> seconds{}, reference{};  // of each part; nothing if absent
};

// A column of a benchmark's output. A null name leaves it out of the CSV or of the text.
struct Column {
  const char *csv, *text;
  std::string (*cell)(const Measured&);
};
template <size_t I>
std::string key(const Measured& r) {
  return r.keys[I];
}
inline constexpr int kAll = -1;  // all parts
double seconds_of(const std::vector<double>& seconds, int part);
// A number with `digits` significant digits; "" for 0, which stands for none.
std::string number(double value, int digits);
template <int Part = kAll>
std::string milliseconds(const Measured& r) {
  return number(seconds_of(r.seconds, Part) * 1e3, 4);
}
template <int Part = kAll>
std::string ratio(const Measured& r) {  // of speeds
  return r.seconds.empty() ? "" : number(seconds_of(r.reference, Part) / seconds_of(r.seconds, Part), 3);
}
std::string microseconds(const Measured& r);
std::string rate(const Measured& r);  // T units of work a second

struct Benchmark {
  const char *name, *about;
  std::string help;
  std::vector<Column> columns;
};

class Csv {
 public:
  ~Csv();
  void open(const std::string& path);  // Error if it cannot be written, like row and line
  void row(const Words& cells);
  void line(const std::string& text);

 private:
  std::string path_;
  std::FILE* file_ = nullptr;
};

// Use: add options; parse(); refuse values; open(); tables.
class Bench {
 public:
  explicit Bench(Benchmark benchmark);
  CLI::App app;
  CLI::Option* list(const char* option, Words& words, const char* help) { return app.add_option(option, words, help)->delimiter(','); }
  void add_preset();
  void add_turn(const char* help);
  // Adds --device, --csv and --rounds. False after --help.
  bool parse(Arguments args);
  // Prints hardware and versions, opens the CSV, warms up.
  void open(const std::string& detail = "");

  c10::Device device = c10::kCPU;
  std::string preset = "recommended";
  double turn = 0.1;
  int rounds = 0;
  // `words`, or if there are none those of the device.
  Words otherwise(const Words& words, const Words& gpu, const Words& cpu) const {
    return !words.empty() ? words : device.is_cpu() ? cpu : gpu;
  }

  // Measures the cases in turns, against the case at `reference`.
  std::vector<Measured> measure(std::vector<Case> cases, const Turns& turns, size_t reference = 0) const;
  // Writes every row with keys to the CSV.
  void record(const std::vector<Measured>& rows);
  // The same, and prints a table; `title` heads its first column.
  void show(const std::string& title, const std::vector<Measured>& rows);

 private:
  Benchmark benchmark_;
  Words cells(const char* Column::*heading, const Measured& row) const;
  std::string device_name_ = "auto", csv_path_;
  Csv csv_;
};

// Accepts a number from low to high. CLI11's own ranges accept nan and print their largest value in full.
CLI::Validator between(double low, double high);

// "4096" and "1024x4096x2048" (M x N x K) as shapes. Error unless all are multiples of 32 from 32 to 2^20.
std::vector<Shape> parse_shapes(const Words& words, const char* option);
// The same for single sizes; `what` names them in the error.
std::vector<int64_t> parse_sizes(const Words& words, const char* option, const char* what);
// "1024x4096" as as many numbers as `out` has; false for anything else.
bool read_sizes(const std::string& word, std::span<int64_t> out);

// The requested words without duplicates, or all known ones. Error with the nearest word when one does not exist.
Words choose(const Words& wanted, const Words& known, const char* option);
Words names_of(auto&& rows) {
  Words out;
  for (const auto& row : rows) out.emplace_back(row.name);
  return out;
}
inline bool contains(const Words& list, std::string_view word) { return std::find(list.begin(), list.end(), word) != list.end(); }

at::Tensor normal(int64_t rows, int64_t cols, at::ScalarType type, c10::Device device);

}  // namespace halftone::bench
