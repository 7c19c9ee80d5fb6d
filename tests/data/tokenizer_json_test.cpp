#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "data/tokenizer_text.h"
#include "halftone/base/error.h"
#include "halftone/base/log.h"
#include "halftone/data/pretokenize.h"
#include "halftone/data/tokenizer.h"
#include "halftone/data/unicode.h"
#include "source_dir.h"

namespace halftone {
namespace {

using Ids = std::vector<int32_t>;
using Json = nlohmann::json;
namespace fs = std::filesystem;

// Small tokenizer: the bytes of "abcdé \n" (é as two bytes), "ab", " a", then two added tokens.
Json small() {
  return Json::parse(R"({
    "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
    "added_tokens": [
      {"id": 10, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true},
      {"id": 11, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}],
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
    "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2, "d": 3, "Ã": 4, "©": 5, "Ġ": 6, "Ċ": 7, "ab": 8, "Ġa": 9},
              "merges": ["a b", "Ġ a"]}})");
}

Json bos_template(int id) {
  return Json::parse(fmt::format(R"({{"type": "TemplateProcessing", "pair": [],
    "single": [{{"SpecialToken": {{"id": "<s>", "type_id": 0}}}}, {{"Sequence": {{"id": "A", "type_id": 0}}}}],
    "special_tokens": {{"<s>": {{"id": "<s>", "ids": [{}], "tokens": ["<s>"]}}}}}})",
                                 id));
}

Tokenizer make(const Json& json, const std::string& config = {}) { return Tokenizer::parse(json.dump(), config); }

TEST(Tokenizer, EncodesAndDecodes) {
  const Tokenizer t = make(small(), R"({"bos_token": "<s>", "eos_token": {"content": "</s>", "special": true}})");
  EXPECT_EQ(t.encode("ab ac<s>é\n"), (Ids{8, 9, 2, 10, 4, 5, 7}));
  EXPECT_EQ(t.decode(t.encode("ab ac<s>é\n")), "ab ac<s>é\n");
  EXPECT_EQ(t.decode(t.encode("ab ac<s>é\n"), true), "ab acé\n");
  EXPECT_EQ(t.vocab_size(), 12);
  EXPECT_EQ(t.bos_id(), 10);
  EXPECT_EQ(t.eos_id(), 11);
  EXPECT_EQ(t.token_id(" a"), 9);
  EXPECT_EQ(t.token_id("</s>"), 11);
  EXPECT_EQ(t.token_id("zz"), std::nullopt);
  EXPECT_EQ(t.token_bytes(4), "\xC3");
  EXPECT_TRUE(t.is_special(10));
  EXPECT_FALSE(t.is_special(9));
  EXPECT_EQ(t.encode(""), Ids{});
  EXPECT_THROW(t.decode(Ids{12}), Error);
  EXPECT_THROW(t.token_bytes(-1), Error);
}

TEST(Tokenizer, DocumentsGetBosAndEosOnce) {
  const std::string config = R"({"bos_token": "<s>", "eos_token": "</s>"})";
  const Tokenizer bare = make(small(), config);
  EXPECT_EQ(bare.encode_document("ab", true, true), (Ids{10, 8, 11}));
  EXPECT_EQ(bare.encode_document("ab", false, true), (Ids{8, 11}));
  EXPECT_EQ(bare.encode_document("ab", false, false), (Ids{8}));
  Json json = small();
  json["post_processor"] = bos_template(10);
  const Tokenizer adds = make(json, config);
  EXPECT_EQ(adds.encode("ab"), (Ids{10, 8}));
  EXPECT_EQ(adds.encode("ab", false), (Ids{8}));
  EXPECT_EQ(adds.encode_document("ab", true, true), (Ids{10, 8, 11}));
  EXPECT_EQ(make(small()).encode_document("ab", true, true), (Ids{8})) << "no BOS and EOS known: none added";
  EXPECT_EQ(make(small(), R"({"bos_token": "<none>"})").bos_id(), std::nullopt);
  const Tokenizer half = make(small(), R"({"bos_token": null, "eos_token": {"content": "</s>"}, "added_tokens_decoder": null})");
  EXPECT_EQ(half.encode_document("ab", true, true), (Ids{8, 11}));
}

// small() with every byte, and other added tokens.
Json with_all_bytes(const Json& added) {
  Json json = small();
  Json& vocab = json["model"]["vocab"];
  for (int b = 0; b < 256; ++b) {
    const std::string byte = bytes_to_alphabet(std::string(1, static_cast<char>(b)));
    if (!vocab.contains(byte)) vocab[byte] = vocab.size();
  }
  json["added_tokens"] = added;
  return json;
}

TEST(Tokenizer, LettersOfSpecialTokensInDocumentsStayLetters) {
  const Json specials = {{{"id", 258}, {"content", "<s>"}, {"special", true}},
                         {{"id", 259}, {"content", "</s>"}, {"special", false}},  // special by its part in documents
                         {{"id", 260}, {"content", "<x>"}, {"special", false}}};
  const std::string config = R"({"bos_token": "<s>", "eos_token": "</s>"})";
  const Tokenizer t = make(with_all_bytes(specials), config);
  const int32_t bos = *t.bos_id(), eos = *t.eos_id(), x = *t.token_id("<x>");
  const std::string text = "<s>ab</s><x>a<s>";
  const Ids ids = t.encode_document(text, true, true);
  EXPECT_EQ(ids.front(), bos);
  EXPECT_EQ(ids.back(), eos);
  EXPECT_EQ(std::ranges::count(ids, bos) + std::ranges::count(ids, eos), 2) << "one of each, none of the letters";
  EXPECT_EQ(std::ranges::count(ids, x), 1) << "an added token that is not special is text";
  EXPECT_EQ(t.decode(ids, true), text);
  EXPECT_EQ(t.find_special_token(text), "<s>");
  EXPECT_EQ(t.find_special_token("a <x> b"), "");
  // As tokens: once each where the text contains them, whoever adds them.
  Json adds = with_all_bytes(specials);
  adds["post_processor"] = bos_template(bos);
  for (const Tokenizer& each : {t, make(adds, config)}) {
    EXPECT_EQ(each.encode_document("<s>ab</s>", true, true, true), (Ids{bos, 8, eos}));
    EXPECT_EQ(each.encode_document("ab", true, true, true), (Ids{bos, 8, eos}));
    EXPECT_EQ(each.encode_document("<s>", true, false, true), (Ids{bos}));
    EXPECT_EQ(each.encode_document("", true, true, true), (Ids{bos, eos}));
    EXPECT_EQ(each.encode_document("<s><s>ab</s>a", true, true, true), (Ids{bos, bos, 8, eos, 0, eos})) << "what the text says is kept";
  }
}

// The model itself may know a special token as a word.
TEST(Tokenizer, NoTextBecomesASpecialToken) {
  Json whole = with_all_bytes(Json::array());
  const auto id = static_cast<int32_t>(whole["model"]["vocab"].size());
  whole["model"]["vocab"]["##"] = id, whole["model"]["ignore_merges"] = true;
  const Tokenizer bpe = make(whole, R"({"eos_token": "##"})");
  ASSERT_EQ(bpe.eos_id(), id);
  const int32_t hash = *bpe.token_id("#");
  EXPECT_EQ(bpe.encode_document("##", false, true), (Ids{hash, hash, id}));
  EXPECT_EQ(bpe.encode_document("##", false, true, true), (Ids{id}));
  const Json words = Json::parse(R"({"pre_tokenizer": {"type": "WhitespaceSplit"}, "added_tokens": [],
    "model": {"type": "WordLevel", "unk_token": "[UNK]", "vocab": {"[UNK]": 0, "a": 1, "</s>": 2}}})");
  const Tokenizer level = make(words, R"({"eos_token": "</s>"})");
  EXPECT_EQ(level.encode_document("a </s> a b", false, true), (Ids{1, 0, 1, 0, 2}));
  EXPECT_EQ(level.encode_document("a </s>", false, true, true), (Ids{1, 2}));
}

TEST(Tokenizer, BytesThatAreNoUtf8AreKept) {
  const Tokenizer t = make(with_all_bytes(Json::array()));
  for (const std::string& text : {std::string("a\xFF"), std::string("\xC3"), std::string("\xC3(a\xE2\x82"), std::string("\xED\xA0\x80"),
                                  std::string("x\0y", 3), std::string("\xF4\x90\x80\x80 ab\xC0\xAF")}) {
    EXPECT_EQ(t.decode(t.encode(text)), text) << testing::PrintToString(text);
  }
  EXPECT_EQ(t.encode("a\xFF"
                     "b")
                .size(),
            3u)
      << "no merge across a bad byte";
  EXPECT_EQ(replace_invalid_utf8("a\xFFé\xE2\x82"), "a\uFFFDé\uFFFD\uFFFD");
}

TEST(Tokenizer, AddedTokensStripAndAreWholeWords) {
  Json json = small();
  auto add = [&](const char* content, const char* flag) {
    Json token = {{"id", 8 + json["added_tokens"].size() + 2}, {"content", content}};
    if (*flag) token[flag] = true;
    json["added_tokens"].push_back(token);
  };
  add("<l>", "lstrip"), add("<r>", "rstrip"), add("ca", "single_word"), add("<l>b", "");
  const Tokenizer t = make(json);
  EXPECT_EQ(t.encode("a \n<l> a"), (Ids{0, 12, 9}));
  EXPECT_EQ(t.encode("a<r> \u3000\na"), (Ids{0, 13, 0}));
  EXPECT_EQ(t.encode("ca cab\nca"), (Ids{14, 6, 2, 8, 7, 14}));
  EXPECT_EQ(t.encode("<l>b<l>"), (Ids{15, 12})) << "the longest wins";
}

TEST(Tokenizer, AddedTokensGetTheIdsThatTheVocabularyGives) {
  set_log_level(LogLevel::error);
  Json json = small();
  json["added_tokens"][0]["id"] = 500;
  json["added_tokens"].push_back({{"id", 3}, {"content", "b"}, {"special", true}});
  const Tokenizer t = make(json, R"({"added_tokens_decoder": {"77": {"content": "<x>", "special": true}, "78": {"content": "ab"}}})");
  EXPECT_EQ(t.token_id("<s>"), 10);
  EXPECT_EQ(t.token_id("b"), 1);
  EXPECT_EQ(t.token_id("<x>"), 12);
  EXPECT_EQ(t.token_id("ab"), 8);
  set_log_level(LogLevel::info);
}

TEST(Tokenizer, NormalisesToNfc) {
  EXPECT_EQ(to_nfc("e\u0301"), "é");
  EXPECT_EQ(to_nfc("\u1112\u1161\u11ab"), "한");
  EXPECT_EQ(to_nfc("a\u0315\u0300\u05ae\u0300b"), "\u00e0\u05ae\u0300\u0315b");  // of NormalizationTest.txt
  EXPECT_EQ(to_nfc("\u212b\u0958"), "\u00c5\u0915\u093c");                       // a singleton, a composition exclusion
  EXPECT_EQ(to_nfc("\u0301a"), "\u0301a");
  Json json = small();
  json["normalizer"] = {{"type", "NFC"}};
  EXPECT_EQ(make(json).encode("e\u0301"), (Ids{4, 5}));
}

TEST(Tokenizer, LoadsAndSavesFolders) {
  const fs::path folder = fs::path(testing::TempDir()) / fmt::format("tokenizer_json_test_{}", ::getpid());
  fs::remove_all(folder);
  fs::create_directories(folder);
  auto write = [&](const char* name, const std::string& text) { std::ofstream(folder / name, std::ios::binary) << text; };
  EXPECT_THROW(Tokenizer::load(folder), Error);
  EXPECT_THROW(Tokenizer::load(folder / "missing.json"), Error);
  write("vocab.txt", "[UNK]\nab\nc\n");
  EXPECT_EQ(Tokenizer::load(folder).encode("c  ab d\n"), (Ids{2, 1, 0}));
  EXPECT_EQ(Tokenizer::load(folder).decode(Ids{2, 1}), "c ab");
  write("vocab.json", R"({"a": 0, "b": 1, "Ġ": 2, "ab": 3, "#": 4, "##": 5})");
  write("merges.txt", "#version: 0.2\r\na b\r\n# #\r\n\r\n");
  EXPECT_EQ(Tokenizer::load(folder).encode("ab ##"), (Ids{3, 2, 5}));
  write("tokenizer_config.json", R"({"eos_token": "ab", "chat_template": "{{ x }}"})");
  EXPECT_EQ(Tokenizer::load(folder).eos_id(), 3);
  // A vocabulary word becomes a special token; tokens that tokenizer_config.json does not name come from the map.
  EXPECT_EQ(Tokenizer::load(folder).encode("aabb", false), (std::vector<int32_t>{0, 3, 1}));
  write("special_tokens_map.json", R"({"bos_token": {"content": "a"}, "eos_token": "b"})");
  EXPECT_EQ(Tokenizer::load(folder).eos_id(), 3);
  EXPECT_EQ(Tokenizer::load(folder).bos_id(), 0);
  const std::string text = small().dump(3);
  write("tokenizer.json", text);
  const Tokenizer t = Tokenizer::load(folder);
  EXPECT_EQ(t.vocab_size(), 12) << "tokenizer.json goes before vocab.json";
  t.save(folder / "copy");
  EXPECT_EQ(Tokenizer::load(folder / "copy").tokenizer_json(), text);
  EXPECT_EQ(Tokenizer::load(folder / "copy" / "tokenizer.json").tokenizer_config_json(), t.tokenizer_config_json());
  write("blocker", "");
  EXPECT_THROW(t.save(folder / "blocker" / "x"), Error);
  fs::remove_all(folder);
}

TEST(Tokenizer, EveryTruncationIsAnError) {
  const std::string text = small().dump();
  for (size_t n = 0; n < text.size(); ++n) EXPECT_THROW(Tokenizer::parse(std::string_view(text).substr(0, n)), Error) << n;
  EXPECT_NO_THROW(Tokenizer::parse(text));
}

// A change to the small tokenizer (JSON merge patch) and the expected part of the message.
struct Damage {
  const char* patch;
  const char* message;
};
class BadTokenizer : public testing::TestWithParam<Damage> {};
INSTANTIATE_TEST_SUITE_P(
    All, BadTokenizer,
    testing::Values(
        Damage{R"({"model": null})", "model is missing"}, Damage{R"({"model": {"vocab": [1]}})", "model.vocab: expected an object"},
        Damage{R"({"model": {"vocab": {"x": -1}}})", "is -1"}, Damage{R"({"model": {"vocab": {"x": "7"}}})", "expected an integer"},
        Damage{R"({"model": {"vocab": {"x": 1e99}}})", "expected an integer"},
        Damage{R"({"model": {"vocab": {"x": 4000000000}}})", "4000000000"},
        Damage{R"({"model": {"vocab": {"x": 18446744073709551615}}})", "out of range"},
        Damage{R"({"model": {"vocab": {"x": 0}}})", "two tokens have the id 0"},
        Damage{R"({"model": {"merges": ["a q"]}})", "\"q\", which is not in model.vocab"},
        Damage{R"({"model": {"merges": ["b a"]}})", "\"ba\""}, Damage{R"({"model": {"merges": ["ab"]}})", "space between"},
        Damage{R"({"model": {"merges": [["a"]]}})", "merges[0]"}, Damage{R"({"model": {"merges": {}}})", "expected an array"},
        Damage{R"({"model": {"type": "Unigram"}})", "Unigram"}, Damage{R"({"model": {"dropout": 0.1}})", "dropout"},
        Damage{R"({"model": {"unk_token": "zz"}})", "unk_token"}, Damage{R"({"model": {"byte_fallback": true}})", "byte_fallback"},
        Damage{R"({"model": {"end_of_word_suffix": "</w>"}})", "end_of_word_suffix"},
        Damage{R"({"model": {"ignore_merges": 1}})", "ignore_merges"}, Damage{R"({"pre_tokenizer": null})", "byte-level"},
        Damage{R"({"pre_tokenizer": {"type": "Metaspace"}})", "Metaspace"}, Damage{R"({"pre_tokenizer": 3})", "expected an object"},
        Damage{
            R"({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated"},
               {"type": "ByteLevel", "use_regex": false, "add_prefix_space": false}]}})",
            "regular expression"},
        Damage{R"({"normalizer": {"type": "Lowercase"}})", "Lowercase"}, Damage{R"({"decoder": {"type": "WordPiece"}})", "WordPiece"},
        Damage{R"({"post_processor": {"type": "TemplateProcessing"}})", "special_tokens is missing"},
        Damage{R"({"added_tokens": [{"content": "x"}]})", "id is missing"},
        Damage{R"({"added_tokens": [{"id": 10, "content": 4}]})", "content"}, Damage{R"({"added_tokens": 5})", "expected an array"}));

TEST_P(BadTokenizer, IsAOneLineError) {
  Json json = small();
  json.merge_patch(Json::parse(GetParam().patch));
  try {
    make(json);
    FAIL() << "accepted";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find(GetParam().message), std::string::npos) << e.what();
    EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos) << e.what();
  }
}

TEST(Tokenizer, OtherBadFilesAreErrors) {
  Json json = small();
  for (const int id : {-5, 12, 99999}) {
    json["post_processor"] = bos_template(id);
    EXPECT_THROW(make(json), Error) << id;
  }
  EXPECT_THROW(Tokenizer::parse(std::string(1 << 20, '[')), Error);
  EXPECT_THROW(Tokenizer::parse(R"({"model": {"type": "BPE", "vocab": {"a": 1e999}, "merges": []}})"), Error);
  EXPECT_THROW(Tokenizer::parse("{\"model\": \"\xFF\"}"), Error);
  EXPECT_THROW(make(small(), "[]"), Error);
  EXPECT_THROW(make(small(), R"({"bos_token": 3})"), Error);
  EXPECT_THROW(make(small(), R"({"added_tokens_decoder": {"x": {"content": "y"}}})"), Error);
  json = small();
  json["model"]["vocab"]["\"\n\x1b[2J"] = -1;
  try {
    make(json);
    FAIL() << "accepted";
  } catch (const Error& e) {
    EXPECT_EQ(std::string(e.what()).find_first_of("\n\x1b"), std::string::npos) << "names from the file are escaped";
  }
}

// More than one part (1 MiB): part boundaries must not split a piece of the full text.
TEST(Tokenizer, LargeTextsAreEncodedLikeTheirPieces) {
  std::ifstream file(source_dir() + "/tests/assets/tokenizer/tokenizer.json");
  Json json = Json::parse(file);
  std::mt19937 rng(3);
  std::string text;
  while (text.size() < size_t{5} << 19) text += random_text(rng, 12, true) + (rng() % 4 == 0 ? "a b" : "");
  std::string lines;  // no ASCII letters: only line ends are split points
  const std::vector<std::string> parts = {"中文", "。", "한", "9", "\n", "\n", "\n\n", "\n ", "\r\n", "\u3000", "!", "é"};
  while (lines.size() < size_t{5} << 19) lines += parts[rng() % parts.size()];
  for (const SplitPattern pattern : {SplitPattern::gpt2, SplitPattern::llama3, SplitPattern::qwen2}) {
    json["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = pattern_text(pattern);
    const Tokenizer tokenizer = make(json);
    const Pretokenizer pretokenizer({{std::string(pattern_text(pattern))}});
    for (const std::string_view whole : {std::string_view(text), std::string_view(lines)}) {
      Pretokenizer::Scratch scratch;
      std::vector<Range> pieces;
      pretokenizer.split_by_pcre2(whole, scratch, pieces);
      Ids expected;
      for (const Range& r : pieces) tokenizer.encode_append(whole.substr(r.begin, r.end - r.begin), expected, false);
      EXPECT_TRUE(tokenizer.encode(whole, false) == expected) << pattern_text(pattern) << (whole == lines ? " lines" : "");
    }
  }
}

}  // namespace
}  // namespace halftone
