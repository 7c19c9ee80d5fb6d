#include "halftone/data/token_store.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "data/data_testing.h"
#include "halftone/data/digest.h"

namespace halftone {
namespace {

std::string file_ending(const std::string& folder, const std::string& suffix) {
  for (const auto& e : std::filesystem::directory_iterator(folder))
    if (e.path().string().ends_with(suffix)) return e.path().string();
  return "";
}
std::string slurp(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
void spew(const std::string& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

std::string bin16(const std::vector<int>& ids) {
  std::string out;
  for (const int id : ids) {
    out += static_cast<char>(id & 255);
    out += static_cast<char>(id >> 8);
  }
  return out;
}

std::shared_ptr<const TokenStore> open_bin(const std::string& path, const std::string& cache, const std::string& dtype = "uint16",
                                           int64_t vocab = kVocab) {
  SourceOptions options;
  options.dataset = "bin";
  options.path = path;
  options.vocab_size = vocab;
  options.eos_id = kEos;
  options.token_dtype = dtype;
  TextCodec codec = byte_codec();
  codec.vocab_size = vocab;
  codec.token_text.resize(static_cast<size_t>(vocab));
  return open_token_store(*open_source(options), codec, cache, 2);
}

TEST(TokenStore, HoldsEveryDocumentWhateverTheThreads) {
  const TempFolder folder;
  const std::string path =
      folder.write("a.jsonl", random_jsonl(5000, 900, 1) + "{\"text\": \"\"}\n{\"input_ids\": [1, 2, 257]}\n{\"input_ids\": []}\n");
  const auto one = open_jsonl(path, folder / "one", 1), four = open_jsonl(path, folder / "four", 4);
  ASSERT_EQ(one->documents(), 5001);
  EXPECT_EQ(one->stats().empty_documents, 2);
  EXPECT_EQ(document_ids(*one, 5000), (std::vector<int32_t>{1, 2, 257}));
  std::ifstream in(path);
  int64_t bytes = 0;
  std::string line;
  for (int64_t i = 0; i < 5000; ++i) {
    std::getline(in, line);
    const std::string text = line.substr(10, line.size() - 12);
    bytes += static_cast<int64_t>(text.size());
    std::vector<int32_t> want;
    byte_codec().encode_document(text, want);
    ASSERT_EQ(document_ids(*one, i), want);
    ASSERT_EQ(document_ids(*four, i), want);
    ASSERT_EQ(one->hash(i), hash_bytes(text.data(), text.size()));
  }
  EXPECT_EQ(one->stats().text_bytes, bytes);
  EXPECT_EQ(slurp(file_ending(folder / "one", ".tokens")), slurp(file_ending(folder / "four", ".tokens")));
}

TEST(TokenStore, IsReusedUntilContentsTokenizerOrOptionsChange) {
  const TempFolder folder;
  const std::string path = folder.write("a.jsonl", random_jsonl(50, 20, 1));
  int encoded = 0;
  TextCodec codec = byte_codec();
  const auto inner = codec.encode_document;
  codec.encode_document = [&](std::string_view text, std::vector<int32_t>& out) {
    ++encoded;
    inner(text, out);
  };
  SourceOptions options;
  options.dataset = "jsonl";
  options.path = path;
  options.vocab_size = kVocab;
  const auto open = [&] {
    encoded = 0;
    return open_token_store(*open_source(options), codec, folder / "cache", 1);
  };
  const std::string digest = open()->digest();
  EXPECT_EQ(encoded, 50);
  EXPECT_EQ(open()->digest(), digest);
  EXPECT_EQ(encoded, 0);
  // A new modification time with the same contents: digested again, not tokenised again.
  spew(path, slurp(path));
  EXPECT_EQ(open()->digest(), digest);
  EXPECT_EQ(encoded, 0);
  spew(path, random_jsonl(51, 20, 1));
  EXPECT_NE(open()->digest(), digest);
  EXPECT_EQ(encoded, 51);
  codec.digest = "other";
  open();
  EXPECT_EQ(encoded, 51);
}

TEST(TokenStore, DamagedIndexIsBuiltAgain) {
  const TempFolder folder;
  const std::string path = folder.write("a.jsonl", random_jsonl(200, 50, 2)), cache = folder / "cache";
  open_jsonl(path, cache);
  const std::string tokens = file_ending(cache, ".tokens"), meta = file_ending(cache, ".json");
  const std::string good_tokens = slurp(tokens), good_meta = slurp(meta);
  const auto flipped = [](std::string bytes, size_t at) {
    bytes[at] = static_cast<char>(bytes[at] ^ 4);
    return bytes;
  };
  const size_t n = good_tokens.size();
  for (const std::string& bad :
       {std::string(), good_tokens.substr(0, n / 2), good_tokens + "x", flipped(good_tokens, 10), flipped(good_tokens, n - 30)}) {
    spew(tokens, bad);
    EXPECT_EQ(open_jsonl(path, cache)->documents(), 200);
    EXPECT_EQ(slurp(tokens), good_tokens);
  }
  for (size_t at = 0; at < good_meta.size(); at += 7) {
    spew(meta, flipped(good_meta, at));
    ASSERT_EQ(open_jsonl(path, cache)->documents(), 200) << at;
  }
  spew(meta, "[1]");
  EXPECT_EQ(open_jsonl(path, cache)->documents(), 200);
  std::filesystem::remove(tokens);
  EXPECT_EQ(open_jsonl(path, cache)->documents(), 200);
}

TEST(TokenStore, EmptyCorpusAndUnwritableCacheAreErrors) {
  const TempFolder folder;
  EXPECT_ERROR(open_jsonl(folder.write("empty.jsonl", ""), folder / "cache"), "holds no document with text");
  EXPECT_ERROR(open_jsonl(folder.write("blank.jsonl", "\n{\"text\": \"\"}\n"), folder / "cache"), "holds no document with text");
  const std::string file = folder.write("file", "");
  EXPECT_ERROR(open_jsonl(folder.write("a.jsonl", random_jsonl(2, 5, 1)), file + "/cache"), "set HALFTONE_CACHE or job.dump_folder");
}

// A folder replaces the lock file: it cannot be opened for writing, whoever runs the test.
TEST(TokenStore, AnIndexThatCanOnlyBeReadIsUsedAndNotBuilt) {
  const TempFolder folder;
  const std::string path = folder.write("a.jsonl", random_jsonl(50, 20, 1)), cache = folder / "cache";
  const std::string digest = open_jsonl(path, cache)->digest(), lock = file_ending(cache, ".lock"),
                    meta = slurp(file_ending(cache, ".json"));
  std::filesystem::remove(lock);
  std::filesystem::create_directory(lock);
  EXPECT_EQ(open_jsonl(path, cache)->digest(), digest);
  spew(path, slurp(path));  // a new modification time
  EXPECT_EQ(open_jsonl(path, cache)->digest(), digest);
  EXPECT_EQ(slurp(file_ending(cache, ".json")), meta);
  spew(path, random_jsonl(51, 20, 1));
  EXPECT_ERROR(open_jsonl(path, cache), "the token index has to be built: cannot write " + lock);
}

TEST(TokenStore, HalvesOfIndicesGoUnlessTheyAreBeingBuilt) {
  const TempFolder folder;
  const std::string cache = folder / "cache";
  open_jsonl(folder.write("a.jsonl", random_jsonl(50, 20, 1)), cache);
  const std::string lock = file_ending(cache, ".lock"), key = lock.substr(0, lock.size() - std::string(".lock").size());
  const auto halves = [&] {
    std::vector<std::string> made;
    for (const char* name : {".tokens.tmp.7", ".tokens.table.tmp.7", ".json.tmp.8"}) spew(made.emplace_back(key + name), "half");
    return made;
  };
  const auto left = [](const std::vector<std::string>& paths) {
    return std::count_if(paths.begin(), paths.end(), [](const std::string& path) { return std::filesystem::exists(path); });
  };
  const std::vector<std::string> dead = halves();
  remove_index_leftovers(cache);
  EXPECT_EQ(left(dead), 0);
  EXPECT_EQ(open_jsonl(folder / "a.jsonl", cache)->documents(), 50) << "the index itself stays";
  const std::vector<std::string> living = halves();
  const int fd = ::open(lock.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(::flock(fd, LOCK_EX | LOCK_NB), 0);
  remove_index_leftovers(cache);
  EXPECT_EQ(left(living), 3);
  ::close(fd);
  remove_index_leftovers(folder / "absent");
}

TEST(TokenStore, FolderNamesNeedNotBeUtf8) {
  const TempFolder folder;
  const std::string path = folder.write("caf\xE9/a.jsonl", random_jsonl(5, 20, 1));
  folder.write("caf\xE9/b.jsonl", random_jsonl(5, 20, 2));
  for (int i = 0; i < 2; ++i) EXPECT_EQ(open_jsonl(folder / "caf\xE9", folder / "cache")->documents(), 10);
}

std::shared_ptr<const TokenStore> open_lines(const std::string& path, const std::string& cache, const char* on_bad_line,
                                             const char* dataset = "jsonl", const char* split = "line", int threads = 2) {
  SourceOptions options;
  options.dataset = dataset, options.path = path, options.on_bad_line = on_bad_line, options.text_split = split;
  options.vocab_size = kVocab;
  return open_token_store(*open_source(options), byte_codec(), cache, threads);
}

TEST(BadLines, AreSkippedCountedAndRemembered) {
  const TempFolder folder;
  std::string good = random_jsonl(3000, 1000, 3), text;  // more than one shard
  std::istringstream lines(good);
  int64_t n = 0, bad = 0;
  for (std::string line; std::getline(lines, line); ++n) {
    text += line + "\n";
    if (n % 100 == 7)
      text += R"({"text": "a lone \udc00 surrogate"})"
              "\n",
          ++bad;
  }
  const std::string path = folder.write("a.jsonl", text), cache = folder / "cache";
  const auto plain = open_jsonl(folder.write("good.jsonl", good), folder / "plain");
  const auto messages = [&](const char* mode, int threads) {
    testing::internal::CaptureStdout();
    const auto store = open_lines(path, folder / ("cache" + std::to_string(threads)), mode, "jsonl", "line", threads);
    EXPECT_EQ(store->stats().bad_lines, bad);
    EXPECT_EQ(store->made_by(), "jsonl text_key=text bad_lines=" + std::to_string(bad));
    EXPECT_EQ(store->documents(), plain->documents());
    for (int64_t i = 0; i < plain->documents(); i += 17) EXPECT_EQ(document_ids(*store, i), document_ids(*plain, i));
    return testing::internal::GetCapturedStdout();
  };
  for (const int threads : {1, 4}) {
    for (int start = 0; start < 2; ++start) {  // builds the index, then reads it
      const std::string said = messages("skip", threads);
      EXPECT_NE(said.find("skipped 30 bad lines"), std::string::npos) << said;
      EXPECT_NE(said.find(path + ":9: lone surrogate \\udc00 at column 18"), std::string::npos) << said;
      EXPECT_NE(said.find(path + ":110: "), std::string::npos) << said;
    }
    // A run that wants an error does not use that index.
    EXPECT_ERROR(open_lines(path, folder / ("cache" + std::to_string(threads)), "error"), "a.jsonl:9: lone surrogate");
  }
  // Without bad lines both modes share one index.
  EXPECT_EQ(open_lines(folder / "good.jsonl", folder / "plain", "skip")->made_by(), "jsonl text_key=text");
  EXPECT_ERROR(open_lines(folder.write("none.jsonl", "{}\n7\n"), cache, "skip"), "skipped 2 bad lines");
  EXPECT_ERROR(open_lines(path, cache, "keep"), "expected error or skip");
}

TEST(BadLines, OfTextAreThoseThatAreNoUtf8) {
  const TempFolder folder;
  const std::string path = folder.write("a.txt", "one\r\ntwo\ncaf\xC3\xA9 f\xE9te\nthree\n\n\xED\xA0\x80\n\nfour\n");
  const auto texts = [&](const char* split) {
    const auto store = open_lines(path, folder / "cache", "skip", "text", split);
    EXPECT_EQ(store->stats().bad_lines, 2);
    std::vector<std::string> out;
    for (int64_t i = 0; i < store->documents(); ++i) {
      const std::vector<int32_t> ids = document_ids(*store, i);
      out.emplace_back(ids.begin() + 1, ids.end() - 1);
    }
    return out;
  };
  using Texts = std::vector<std::string>;
  EXPECT_EQ(texts("line"), (Texts{"one", "two", "three", "four"}));
  EXPECT_EQ(texts("blank_line"), (Texts{"one\ntwo\nthree", "four"}));
  EXPECT_EQ(texts("file"), (Texts{"one\r\ntwo\nthree\n\n\nfour\n"}));
  for (const char* split : {"line", "blank_line", "file"})
    EXPECT_ERROR(open_lines(path, folder / "other", "error", "text", split), path + ":3: not UTF-8 at column 7 (byte 0xE9)");
}

TEST(BinSource, DocumentsEndAtEosAndAtTheEndOfTheFile) {
  const TempFolder folder;
  folder.write("b.bin", bin16({4, kEos, kEos, 5, 6}));
  folder.write("a.bin", bin16({1, 2, 3, kEos, 9}));
  const auto store = open_bin(folder.str(), folder / "cache");
  ASSERT_EQ(store->documents(), 5);
  const std::vector<std::vector<int32_t>> want = {{1, 2, 3, kEos}, {9}, {4, kEos}, {kEos}, {5, 6}};
  for (int64_t i = 0; i < 5; ++i) EXPECT_EQ(document_ids(*store, i), want[static_cast<size_t>(i)]);
  std::vector<int32_t> part(2);
  store->read(0, 1, part);
  EXPECT_EQ(part, (std::vector<int32_t>{2, 3}));
  EXPECT_ERROR(store->read(1, 0, part), "asked for 2");
}

TEST(BinSource, UsesUint32) {
  const TempFolder folder;
  const std::string path = folder.write("a.bin", std::string("\x01\x00\x01\x00\x01\x01\x00\x00\x07\x00\x00\x00", 12));
  const auto store = open_bin(path, folder / "cache", "uint32", 70'000);
  ASSERT_EQ(store->documents(), 2);
  EXPECT_EQ(document_ids(*store, 0), (std::vector<int32_t>{65537, kEos}));
  EXPECT_EQ(document_ids(*store, 1), (std::vector<int32_t>{7}));
}

TEST(BinSource, NamesWhatIsWrong) {
  const TempFolder folder;
  const std::string cache = folder / "cache";
  EXPECT_ERROR(open_bin(folder.write("a.bin", bin16({1, 2}) + "x"), cache), "5 bytes are not a whole number of uint16 ids");
  EXPECT_ERROR(open_bin(folder.write("b.bin", bin16({1, 2, 300, 4})), cache),
               "b.bin: id 300 at byte offset 4 is outside the vocabulary of 258");
  EXPECT_ERROR(open_bin(folder.write("c.bin", std::string("\x88\xD8\x34\x01 rest of it", 16)), cache),
               "a header of llm.c (20240520) of version");
  EXPECT_ERROR(open_bin(folder.write("d.bin", ""), cache), "holds no document");
  EXPECT_ERROR(open_bin(folder.write("e.bin", bin16({1, 2})), cache, "int8"), "expected uint16 or uint32");
  EXPECT_ERROR(open_bin(folder.write("f.bin", bin16({1, 2})), cache, "uint16", 65537), "set dataloader.token_dtype = \"uint32\"");
}

TEST(BinSource, TheOtherWidthIsNoticed) {
  const TempFolder folder;
  const std::string cache = folder / "cache";
  std::vector<int> wide, narrow;
  for (int i = 0; i < 1000; ++i) {
    wide.insert(wide.end(), {i * 7 % 250, 0});  // uint32, little-endian
    narrow.push_back(i * 7 % 250);
  }
  EXPECT_ERROR(open_bin(folder.write("u32.bin", bin16(wide)), cache),
               "u32.bin: every second uint16 is 0 (1000 of 1000 looked at): these are uint32 ids, set dataloader.token_dtype = \"uint32\"");
  EXPECT_EQ(open_bin(folder / "u32.bin", cache, "uint32")->tokens(), 1000);
  EXPECT_ERROR(open_bin(folder.write("u16.bin", bin16(narrow)), cache, "uint32"),
               "its halves are ids: these are uint16, set dataloader.token_dtype = \"uint16\"");
  EXPECT_EQ(open_bin(folder / "u16.bin", cache)->tokens(), 1000);
  EXPECT_ERROR(open_bin(folder.write("odd.bin", bin16({1, 2, 3})), cache, "uint32"), "or does it hold uint16 (dataloader.token_dtype)?");
  // Ids of a uint32 vocabulary beyond 65,536, a text of zeros, and one with frequent zeros.
  std::vector<int> beyond = wide, zeros(2000, 0), many(2000);
  for (size_t i = 1; i < beyond.size(); i += 40) beyond[i] = 1;
  EXPECT_ERROR(open_bin(folder.write("beyond.bin", bin16(beyond)), cache), "these are uint32 ids");
  EXPECT_EQ(open_bin(folder.write("zeros.bin", bin16(zeros)), cache)->tokens(), 2000);
  for (size_t i = 0; i < many.size(); ++i) many[i] = i % 10 == 0 ? 7 : 0;
  EXPECT_EQ(open_bin(folder.write("many.bin", bin16(many)), cache)->tokens(), 2000);
}

TEST(BinSource, ChangedFileIsNoticed) {
  const TempFolder folder;
  const std::string path = folder.write("a.bin", bin16({1, 2, kEos, 3}));
  const std::string digest = open_bin(path, folder / "cache")->digest();
  spew(path, bin16({1, 2, 3, kEos}));
  const auto store = open_bin(path, folder / "cache");
  EXPECT_NE(store->digest(), digest);
  EXPECT_EQ(store->documents(), 1);
}

}  // namespace
}  // namespace halftone
