#include "halftone/data/tokenizer_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "halftone/base/error.h"
#include "halftone/base/log.h"
#include "halftone/data/tokenizer_json_fields.h"
#include "halftone/data/unicode.h"

namespace halftone {
namespace {

using namespace tokenizer_fields;

// Id of every vocabulary string as written in the file.
using Vocabulary = std::unordered_map<std::string_view, int32_t>;

Vocabulary read_vocabulary(const Json& vocab, TokenizerSpec& spec) {
  check(vocab.is_object(), "model.vocab: expected an object from token to id, found {}", vocab.type_name());
  Vocabulary ids;
  ids.reserve(vocab.size());
  size_t size = 0;
  for (auto entry = vocab.begin(); entry != vocab.end(); ++entry) {
    const int64_t id = entry->is_number_integer() ? integer(*entry, "model.vocab") : -1;
    // Ids may have gaps, but memory is proportional to the largest one.
    const int64_t limit = 2 * static_cast<int64_t>(vocab.size()) + 65536;
    if (id < 0 || id >= limit) {
      fail("model.vocab: the id of the token {} is {}, expected an integer from 0 to {}", shown(entry.key()), entry->dump(), limit - 1);
    }
    size = std::max<size_t>(size, id + 1);
    ids.emplace(entry.key(), static_cast<int32_t>(id));
  }
  spec.tokens.resize(size);
  spec.text_tokens.resize(size);
  std::vector<bool> used(size);
  for (const auto& [token, id] : ids) {
    if (used[id]) fail("model.vocab: two tokens have the id {}, one of them {}", id, shown(token));
    used[id] = true;
    std::string& text = spec.text_tokens[id];
    if (spec.model == TokenizerModel::word_level) text = token;
    if (spec.model == TokenizerModel::bpe && !alphabet_to_bytes(token, text)) text.clear();
    spec.tokens[id] = text.empty() ? std::string(token) : text;
  }
  return ids;
}

// A merge is "a b" or ["a", "b"].
void read_merges(const Json& merges, const Vocabulary& ids, TokenizerSpec& spec) {
  check(merges.is_array(), "model.merges: expected an array, found {}", merges.type_name());
  spec.merges.reserve(merges.size());
  std::string joined;
  for (const Json& merge : merges) {
    const size_t rank = spec.merges.size();
    std::string_view left, right;
    if (merge.is_string()) {
      const std::string_view text = merge.get_ref<const std::string&>();
      const size_t blank = text.find(' ');
      if (blank == text.npos || text.find(' ', blank + 1) != text.npos) {
        fail("model.merges[{}]: expected two tokens with a space between them, found {}", rank, shown(text));
      }
      left = text.substr(0, blank), right = text.substr(blank + 1);
    } else {
      check(merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string(),
            "model.merges[{}]: expected \"a b\" or [\"a\", \"b\"], found {}", rank, merge.type_name());
      left = merge[0].get_ref<const std::string&>(), right = merge[1].get_ref<const std::string&>();
    }
    joined.assign(left).append(right);
    auto id = [&](std::string_view token) {
      const auto found = ids.find(token);
      if (found == ids.end()) fail("model.merges[{}] names the token {}, which is not in model.vocab", rank, shown(token));
      return found->second;
    };
    spec.merges.push_back({id(left), id(right), id(joined)});
  }
}

Vocabulary read_model(const Json& model, TokenizerSpec& spec) {
  check(model.is_object(), "model: expected an object, found {}", model.type_name());
  const std::string type = string_or(model, "type", model.contains("merges") ? "BPE" : "missing", "model");
  check(type == "BPE" || type == "WordLevel", "model.type is {}: expected BPE (byte-level) or WordLevel", shown(type));
  spec.model = type == "BPE" ? TokenizerModel::bpe : TokenizerModel::word_level;
  Vocabulary ids = read_vocabulary(member(model, "vocab", "model"), spec);
  const std::string unknown = string_or(model, "unk_token", "", "model");
  if (!unknown.empty()) {
    const auto found = ids.find(unknown);
    check(found != ids.end(), "model.unk_token {} is not in model.vocab", shown(unknown));
    spec.options.unknown = found->second;
  }
  if (spec.model == TokenizerModel::word_level) return ids;
  spec.options.ignore_merges = flag_or(model, "ignore_merges", false, "model");
  spec.options.fuse_unknown = flag_or(model, "fuse_unk", false, "model");
  for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const std::string affix = string_or(model, name, "", "model");
    check(affix.empty(), "model.{} is {}: byte-level tokenizers have none", name, shown(affix));
  }
  const auto dropout = model.find("dropout");
  check(dropout == model.end() || dropout->is_null() || (dropout->is_number() && dropout->get<double>() == 0),
        "model.dropout: expected null or 0 (ids must not depend on chance)");
  if (flag_or(model, "byte_fallback", false, "model")) {
    for (int b = 0; b < 256; ++b) {
      const char byte = static_cast<char>(b);
      check(ids.contains(bytes_to_alphabet(std::string_view(&byte, 1))),
            "model.byte_fallback is set and byte {} is not a token: this is not byte-level BPE", b);
    }
  }
  read_merges(member(model, "merges", "model"), ids, spec);
  return ids;
}

void read_normalizer(const Json& normalizer, TokenizerSpec& spec) {
  if (normalizer.is_null()) return;
  const std::string type = type_of(normalizer, "normalizer");
  if (type == "NFC") {
    spec.nfc = true;
  } else if (type == "Sequence") {
    for (const Json& inner : list(normalizer, "normalizers", "normalizer")) read_normalizer(inner, spec);
  } else {
    fail("normalizer {}: expected none or NFC", shown(type));
  }
}

SplitStep read_split(const Json& split) {
  SplitStep step;
  const Json& pattern = member(split, "pattern", "pre_tokenizer Split");
  check(pattern.is_object() && pattern.size() == 1, "pre_tokenizer Split: expected a pattern {{\"Regex\": ...}} or {{\"String\": ...}}");
  step.literal = pattern.contains("String");
  step.pattern = string_of(pattern, step.literal ? "String" : "Regex", "pre_tokenizer Split pattern");
  step.invert = flag_or(split, "invert", false, "pre_tokenizer Split");
  const std::string behavior = string_of(split, "behavior", "pre_tokenizer Split");
  if (behavior == "Isolated") {
    step.behavior = SplitBehavior::isolated;
  } else if (behavior == "Removed") {
    step.behavior = SplitBehavior::removed;
  } else if (behavior == "Contiguous") {
    step.behavior = SplitBehavior::contiguous;
  } else {
    fail("pre_tokenizer Split behavior {}: expected Isolated, Removed or Contiguous", shown(behavior));
  }
  return step;
}

void read_pre_tokenizer(const Json& node, TokenizerSpec& spec, bool& byte_level) {
  if (node.is_null()) return;
  const std::string type = type_of(node, "pre_tokenizer");
  check(!byte_level, "pre_tokenizer {}: nothing may follow ByteLevel", shown(type));
  const bool words = spec.model == TokenizerModel::word_level;
  if (type == "Sequence") {
    for (const Json& inner : list(node, "pretokenizers", "pre_tokenizer")) read_pre_tokenizer(inner, spec, byte_level);
  } else if (type == "ByteLevel" && !words) {
    spec.add_prefix_space = flag_or(node, "add_prefix_space", true, "pre_tokenizer ByteLevel");
    check(!spec.add_prefix_space || spec.splits.empty(), "pre_tokenizer ByteLevel: add_prefix_space after another step is not supported");
    if (flag_or(node, "use_regex", true, "pre_tokenizer ByteLevel")) spec.splits.push_back({std::string(pattern_text(SplitPattern::gpt2))});
    byte_level = true;
  } else if (type == "Split") {
    spec.splits.push_back(read_split(node));
  } else if (type == "Digits") {
    const bool each = flag_or(node, "individual_digits", false, "pre_tokenizer Digits");
    spec.splits.push_back({"\\p{N}", false, each ? SplitBehavior::isolated : SplitBehavior::contiguous});
  } else if (type == "WhitespaceSplit" && words) {
    spec.splits.push_back({"\\s", false, SplitBehavior::removed});
  } else if (type == "Whitespace" && words) {
    // \w of the regex crate: that of UTS 18 plus Join_Control.
    const std::string word = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\p{Join_Control}";
    spec.splits.push_back({"[" + word + "]+|[^" + word + "\\s]+", false, SplitBehavior::removed, true});
  } else {
    fail("pre_tokenizer {}: expected ByteLevel, alone or after Split or Digits", shown(type));
  }
}

void read_decoder(const Json& decoder, const TokenizerSpec& spec) {
  if (decoder.is_null()) return;
  const std::string type = type_of(decoder, "decoder");
  if (type == "Sequence") {
    for (const Json& inner : list(decoder, "decoders", "decoder")) read_decoder(inner, spec);
  } else {
    check(type == "ByteLevel" && spec.model == TokenizerModel::bpe, "decoder {}: expected ByteLevel for BPE, none for WordLevel",
          shown(type));
  }
}

// Gives added tokens the ids that the `tokenizers` package gives: that of the vocabulary, otherwise the next free one.
class AddedTokens {
 public:
  AddedTokens(TokenizerSpec& spec, const Vocabulary& vocabulary)
      : spec_(spec), vocabulary_(vocabulary), next_(static_cast<int64_t>(vocabulary.size())) {}

  // The following tokens come from tokenizer_config.json.
  void enter_config() { of_config_ = true; }
  // Makes a BOS or EOS word special, and adds it if it is only in the vocabulary, as transformers does.
  void make_special(const std::string& content) {
    const auto found = vocabulary_.find(content);
    if (const auto known = index_.find(content); known != index_.end()) spec_.added[known->second].special = true;
    if (content.empty() || found == vocabulary_.end() || index_.contains(content)) return;
    add(Json{{"content", content}, {"special", true}}, found->second, "tokenizer_config.json");
  }

  void add(const Json& entry, int64_t claimed, const char* where) {
    AddedToken token;
    token.content = string_of(entry, "content", where);
    if (token.content.empty()) return;
    token.special = flag_or(entry, "special", false, where);
    token.single_word = flag_or(entry, "single_word", false, where);
    token.lstrip = flag_or(entry, "lstrip", false, where);
    token.rstrip = flag_or(entry, "rstrip", false, where);
    token.normalized = flag_or(entry, "normalized", !token.special, where);
    const auto [seen, is_new] = index_.emplace(token.content, spec_.added.size());
    if (!is_new) {
      AddedToken& known = spec_.added[seen->second];
      token.id = known.id, token.special |= known.special;
      if (of_config_) {
        known.special = token.special;
      } else {
        known = std::move(token);  // in tokenizer.json's list the last entry's options count
      }
      return;
    }
    const auto found = vocabulary_.find(token.content);
    if (found != vocabulary_.end()) {
      token.id = found->second;
    } else {
      token.id = static_cast<int32_t>(next_);
      const bool taken = next_ < spec_.vocab_size() && !spec_.tokens[next_].empty();
      if (taken)
        fail("the added token {} would take the id {}, which is in use: the ids of model.vocab have gaps", shown(token.content), next_);
    }
    next_ = std::max<int64_t>(next_, token.id + 1);
    if (claimed != token.id) {
      log_warning("tokenizer: {} claims id {} for {}, the tokenizer assigns {}", where, claimed, shown(token.content), token.id);
    }
    if (token.id >= spec_.vocab_size()) {
      spec_.tokens.resize(token.id + 1);
      spec_.text_tokens.resize(token.id + 1);
    }
    spec_.tokens[token.id] = token.content;
    spec_.added.push_back(std::move(token));
  }

 private:
  TokenizerSpec& spec_;
  const Vocabulary& vocabulary_;
  int64_t next_;
  bool of_config_ = false;
  std::unordered_map<std::string, size_t> index_;
};

// Ids for one end of a sequence, in text order.
void read_template(const Json& node, TokenizerSpec& spec) {
  const char* where = "post_processor TemplateProcessing";
  const Json& specials = member(node, "special_tokens", where);
  bool behind = false;
  for (const Json& part : list(node, "single", where)) {
    check(part.is_object() && part.size() == 1, "{}.single: expected SpecialToken or Sequence objects", where);
    if (part.contains("Sequence")) {
      check(!behind, "{}.single: more than one Sequence", where);
      behind = true;
      continue;
    }
    const std::string name = string_of(member(part, "SpecialToken", where), "id", where);
    for (const Json& id : list(member(specials, name.c_str(), where), "ids", where)) {
      (behind ? spec.suffix : spec.prefix).push_back(static_cast<int32_t>(std::clamp<int64_t>(integer(id, where), -1, INT32_MAX)));
    }
  }
  check(behind, "{}.single: no Sequence", where);
}

void read_post_processor(const Json& node, TokenizerSpec& spec) {
  if (node.is_null()) return;
  const std::string type = type_of(node, "post_processor");
  if (type == "ByteLevel") return;  // moves offsets only
  if (type == "Sequence") {
    for (const Json& inner : list(node, "processors", "post_processor")) read_post_processor(inner, spec);
    return;
  }
  check(spec.prefix.empty() && spec.suffix.empty(), "post_processor: more than one step that adds tokens");
  if (type == "TemplateProcessing") return read_template(node, spec);
  check(type == "RobertaProcessing" || type == "BertProcessing",
        "post_processor {}: expected ByteLevel, TemplateProcessing, RobertaProcessing or BertProcessing", shown(type));
  auto id_of = [&](const char* key) {
    const Json& pair = list(node, key, "post_processor");
    check(pair.size() == 2, "post_processor.{}: expected [token, id]", key);
    return static_cast<int32_t>(std::clamp<int64_t>(integer(pair[1], "post_processor"), -1, INT32_MAX));
  };
  spec.prefix.push_back(id_of("cls"));
  spec.suffix.push_back(id_of("sep"));
}

// A token given as a string or as an object with "content"; empty if null or absent.
std::string token_content(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return {};
  return found->is_object() ? string_of(*found, "content", key) : string_of(object, key, "tokenizer_config.json");
}

void read_added(const Json& config, AddedTokens& added) {
  const auto tokens = config.find("added_tokens_decoder");
  if (tokens == config.end() || tokens->is_null()) return;
  const char* where = "added_tokens_decoder";
  check(tokens->is_object(), "{}: expected an object from id to token, found {}", where, tokens->type_name());
  std::vector<std::pair<int64_t, const Json*>> in_order;
  for (auto entry = tokens->begin(); entry != tokens->end(); ++entry) {
    const std::string& key = entry.key();
    const bool number = !key.empty() && key.size() <= 9 && key.find_first_not_of("0123456789") == key.npos;
    if (!number) fail("{}: the key {} is not an id", where, shown(key));
    in_order.emplace_back(std::stoll(key), &*entry);
  }
  std::sort(in_order.begin(), in_order.end());
  for (const auto& [id, entry] : in_order) added.add(*entry, id, where);
}

void read_config(const Json& config, TokenizerSpec& spec, AddedTokens& added) {
  check(config.is_object(), "tokenizer_config.json: expected an object, found {}", config.type_name());
  spec.bos_token = token_content(config, "bos_token");
  spec.eos_token = token_content(config, "eos_token");
  added.enter_config();
  read_added(config, added);
  for (const std::string* name : {&spec.bos_token, &spec.eos_token}) added.make_special(*name);
}

const Json& field(const Json& root, const char* key) {
  static const Json kNull;
  const auto found = root.find(key);
  return found == root.end() ? kNull : *found;
}

}  // namespace

std::string with_special_tokens(const std::string& config_json, std::string_view map_json) {
  Json config = config_json.empty() ? Json::object() : parse(config_json, "tokenizer_config.json");
  const Json map = parse(map_json, "special_tokens_map.json");
  check(map.is_object(), "special_tokens_map.json: expected an object, found {}", map.type_name());
  bool changed = false;
  for (const char* key : {"bos_token", "eos_token"}) {
    if (!config.is_object() || !field(config, key).is_null() || field(map, key).is_null()) continue;
    config[key] = token_content(map, key), changed = true;
  }
  return changed ? config.dump(2) : config_json;
}

TokenizerSpec parse_tokenizer_json(std::string_view json, std::string_view config_json) {
  const Json root = parse(json, "tokenizer.json");
  check(root.is_object(), "tokenizer.json: expected an object, found {}", root.type_name());
  TokenizerSpec spec;
  const Vocabulary vocabulary = read_model(member(root, "model", "tokenizer.json"), spec);
  AddedTokens added(spec, vocabulary);
  if (!field(root, "added_tokens").is_null()) {
    for (const Json& token : list(root, "added_tokens", "tokenizer.json")) {
      added.add(token, integer(member(token, "id", "added_tokens"), "added_tokens.id"), "added_tokens");
    }
  }
  read_normalizer(field(root, "normalizer"), spec);
  bool byte_level = false;
  read_pre_tokenizer(field(root, "pre_tokenizer"), spec, byte_level);
  check(byte_level || spec.model == TokenizerModel::word_level,
        "tokenizer.json: the BPE model has no ByteLevel pre_tokenizer; expected byte-level BPE");
  read_decoder(field(root, "decoder"), spec);
  read_post_processor(field(root, "post_processor"), spec);
  if (!config_json.empty()) read_config(parse(config_json, "tokenizer_config.json"), spec, added);
  check(spec.vocab_size() > 0, "tokenizer.json: the vocabulary is empty");
  for (const auto* ids : {&spec.prefix, &spec.suffix}) {
    for (const int32_t id : *ids) {
      check(id >= 0 && id < spec.vocab_size(), "post_processor: the id {} is out of range: expected 0 to {}", id, spec.vocab_size() - 1);
    }
  }
  return spec;
}

}  // namespace halftone
