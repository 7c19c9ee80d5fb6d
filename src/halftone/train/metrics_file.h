#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "halftone/checkpoint/file_io.h"

// metrics.jsonl: one JSON object per line, appended and flushed. Numbers use the fewest digits that read back to the same double and
// always look like a float; nan and infinities, which JSON lacks, are the strings "nan", "inf", "-inf".
namespace halftone {

// Scalars by their names in docs/metrics.md, in output order.
using Scalars = std::vector<std::pair<std::string, double>>;
const double* find_scalar(const Scalars& scalars, std::string_view name);

struct MetricsLine {
  std::string kind;  // "train", "validate", "eval", "quantization", "event", "run"
  std::optional<int64_t> step{};
  double time = 0;  // seconds since 1970
  int64_t rank = 0;
  Scalars scalars{};      // other numeric fields
  std::string message{};  // of an event
};

std::string format_metrics_line(const MetricsLine& line);  // without the newline
// None for anything that is not one of our lines (torn, foreign, larger than 16 MiB); never throws on bad input.
std::optional<MetricsLine> parse_metrics_line(std::string_view text);
// All readable lines of a file; a missing file has none.
std::vector<MetricsLine> read_metrics(const std::filesystem::path& path);

// Before resuming at `step`: drops everything from the first line of a later step on, and a torn end. Returns the bytes dropped.
uint64_t truncate_metrics(const std::filesystem::path& path, int64_t step);
// Before a fresh run: renames the file to metrics-N.jsonl with the first free N from 1. Returns an empty path if there is no file.
std::filesystem::path set_metrics_aside(const std::filesystem::path& path);

class MetricsWriter {
 public:
  MetricsWriter() = default;
  explicit MetricsWriter(const std::filesystem::path& path);  // appends
  bool is_open() const { return file_.is_open(); }
  void write(const MetricsLine& line);
  void write_text(std::string line);  // one complete JSON object

 private:
  File file_;
};

}  // namespace halftone
