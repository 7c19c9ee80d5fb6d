#include "halftone/data/tokenizer.h"

#include <algorithm>
#include <mutex>

#include "halftone/base/error.h"
#include "halftone/base/log.h"
#include "halftone/data/bpe_model.h"
#include "halftone/data/pretokenize.h"
#include "halftone/data/tokenizer_added.h"
#include "halftone/data/tokenizer_json.h"
#include "halftone/data/tokenizer_json_fields.h"
#include "halftone/data/unicode.h"

namespace halftone {
namespace {

// Added tokens that are matched before (false) or after (true) normalisation.
std::vector<AddedToken> select(const std::vector<AddedToken>& tokens, bool normalized, bool nfc) {
  std::vector<AddedToken> out;
  for (const AddedToken& token : tokens) {
    if (token.normalized != normalized) continue;
    out.push_back(token);
    if (normalized && nfc) out.back().content = to_nfc(token.content);
  }
  return out;
}

constexpr size_t kPart = size_t{1} << 20;

}  // namespace

struct Tokenizer::Impl {
  // Working memory of one encode call; reused, so that caches stay warm.
  struct Workspace {
    Pretokenizer::Scratch split;
    BpeModel::Scratch merge;
    std::vector<Range> pieces;
    std::string normalized, prefixed;
  };

  std::string json, config_json;
  TokenizerModel model;
  StringTable tokens;  // what ids decode to
  std::vector<bool> special;
  BpeModel bpe;
  StringTable words;  // word level
  int32_t unknown = -1;
  bool nfc = false, add_prefix_space = false;
  bool special_words = false;  // whether the model itself may map text to a special token
  size_t merge_count = 0, added_count = 0;
  Pretokenizer pretokenizer;
  AddedTokenMatcher added, added_normalized;
  std::vector<int32_t> prefix, suffix;
  std::optional<int32_t> bos, eos;
  std::vector<std::pair<std::string, int32_t>> added_by_content;  // sorted

  mutable std::mutex mutex;
  mutable std::vector<std::unique_ptr<Workspace>> idle;

  Impl(const TokenizerSpec& spec, std::string json_text, std::string config_text)
      : json(std::move(json_text)),
        config_json(std::move(config_text)),
        model(spec.model),
        tokens(spec.tokens),
        special(spec.tokens.size()),
        unknown(spec.options.unknown),
        nfc(spec.nfc),
        add_prefix_space(spec.add_prefix_space),
        merge_count(spec.merges.size()),
        added_count(spec.added.size()),
        pretokenizer(spec.splits),
        added(select(spec.added, false, spec.nfc)),
        added_normalized(select(spec.added, true, spec.nfc)),
        prefix(spec.prefix),
        suffix(spec.suffix) {
    if (model == TokenizerModel::bpe) {
      bpe = BpeModel(StringTable(spec.text_tokens), spec.merges, spec.options);
    } else {
      words = StringTable(spec.text_tokens);
    }
    added_by_content.reserve(spec.added.size());
    for (const AddedToken& token : spec.added) {
      if (token.special) special[token.id] = true;
      special_words |= token.special && !spec.text_tokens[token.id].empty();
      added_by_content.emplace_back(token.content, token.id);
    }
    std::sort(added_by_content.begin(), added_by_content.end());
    const auto named = [&](const char* key, const std::string& name) -> std::optional<int32_t> {
      if (name.empty()) return std::nullopt;
      const std::optional<int32_t> id = find(name);
      if (!id) log_warning("tokenizer: the {} {} is not in the vocabulary; there is none", key, tokenizer_fields::shown(name));
      return id;
    };
    bos = named("bos_token", spec.bos_token), eos = named("eos_token", spec.eos_token);
  }

  std::optional<int32_t> find(std::string_view content) const {
    const auto at = std::lower_bound(added_by_content.begin(), added_by_content.end(), content,
                                     [](const auto& entry, std::string_view key) { return entry.first < key; });
    if (at != added_by_content.end() && at->first == content) return at->second;
    const int32_t id = tokens.find(content);
    return id < 0 ? std::nullopt : std::optional(id);
  }

  class Lease {
   public:
    explicit Lease(const Impl& owner) : owner_(owner) {
      {
        const std::lock_guard lock(owner.mutex);
        if (!owner.idle.empty()) {
          workspace_ = std::move(owner.idle.back());
          owner.idle.pop_back();
        }
      }
      if (!workspace_) workspace_ = std::make_unique<Workspace>();
    }
    ~Lease() {
      const std::lock_guard lock(owner_.mutex);
      owner_.idle.push_back(std::move(workspace_));
    }
    Workspace& operator*() { return *workspace_; }

   private:
    const Impl& owner_;
    std::unique_ptr<Workspace> workspace_;
  };

  // Text between added tokens.
  void encode_plain(std::string_view text, Workspace& w, std::vector<int32_t>& out) const {
    if (text.empty()) return;
    if (add_prefix_space && text[0] != ' ') {
      w.prefixed.assign(" ").append(text);
      text = w.prefixed;
    }
    if (model == TokenizerModel::bpe) {
      // Part by part: the pieces of a large document would need several times its memory.
      const char* end = text.data() + text.size();
      for (size_t cut = 0; !text.empty(); text.remove_prefix(cut)) {
        cut = pretokenizer.next_cut(text, kPart);
        w.pieces.clear();
        pretokenizer.split(text.substr(0, cut), w.split, w.pieces);
        for (const Range& r : w.pieces) bpe.encode_piece(text.substr(r.begin, r.end - r.begin), end, w.merge, out);
      }
      return;
    }
    w.pieces.clear();
    pretokenizer.split(text, w.split, w.pieces);
    for (const Range& r : w.pieces) {
      const int32_t id = words.find(text.substr(r.begin, r.end - r.begin));
      if (id >= 0 || unknown >= 0) out.push_back(id >= 0 ? id : unknown);
    }
  }

  using Match = AddedTokenMatcher::Match;

  // Calls added(match) for the matcher's tokens and plain(text) on the text between them, in order.
  template <class Added, class Plain>
  static void cut(const AddedTokenMatcher& matcher, std::string_view text, bool special, Added&& added, Plain&& plain) {
    size_t done = 0, from = 0;
    Match match{};
    while (!matcher.empty() && matcher.find(text, from, done, special, match, from)) {
      if (match.begin > done) plain(text.substr(done, match.begin - done));
      added(match);
      done = match.end;
    }
    if (done < text.size()) plain(text.substr(done));
  }

  // The text must be well-formed UTF-8.
  void encode_valid(std::string_view text, bool special_tokens, Workspace& w, std::vector<int32_t>& out) const {
    const auto push = [&](const Match& match) { out.push_back(match.id); };
    cut(added, text, special_tokens, push, [&](std::string_view part) {
      if (nfc) {
        w.normalized = to_nfc(part);
        part = w.normalized;
      }
      cut(added_normalized, part, special_tokens, push, [&](std::string_view rest) { encode_plain(rest, w, out); });
    });
  }

  // Where positions of `text` (ascending, below its size) lie in its normal form.
  static void move_to_nfc(std::string_view text, std::span<size_t> positions) {
    // Text splits before an ASCII character: it composes with nothing in front of it.
    size_t done = 0, length = 0;
    for (size_t& position : positions) {
      size_t split = position;
      while (split > done && (static_cast<uint8_t>(text[split]) & 0x80) != 0) --split;
      length += to_nfc(text.substr(done, split - done)).size();
      const size_t beyond = split == position ? 0 : to_nfc(text.substr(split, position - split)).size();
      done = split;
      position = length + beyond;
    }
  }

  void encode_marked(std::string_view text, std::span<const size_t> switches, std::vector<int32_t>& out,
                     std::vector<uint8_t>& marks) const {
    Lease lease(*this);
    Workspace& w = *lease;
    std::vector<size_t> inside;
    const auto mark = [&](size_t position, bool before) {
      const auto passed = std::upper_bound(inside.begin(), inside.end(), position) - inside.begin();
      marks.push_back((passed % 2 != 0) != before ? 1 : 0);
    };
    const auto passed_at = [&](size_t position) { return std::upper_bound(switches.begin(), switches.end(), position) - switches.begin(); };
    const auto push = [&](const Match& match) {
      out.push_back(match.id);
      marks.push_back(passed_at(match.begin) % 2 != 0 ? 1 : 0);
    };
    cut(added, text, true, push, [&](std::string_view part) {
      const auto begin = static_cast<size_t>(part.data() - text.data());
      const auto first = passed_at(begin);
      const bool before = first % 2 != 0;
      inside.clear();
      for (auto i = static_cast<size_t>(first); i < switches.size() && switches[i] < begin + part.size(); ++i)
        inside.push_back(switches[i] - begin);
      if (nfc) {
        move_to_nfc(part, inside);
        w.normalized = to_nfc(part);
        part = w.normalized;
      }
      const auto push_inner = [&](const Match& match) {
        out.push_back(match.id);
        mark(match.begin, before);
      };
      cut(added_normalized, part, true, push_inner, [&](std::string_view rest) {
        const size_t from = out.size(), start = static_cast<size_t>(rest.data() - part.data());
        const size_t blank = add_prefix_space && rest[0] != ' ' ? 1 : 0;  // that encode_plain puts in front
        encode_plain(rest, w, out);
        size_t at = 0;  // in the text with the blank
        for (size_t i = from; i < out.size(); ++i) {
          mark(start + at - std::min(at, blank), before);
          at += tokens[out[i]].size();
        }
        check(inside.empty() || at == rest.size() + blank,
              "the tokenizer's tokens do not spell out the text, so that a loss on a part of a conversation has no exact place; expected "
              "byte-level BPE");
      });
    });
  }

  void append_byte(char byte, std::vector<int32_t>& out) const {
    const int32_t id = model == TokenizerModel::bpe ? bpe.byte_id(static_cast<uint8_t>(byte)) : -1;
    if (id >= 0 || unknown >= 0) out.push_back(id >= 0 ? id : unknown);
  }

  // Replaces special tokens in out[begin..] that the model produced from text (a vocabulary word, a merge) by bytes or the unknown token.
  void spell_out(std::vector<int32_t>& out, size_t begin) const {
    const auto is_control = [&](int32_t id) { return special[id] && id != unknown; };
    const auto first = std::find_if(out.begin() + static_cast<std::ptrdiff_t>(begin), out.end(), is_control);
    const std::vector<int32_t> rest(first, out.end());
    out.erase(first, out.end());
    for (const int32_t id : rest) {
      if (!is_control(id)) {
        out.push_back(id);
      } else if (model == TokenizerModel::bpe) {
        for (const char byte : tokens[id]) append_byte(byte, out);
      } else if (unknown >= 0) {
        out.push_back(unknown);
      }
    }
  }

  void encode(std::string_view text, bool special_tokens, std::vector<int32_t>& out) const {
    Lease lease(*this);
    const size_t begin = out.size();
    while (!text.empty()) {
      const size_t valid = valid_utf8_prefix(text);
      if (valid > 0) encode_valid(text.substr(0, valid), special_tokens, *lease, out);
      if (valid == text.size()) break;
      append_byte(text[valid], out);
      text.remove_prefix(valid + 1);
    }
    if (!special_tokens && special_words) spell_out(out, begin);
  }
};

Tokenizer Tokenizer::parse(std::string_view tokenizer_json, std::string_view tokenizer_config_json) {
  const TokenizerSpec spec = parse_tokenizer_json(tokenizer_json, tokenizer_config_json);
  return Tokenizer(std::make_shared<const Impl>(spec, std::string(tokenizer_json), std::string(tokenizer_config_json)));
}

Tokenizer Tokenizer::from_spec(const TokenizerSpec& spec) {
  return Tokenizer(std::make_shared<const Impl>(spec, write_tokenizer_json(spec), write_tokenizer_config_json(spec)));
}

const std::string& Tokenizer::tokenizer_json() const { return impl_->json; }
const std::string& Tokenizer::tokenizer_config_json() const { return impl_->config_json; }

void Tokenizer::encode_append(std::string_view text, std::vector<int32_t>& out, bool add_special_tokens) const {
  if (add_special_tokens) out.insert(out.end(), impl_->prefix.begin(), impl_->prefix.end());
  impl_->encode(text, true, out);
  if (add_special_tokens) out.insert(out.end(), impl_->suffix.begin(), impl_->suffix.end());
}

void Tokenizer::encode_marked_append(std::string_view text, std::span<const size_t> switches, std::vector<int32_t>& out,
                                     std::vector<uint8_t>& marks) const {
  check(is_valid_utf8(text), "a conversation is not UTF-8 at byte {}", valid_utf8_prefix(text));
  impl_->encode_marked(text, switches, out, marks);
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool add_special_tokens) const {
  std::vector<int32_t> out;
  out.reserve(text.size() / 3 + 8);
  encode_append(text, out, add_special_tokens);
  return out;
}

void Tokenizer::encode_document_append(std::string_view text, std::vector<int32_t>& out, bool add_bos, bool add_eos,
                                       bool special_tokens) const {
  const size_t start = out.size();
  auto adds = [&](int32_t id) {
    return std::ranges::count(impl_->prefix, id) + std::ranges::count(impl_->suffix, id) > 0;  // the encoding of the empty text
  };
  // Merges the token at `at` with an equal one before it, at the boundary between text and added tokens.
  auto join = [&](size_t at, std::optional<int32_t> kind) {
    if (special_tokens && at > start && at < out.size() && out[at] == kind && out[at - 1] == kind)
      out.erase(out.begin() + static_cast<std::ptrdiff_t>(at));
  };
  if (add_bos && impl_->bos && !adds(*impl_->bos)) out.push_back(*impl_->bos);
  out.insert(out.end(), impl_->prefix.begin(), impl_->prefix.end());
  const size_t begin = out.size();
  impl_->encode(text, special_tokens, out);
  join(begin, impl_->bos);
  const size_t end = out.size();
  out.insert(out.end(), impl_->suffix.begin(), impl_->suffix.end());
  if (add_eos && impl_->eos && !adds(*impl_->eos)) out.push_back(*impl_->eos);
  if (end > begin) join(end, impl_->eos);
}

std::vector<int32_t> Tokenizer::encode_document(std::string_view text, bool add_bos, bool add_eos, bool special_tokens) const {
  std::vector<int32_t> out;
  out.reserve(text.size() / 3 + 8);
  encode_document_append(text, out, add_bos, add_eos, special_tokens);
  return out;
}

std::string_view Tokenizer::find_special_token(std::string_view text) const {
  text = text.substr(0, valid_utf8_prefix(text));
  AddedTokenMatcher::Match match{};
  for (const AddedTokenMatcher* matcher : {&impl_->added, &impl_->added_normalized}) {
    for (size_t from = 0; !matcher->empty() && matcher->find(text, from, from, true, match, from);)
      if (impl_->special[match.id]) return token_bytes(match.id);
  }
  return {};
}

std::string_view Tokenizer::token_bytes(int32_t id) const {
  check(id >= 0 && id < vocab_size(), "token id {} is out of range: expected 0 to {}", id, vocab_size() - 1);
  return impl_->tokens[id];
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  std::string out;
  bool first = true;
  for (const int32_t id : ids) {
    const std::string_view bytes = token_bytes(id);
    if (skip_special_tokens && impl_->special[id]) continue;
    if (impl_->model == TokenizerModel::word_level && !first) out += ' ';
    out += bytes;
    first = false;
  }
  return out;
}

int32_t Tokenizer::vocab_size() const { return impl_->tokens.size(); }
std::optional<int32_t> Tokenizer::bos_id() const { return impl_->bos; }
std::optional<int32_t> Tokenizer::eos_id() const { return impl_->eos; }
std::optional<int32_t> Tokenizer::token_id(std::string_view bytes) const { return impl_->find(bytes); }
bool Tokenizer::is_special(int32_t id) const { return id >= 0 && id < vocab_size() && impl_->special[id]; }

std::string Tokenizer::description() const {
  const char* pattern = "other";
  switch (impl_->pretokenizer.pattern()) {
    case SplitPattern::gpt2:
      pattern = "GPT-2";
      break;
    case SplitPattern::llama3:
      pattern = "Llama 3";
      break;
    case SplitPattern::qwen2:
      pattern = "Qwen 2";
      break;
    case SplitPattern::other:
      break;
  }
  auto name = [&](std::optional<int32_t> id) { return id ? fmt::format("{} ({})", token_bytes(*id), *id) : std::string("none"); };
  return fmt::format("{}, {} ids, {} merges, {} added tokens, {} pattern, BOS {}, EOS {}",
                     impl_->model == TokenizerModel::bpe ? "byte-level BPE" : "word level", vocab_size(), impl_->merge_count,
                     impl_->added_count, pattern, name(impl_->bos), name(impl_->eos));
}

}  // namespace halftone
