#pragma once
#include <c10/core/Device.h>

#include <array>
#include <cstdio>
#include <string>
#include <vector>

#include "halftone/cli/parse.h"
#include "halftone/cli/text_table.h"

namespace halftone::bench {

using Shape = std::array<int64_t, 3>;  // M, N, K

// Options of every benchmark.
struct Common {
  std::string device = "auto", csv;
  int rounds = 0;  // 0: 9 on CUDA, 3 on the CPU
  int rounds_for(c10::Device device) const { return rounds > 0 ? rounds : device.is_cpu() ? 3 : 9; }
};
void add_common(CLI::App& app, Common& common);
void add_preset(CLI::App& app, std::string& preset);  // of recipes

// Accepts a number from low to high. CLI11's own ranges accept nan and print their largest value in full.
CLI::Validator between(double low, double high);

// "4096" and "1024x4096x2048" (M x N x K) as shapes. Error unless all are multiples of 32 from 32 to 2^20.
std::vector<Shape> parse_shapes(const std::vector<std::string>& words, const char* option);
// The same for single sizes; `what` names them in the error.
std::vector<int64_t> parse_sizes(const std::vector<std::string>& words, const char* option, const char* what);

// The requested words without duplicates, or all known ones. Error with the nearest word when one does not exist.
std::vector<std::string> choose(const std::vector<std::string>& wanted, const std::vector<std::string>& known, const char* option);

// "# halftone bench mm: NVIDIA H200, ...": hardware, versions and date in one line.
std::string description(const char* what, c10::Device device);

// Prints the description. With a path it also writes the description, the column names and every row there. Error when that fails.
class Csv {
 public:
  Csv(const Common& common, const std::string& description, const std::vector<std::string>& columns);
  ~Csv();
  Csv(const Csv&) = delete;
  Csv& operator=(const Csv&) = delete;
  void row(const std::vector<std::string>& cells);

 private:
  void line(const std::string& text);
  std::string path_;
  std::FILE* file_ = nullptr;
};

// A number with `digits` significant digits; "" for 0, which stands for none.
std::string number(double value, int digits);

}  // namespace halftone::bench
