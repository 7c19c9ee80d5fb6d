#include "halftone/train/metrics_file.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>

#include "halftone/base/error.h"
#include "halftone/base/json_reader.h"
#include "halftone/base/log.h"

namespace halftone {
namespace {

constexpr size_t kMaxLine = size_t{16} << 20;  // a run line holds the entire configuration

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

// Calls f(line, end) for every line that ends with a newline, `end` being the offset after it; an oversized line is passed as empty text.
// Reads files of any size piece by piece.
template <class F>
void each_line(const std::filesystem::path& path, F&& f) {
  constexpr uint64_t kPiece = uint64_t{1} << 20;
  const File file = File::open_read(path);
  const uint64_t size = file.size();
  std::string line, piece;
  bool too_long = false;
  for (uint64_t at = 0; at < size; at += piece.size()) {
    piece.resize(std::min(kPiece, size - at));
    file.read_at(piece.data(), piece.size(), at);
    for (size_t begin = 0; begin < piece.size();) {
      const size_t newline = std::min(piece.find('\n', begin), piece.size());
      too_long = too_long || line.size() + newline - begin > kMaxLine;
      if (!too_long) line.append(piece, begin, newline - begin);
      begin = newline + 1;
      if (newline == piece.size()) break;
      f(too_long ? std::string_view() : std::string_view(line), at + begin);
      line.clear();
      too_long = false;
    }
  }
}

}  // namespace

std::vector<MetricsLine> read_metrics(const std::filesystem::path& path) {
  std::vector<MetricsLine> lines;
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return lines;
  each_line(path, [&](std::string_view text, uint64_t) {
    if (auto line = parse_metrics_line(text)) lines.push_back(std::move(*line));
  });
  return lines;
}

uint64_t truncate_metrics(const std::filesystem::path& path, int64_t step) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return 0;
  uint64_t keep = 0;  // end of the last readable line before the first line of a later step
  bool later = false;
  each_line(path, [&](std::string_view text, uint64_t end) {
    if (later) return;
    const auto line = parse_metrics_line(text);
    if (line && line->step && *line->step > step) later = true;
    if (line && !later) keep = end;
  });
  File file = File::open_append(path);
  const uint64_t size = file.size();
  if (keep == size) return 0;
  file.truncate(keep);
  file.sync();
  file.close();
  return size - keep;
}

std::filesystem::path set_metrics_aside(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return {};
  std::filesystem::path target;
  for (int n = 1; target.empty() || std::filesystem::exists(target, ignored); ++n) {
    target = path.parent_path() / fmt::format("{}-{}{}", path.stem().string(), n, path.extension().string());
  }
  std::error_code problem;
  std::filesystem::rename(path, target, problem);
  check(!problem, "cannot rename {} to {}: {}", path.string(), target.string(), problem.message());
  return target;
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
