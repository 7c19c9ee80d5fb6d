#include "halftone/data/json_array.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "halftone/base/error.h"

namespace halftone {
namespace {

constexpr std::string_view kMark = "\xEF\xBB\xBF", kBlanks = " \t\r\n";

// Scans one JSON value for its end, in pieces: brackets are counted outside of strings.
class ValueScan {
 public:
  // Scans on from text[at]; whether the value ends in the text: then `at` is its end.
  bool scan(std::string_view text, size_t& at) {
    for (; at < text.size(); ++at) {
      if (in_string_) {
        const void* quote = std::memchr(text.data() + at, '"', text.size() - at);
        const size_t end = quote == nullptr ? text.size() : static_cast<size_t>(static_cast<const char*>(quote) - text.data());
        // An odd number of backslashes in front of the quote escapes it.
        size_t slashes = 0;
        while (slashes < end - at && text[end - 1 - slashes] == '\\') ++slashes;
        const bool odd = (slashes + (slashes == end - at && escaped_ ? 1 : 0)) % 2 != 0;
        at = end;
        escaped_ = odd && quote == nullptr;
        if (quote == nullptr) return false;
        in_string_ = odd;
        if (!in_string_ && depth_ == 0) return ++at, true;
        continue;
      }
      const char c = text[at];
      if (c == '"') {
        in_string_ = true;
      } else if (c == '{' || c == '[') {
        ++depth_;
      } else if (c == '}' || c == ']') {
        if (depth_ == 0) return true;  // of the array around a number
        if (--depth_ == 0) return ++at, true;
      } else if (depth_ == 0 && (c == ',' || kBlanks.find(c) != std::string_view::npos)) {
        return true;
      }
    }
    return false;
  }

 private:
  bool in_string_ = false, escaped_ = false;
  int64_t depth_ = 0;
};

}  // namespace

bool JsonArrayReader::starts(std::string_view text) {
  if (text.starts_with(kMark)) text.remove_prefix(kMark.size());
  const size_t at = text.find_first_not_of(kBlanks);
  return at != std::string_view::npos && text[at] == '[';
}

JsonArrayReader::JsonArrayReader(TextInput input, int64_t longest) : input_(std::move(input)), longest_(longest) {}

// Whether there is a character behind blanks.
bool JsonArrayReader::skip_blanks() {
  for (;;) {
    const size_t at = input_.text().find_first_not_of(kBlanks);
    input_.consume(std::min(at, input_.text().size()));
    if (at != std::string_view::npos) return true;
    if (!input_.fill()) return false;
  }
}

void JsonArrayReader::wrong(const char* expected) {
  const std::string_view text = input_.text();
  const auto byte = static_cast<unsigned char>(text.empty() ? 0 : text.front());
  const std::string found = text.empty()                ? "the end of the file: is it cut short?"
                            : byte > ' ' && byte < 0x7F ? std::string(1, text.front())
                                                        : fmt::format("the byte 0x{:02X}", byte);
  fail("{}:{}: a JSON array: expected {}, found {}", input_.path(), line_number(input_.path(), input_.offset()), expected, found);
}

size_t JsonArrayReader::element_size() {
  ValueScan scan;
  size_t at = 0;
  while (!scan.scan(input_.text(), at)) {
    if (static_cast<int64_t>(at) > longest_)
      fail_too_long(input_.path(), line_number(input_.path(), input_.offset()), "document", longest_);
    if (!input_.fill()) {
      input_.consume(input_.text().size());
      wrong("the end of a document");
    }
  }
  if (static_cast<int64_t>(at) > longest_) fail_too_long(input_.path(), line_number(input_.path(), input_.offset()), "document", longest_);
  return at;
}

bool JsonArrayReader::next(std::string_view& element) {
  if (ended_) return false;
  if (first_) {
    if (input_.text().size() < kMark.size()) input_.fill();
    if (input_.text().starts_with(kMark)) input_.consume(kMark.size());
    if (!skip_blanks() || input_.text().front() != '[') wrong("[");
    input_.consume(1);
  }
  if (!skip_blanks()) wrong(first_ ? "a document or ]" : ", or ]");
  const bool closed = input_.text().front() == ']';
  if (!closed && !first_) {
    if (input_.text().front() != ',') wrong(", or ] behind a document");
    input_.consume(1);
    if (!skip_blanks()) wrong("a document");
  }
  if (closed) {
    input_.consume(1);
    if (skip_blanks()) wrong("the end of the file behind ]");
    ended_ = true;
    return false;
  }
  first_ = false;
  const size_t size = element_size();
  offset_ = input_.offset();
  element = input_.text().substr(0, size);
  input_.consume(size);
  return true;
}

}  // namespace halftone
