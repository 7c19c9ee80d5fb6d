#include "halftone/data/bad_lines.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "halftone/data/line_reader.h"
#include "halftone/data/source.h"

namespace halftone {
namespace {

constexpr size_t kPlaces = 3;

}  // namespace

std::string BadLine::text() const {
  if (row >= 0) return fmt::format("{}: row {}: {}", file, row, reason);
  return fmt::format("{}:{}: {}", file, line > 0 ? line : line_number(file, offset), reason);
}

void BadLines::add(const BadLine& line) {
  ++count;
  if (first.size() < kPlaces) first.push_back(line);
}

void BadLines::add(const BadLines& later) {
  count += later.count;
  for (size_t i = 0; i < later.first.size() && first.size() < kPlaces; ++i) first.push_back(later.first[i]);
}

std::vector<std::string> BadLines::places() const {
  std::vector<std::string> out;
  for (const BadLine& line : first) out.push_back(line.text());
  return out;
}

std::string skipped_lines(int64_t count, const std::vector<std::string>& places) {
  return fmt::format("skipped {} bad lines (dataloader.on_bad_line): {}{}", with_commas(count), fmt::join(places, "; "),
                     count > static_cast<int64_t>(places.size()) ? "; ..." : "");
}

std::string excerpt(const std::string& text) {
  if (text.size() <= kMostShown) return text;
  size_t end = kMostShown;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;  // does not split a UTF-8 character
  return text.substr(0, end) + "...";
}

size_t column_of(std::string_view line, size_t at) {
  const std::string_view before = line.substr(0, at);
  return 1 + static_cast<size_t>(std::count_if(before.begin(), before.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

std::string not_utf8(std::string_view line, size_t at) {
  return fmt::format("not UTF-8 at column {} (byte 0x{:02X})", column_of(line, at), static_cast<unsigned char>(line[at]));
}

}  // namespace halftone
