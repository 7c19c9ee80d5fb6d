#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace halftone {

// A line that holds no document.
struct BadLine {
  std::string file;
  int64_t offset = 0;  // of its first byte
  std::string reason;
  // "<file>:<line>: <reason>"; the file is read up to there.
  std::string text() const;
};

// The bad lines of a corpus: how many, and the first few.
struct BadLines {
  int64_t count = 0;
  std::vector<BadLine> first;

  void add(const BadLine& line);
  void add(const BadLines& later);
  // Where the first few are, one string each.
  std::vector<std::string> places() const;
};

// What a run says at its start when lines were skipped.
std::string skipped_lines(int64_t count, const std::vector<std::string>& places);

// Place, from 1 and in characters, of byte `at` of a line that is UTF-8 up to there.
size_t column_of(std::string_view line, size_t at);
// "not UTF-8 at column 7 (byte 0xE9)", for the end of valid_utf8_prefix.
std::string not_utf8(std::string_view line, size_t at);

}  // namespace halftone
