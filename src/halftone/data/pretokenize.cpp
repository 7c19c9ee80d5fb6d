#include "halftone/data/pretokenize.h"

#include <pcre2.h>

#include "halftone/base/error.h"
#include "halftone/data/pretokenize_ascii.h"
#include "halftone/data/tokenizer_json_fields.h"
#include "halftone/data/tokenizer_regex.h"

namespace halftone {
namespace {

constexpr std::string_view kGpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr size_t kMaxPatternBytes = 16384;

std::string pcre2_message(int code) {
  PCRE2_UCHAR buffer[256];
  return pcre2_get_error_message(code, buffer, sizeof(buffer)) < 0 ? fmt::format("PCRE2 error {}", code)
                                                                   : reinterpret_cast<const char*>(buffer);
}

}  // namespace

// Not in the unnamed namespace: in a unity build this is an included file, and compilers warn about types with members of such types.
struct Pcre2Free {
  void operator()(pcre2_code* p) const { pcre2_code_free(p); }
  void operator()(pcre2_match_data* p) const { pcre2_match_data_free(p); }
  void operator()(pcre2_match_context* p) const { pcre2_match_context_free(p); }
  void operator()(pcre2_jit_stack* p) const { pcre2_jit_stack_free(p); }
};

std::string_view pattern_text(SplitPattern pattern) {
  switch (pattern) {
    case SplitPattern::gpt2:
      return kGpt2;
    case SplitPattern::llama3:
      return kLlama3;
    case SplitPattern::qwen2:
      return kQwen2;
    case SplitPattern::other:
      break;
  }
  return {};
}

SplitPattern split_pattern_by_name(std::string_view name) {
  if (name == "gpt2") return SplitPattern::gpt2;
  if (name == "llama3") return SplitPattern::llama3;
  if (name == "qwen2") return SplitPattern::qwen2;
  fail("unknown pre-tokenisation pattern '{}': expected gpt2, llama3 or qwen2", name);
}

struct Pretokenizer::Compiled {
  std::unique_ptr<pcre2_code, Pcre2Free> code;
  SplitBehavior behavior;
  bool invert;
};

struct Pretokenizer::Scratch::Impl {
  std::unique_ptr<pcre2_match_data, Pcre2Free> match{pcre2_match_data_create(1, nullptr)};
  std::unique_ptr<pcre2_match_context, Pcre2Free> context{pcre2_match_context_create(nullptr)};
  std::unique_ptr<pcre2_jit_stack, Pcre2Free> stack{pcre2_jit_stack_create(32 << 10, 4 << 20, nullptr)};
  std::vector<Range> ranges[2];
};

Pretokenizer::Scratch::Scratch() : impl_(std::make_unique<Impl>()) {
  check(impl_->match && impl_->context && impl_->stack, "out of memory for PCRE2's work space");
  pcre2_jit_stack_assign(impl_->context.get(), nullptr, impl_->stack.get());
}
Pretokenizer::Scratch::~Scratch() = default;
Pretokenizer::Scratch::Scratch(Scratch&&) noexcept = default;
Pretokenizer::Scratch& Pretokenizer::Scratch::operator=(Scratch&&) noexcept = default;

Pretokenizer::Pretokenizer(std::vector<SplitStep> steps) {
  for (const SplitStep& step : steps) {
    check(step.pattern.size() <= kMaxPatternBytes, "a split pattern of {} bytes: expected at most {}", step.pattern.size(),
          kMaxPatternBytes);
    const std::string pattern = step.literal ? step.pattern : pcre2_pattern(step.pattern);
    uint32_t options = PCRE2_UTF | PCRE2_NEVER_BACKSLASH_C;
    options |= step.literal ? PCRE2_LITERAL : PCRE2_UCP | PCRE2_DOLLAR_ENDONLY;
    if (step.literal) options &= ~PCRE2_NEVER_BACKSLASH_C;  // not allowed together
    int error = 0;
    size_t offset = 0;
    pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), options, &error, &offset, nullptr);
    if (code == nullptr) {
      fail("split pattern {} is not a regular expression of PCRE2: {} at byte {} of {}", tokenizer_fields::shown(step.pattern),
           pcre2_message(error), offset, tokenizer_fields::shown(pattern));
    }
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // without it pcre2_match interprets, with the same result
    steps_.push_back({std::unique_ptr<pcre2_code, Pcre2Free>(code), step.behavior, step.invert});
  }
  // The known patterns match everything, so keeping only the matches equals isolating them.
  if (steps.size() == 1 && !steps[0].literal &&
      (steps[0].behavior == SplitBehavior::isolated || (steps[0].behavior == SplitBehavior::removed && steps[0].invert))) {
    for (const SplitPattern p : {SplitPattern::gpt2, SplitPattern::llama3, SplitPattern::qwen2}) {
      if (steps[0].pattern == pattern_text(p)) pattern_ = p;
    }
  }
}
Pretokenizer::~Pretokenizer() = default;
Pretokenizer::Pretokenizer(Pretokenizer&&) noexcept = default;
Pretokenizer& Pretokenizer::operator=(Pretokenizer&&) noexcept = default;

namespace {

// First match at or after `start`; false if there is none. A match never ends before it begins (\K in a lookahead can).
bool find(const pcre2_code* code, std::string_view text, size_t start, pcre2_match_data* match, pcre2_match_context* context,
          Range& found) {
  const auto match_with = [&](uint32_t options) {
    return pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), start, PCRE2_NO_UTF_CHECK | options, match, context);
  };
  int rc = match_with(0);
  if (rc == PCRE2_ERROR_JIT_STACKLIMIT) rc = match_with(PCRE2_NO_JIT);  // the interpreter keeps its backtracking state on the heap
  if (rc == PCRE2_ERROR_NOMATCH) return false;
  if (rc < 0) fail("the tokenizer's split pattern failed at byte {} of a text of {} bytes: {}", start, text.size(), pcre2_message(rc));
  const size_t* v = pcre2_get_ovector_pointer(match);
  found = {v[0], v[1]};
  check(found.begin >= start && found.end >= found.begin, "the tokenizer's split pattern matches backwards at byte {}", start);
  return true;
}

}  // namespace

void Pretokenizer::split(std::string_view text, Scratch& scratch, std::vector<Range>& pieces) const {
  if (pattern_ == SplitPattern::other) return split_by_pcre2(text, scratch, pieces);
  split_known(text, scratch, pieces);
}

namespace {

bool is_ascii_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
// Takes the first byte of a character; false for every character that may be white space in Unicode (U+0080 to U+00BF, U+1000 to U+3FFF).
bool begins_visible(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return (byte > ' ' && byte < 0x7F) || (byte >= 0xC3 && byte <= 0xE0) || byte >= 0xE4;
}
bool ends_visible(std::string_view text) {
  while (!text.empty() && (static_cast<unsigned char>(text.back()) & 0xC0) == 0x80) text.remove_suffix(1);
  return !text.empty() && begins_visible(text.back());
}

}  // namespace

// Cuts before a blank between ASCII letters, which belongs to the letters after it, or after a single line end: all known patterns split
// there in any context.
size_t Pretokenizer::next_cut(std::string_view text, size_t from) const {
  if (pattern_ == SplitPattern::other) return text.size();
  for (size_t i = from; i + 1 < text.size(); ++i) {
    if (text[i] == ' ' && is_ascii_letter(text[i - 1]) && is_ascii_letter(text[i + 1])) return i;
    if (text[i] == '\n' && begins_visible(text[i + 1]) && ends_visible(text.substr(0, i))) return i + 1;
  }
  return text.size();
}

void Pretokenizer::split_known(std::string_view text, Scratch& scratch, std::vector<Range>& pieces) const {
  const auto* s = reinterpret_cast<const uint8_t*>(text.data());
  const pcre2_code* code = steps_[0].code.get();
  auto scan = [&](auto ascii_end) {
    for (size_t p = 0; p < text.size();) {
      Range piece{p, ascii_end(p)};
      if (piece.end == 0) {
        const bool matched = find(code, text, p, scratch.impl_->match.get(), scratch.impl_->context.get(), piece);
        // One of the alternatives matches every character.
        check(matched && piece.begin == p && piece.end > p, "the split pattern does not match at byte {}", p);
      }
      pieces.push_back(piece);
      p = piece.end;
    }
  };
  const size_t n = text.size();
  switch (pattern_) {
    case SplitPattern::gpt2:
      return scan([&](size_t p) { return ascii_piece_end<SplitPattern::gpt2>(s, p, n); });
    case SplitPattern::llama3:
      return scan([&](size_t p) { return ascii_piece_end<SplitPattern::llama3>(s, p, n); });
    default:
      return scan([&](size_t p) { return ascii_piece_end<SplitPattern::qwen2>(s, p, n); });
  }
}

void Pretokenizer::split_by_pcre2(std::string_view text, Scratch& scratch, std::vector<Range>& pieces) const {
  if (text.empty()) return;
  std::vector<Range>& in = scratch.impl_->ranges[0];
  std::vector<Range>& out = scratch.impl_->ranges[1];
  in.assign(1, Range{0, text.size()});
  for (const Compiled& step : steps_) {
    out.clear();
    for (const Range outer : in) {
      const std::string_view part = text.substr(outer.begin, outer.end - outer.begin);
      bool joins = false;  // the last piece is a match that may grow
      auto emit = [&](size_t begin, size_t end, bool matched) {
        matched ^= step.invert;
        if (begin == end || (matched && step.behavior == SplitBehavior::removed)) return;
        if (step.behavior == SplitBehavior::contiguous && matched && joins) {
          out.back().end = outer.begin + end;
        } else {
          out.push_back({outer.begin + begin, outer.begin + end});
        }
        joins = matched;
      };
      size_t done = 0, start = 0;
      Range m{};
      while (start <= part.size() && find(step.code.get(), part, start, scratch.impl_->match.get(), scratch.impl_->context.get(), m)) {
        emit(done, m.begin, false);
        emit(m.begin, m.end, true);
        done = start = m.end;
        if (m.begin == m.end) {  // an empty match only splits; continues after the next character
          ++start;
          while (start < part.size() && (static_cast<uint8_t>(part[start]) & 0xC0) == 0x80) ++start;
        }
      }
      emit(done, part.size(), false);
    }
    in.swap(out);
  }
  pieces.insert(pieces.end(), in.begin(), in.end());
}

}  // namespace halftone
