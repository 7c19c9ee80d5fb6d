#include "halftone/data/jsonl_line.h"

#include <nlohmann/json.hpp>

#include "halftone/base/error.h"
#include "halftone/base/zero_byte.h"
#include "halftone/data/bad_lines.h"
#include "halftone/data/jsonl_scan.h"
#include "halftone/data/unicode.h"

namespace halftone {
namespace {

using Json = nlohmann::json;

// Extracts the two fields and skips everything else without building a tree: documents are large and other fields many.
class Reader : public nlohmann::json_sax<Json> {
 public:
  Reader(std::string_view line, const std::string& text_key, int64_t vocab_size, JsonlDocument& out)
      : line_(line), text_key_(text_key), vocab_size_(vocab_size), out_(out) {}

  bool null() override { return (depth_ == 1 && field_ != Field::other) || value("null"); }  // a missing field
  bool boolean(bool) override { return value("a boolean"); }
  bool number_integer(number_integer_t v) override { return id(v) || value("a number"); }
  bool number_unsigned(number_unsigned_t v) override {
    return id(v > static_cast<uint64_t>(INT64_MAX) ? INT64_MAX : static_cast<int64_t>(v)) || value("a number");
  }
  bool number_float(number_float_t, const string_t&) override { return value("a number with a fraction"); }
  bool binary(binary_t&) override { return value("binary data"); }
  bool string(string_t& v) override {
    if (depth_ == 1 && field_ == Field::text) {
      out_.text = std::move(v);
      out_.has_text = true;
      return true;
    }
    return value("a string");
  }
  bool start_object(size_t) override {
    if (depth_ > 0) value("an object");
    object_ = object_ || depth_ == 0;
    ++depth_;
    return true;
  }
  bool end_object() override { return --depth_, true; }
  bool start_array(size_t) override {
    if (depth_ == 0) fail("expected one JSON object per line, found an array; write one object per line");
    if (depth_ == 1 && field_ == Field::ids) {
      out_.ids.clear();
      out_.has_ids = in_ids_ = true;
    } else {
      value("a list");
    }
    ++depth_;
    return true;
  }
  bool end_array() override {
    if (--depth_ == 1) in_ids_ = false;
    return true;
  }
  bool key(string_t& k) override {
    if (depth_ == 1) {
      field_ = k == text_key_ ? Field::text : k == "input_ids" ? Field::ids : Field::other;
      has_mask_ = has_mask_ || k == "labels" || k == "loss_mask";
    }
    return true;
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& e) override {
    const size_t at = std::min(position - std::min<size_t>(position, 1), line_.size());  // of the last byte read
    if (const size_t valid = valid_utf8_prefix(line_); valid <= at && valid < line_.size()) fail("{}", not_utf8(line_, valid));
    const std::string what = e.what();
    if (what.find("surrogate") != std::string::npos) {
      const size_t escape = lone_surrogate(at);
      fail("lone surrogate {} at column {}: half of a character", line_.substr(escape, 6), column_of(line_, escape));
    }
    const size_t colon = what.find(": ");
    fail("not valid JSON at column {}: {}", column_of(line_, at), excerpt(colon == std::string::npos ? what : what.substr(colon + 2)));
  }
  bool is_object() const { return object_; }
  bool has_mask() const { return has_mask_; }

 private:
  enum class Field { other, text, ids };

  // Start of the escape at which the parser failed: `at` lies beyond it, because the parser looks for the other half of a pair.
  size_t lone_surrogate(size_t at) const {
    const size_t last = line_.rfind("\\u", at);
    if (last == std::string_view::npos) return at;
    const std::string_view before = last < 6 ? std::string_view() : line_.substr(last - 6, 6);
    const bool pair = before.starts_with("\\u") && (before[2] | 0x20) == 'd' && std::string_view("89ABab").find(before[3]) != before.npos;
    return pair ? last - 6 : last;
  }

  bool id(int64_t v) {
    if (!in_ids_ || depth_ != 2) return false;
    check(v >= 0 && v < vocab_size_, "input_ids holds {}: expected ids from 0 to {}", v, vocab_size_ - 1);
    out_.ids.push_back(static_cast<int32_t>(v));
    return true;
  }
  // A value of the wrong type in one of the two fields is an error; elsewhere it is skipped.
  bool value(const char* found) const {
    check(depth_ != 0, "expected a JSON object, found {}", found);
    check(!in_ids_, "input_ids: expected a list of integers, found {} in it", found);
    if (depth_ == 1) {
      check(field_ != Field::text, "field \"{}\": expected a string, found {}", text_key_, found);
      check(field_ != Field::ids, "input_ids: expected a list of integers, found {}", found);
    }
    return true;
  }

  std::string_view line_;
  const std::string& text_key_;
  int64_t vocab_size_;
  JsonlDocument& out_;
  Field field_ = Field::other;
  bool in_ids_ = false, object_ = false, has_mask_ = false;
  int64_t depth_ = 0;
};

}  // namespace

JsonlDocument parse_jsonl_line(std::string_view line, const std::string& text_key, int64_t vocab_size) {
  JsonlDocument out;
  if (scan_jsonl_text(line, text_key, out.text)) {
    out.has_text = true;
    return out;
  }
  check(zero_byte(line) == std::string_view::npos, "not valid JSON at column {}: a zero byte", column_of(line, zero_byte(line)));
  Reader reader(line, text_key, vocab_size, out);
  Json::sax_parse(line.begin(), line.end(), &reader);
  check(reader.is_object(), "expected a JSON object");
  out.whole_row = !out.has_text && (!out.has_ids || reader.has_mask());
  if (out.has_text) out.has_ids = false;
  return out;
}

}  // namespace halftone
