#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <nlohmann/json.hpp>

#include "compress.h"
#include "data/data_testing.h"
#include "halftone/data/json_array.h"
#include "halftone/data/jsonl_line.h"
#include "halftone/data/jsonl_scan.h"
#include "halftone/data/line_reader.h"
#include "halftone/data/parallel_in_order.h"
#include "halftone/data/tokenise.h"

namespace halftone::compressed_text_test {
namespace {

using compress::gzip;
using compress::xz;
using compress::zstd;

using Texts = std::vector<std::string>;

SourceOptions options_of(const std::string& dataset, const std::string& path) {
  SourceOptions options;
  options.dataset = dataset, options.path = path, options.vocab_size = kVocab;
  return options;
}

Texts texts(const SourceOptions& options) {
  const auto source = open_source(options);
  Texts out, streamed;
  const auto add = [](Texts& to) {
    return [&to](const Document& d) { to.emplace_back(d.kind == Document::Kind::bad ? "bad: " + d.bad->text() : std::string(d.text)); };
  };
  for (int64_t s = 0; s < source->shard_count(); ++s) source->read_shard(s, add(out));
  for (size_t f = 0; f < source->files().files.size(); ++f) source->read_file(f, add(streamed));
  EXPECT_EQ(out, streamed);
  return out;
}

TEST(CompressedText, EqualsThePlainFile) {
  const TempFolder folder;
  const std::string jsonl = random_jsonl(3000, 3000, 7);  // several MiB: the plain file is cut
  const Texts expected = texts(options_of("jsonl", folder.write("plain/a.jsonl", jsonl)));
  ASSERT_EQ(expected.size(), 3000u);
  EXPECT_EQ(texts(options_of("jsonl", folder.write("gz/a.jsonl.gz", gzip(jsonl)))), expected);
  EXPECT_EQ(texts(options_of("jsonl", folder.write("zst/a.json.zst", zstd(jsonl)))), expected);
  EXPECT_EQ(texts(options_of("jsonl", folder.write("xz/a.ndjson.xz", xz(jsonl)))), expected);
  EXPECT_EQ(texts(options_of("jsonl", folder / "zst")), expected);  // by the suffix, in a folder
  EXPECT_EQ(texts(options_of("text", folder.write("t/a.txt.gz", gzip("\xEF\xBB\xBFone\ntwo\n\nthree")))), (Texts{"one\ntwo\n\nthree"}));
  for (const char* split : {"line", "blank_line"}) {
    SourceOptions packed = options_of("text", folder / "t"), plain = options_of("text", folder.write("u/a.txt", "one\ntwo\n\nthree"));
    packed.text_split = plain.text_split = split;
    EXPECT_EQ(texts(packed), texts(plain));
  }
}

// The document store is the same for any number of threads, however a source is cut.
TEST(CompressedText, OneLargeFileIsTokenisedInOrder) {
  const TempFolder folder;
  const std::string jsonl = random_jsonl(4000, 4000, 9);
  const auto plain = open_jsonl(folder.write("a.jsonl", jsonl), folder / "plain", 1);
  const std::string packed = folder.write("a.jsonl.zst", zstd(jsonl));
  for (const int threads : {1, 2, 5}) {
    const auto store = open_jsonl(packed, folder / std::to_string(threads), threads);
    ASSERT_EQ(store->documents(), plain->documents());
    for (int64_t d = 0; d < store->documents(); ++d) {
      ASSERT_EQ(store->hash(d), plain->hash(d));
      ASSERT_EQ(document_ids(*store, d), document_ids(*plain, d));
    }
  }
}

TEST(CompressedText, BadLinesAreNumbered) {
  const TempFolder folder;
  const std::string jsonl = random_jsonl(2000, 1000, 3) + "\n{\"text\": 3}\n{\"text\": \"end\"}\n[1]\n";
  const std::string path = folder.write("a.jsonl.gz", gzip(jsonl));
  EXPECT_ERROR(open_jsonl(path, folder / "cache"), path + ":2002: field \"text\": expected a string, found a number");
  SourceOptions skip = options_of("jsonl", path);
  skip.on_bad_line = "skip";
  const Texts all = texts(skip);
  ASSERT_EQ(all.size(), 2003u);
  EXPECT_EQ(all[2001], "end");
  EXPECT_NE(all[2002].find(":2004: "), std::string::npos) << all[2002];
  const std::string lines = folder.write("b.txt.xz", xz("good\n\xFF\nfine\n"));
  SourceOptions text = options_of("text", lines);
  text.text_split = "line";
  EXPECT_ERROR(texts(text), lines + ":2: not UTF-8 at column 1 (byte 0xFF)");
}

TEST(CompressedText, DamageIsAnErrorEvenWhereBadLinesAreSkipped) {
  const TempFolder folder;
  const std::string packed = zstd(random_jsonl(1000, 1000, 3));
  SourceOptions options = options_of("jsonl", folder.write("a.jsonl.zst", packed.substr(0, packed.size() / 2)));
  options.on_bad_line = "skip";
  EXPECT_ERROR(open_token_store(*open_source(options), byte_codec(), folder / "cache", 2), "a.jsonl.zst: the zstd file is cut short");
  const std::string twice = folder.write("b.jsonl.gz", gzip(gzip("{}")));
  EXPECT_ERROR(texts(options_of("jsonl", twice)), "expected JSON lines, found gzip; unpack it with: gzip -dk");
}

TEST(CompressedText, DocumentsAreLimited) {
  const TempFolder folder;
  const std::string bomb = gzip("{\"text\": \"ok\"}\n{\"text\": \"" + std::string(3'000'000, 'x') + "\"}\n");
  ASSERT_LT(bomb.size(), 10'000u);
  const auto limited = [&](const char* dataset, const std::string& name, const std::string& content) {
    SourceOptions options = options_of(dataset, folder.write(name, content));
    options.max_document_bytes = 1'000'000;
    return options;
  };
  EXPECT_ERROR(texts(limited("jsonl", "a.jsonl.gz", bomb)), "a.jsonl.gz:2: a line of more than 1000000 bytes");
  EXPECT_ERROR(texts(limited("jsonl", "c.json", "[{\"text\": \"" + std::string(3'000'000, 'x') + "\"}]")),
               "c.json:1: a document of more than 1000000 bytes");
  EXPECT_ERROR(texts(limited("jsonl", "d.jsonl", "{\"text\": \"" + std::string(999'990, 'x') + "\"}\n")), "d.jsonl:1: a line of more than");
  EXPECT_ERROR(texts(limited("text", "a.txt.gz", bomb)), "a document (text_split = \"file\") of more than 1000000 bytes");
  SourceOptions lines = limited("text", "b.txt.gz", gzip("a\n\n" + std::string(600'000, 'b') + "\n" + std::string(600'000, 'c')));
  lines.text_split = "blank_line";
  EXPECT_ERROR(texts(lines), "b.txt.gz:4: a paragraph of more than 1000000 bytes");
}

TEST(JsonArray, ElementsAreDocuments) {
  const TempFolder folder;
  const auto read = [&](const std::string& text) { return texts(options_of("jsonl", folder.write("a.json", text))); };
  EXPECT_EQ(read(R"([{"text": "a"}, {"text": "b, ]}\"\\"} ,
    {"x": {"y": [1, "]"]}, "text": "c"}]
  )"),
            (Texts{"a", "b, ]}\"\\", "c"}));
  EXPECT_EQ(read("\xEF\xBB\xBF [\n]\n"), Texts());
  Texts many;
  std::string text = "[";
  for (int i = 0; i < 30'000; ++i) {
    many.push_back(std::string(static_cast<size_t>(i % 97), '\\') + std::to_string(i) + std::string(static_cast<size_t>(i % 3), '"'));
    text += (i == 0 ? "" : i % 2 == 0 ? ", " : ",\n") + nlohmann::json{{"text", many.back()}}.dump();
  }
  EXPECT_EQ(read(text + "]"), many);  // several blocks
  EXPECT_EQ(texts(options_of("jsonl", folder.write("b.json.gz", gzip(text + "]\n")))), many);
}

TEST(JsonArray, NamesWhatIsWrong) {
  const TempFolder folder;
  const std::pair<const char*, const char*> cases[] = {
      {"[{\"text\": \"a\"}\n{\"text\": \"b\"}]", "a.json:2: a JSON array: expected , or ] behind a document, found {"},
      {"[{\"text\": \"a\"}", "expected , or ], found the end of the file: is it cut short?"},
      {"[{\"text\": \"a\"", "expected the end of a document, found the end of the file"},
      {"[{\"text\": \"a\"}]\n x", "a.json:2: a JSON array: expected the end of the file behind ], found x"},
      {"[{\"text\": \"a\"}]\n[{\"text\": \"a\"}]", "expected the end of the file behind ], found ["},
      {"[", "expected a document or ], found the end of the file"},
      {"[{\"text\": \"a\"},]", "a.json:1: not valid JSON at column 1"},
      {"[{\"text\": \"a\"},\n3]", "a.json:2: expected a JSON object, found a number"},
      {"[{\"text\": \"a\"},\n[{\"text\": \"b\"}]]", "a.json:2: expected one JSON object per line, found an array"},
      {"[{\"text\": 3}]", "a.json:1: field \"text\": expected a string, found a number"},
  };
  for (const auto& [text, part] : cases) EXPECT_ERROR(texts(options_of("jsonl", folder.write("a.json", text))), part) << text;
}

// The quick scan accepts only what the complete parser accepts, with the same text; and all usual lines.
TEST(JsonlScan, AgreesWithTheParser) {
  const auto scan = [](const std::string& line) {
    std::string text;
    return scan_jsonl_text(line, "text", text) ? "=" + text : std::string();
  };
  const std::pair<const char*, const char*> taken[] = {
      {R"({"text":"a"})", "=a"},
      {R"( { "n" : -0.5 , "text" : "a\n\"\\\/\b\f\r\t" , "z":{"text":[1,{}],"k":[]}} )", "=a\n\"\\/\b\f\r\t"},
      {R"({"text":"\u00e9\ud83d\ude00\u0000x"})", "=\xC3\xA9\xF0\x9F\x98\x80"},
      {R"({"a":[[],{},true,false,null,123456789012345678,0.25],"text":"\u00E9"})", "=\xC3\xA9"},
      {"{\"text\":\"\xC3\xA9\"}", "=\xC3\xA9"}};
  for (const auto& [line, text] : taken) EXPECT_EQ(scan(line).substr(0, std::string(text).size()), text) << line;
  const std::string refused[] = {"",
                                 "{}",
                                 R"({"text":3})",
                                 R"({"text":"a"} x)",
                                 R"({"text":"a",})",
                                 R"({"text":"a" "b":1})",
                                 R"({"text":"\x"})",
                                 R"({"text":"\u12g4"})",
                                 R"({"text":"\ud800"})",
                                 R"({"text":"\udc00\ud800"})",
                                 R"({"text":"a","b":01})",
                                 R"({"text":"a","b":-})",
                                 R"({"text":"a","b":1.})",
                                 R"({"text":"a","b":[1,]})",
                                 R"({"text":"a","b":[1})",
                                 R"({"text":"a","b":{"c"}})",
                                 R"({"text":"a","b":tru})",
                                 R"({"text":"a","b":})",
                                 R"({"text":"a)",
                                 R"({"text":"a","input_ids":[1]})",
                                 R"({"text":"a","text":"b"})",
                                 "{\"text\":\"a\tb\"}",
                                 "{\"text\":\"\xFF\"}",
                                 std::string("{\"text\":\"a\0b\"}", 14),
                                 R"([{"text":"a"}])"};
  for (const std::string& line : refused) EXPECT_EQ(scan(line), "") << line;
  std::mt19937 random(11);
  const std::string alphabet = "{}[]\",:\\u0d8a.-e1 tx\n\t\x80\xC3\xA9";
  int agreed = 0;
  for (int round = 0; round < 200'000; ++round) {
    std::string line = taken[random() % 4].first;
    for (unsigned k = random() % 3; k > 0; --k) {
      const size_t at = random() % line.size();
      switch (random() % 3) {
        case 0:
          line[at] = alphabet[random() % alphabet.size()];
          break;
        case 1:
          line.insert(at, 1, alphabet[random() % alphabet.size()]);
          break;
        default:
          line.erase(at, 1);
      }
    }
    std::string text;
    if (!scan_jsonl_text(line, "text", text)) continue;
    ++agreed;
    const nlohmann::json parsed = nlohmann::json::parse(line, nullptr, false);
    ASSERT_TRUE(parsed.is_object()) << line;
    ASSERT_EQ(parsed.at("text"), text) << line;
  }
  EXPECT_GT(agreed, 10'000);
}

TEST(OrderedChunks, TakesInOrderOnAnyNumberOfThreads) {
  for (const int threads : {1, 2, 7}) {
    std::vector<std::pair<int64_t, int>> taken, expected;
    for (int64_t i = 0; i < 50; ++i)
      for (int c = 0; c < (i % 7 == 0 ? 100 : static_cast<int>(i % 3)); ++c) expected.emplace_back(i, c);
    in_order_chunks<int>(
        50, threads,
        [](int64_t i, auto&& emit) {
          for (int c = 0; c < (i % 7 == 0 ? 100 : static_cast<int>(i % 3)); ++c) emit(int{c});
        },
        [](int&& c) { return c; }, [&](int64_t i, int c) { taken.emplace_back(i, c); });
    EXPECT_EQ(taken, expected);
  }
}

TEST(OrderedChunks, RethrowsTheFirstFailure) {
  for (const int threads : {1, 3}) {
    int64_t taken = 0;
    const auto run = [&](int64_t bad_read, int bad_make) {
      taken = 0;
      in_order_chunks<int>(
          20, threads,
          [&](int64_t i, auto&& emit) {
            for (int c = 0; c < 10; ++c) {
              check(i != bad_read || c < 5, "read {} {}", i, c);
              emit(static_cast<int>(i) * 10 + c);
            }
          },
          [&](int&& c) {
            check(c != bad_make, "make {}", c);
            return c;
          },
          [&](int64_t, int) { ++taken; });
    };
    EXPECT_ERROR(run(4, 60), "read 4 5");
    EXPECT_EQ(taken, 45);
    EXPECT_ERROR(run(4, 31), "make 31");
    EXPECT_EQ(taken, 31);
    EXPECT_ERROR(in_order_chunks<int>(
                     5, threads, [](int64_t i, auto&& emit) { emit(static_cast<int>(i)); }, [](int&& c) { return c; },
                     [](int64_t i, int) { check(i < 3, "take {}", i); }),
                 "take 3");
  }
}

// Chunks and results held at a time stay bounded while one item is read ahead of the rest.
TEST(OrderedChunks, HoldsFewChunks) {
  std::atomic<int> held{0}, most{0};
  in_order_chunks<int>(
      3, 2,
      [&](int64_t, auto&& emit) {
        for (int c = 0; c < 200; ++c) {
          most = std::max(most.load(), ++held);
          emit(int{c});
        }
      },
      [](int&& c) { return c; },
      [&](int64_t, int) {
        --held;
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      });
  EXPECT_LE(most, 5 * 2 + 2);
}

}  // namespace
}  // namespace halftone::compressed_text_test
