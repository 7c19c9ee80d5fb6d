#include "halftone/data/row_document.h"

#include <gtest/gtest.h>

#include "data/data_testing.h"

namespace halftone::row_document_test {
namespace {

using Ids = std::vector<int32_t>;
using Mask = std::vector<uint8_t>;

SourceOptions options(const std::string& text_key = "text") {
  SourceOptions o;
  o.text_key = text_key;
  o.vocab_size = 10;
  return o;
}

struct Read {
  Document::Kind kind;
  std::string text;
  Ids ids;
  Mask loss;
};
Read read(const std::string& line, const SourceOptions& o = options()) {
  RowDocument row(o);
  const Document& d = row.read(parse_row(line));
  return {d.kind, std::string(d.text), {d.ids.begin(), d.ids.end()}, {d.loss.begin(), d.loss.end()}};
}

TEST(RowDocument, TakesTextThenIds) {
  EXPECT_EQ(read(R"({"a":1,"text":"y\u00e9s","input_ids":[1]})").text, "y\u00e9s");
  EXPECT_EQ(read(R"({"text":null,"input_ids":[3,0,9]})").ids, (Ids{3, 0, 9}));
  EXPECT_EQ(read(R"({"input_ids":[]})").kind, Document::Kind::ids);
  EXPECT_EQ(read(R"({"a":{"b":{"c":"deep"}},"text":"no"})", options("a.b.c")).text, "deep");
  EXPECT_EQ(read(R"({"a":{"b":"no"},"a.b":"exact"})", options("a.b")).text, "exact");
}

TEST(RowDocument, MasksIds) {
  EXPECT_EQ(read(R"({"input_ids":[3,0,9],"labels":[-100,0,9]})").loss, (Mask{0, 1, 1}));
  EXPECT_EQ(read(R"({"input_ids":[3,0,9],"loss_mask":[1,0,1]})").loss, (Mask{1, 0, 1}));
  EXPECT_EQ(read(R"({"input_ids":[3,0],"loss_mask":[false,true],"labels":null})").loss, (Mask{0, 1}));
  EXPECT_TRUE(read(R"({"input_ids":[3,0]})").loss.empty());
}

TEST(RowDocument, NamesWhatIsWrong) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"txt":"a","n":1})",
       "expected a field \"text\" (string; set dataloader.text_key), \"input_ids\" (list of integers) or a "
       "conversation (\"messages\", \"conversations\" or \"instruction\"; dataloader.messages_key), found txt, n"},
      {R"({})", "found no field"},
      {R"({"text":null})", "field \"text\": expected a string, found null"},
      {R"({"text":["a"]})", "field \"text\": expected a string, found a list"},
      {R"({"input_ids":5})", "input_ids: expected a list of integers, found a number"},
      {R"({"input_ids":[1,"2"]})", "found a string in it"},
      {R"({"input_ids":[1,2.5]})", "found a number with a fraction in it"},
      {R"({"input_ids":[10]})", "input_ids holds 10: expected ids from 0 to 9"},
      {R"({"input_ids":[-1]})", "input_ids holds -1"},
      {R"({"input_ids":[18446744073709551615]})", "expected ids from 0 to 9"},
      {R"({"input_ids":[1,2],"labels":[1]})", "labels: expected a list as long as input_ids (2), found 1 values"},
      {R"({"input_ids":[1,2],"labels":7})", "labels: expected a list as long as input_ids (2), found a number"},
      {R"({"input_ids":[1,2],"labels":[2,-100]})", "labels[0] is 2: expected input_ids[0] = 1 (not shifted), or -100 without a loss"},
      {R"({"input_ids":[1,2],"loss_mask":[1,2]})", "loss_mask[1] is 2: expected 0 or 1"},
      {R"({"input_ids":[1,2],"loss_mask":[1,"1"]})", "loss_mask[1] is \"1\": expected 0 or 1"},
      {R"([1])", "expected a JSON object, found a list"},
      {R"({"a":1)", "not valid JSON"},
      {"{\"a\":\"\xFF\"}", "not valid JSON"},
  };
  for (const auto& [line, part] : cases) EXPECT_ERROR(read(line), part) << line;
  EXPECT_ERROR(read(std::string("{\"text\":\"a\"}\0x", 14)), "not valid JSON: byte 13 of the row is zero");
  EXPECT_ERROR(read(R"({"a":{"c":1,"d":2},"e":3})", options("a.b")), "found a, e, and in it a.c, a.d");
  SourceOptions no_chat = options();
  no_chat.chat.format = ChatFormat::none;
  EXPECT_ERROR(read(R"({"messages":[]})", no_chat), "text_key) or \"input_ids\" (list of integers), found messages");
  SourceOptions small = options();
  small.max_document_bytes = 3;
  EXPECT_EQ(read(R"({"text":"abc"})", small).text, "abc");
  EXPECT_ERROR(read(R"({"text":"abcd"})", small), "a document of 4 bytes: expected at most 3 (dataloader.max_document_mib)");
  nlohmann::ordered_json row;
  row["text"] = "a\xFF";
  EXPECT_ERROR(RowDocument(options()).read(row), "not UTF-8 at column 2 (byte 0xFF)");
}

TEST(RowDocument, LimitsLevelsAndFields) {
  const auto nested = [](int levels) { return "{\"a\":" + std::string(levels, '[') + std::string(levels, ']') + "}"; };
  EXPECT_NO_THROW(parse_row(nested(200)));
  EXPECT_ERROR(parse_row(nested(100'000)), "more than 256 levels");
  const auto wide = [](int fields) {
    std::string row = "{\"o\":{";
    for (int i = 0; i < fields; ++i) row += (i == 0 ? "\"k" : ",\"k") + std::to_string(i) + "\":1";
    return row + "}, \"p\":{\"q\":1}}";
  };
  EXPECT_EQ(parse_row(wide(1000)).at("o").size(), 1000u);
  EXPECT_ERROR(parse_row(wide(1001)), "more than 1000 fields");
}

TEST(RowDocument, JsonlReadsRowsThatTheFastPathLeaves) {
  const TempFolder folder;
  SourceOptions o = options("a.b");
  o.dataset = "jsonl";
  o.path = folder.write("rows.jsonl", "{\"a\":{\"b\":\"one\"}}\n{\"input_ids\":[1,2],\"labels\":[-100,2]}\n{\"c\":1}\n");
  o.on_bad_line = "skip";
  std::vector<Document::Kind> kinds;
  std::string texts;
  Mask loss;
  open_source(o)->read_file(0, [&](const Document& d) {
    kinds.push_back(d.kind);
    if (d.kind == Document::Kind::text) texts += d.text;
    loss.insert(loss.end(), d.loss.begin(), d.loss.end());
    if (d.kind == Document::Kind::bad) texts += d.bad->text();
  });
  EXPECT_EQ(kinds, (std::vector{Document::Kind::text, Document::Kind::ids, Document::Kind::bad}));
  EXPECT_EQ(loss, (Mask{0, 1}));
  EXPECT_TRUE(texts.starts_with("one" + o.path + ":3: expected a field \"a.b\"")) << texts;
}

}  // namespace
}  // namespace halftone::row_document_test
