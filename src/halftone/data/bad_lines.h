#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace halftone {

// A line, or a row of a table, without a valid document.
struct BadLine {
  std::string file;
  int64_t offset = 0;  // of its first byte
  std::string reason;
  int64_t line = 0;  // from 1; 0: text() counts the lines up to `offset`
  int64_t row = -1;  // of a table: number in the file, from 0; offset means nothing
  // "<file>:<line>: <reason>", which reads the file up to there; "<file>: row <row>: <reason>".
  std::string text() const;
};

// The bad lines of a corpus: their count, and the first few.
struct BadLines {
  int64_t count = 0;
  std::vector<BadLine> first;

  void add(const BadLine& line);
  void add(const BadLines& later);
  // Locations of the first few, one string each.
  std::vector<std::string> places() const;
};

// The message at the start of a run when lines were skipped.
std::string skipped_lines(int64_t count, const std::vector<std::string>& places);

// The first kMostShown bytes of a text, at most: what a message quotes of a line, which may be as long as a document.
inline constexpr size_t kMostShown = 160;
std::string excerpt(const std::string& text);

// Column, from 1 and in characters, of byte `at` of a line that is UTF-8 up to there.
size_t column_of(std::string_view line, size_t at);
// "not UTF-8 at column 7 (byte 0xE9)", for the end of valid_utf8_prefix.
std::string not_utf8(std::string_view line, size_t at);

}  // namespace halftone
