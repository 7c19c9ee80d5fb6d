#include "halftone/data/line_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "halftone/base/error.h"

namespace halftone {
namespace {

constexpr size_t kBlock = size_t{1} << 20;

}  // namespace

TextInput::TextInput(const std::string& path) : path_(path), stream_(open_stream(path)) {}
TextInput::TextInput(const std::string& path, int64_t at) : path_(path), file_(open_bytes(path)), offset_(at) {}

bool TextInput::fill() {
  if (end_) return false;
  if (used_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + used_, filled_ - used_);
    offset_ += static_cast<int64_t>(used_);
    filled_ -= used_;
    used_ = 0;
  }
  // Doubling keeps the cost of a very long line linear.
  if (buffer_.size() < filled_ + kBlock) buffer_.resize(std::max(2 * filled_, filled_ + kBlock));
  const size_t want = buffer_.size() - filled_, before = filled_;
  if (stream_ != nullptr) {
    // Decoders return what one call of theirs yields.
    while (!end_ && filled_ < before + kBlock) {
      const size_t n = stream_->read(buffer_.data() + filled_, buffer_.size() - filled_);
      filled_ += n;
      end_ = n == 0;
    }
  } else {
    const size_t n = file_->read(offset_ + static_cast<int64_t>(filled_), buffer_.data() + filled_, want);
    filled_ += n;
    end_ = n < want;
  }
  return filled_ > before;
}

LineReader::LineReader(TextInput input, int64_t longest)
    : input_(std::move(input)), longest_(longest), line_offset_(input_.offset()), from_start_(input_.offset() == 0) {}

LineReader::LineReader(const std::string& path, int64_t begin, int64_t end, int64_t longest)
    : LineReader(TextInput(path, std::max<int64_t>(begin - 1, 0)), longest) {
  from_start_ = begin == 0;
  if (begin > 0) skip_tail(end);
}

// Skips the line that contains byte begin - 1, but not past `end`: otherwise every piece of one long line would read the rest of it.
void LineReader::skip_tail(int64_t end) {
  while (input_.fill()) {
    const std::string_view text = input_.text();
    const void* hit = std::memchr(text.data(), '\n', text.size());
    input_.consume(hit == nullptr ? text.size() : static_cast<size_t>(static_cast<const char*>(hit) - text.data()) + 1);
    if (hit != nullptr) return;
    if (input_.offset() >= end) break;
  }
  ended_ = true;
}

bool LineReader::next(std::string_view& line) {
  if (ended_) return false;
  size_t searched = 0;
  for (;;) {
    std::string_view text = input_.text();
    const void* hit = text.size() > searched ? std::memchr(text.data() + searched, '\n', text.size() - searched) : nullptr;
    if (hit == nullptr) {
      searched = text.size();
      if (static_cast<int64_t>(searched) <= longest_ && input_.fill()) continue;
      text = input_.text();
      if (text.empty()) return false;
    }
    const size_t length = hit == nullptr ? text.size() : static_cast<size_t>(static_cast<const char*>(hit) - text.data());
    line_offset_ = input_.offset();
    if (from_start_) ++line_number_;
    if (static_cast<int64_t>(length) > longest_)
      fail_too_long(input_.path(), from_start_ ? line_number_ : halftone::line_number(input_.path(), line_offset_), "line", longest_);
    input_.consume(length + (hit == nullptr ? 0 : 1));
    line = text.substr(0, length);
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    return true;
  }
}

int64_t line_number(const std::string& path, int64_t offset) {
  TextInput input(path);
  int64_t line = 1;
  while (input.offset() < offset && input.fill()) {
    const std::string_view text = input.text().substr(0, static_cast<size_t>(offset - input.offset()));
    line += std::count(text.begin(), text.end(), '\n');
    input.consume(text.size());
  }
  return line;
}

void fail_too_long(const std::string& path, int64_t line, const char* what, int64_t limit) {
  fail("{}:{}: a {} of more than {} bytes, the limit of a document; a larger one needs a larger dataloader.max_document_mib", path, line,
       what, limit);
}

}  // namespace halftone
