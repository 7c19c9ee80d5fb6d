#include <nlohmann/json.hpp>

#include "halftone/base/error.h"
#include "halftone/data/tokenizer_json.h"
#include "halftone/data/tokenizer_json_fields.h"
#include "halftone/data/unicode.h"

namespace halftone {
namespace {

using namespace tokenizer_fields;

std::string string_json(std::string_view text) { return Json(std::string(text)).dump(); }

std::string added_token_json(const AddedToken& token, bool with_id) {
  return fmt::format(R"({{{}"content": {}, "single_word": {}, "lstrip": {}, "rstrip": {}, "normalized": {}, "special": {}}})",
                     with_id ? fmt::format("\"id\": {}, ", token.id) : "", string_json(token.content), token.single_word, token.lstrip,
                     token.rstrip, token.normalized, token.special);
}

// Calls line(i) for each of n lines and joins them with commas.
template <class Line>
std::string lines(size_t n, const char* indent, Line&& line) {
  std::string out;
  for (size_t i = 0; i < n; ++i) out += fmt::format("{}{}{}", i == 0 ? "\n" : ",\n", indent, line(i));
  return out;
}

// Lines of text without their ends; an empty last line does not count.
std::vector<std::string_view> split_lines(std::string_view text) {
  std::vector<std::string_view> out;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    if (line.ends_with('\r')) line.remove_suffix(1);
    out.push_back(line);
    text.remove_prefix(end == text.npos ? text.size() : end + 1);
  }
  return out;
}

}  // namespace

std::string write_tokenizer_json(const TokenizerSpec& spec) {
  check(spec.model == TokenizerModel::bpe && spec.splits.size() == 1 && !spec.splits[0].literal,
        "only byte-level BPE with one split pattern is written");
  std::string out = "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n  \"added_tokens\": [";
  out += lines(spec.added.size(), "    ", [&](size_t i) { return added_token_json(spec.added[i], true); });
  out += "\n  ],\n  \"normalizer\": null,\n";
  out += fmt::format(R"(  "pre_tokenizer": {{"type": "Sequence", "pretokenizers": [
    {{"type": "Split", "pattern": {{"Regex": {}}}, "behavior": "Isolated", "invert": false}},
    {{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}}
  ]}},
  "post_processor": null,
  "decoder": {{"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}},
)",
                     string_json(spec.splits[0].pattern));
  out += fmt::format(R"(  "model": {{
    "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
    "fuse_unk": false, "byte_fallback": false, "ignore_merges": {},
    "vocab": {{)",
                     spec.options.ignore_merges);
  std::vector<int32_t> ids;
  for (int32_t id = 0; id < spec.vocab_size(); ++id) {
    if (!spec.text_tokens[id].empty()) ids.push_back(id);
  }
  out += lines(ids.size(), "      ",
               [&](size_t i) { return fmt::format("{}: {}", string_json(bytes_to_alphabet(spec.text_tokens[ids[i]])), ids[i]); });
  out += "\n    },\n    \"merges\": [";
  out += lines(spec.merges.size(), "      ", [&](size_t i) {
    const BpeMerge& m = spec.merges[i];
    return string_json(bytes_to_alphabet(spec.text_tokens[m.left]) + " " + bytes_to_alphabet(spec.text_tokens[m.right]));
  });
  return out + "\n    ]\n  }\n}\n";
}

std::string write_tokenizer_config_json(const TokenizerSpec& spec) {
  std::string out = "{\n  \"added_tokens_decoder\": {";
  out += lines(spec.added.size(), "    ",
               [&](size_t i) { return fmt::format("\"{}\": {}", spec.added[i].id, added_token_json(spec.added[i], false)); });
  out += "\n  },\n";
  if (!spec.bos_token.empty()) out += fmt::format("  \"bos_token\": {},\n", string_json(spec.bos_token));
  if (!spec.eos_token.empty()) out += fmt::format("  \"eos_token\": {},\n", string_json(spec.eos_token));
  return out + "  \"clean_up_tokenization_spaces\": false,\n  \"tokenizer_class\": \"PreTrainedTokenizerFast\"\n}\n";
}

std::string tokenizer_json_from_vocab(std::string_view vocab, bool vocab_is_json, std::optional<std::string_view> merges) {
  const char* name = vocab_is_json ? "vocab.json" : "vocab.txt";
  Json model;
  if (vocab_is_json) {
    model["vocab"] = parse(vocab, name);
  } else {
    check(is_valid_utf8(vocab), "{} is not UTF-8 at byte {}", name, valid_utf8_prefix(vocab));
    Json& ids = model["vocab"] = Json::object();
    int64_t id = 0;
    for (const std::string_view line : split_lines(vocab)) {
      if (!line.empty()) ids[std::string(line)] = id;
      ++id;
    }
  }
  Json root{{"version", "1.0"}};
  if (merges) {
    check(is_valid_utf8(*merges), "merges.txt is not UTF-8 at byte {}", valid_utf8_prefix(*merges));
    Json& list = model["merges"] = Json::array();
    for (const std::string_view line : split_lines(*merges)) {
      if (!line.empty() && !line.starts_with("#version")) list.push_back(std::string(line));
    }
    model["type"] = "BPE";
    root["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
    root["decoder"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  } else {
    model["type"] = "WordLevel";
    model["unk_token"] = "[UNK]";
    root["pre_tokenizer"] = {{"type", "WhitespaceSplit"}};
  }
  root["model"] = std::move(model);
  return root.dump(1) + "\n";
}

}  // namespace halftone
