#include <gtest/gtest.h>

#include <sys/stat.h>

#include <random>
#include <set>

#include "data/data_testing.h"
#include "halftone/data/file_io.h"
#include "halftone/data/jsonl_line.h"
#include "halftone/data/line_reader.h"
#include "halftone/data/parallel_in_order.h"
#include "halftone/data/row_document.h"
#include "source_dir.h"

namespace halftone {
namespace {

std::vector<std::string> texts(const DocumentSource& source) {
  std::vector<std::string> out;
  for (int64_t s = 0; s < source.shard_count(); ++s) source.read_shard(s, [&](const Document& d) { out.emplace_back(d.text); });
  return out;
}

std::unique_ptr<DocumentSource> text_source(const std::string& path, const std::string& split = "file") {
  SourceOptions options;
  options.dataset = "text";
  options.path = path;
  options.text_split = split;
  return open_source(options);
}

std::vector<std::string> names(const FileList& list) {
  std::vector<std::string> out;
  for (const SourceFile& f : list.files) out.push_back(f.name);
  return out;
}

void write_atomically(const std::string& path, std::string_view text) {
  AtomicFile file(path);
  file.write(text.data(), text.size());
  file.commit();
}

TEST(AtomicFile, ReplacesWhatLinksPointTo) {
  const TempFolder folder;
  const std::string real = folder.write("other/real", "old");
  const std::string link = folder / "link", link_to_link = folder / "again", missing = folder / "new";
  std::filesystem::create_symlink("other/real", link);
  std::filesystem::create_symlink(link, link_to_link);
  std::filesystem::create_symlink("other/later", missing);
  write_atomically(link_to_link, "new");
  write_atomically(missing, "first");
  EXPECT_EQ(read_file(real, 100), "new");
  EXPECT_EQ(read_file(folder / "other/later", 100), "first");
  for (const std::string& l : {link, link_to_link, missing}) EXPECT_TRUE(std::filesystem::is_symlink(l)) << l;
  std::filesystem::create_symlink("circle", folder / "circle");
  EXPECT_ERROR(write_atomically(folder / "circle", "x"), "symbolic links");
}

TEST(AtomicFile, RefusesWhatIsNoRegularFile) {
  const TempFolder folder;
  const std::string pipe = folder / "pipe", link = folder / "link";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  std::filesystem::create_symlink("/dev/null", link);
  EXPECT_ERROR(write_atomically(pipe, "x"), "expected a regular file or a new name, found a pipe");
  EXPECT_ERROR(write_atomically(link, "x"), "found a device");
  EXPECT_ERROR(write_atomically(folder.str(), "x"), "found a folder");
  EXPECT_ERROR(write_atomically("", "x"), "found an empty one");
  EXPECT_ERROR(write_atomically(folder / "none/file", "x"), "No such file or directory");
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
}

TEST(AtomicFile, SaysWhyItCouldNotBeNamed) {
  const TempFolder folder;
  AtomicFile file(folder / "file");
  file.write("x", 1);
  std::filesystem::create_directory(folder / "file");  // after the check
  EXPECT_ERROR(file.commit(), "file: Is a directory");
}

TEST(FileList, GlobsSortAndSkipHiddenAndLinkedFolders) {
  const TempFolder folder;
  for (const char* name : {"t/b.py", "t/a.py", "t/sub/c.py", "t/sub/deep/d.py", "t/sub/e.txt", "t/.hidden/f.py", "t/.g.py", "u/h.py"})
    folder.write(name, name);
  std::filesystem::create_directory_symlink(folder / "t", folder / "t/loop");
  using Names = std::vector<std::string>;
  EXPECT_EQ(names(find_files(folder / "t/**/*.py", {})), (Names{"a.py", "b.py", "sub/c.py", "sub/deep/d.py"}));
  EXPECT_EQ(names(find_files(folder / "t/**/**/*.py", {})), (Names{"a.py", "b.py", "sub/c.py", "sub/deep/d.py"}));
  EXPECT_EQ(names(find_files(folder / "[tu]/?.py", {})), (Names{"t/a.py", "t/b.py", "u/h.py"}));
  EXPECT_EQ(names(find_files(folder / "*/sub/**", {})), (Names{"c.py", "deep/d.py", "e.txt"}));
  EXPECT_EQ(names(find_files(folder / "t", {".txt", ".md"})), (Names{"e.txt"}));
  EXPECT_EQ(names(find_files(folder / "t/a.py", {".txt"})), (Names{"a.py"}));
  folder.write("a [1]*?/x.txt", "text");
  EXPECT_EQ(names(find_files(folder / "a [1]*?", {".txt"})), (Names{"x.txt"}));
  EXPECT_ERROR(find_files(folder / "nothing", {".txt"}), "no such file or folder");
  EXPECT_ERROR(find_files(folder / "t/*.c", {".txt"}), "no file matches");
  EXPECT_ERROR(find_files(folder / "u", {".txt"}), "holds no file ending in .txt");
}

TEST(FileList, DigestFollowsNamesAndContentsNotPlaceOrTime) {
  const TempFolder one, two;
  for (const TempFolder* f : {&one, &two}) {
    f->write("x/a.txt", "first");
    f->write("x/sub/b.txt", "second");
  }
  const std::string digest = content_digest(find_files(one / "x/**", {}), 2);
  EXPECT_EQ(digest, content_digest(find_files(two / "x/**", {}), 1));
  two.write("x/sub/b.txt", "sec0nd");
  EXPECT_NE(digest, content_digest(find_files(two / "x/**", {}), 1));
  two.write("x/sub/b.txt", "second");
  EXPECT_EQ(digest, content_digest(find_files(two / "x/**", {}), 1));
  std::filesystem::rename(two / "x/sub/b.txt", two / "x/sub/c.txt");
  EXPECT_NE(digest, content_digest(find_files(two / "x/**", {}), 1));
}

TEST(TextSource, Splits) {
  const TempFolder folder;
  const std::string path = folder.write("a.txt", "\xEF\xBB\xBFone\r\ntwo\n\n \t\nthree\n\n\nfour\nfive");
  using Texts = std::vector<std::string>;
  EXPECT_EQ(texts(*text_source(path)), (Texts{"one\r\ntwo\n\n \t\nthree\n\n\nfour\nfive"}));
  EXPECT_EQ(texts(*text_source(path, "line")), (Texts{"one", "two", "three", "four", "five"}));
  EXPECT_EQ(texts(*text_source(path, "blank_line")), (Texts{"one\ntwo", "three", "four\nfive"}));
  EXPECT_ERROR(text_source(path, "page"), "expected file, line or blank_line");
}

// Files larger than a shard are split; every unit must appear exactly once, in order, wherever the splits fall.
TEST(TextSource, LargeFilesAreCutWithoutLosingOrRepeatingAnything) {
  const TempFolder folder;
  std::mt19937 random(1);
  std::string text;
  std::vector<std::string> lines, paragraphs;
  while (text.size() < (size_t{5} << 20)) {
    std::string paragraph;
    const bool huge = random() % 40 == 0;
    for (unsigned k = 0; k < 1 + random() % 4; ++k) {
      lines.push_back(std::string(1 + random() % (huge ? 900'000 : 20'000), static_cast<char>('a' + random() % 26)));
      text += lines.back() + "\n";
      paragraph += (k == 0 ? "" : "\n") + lines.back();
      // k advances while the bound is redrawn: paragraphs of several lengths.
    }
    paragraphs.push_back(paragraph);
    for (unsigned k = 0; k < 1 + random() % 3; ++k) text += "\n";
  }
  const std::string path = folder.write("big.txt", text);
  EXPECT_GE(text_source(path, "line")->shard_count(), 5);
  EXPECT_EQ(texts(*text_source(path, "line")), lines);
  EXPECT_EQ(texts(*text_source(path, "blank_line")), paragraphs);
}

TEST(Jsonl, TakesTheTextFieldOrIds) {
  EXPECT_EQ(parse_jsonl_line(R"({"a":{"text":"no"},"text":"y\u00e9s","b":[1,{"text":2}]})", "text", 10).text, "y\u00e9s");
  EXPECT_EQ(parse_jsonl_line(R"({"body":"x","text":1})", "body", 10).text, "x");
  const JsonlDocument ids = parse_jsonl_line(R"({"input_ids":[3,1,9]})", "text", 10);
  EXPECT_TRUE(ids.has_ids && !ids.has_text);
  EXPECT_EQ(ids.ids, (std::vector<int32_t>{3, 1, 9}));
  EXPECT_TRUE(parse_jsonl_line(R"({"input_ids":[3],"text":"t"})", "text", 10).has_text);
  for (const char* line :
       {R"({"txt":"a"})", R"({"text":null})", R"({"input_ids":[3],"labels":[3]})", R"({"loss_mask":[1],"input_ids":[3]})"})
    EXPECT_TRUE(parse_jsonl_line(line, "text", 10).whole_row) << line;
  for (const char* line : {R"({"text":"a","labels":[3]})", R"({"input_ids":[3]})", R"({"a":{"labels":1},"input_ids":[3]})"})
    EXPECT_FALSE(parse_jsonl_line(line, "text", 10).whole_row) << line;
}

TEST(Jsonl, NamesWhatIsWrong) {
  const auto message = [](const std::string& line) { return error_of([&] { parse_jsonl_line(line, "text", 10); }); };
  const std::pair<const char*, const char*> cases[] = {
      {R"({"text": "a")", "not valid JSON at column 13"},
      {R"({"text": "a"} x)", "not valid JSON"},
      {R"({"text": "\u00e9" x)", "not valid JSON at column 19"},
      {"{\"\xC3\xA9\": 1, \"text\": \"\xFF\"}", "not UTF-8 at column 19 (byte 0xFF)"},
      {R"({"text": "a \ud800"})", "lone surrogate \\ud800 at column 13"},
      {R"({"text": "a \uD83D\u0041"})", "lone surrogate \\uD83D at column 13"},
      {R"({"text": "\ud83d\ude00\uDE00"})", "lone surrogate \\uDE00 at column 23"},
      {R"([{"text": "a"}])", "found an array"},
      {R"("text")", "expected a JSON object, found a string"},
      {R"(7)", "expected a JSON object, found a number"},
      {R"({"text": ["a"]})", "expected a string, found a list"},
      {R"({"text": {"a": 1}})", "expected a string, found an object"},
      {R"({"input_ids": 5})", "input_ids: expected a list of integers, found a number"},
      {R"({"input_ids": [1, "2"]})", "found a string in it"},
      {R"({"input_ids": [1, [2]]})", "found a list in it"},
      {R"({"input_ids": [1, 2.5]})", "found a number with a fraction in it"},
      {R"({"input_ids": [1, 10]})", "input_ids holds 10: expected ids from 0 to 9"},
      {R"({"input_ids": [1, -1]})", "input_ids holds -1"},
      {R"({"input_ids": [18446744073709551615]})", "expected ids from 0 to 9"},
  };
  const std::string zero("{\"text\": \"a\"}\0x", 15);
  EXPECT_EQ(message(zero), "not valid JSON at column 14: a zero byte");
  for (const auto& [line, part] : cases) EXPECT_NE(message(line).find(part), std::string::npos) << line << " -> " << message(line);
}

TEST(Jsonl, ErrorsNameFileAndLine) {
  const TempFolder folder;
  std::string text = random_jsonl(3000, 1000, 3);  // more than one shard
  const auto lines = std::count(text.begin(), text.end(), '\n');
  const std::string path = folder.write("bad.jsonl", text + "\n{\"text\": 3}\n" + random_jsonl(10, 5, 4));
  EXPECT_ERROR(open_jsonl(path, folder / "cache"),
               path + ":" + std::to_string(lines + 2) + ": field \"text\": expected a string, found a number");
  EXPECT_ERROR(open_jsonl(folder.write("x.json", "\x1F\x8B\x08 zip"), folder / "cache"), "x.json: damaged gzip data at byte 4");
  // Nothing unfinished remains.
  for (const auto& e : std::filesystem::directory_iterator(folder / "cache")) EXPECT_EQ(e.path().extension(), ".lock") << e.path();
}

TEST(Jsonl, MessagesQuoteNoWholeLine) {
  const std::string text(1'000'000, 'x');
  for (const std::string& line : {"{\"" + text + "\": 1}", "{\"text\": \"" + text + "\x01\"}", "{\"text\": " + text + "}"}) {
    const std::string message = error_of([&] {
      if (parse_jsonl_line(line, "text", 10).whole_row) RowDocument({}).read(parse_row(line));
    });
    EXPECT_FALSE(message.empty());
    EXPECT_LT(message.size(), 500u) << line.substr(0, 20);
  }
}

TEST(Source, RefusesWhatIsNotPlain) {
  const TempFolder folder;
  using namespace std::string_literals;
  const std::pair<std::string, const char*> cases[] = {{"BZh91AY&SY rest", "bzip2 -dk"},
                                                       {"PK\x03\x04 entry", "unzip"},
                                                       {"PAR1 column chunks PAR1", "found Parquet; set dataset = \"parquet\""},
                                                       {"\xFF\xFEt\0e\0"s, "iconv -f UTF-16"},
                                                       {"\xFE\xFF\0t\0e"s, "iconv -f UTF-16"}};
  for (const auto& [content, remedy] : cases) {
    for (const char* dataset : {"text", "jsonl"}) {
      SourceOptions options;
      options.dataset = dataset, options.path = folder.write("a.txt", content), options.vocab_size = kVocab;
      const auto read = [&] { open_token_store(*open_source(options), byte_codec(), folder / "cache", 1); };
      EXPECT_ERROR(read(), remedy) << dataset;
      EXPECT_ERROR(read(), "a.txt: expected ") << dataset;
    }
  }
  // Text that starts like these signatures.
  for (const char* text : {"BZh9 is a name", "PAR1 for the course", "PK"}) {
    SourceOptions options;
    options.dataset = "text", options.path = folder.write("b.txt", text), options.vocab_size = kVocab;
    EXPECT_EQ(open_token_store(*open_source(options), byte_codec(), folder / "cache", 1)->documents(), 1);
  }
}

TEST(LineReader, PiecesOfALongLineReadNothingBeyondThemselves) {
  const TempFolder folder;
  const std::string path = folder.write("a.txt", std::string(5'000'000, 'x') + "\nend");
  std::string_view line;
  LineReader inside(path, 1'000'000, 2'000'000);
  EXPECT_FALSE(inside.next(line));
  LineReader last(path, 4'000'000, 5'000'004);
  ASSERT_TRUE(last.next(line));
  EXPECT_EQ(line, "end");
  EXPECT_EQ(last.line_offset(), 5'000'001);
  EXPECT_FALSE(last.next(line));
}

TEST(FileList, SaysThatAHomeFolderIsNotExpanded) {
  EXPECT_ERROR(find_files("~/data", {".txt"}), "~/data: no such file or folder; ~ is not expanded");
  EXPECT_ERROR(find_files("~/data/*.txt", {".txt"}), "no file matches; ~ is not expanded");
}

TEST(Source, RefusesUnknownNamesAndMissingPaths) {
  SourceOptions options;
  options.dataset = "arrow";
  EXPECT_ERROR(
      open_source(options),
      "dataset = \"arrow\": expected auto, text, jsonl, parquet, bin, megatron, mds, c4, c4_validation, c4_test or a name of [data.names]");
  options.dataset = "fineweb";
  EXPECT_ERROR(open_source(options), "nothing is downloaded, add [data.names.fineweb] with path = ...");
  options.dataset = "text";
  EXPECT_ERROR(open_source(options), "needs dataset_path");
  options.dataset = "c4";
  EXPECT_ERROR(open_source(options), "needs dataset_path");
}

TEST(Source, RegisteredSampleIsThere) {
  SourceOptions options;
  options.dataset = "c4_test";
  options.path = source_dir() + "/tests/assets/c4_test";
  const auto source = open_source(options);
  const std::vector<std::string> documents = texts(*source);
  size_t bytes = 0;
  for (const std::string& d : documents) bytes += d.size();
  EXPECT_GE(documents.size(), 100u);
  EXPECT_GE(bytes, 100'000u);
}

TEST(InOrder, TakesInOrderAndRethrowsTheFirstFailure) {
  std::vector<int64_t> seen;
  in_order(
      500, 7, [](int64_t i) { return i * i; }, [&](int64_t, int64_t v) { seen.push_back(v); });
  ASSERT_EQ(seen.size(), 500u);
  for (size_t i = 0; i < seen.size(); ++i) ASSERT_EQ(seen[i], static_cast<int64_t>(i * i));
  int64_t taken = 0;
  EXPECT_ERROR(in_order(
                   500, 7,
                   [](int64_t i) {
                     check(i % 100 != 50, "at {}", i);
                     return i;
                   },
                   [&](int64_t, int64_t) { ++taken; }),
               "at 50");
  EXPECT_EQ(taken, 50);
}

}  // namespace
}  // namespace halftone
