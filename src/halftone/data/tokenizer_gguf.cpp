#include "halftone/data/tokenizer_gguf.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <span>

#include "halftone/base/error.h"
#include "halftone/data/tokenizer_json_fields.h"
#include "halftone/data/unicode.h"

namespace halftone {
namespace {

constexpr std::string_view kTekken =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kO200k =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kDeepSeekWords =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// How llama.cpp splits under a name, and whether a piece that is a token stays whole whatever the merges say.
enum class Whole { no, yes, either };
struct PreTokenizer {
  std::string_view name;
  std::vector<std::string_view> patterns;
  Whole whole;
};

// The first row that fits is taken.
const std::vector<PreTokenizer>& pre_tokenizers() {
  static const std::vector<PreTokenizer> table = {
      {"gpt-2", {pattern_text(SplitPattern::gpt2)}, Whole::no},
      {"llama-bpe", {pattern_text(SplitPattern::llama3)}, Whole::yes},
      {"smaug-bpe", {pattern_text(SplitPattern::llama3)}, Whole::no},
      {"qwen2", {pattern_text(SplitPattern::qwen2)}, Whole::no},
      {"gpt-4o", {kO200k}, Whole::either},  // every token of published files is what the merges make of its bytes
      {"tekken", {kTekken}, Whole::yes},
      {"smollm", {R"(\p{N})", pattern_text(SplitPattern::gpt2)}, Whole::no},
      {"deepseek-v3", {R"(\p{N}{1,3})", "[一-龥぀-ゟ゠-ヿ]+", kDeepSeekWords}, Whole::no},
  };
  return table;
}

bool isolates(const SplitStep& step) {
  return !step.literal && step.behavior == (step.invert ? SplitBehavior::removed : SplitBehavior::isolated);
}

bool fits(const PreTokenizer& row, const TokenizerSpec& spec) {
  const bool whole = row.whole == Whole::either || (row.whole == Whole::yes) == spec.options.ignore_merges;
  return whole && std::equal(spec.splits.begin(), spec.splits.end(), row.patterns.begin(), row.patterns.end(),
                             [](const SplitStep& step, std::string_view pattern) { return isolates(step) && step.pattern == pattern; });
}

std::string pre_tokenizer_of(const TokenizerSpec& spec) {
  std::vector<std::string_view> names;
  for (const PreTokenizer& row : pre_tokenizers()) {
    if (fits(row, spec)) return std::string(row.name);
    names.push_back(row.name);
  }
  fail("tokenizer: GGUF names split patterns, and that of this tokenizer is none of {}: {}", fmt::join(names, ", "),
       spec.splits.empty() ? "it has none" : tokenizer_fields::shown(spec.splits[0].pattern));
}

// True where the only added id is that of `token`, false without any.
bool adds(const std::vector<int32_t>& ids, const std::string& token, const TokenizerSpec& spec, const char* what) {
  if (ids.empty()) return false;
  const bool known = ids.size() == 1 && ids[0] >= 0 && ids[0] < spec.vocab_size();
  check(known && !token.empty() && spec.tokens[static_cast<size_t>(ids[0])] == token,
        "tokenizer: GGUF can add {} alone; the post_processor adds the ids {}", what, fmt::join(ids, ", "));
  return true;
}

std::string text_of(const TokenizerSpec& spec, size_t id) {
  return spec.text_tokens[id].empty() ? spec.tokens[id] : bytes_to_alphabet(spec.text_tokens[id]);
}

}  // namespace

GgufTokenizer gguf_tokenizer(const TokenizerSpec& spec, int64_t vocab_size) {
  using Type = GgufTokenizer::TokenType;
  check(spec.model == TokenizerModel::bpe,
        "tokenizer: GGUF holds byte-level BPE, this one is word level; leave the tokenizer out of the folder");
  check(!spec.add_prefix_space, "tokenizer: GGUF's byte-level BPE prefixes no blank (add_prefix_space = true)");
  check(vocab_size >= spec.vocab_size(), "the tokenizer has {} entries, the model a vocabulary of {}", spec.vocab_size(), vocab_size);
  GgufTokenizer out;
  out.pre = pre_tokenizer_of(spec);
  out.add_bos = adds(spec.prefix, spec.bos_token, spec, "BOS in front"),
  out.add_eos = adds(spec.suffix, spec.eos_token, spec, "EOS behind");
  const auto n = static_cast<size_t>(vocab_size);
  out.tokens.resize(n), out.types.assign(n, static_cast<int32_t>(Type::normal));
  for (size_t id = 0; id < n; ++id) {
    const bool used = id < spec.tokens.size() && !spec.tokens[id].empty();
    if (!used) out.types[id] = static_cast<int32_t>(Type::unused);
    out.tokens[id] = used ? text_of(spec, id) : fmt::format("[PAD{}]", id);
  }
  for (const AddedToken& t : spec.added) {
    check(!t.lstrip && !t.rstrip && !t.single_word,
          "tokenizer: GGUF's added tokens are found anywhere and take no white space with them; {} has lstrip, rstrip or single_word",
          tokenizer_fields::shown(t.content));
    const auto id = static_cast<size_t>(t.id);
    out.tokens[id] = t.content, out.types[id] = static_cast<int32_t>(t.special ? Type::control : Type::user_defined);
  }
  for (const BpeMerge& m : spec.merges)
    out.merges.push_back(text_of(spec, static_cast<size_t>(m.left)) + " " + text_of(spec, static_cast<size_t>(m.right)));
  return out;
}

}  // namespace halftone
