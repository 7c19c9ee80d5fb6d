// Rendered conversations as ids with a loss mask.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "data/data_testing.h"
#include "data/tokenizer_text.h"
#include "halftone/data/loader.h"
#include "halftone/data/tokenizer.h"
#include "halftone/data/unicode.h"
#include "source_dir.h"

namespace halftone::chat_encoding_test {
namespace {

using Ids = std::vector<int32_t>;
using Mask = std::vector<uint8_t>;
using Json = nlohmann::json;
namespace fs = std::filesystem;

const fs::path kAsset = fs::path(source_dir()) / "tests/assets/tokenizer";

Json asset(const char* name) {
  std::ifstream in(kAsset / name);
  return Json::parse(in);
}
Tokenizer tokenizer(const std::function<void(Json&)>& change = {}) {
  Json json = asset("tokenizer.json");
  if (change) change(json);
  return Tokenizer::parse(json.dump(), asset("tokenizer_config.json").dump());
}
void use_nfc(Json& json) { json["normalizer"] = {{"type", "NFC"}}; }

// Marks by the rule itself: the tokens' bytes follow each other in the normalised text.
Mask marks_by_bytes(const Tokenizer& t, const Ids& ids, const std::vector<size_t>& moved) {
  Mask out;
  size_t at = 0;
  for (const int32_t id : ids) {
    out.push_back(std::ranges::count_if(moved, [&](size_t s) { return s <= at; }) % 2);
    at += t.token_bytes(id).size();
  }
  return out;
}

TEST(MarkedTokens, AreThoseThatBeginBehindASwitch) {
  std::mt19937 random(3);
  for (const bool nfc : {false, true}) {
    const Tokenizer t = nfc ? tokenizer(use_nfc) : tokenizer();
    for (int repeat = 0; repeat < 400; ++repeat) {
      // Pieces that begin with an ASCII character, so that each is normalised alone.
      std::string text, normal;
      std::vector<size_t> switches, moved;
      const auto pieces = 1 + random() % 8;
      for (size_t p = 0; p < pieces; ++p) {
        const std::string piece = random() % 4 == 0 ? "<|end_of_text|>" : "q" + random_text(random, random() % 12, true);
        if (random() % 2 == 0) switches.push_back(text.size()), moved.push_back(normal.size());
        text += piece, normal += nfc ? to_nfc(piece) : piece;
      }
      Ids ids;
      Mask marks;
      t.encode_marked_append(text, switches, ids, marks);
      ASSERT_EQ(ids, t.encode(text, false));
      ASSERT_EQ(marks, marks_by_bytes(t, ids, moved)) << text;
    }
  }
}

TEST(MarkedTokens, FollowNfcInsideLongRunsWithoutAscii) {
  const Tokenizer t = tokenizer(use_nfc);
  // Decomposed: each is two characters in the text and one in the tokens.
  std::string text;
  for (int i = 0; i < 6; ++i) text += "e\u0301\u4e2d";
  const size_t unit = std::string("e\u0301\u4e2d").size();
  Ids ids;
  Mask marks;
  t.encode_marked_append(text, std::vector<size_t>{unit * 2, unit * 4 + 3}, ids, marks);
  EXPECT_EQ(ids, t.encode(text, false));
  EXPECT_EQ(marks, marks_by_bytes(t, ids, {2 * 5, 4 * 5 + 2})) << "a composed character is 2 bytes, the other 3";
}

TEST(MarkedTokens, MayFollowABlankThatTheTokenizerAdds) {
  const Tokenizer t = tokenizer([](Json& json) {
    json["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}, {"use_regex", true}};
  });
  for (const char* text : {"one two three", " one two"}) {
    for (size_t s = 0; s < 9; ++s) {
      Ids ids;
      Mask marks;
      t.encode_marked_append(text, std::vector<size_t>{s}, ids, marks);
      ASSERT_EQ(ids, t.encode(text, false));
      size_t at = 0;
      const size_t blank = text[0] == ' ' ? 0 : 1;
      for (size_t i = 0; i < ids.size(); ++i) {
        ASSERT_EQ(marks[i], at < blank + s && !(i == 0 && s == 0) ? 0 : 1) << text << " " << s << " " << i;
        at += t.token_bytes(ids[i]).size();
      }
    }
  }
}

TEST(MarkedTokens, NeedTokensThatSpellOutTheText) {
  const Tokenizer words = Tokenizer::parse(R"({"version":"1.0","truncation":null,"padding":null,"normalizer":null,"post_processor":null,
    "added_tokens":[{"id":3,"content":"</s>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}],
    "pre_tokenizer":{"type":"WhitespaceSplit"},"decoder":null,
    "model":{"type":"WordLevel","vocab":{"a":0,"b":1,"[UNK]":2},"unk_token":"[UNK]"}})");
  Ids ids;
  Mask marks;
  words.encode_marked_append("a b</s>b a", std::vector<size_t>{3, 7}, ids, marks);
  EXPECT_EQ(ids, (Ids{0, 1, 3, 1, 0}));
  EXPECT_EQ(marks, (Mask{0, 0, 1, 0, 0})) << "special tokens separate the turns";
  EXPECT_ERROR(words.encode_marked_append("a b</s>", std::vector<size_t>{2}, ids, marks), "do not spell out the text");
  EXPECT_ERROR(words.encode_marked_append("a\xFF", {}, ids, marks), "not UTF-8 at byte 1");
}

struct Encoded {
  Ids ids;
  Mask loss;
};
Encoded encode(const Tokenizer& t, const std::string& text, const std::vector<ByteRange>& learned, DataloaderConfig config = {}) {
  Encoded e;
  make_text_codec(t, config).encode_chat(text, learned, e.ids, e.loss);
  return e;
}

TEST(ChatEncoding, AddsWhatIsMissing) {
  const Tokenizer t = tokenizer();
  const int32_t bos = *t.bos_id(), eos = *t.eos_id();
  const Ids words = t.encode("one two", false);
  ASSERT_GE(words.size(), 2u);
  const auto all = [&](Ids front, Ids back) {
    front.insert(front.end(), words.begin(), words.end());
    front.insert(front.end(), back.begin(), back.end());
    return front;
  };
  Encoded e = encode(t, "one two", {{3, 7}});
  EXPECT_EQ(e.ids, all({bos}, {eos}));
  EXPECT_EQ(e.loss.front(), 0) << "the start is not learned";
  EXPECT_EQ(e.loss.back(), 1) << "the end is";
  e = encode(t, "one two\n\n", {{0, 3}});
  EXPECT_EQ(e.ids, all({bos}, {eos})) << "newlines at the end go";
  EXPECT_EQ(e.loss.front(), 1);
  EXPECT_EQ(e.loss.back(), 0);
  e = encode(t, "<|begin_of_text|>one two<|end_of_text|>\n", {{17, 39}});
  EXPECT_EQ(e.ids, all({bos}, {eos})) << "each is there";
  EXPECT_EQ(e.loss.front(), 0);
  EXPECT_EQ(e.loss.back(), 1);
  DataloaderConfig neither;
  neither.add_bos = neither.add_eos = false;
  EXPECT_EQ(encode(t, "one two", {}, neither).ids, words);
  EXPECT_EQ(encode(t, "", {}).ids, (Ids{bos, eos}));
  EXPECT_EQ(encode(t, "\n", {{0, 1}}).ids, (Ids{bos, eos}));
}

TEST(ChatEncoding, LearnsTurnsWithTheirEnds) {
  const Tokenizer t = tokenizer();
  const std::string user = "user: hi<|end_of_text|>", one = "yes<|end_of_text|>", more = "user: why?<|end_of_text|>";
  const std::string text = user + one + more + one;
  const Encoded e = encode(t, text, {{user.size(), user.size() + one.size()}, {text.size() - one.size(), text.size()}});
  std::string learned;
  for (size_t i = 0; i < e.ids.size(); ++i)
    if (e.loss[i] != 0) learned += t.token_bytes(e.ids[i]);
  EXPECT_EQ(learned, one + one);
}

}  // namespace
}  // namespace halftone::chat_encoding_test
