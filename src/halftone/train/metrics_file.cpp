#include "halftone/train/metrics_file.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>

#include "halftone/base/error.h"
#include "halftone/base/log.h"
#include "halftone/checkpoint/json_reader.h"

namespace halftone {
namespace {

constexpr size_t kMaxLine = size_t{16} << 20;  // a run line holds the whole configuration
constexpr uint64_t kMaxFile = uint64_t{4} << 30;

std::string number_text(double value) {
  if (std::isnan(value)) return "\"nan\"";
  if (std::isinf(value)) return value > 0 ? "\"inf\"" : "\"-inf\"";
  std::string text = fmt::format("{}", value);  // the fewest digits that read back to the same value
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string json_string(const std::string& text) { return Json(text).dump(-1, ' ', true, Json::error_handler_t::replace); }

std::optional<double> number_of(const Json& value) {
  if (value.is_number()) return value.get<double>();
  if (!value.is_string()) return std::nullopt;
  const auto& text = value.get_ref<const std::string&>();
  if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (text == "inf") return std::numeric_limits<double>::infinity();
  if (text == "-inf") return -std::numeric_limits<double>::infinity();
  return std::nullopt;
}

}  // namespace

const double* find_scalar(const Scalars& scalars, std::string_view name) {
  for (const auto& [key, value] : scalars)
    if (key == name) return &value;
  return nullptr;
}

std::string format_metrics_line(const MetricsLine& line) {
  std::string text = "{\"kind\":" + json_string(line.kind);
  if (line.step) text += fmt::format(",\"step\":{}", *line.step);
  text += fmt::format(",\"time\":{:.3f},\"rank\":{}", line.time, line.rank);
  if (!line.message.empty()) text += ",\"message\":" + json_string(line.message);
  for (const auto& [name, value] : line.scalars) text += "," + json_string(name) + ":" + number_text(value);
  return text + "}";
}

std::optional<MetricsLine> parse_metrics_line(std::string_view text) {
  if (text.empty() || text.size() > kMaxLine || text.front() != '{') return std::nullopt;
  try {
    const Json root = parse_json(text, "metrics");
    MetricsLine line;
    line.kind = string_member(root, "kind", "metrics");
    if (root.contains("step")) line.step = integer_member(root, "step", "metrics");
    if (line.kind != "run" && !line.step) return std::nullopt;
    line.time = number_member(root, "time", "metrics");
    if (root.contains("rank")) line.rank = integer_member(root, "rank", "metrics");
    if (root.contains("message")) line.message = string_member(root, "message", "metrics");
    if (line.kind == "run") return line;
    for (const auto& [name, value] : root.items()) {
      if (name == "kind" || name == "step" || name == "time" || name == "rank" || name == "message") continue;
      if (const auto number = number_of(value)) line.scalars.emplace_back(name, *number);
    }
    return line;
  } catch (const Error&) {
    return std::nullopt;
  }
}

namespace {

// Calls f(line, begin, end) for every line that ends with a newline; [begin, end) includes it.
template <class F>
void each_line(const std::string& text, F&& f) {
  for (size_t begin = 0; begin < text.size();) {
    const size_t newline = text.find('\n', begin);
    if (newline == std::string::npos) return;
    f(std::string_view(text).substr(begin, newline - begin), begin, newline + 1);
    begin = newline + 1;
  }
}

}  // namespace

std::vector<MetricsLine> read_metrics(const std::filesystem::path& path) {
  std::vector<MetricsLine> lines;
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return lines;
  each_line(read_text(path, kMaxFile), [&](std::string_view text, size_t, size_t) {
    if (auto line = parse_metrics_line(text)) lines.push_back(std::move(*line));
  });
  return lines;
}

uint64_t truncate_metrics(const std::filesystem::path& path, int64_t step) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return 0;
  const std::string text = read_text(path, kMaxFile);
  size_t keep = 0;  // end of the last readable line before the first one of a later step
  bool later = false;
  each_line(text, [&](std::string_view line_text, size_t, size_t end) {
    if (later) return;
    const auto line = parse_metrics_line(line_text);
    if (line && line->step && *line->step > step) later = true;
    if (line && !later) keep = end;
  });
  if (keep == text.size()) return 0;
  File file = File::open_append(path);
  file.truncate(keep);
  file.sync();
  file.close();
  return text.size() - keep;
}

MetricsWriter::MetricsWriter(const std::filesystem::path& path) {
  make_folder(path.parent_path());
  file_ = File::open_append(path);
}

void MetricsWriter::write(const MetricsLine& line) { write_text(format_metrics_line(line)); }

void MetricsWriter::write_text(std::string line) {
  line += '\n';
  file_.write(line.data(), line.size());
}

}  // namespace halftone
