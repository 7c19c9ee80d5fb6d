#pragma once
#include <cstdint>
#include <string_view>

#include "halftone/data/line_reader.h"

namespace halftone {

// Elements of a file that is one JSON array, one after the other. Memory: the largest element, whose limit is `longest` bytes. Checks what
// is between the elements; their contents are the caller's.
class JsonArrayReader {
 public:
  explicit JsonArrayReader(TextInput input, int64_t longest = kLongestLine);
  // Next element as it is written, valid until the next call; false behind the closing bracket. Error naming file and line for a file that
  // is cut short or has anything else between two elements or behind the last.
  bool next(std::string_view& element);
  // Offset of the element returned last, in the decompressed text.
  int64_t offset() const { return offset_; }

  // Whether a text is an array: the first character that is not blank is a bracket.
  static bool starts(std::string_view text);

 private:
  bool skip_blanks();
  size_t element_size();
  [[noreturn]] void wrong(const char* expected);
  TextInput input_;
  int64_t longest_, offset_ = 0;
  bool first_ = true, ended_ = false;
};

}  // namespace halftone
