#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "halftone/storage/byte_stream.h"

namespace halftone {

// A file as a growing window of its text: local or remote, decompressed if its contents are compressed.
class TextInput {
 public:
  explicit TextInput(const std::string& path);     // all of it
  TextInput(const std::string& path, int64_t at);  // from byte `at` on, not decompressed
  const std::string& path() const { return path_; }
  // Bytes that were read and not consumed.
  std::string_view text() const { return {buffer_.data() + used_, filled_ - used_}; }
  // Offset of text() in the file, of a compressed one in its decompressed text.
  int64_t offset() const { return offset_ + static_cast<int64_t>(used_); }
  // Reads about 1 MiB or as much as text() holds behind it, which may move it; false at the end.
  bool fill();
  void consume(size_t n) { used_ += n; }

 private:
  std::string path_, buffer_;
  std::shared_ptr<const ByteFile> file_;  // of a range
  std::unique_ptr<ByteStream> stream_;    // of a whole file
  size_t used_ = 0, filled_ = 0;
  int64_t offset_ = 0;
  bool end_ = false;
};

// Longest line or document by default.
inline constexpr int64_t kLongestLine = int64_t{256} << 20;

// Lines of a text. Memory: the longest line, whose limit is `longest` bytes; a longer one is an Error naming it.
class LineReader {
 public:
  // All lines of a file, decompressed.
  explicit LineReader(TextInput input, int64_t longest = kLongestLine);
  // Lines of a plain file, from the first line that starts at or after `begin` and before `end`.
  LineReader(const std::string& path, int64_t begin, int64_t end, int64_t longest = kLongestLine);
  // Next line without its "\n" or "\r\n", valid until the next call; false at the end of the file.
  bool next(std::string_view& line);
  // Offset of the line returned last.
  int64_t line_offset() const { return line_offset_; }
  // Its number, from 1; 0 if the reader did not start at the start of the file.
  int64_t line_number() const { return line_number_; }

 private:
  void skip_tail(int64_t end);
  TextInput input_;
  int64_t longest_, line_offset_ = 0, line_number_ = 0;
  bool from_start_, ended_ = false;
};

// Number (from 1) of the line that contains byte `offset` of the decompressed text: for messages.
int64_t line_number(const std::string& path, int64_t offset);

// "documents.jsonl.zst:12: a line of more than 256 MiB ..."
[[noreturn]] void fail_too_long(const std::string& path, int64_t line, const char* what, int64_t limit);

}  // namespace halftone
