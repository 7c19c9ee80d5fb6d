// What files of other tools may get wrong; their rows are compared in tests/parity/data_formats.py.
#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "data/data_testing.h"
#include "halftone/data/dataset_folder.h"
#include "halftone/data/mds_format.h"
#include "halftone/data/megatron_index.h"

namespace halftone::data_formats_test {
namespace {

template <class T>
std::string le(std::initializer_list<T> values) {
  std::string out(values.size() * sizeof(T), '\0');
  std::memcpy(out.data(), std::data(values), out.size());
  return out;
}

std::string index_of(uint8_t code, std::initializer_list<int32_t> lengths, std::initializer_list<int64_t> offsets,
                     std::initializer_list<int64_t> documents) {
  return std::string("MMIDIDX\0\0", 9) + le<uint64_t>({1}) + le<uint8_t>({code}) + le<uint64_t>({lengths.size(), documents.size()}) +
         le(lengths) + le(offsets) + le(documents);
}

std::string megatron_error(const std::string& text, int64_t bin_bytes = 20) {
  return error_of([&] { MegatronIndex(std::as_bytes(std::span(text.data(), text.size())), bin_bytes, "x.idx"); });
}

#define EXPECT_SAYS(text, part) EXPECT_PRED_FORMAT2(testing::IsSubstring, part, text)

TEST(Megatron, NamesWhatIsWrong) {
  const std::string good = index_of(8, {4, 6}, {0, 8}, {0, 2});
  EXPECT_EQ(megatron_error(good), "");
  EXPECT_EQ(megatron_error(good + "mm"), "");  // modes of a multimodal set
  EXPECT_SAYS(megatron_error("no index"), "expected an index of Megatron-LM");
  EXPECT_SAYS(megatron_error(good.substr(0, 20)), "bytes of header, found 20");
  EXPECT_SAYS(megatron_error(good.substr(0, good.size() - 1)), "is the file cut short?");
  EXPECT_SAYS(megatron_error(index_of(7, {4}, {0}, {0, 1})), "expected integer token ids, found dtype code 7 (float32)");
  EXPECT_SAYS(megatron_error(index_of(99, {4}, {0}, {0, 1})), "found dtype code 99 (unknown)");
  EXPECT_SAYS(megatron_error(good, 19), "sequence 1 of 6 tokens at byte 8 leaves its .bin file of 19 bytes");
  EXPECT_SAYS(megatron_error(index_of(8, {-1}, {0}, {0, 1})), "sequence 0 of -1 tokens");
  EXPECT_SAYS(megatron_error(index_of(8, {4}, {INT64_MAX}, {0, 1})), "leaves its .bin file");
  EXPECT_SAYS(megatron_error(index_of(8, {4, 6}, {0, 8}, {0, 1})), "cover the sequences 0 to 1: expected 0 to 2");
  EXPECT_SAYS(megatron_error(index_of(8, {4, 6}, {0, 8}, {0, 3, 2})), "document 1 starts at sequence 3");
  std::string many = good;
  std::memset(many.data() + 18, 0xFF, 8);
  EXPECT_SAYS(megatron_error(many), "too many for its");
}

TEST(Megatron, MissingFilesAndIdsAreNamed) {
  const TempFolder folder;
  SourceOptions options;
  options.dataset = "megatron", options.vocab_size = kVocab;
  const auto open = [&](const std::string& path) {
    options.path = path;
    return open_token_store(*open_source(options), byte_codec(), folder / "cache", 2);
  };
  folder.write("a.idx", index_of(8, {2, 1}, {0, 4}, {0, 1, 2}));
  EXPECT_ERROR(open(folder / "a"), "a.bin is missing");
  folder.write("a.bin", le<uint16_t>({7, 8, 300}));
  EXPECT_ERROR(open(folder / "a"), "a.bin: id 300 at byte offset 4 is outside the vocabulary of 258");
  folder.write("a.bin", le<uint16_t>({7, 8, 9}));
  const auto store = open(folder / "a.idx");
  ASSERT_EQ(store->documents(), 2);
  EXPECT_TRUE(store->ready_made());
  EXPECT_EQ(document_ids(*store, 0), (std::vector<int32_t>{7, 8}));
  EXPECT_EQ(document_ids(*store, 1), (std::vector<int32_t>{9}));
}

nlohmann::json shard_entry(size_t bytes, int samples) {
  return {{"column_names", {"text"}},  {"column_encodings", {"str"}},
          {"column_sizes", {nullptr}}, {"compression", nullptr},
          {"format", "mds"},           {"raw_data", {{"basename", "s.mds"}, {"bytes", bytes}}},
          {"samples", samples},        {"version", 2},
          {"zip_data", nullptr}};
}

TEST(Mds, NamesWhatIsWrong) {
  const std::string sample = le<uint32_t>({5}) + "hello", raw = le<uint32_t>({1, 12, 21}) + sample;
  const auto read = [&](const std::string& bytes, nlohmann::json entry) {
    return error_of([&] {
      const std::string index = nlohmann::json{{"version", 2}, {"shards", {entry}}}.dump();
      for (const MdsShard& shard : parse_mds_index(index, "index.json")) {
        size_t at = 0;
        const auto next = [&](char* out, size_t size) {
          const size_t n = std::min(size, bytes.size() - at);
          std::memcpy(out, bytes.data() + at, n);
          at += n;
          return n;
        };
        read_mds_shard(shard, next, "s.mds", 1000,
                       [](int64_t, std::span<const std::string_view> columns) { EXPECT_EQ(columns[0], "hello"); });
      }
    });
  };
  const nlohmann::json good = shard_entry(raw.size(), 1);
  EXPECT_EQ(read(raw, good), "");
  EXPECT_SAYS(read(raw.substr(0, 15), good), "ends at byte 15 inside a sample: the file is cut short");
  EXPECT_SAYS(read(le<uint32_t>({2, 12, 21}) + sample, good), "holds 2 samples, index.json names 1");
  EXPECT_SAYS(read(le<uint32_t>({1, 12, 22}) + sample, good), "its samples lie from byte 12 to 22: expected 12 or more to 21");
  EXPECT_SAYS(read(le<uint32_t>({1, 12, 21, 6}) + "hello", good), "column \"text\" of 6 bytes leaves the sample");
  EXPECT_SAYS(read(le<uint32_t>({1, 12, 21, 4}) + "hello", good), "sample 0 has 9 bytes, its columns 8");
  const auto changed = [&](const char* key, const nlohmann::json& value) {
    nlohmann::json entry = good;
    entry[key] = value;
    return read(raw, entry);
  };
  EXPECT_SAYS(changed("format", "csv"), "format is \"csv\": expected mds");
  EXPECT_SAYS(changed("column_sizes", {1, 2}), "1 column names, 1 encodings and 2 sizes");
  EXPECT_SAYS(changed("samples", 100), "100 samples in 21 bytes");
  EXPECT_SAYS(changed("samples", -1), "samples is -1");
  EXPECT_SAYS(changed("raw_data", {{"basename", "../x"}, {"bytes", 1}}), "expected the name of a file beside index.json");
  nlohmann::json packed = good;
  packed["compression"] = "br:11", packed["zip_data"] = {{"basename", "s.mds.br"}, {"bytes", 1}};
  EXPECT_SAYS(read(raw, packed), "compression is \"br:11\": expected zstd or gz");
  EXPECT_SAYS(error_of([] { parse_mds_index("{\"version\": 3, \"shards\": []}", "index.json"); }), "version 3: expected version 2");
}

TEST(Mds, IdsAreChecked) {
  const auto error = [](const char* encoding, const std::string& bytes) {
    return error_of([&] {
      std::vector<int32_t> ids;
      append_mds_ids(encoding, bytes, 10, ids);
    });
  };
  EXPECT_EQ(error("ndarray:uint16:2", le<uint16_t>({1, 2})), "");
  EXPECT_SAYS(error("ndarray:uint16:2", "abc"), "3 bytes are not a whole number of uint16 ids");
  EXPECT_SAYS(error("ndarray:int32", "\x04\x02" + le<int32_t>({1})), "an array of 2 ids in 4 bytes");
  EXPECT_SAYS(error("ndarray:int32", "\x08\x01\x01" + le<int32_t>({1})), "an array of 2 axes");
  EXPECT_SAYS(error("ndarray:float32", ""), "expected an array of integers");
  EXPECT_SAYS(error("ndarray", std::string("\x22\x04\x01", 3) + le<float>({1})), "expected an array of integers");
  EXPECT_SAYS(error("bytes", le<int64_t>({3, -1})), "holds -1: expected ids from 0 to 9");
  EXPECT_SAYS(error("ndarray:uint64:1", le<uint64_t>({~uint64_t{0}})), "expected ids from 0 to 9");
}

TEST(Auto, ContentsWinOverSuffixes) {
  const TempFolder folder;
  const auto kind = [&](const std::string& name, const std::string& content) {
    return find_data(folder.write(name, content), "", "train").kind;
  };
  EXPECT_EQ(kind("a.dat", "{\"text\": \"a\"}\n"), "jsonl");
  EXPECT_EQ(kind("b.dat", "some text"), "text");
  EXPECT_EQ(kind("b.md", "[![a badge](b)] of a text"), "text");
  EXPECT_EQ(kind("b.out", "[\n {\"text\": \"a\"}]"), "jsonl");
  EXPECT_EQ(kind("c.jsonl", "PAR1....PAR1"), "parquet");
  EXPECT_EQ(kind("d.txt", "{\"text\": \"a\"}\n"), "text");
  EXPECT_EQ(kind("e.bin", "\x01\x02"), "bin");
  EXPECT_ERROR(kind("f.dat", std::string("\0\1\2", 3)), "f.dat: neither its name nor its contents say what it is");
}

TEST(Auto, FilesThatAreNotReadAreNamedWithARemedy) {
  const TempFolder folder;
  for (const auto& [name, says] : {std::pair{"a.csv", "a.csv: found CSV, which is not read; convert it to Parquet"},
                                   {"a.csv.gz", "found CSV"},
                                   {"a.tsv", "found tab-separated values"},
                                   {"a.tar", "found a tar archive, which is not read; unpack it"},
                                   {"a.tar.zst", "found a tar archive"},
                                   {"a.jsonl.bz2", "found bzip2"},
                                   {"a.arrow", "found an Arrow file"}}) {
    const std::string inside = std::string("in_") + name + "/" + name;
    folder.write(inside, "x,y\n");
    EXPECT_ERROR(find_data(folder / inside, "", "train"), says);
    EXPECT_ERROR(find_data(folder / ("in_" + std::string(name)), "", "train"), says);
    EXPECT_ERROR(find_data(folder / ("in_" + std::string(name) + "/*"), "", "train"), says);
  }
  folder.write("named/train.csv", "x,y\n"), folder.write("named/README.md", "---\nconfigs:\n- data_files: train.csv\n---\n");
  EXPECT_ERROR(find_data(folder / "named", "", "train"), "train.csv: found CSV");
}

TEST(Auto, APointerOfGitLfsIsNoData) {
  const TempFolder folder;
  for (const char* name : {"a.parquet", "a.jsonl", "a.txt", "a.bin"}) {
    SourceOptions options;
    options.dataset = "auto", options.vocab_size = 1 << 16;
    options.path = folder.write(name, "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n");
    const auto read = [&] { open_token_store(*open_source(options), byte_codec(), folder / "cache", 1); };
    EXPECT_ERROR(read(), "found a pointer of Git LFS; fetch the file: git lfs pull") << name;
  }
}

TEST(Auto, FoldersNameWhatIsThere) {
  const TempFolder folder;
  const auto find = [&](const std::string& name, const std::string& subset = "", const std::string& split = "train") {
    return find_data(folder / name, subset, split);
  };
  for (const char* name :
       {"en/train-00000-of-00001.parquet", "en/test-00000-of-00001.parquet", "de/train-00000-of-00001.parquet", "README.md"})
    folder.write(std::string("a/") + name, "x");
  EXPECT_ERROR(find("a"), "set dataloader.subset to one of de, en");
  EXPECT_ERROR(find("a", "fr"), "no subset \"fr\"; there is: de, en");
  EXPECT_ERROR(find("a", "de", "test"), "no split \"test\" of subset de; there is: train");
  EXPECT_EQ(find("a", "en", "test").files.files.size(), 1u);
  folder.write("b/one.jsonl", "{}"), folder.write("b/two.txt", "x");
  EXPECT_ERROR(find("b"), "holds files of the kinds jsonl, text; set dataset to one of them");
  EXPECT_ERROR(find("b", "", "test"), "dataloader.split = \"test\" chooses nothing");
  folder.write("c/x.doc", "x");
  EXPECT_ERROR(find("c"), "none of its 1 files has a suffix of a known kind");
  std::filesystem::create_directory(folder / "empty");
  EXPECT_ERROR(find("empty"), "empty: the folder holds no file");
  folder.write("d/validation/0.jsonl.zst", "x"), folder.write("d/train/0.jsonl.zst", "x");
  EXPECT_EQ(find("d", "", "validation").files.files[0].name, "0.jsonl.zst");
  folder.write("e/README.md", "---\nconfigs:\n- config_name: x\n  data_files: [1]\n---\n"), folder.write("e/a.jsonl", "{}");
  EXPECT_ERROR(find("e"), "expected a path, or a list of paths");
  folder.write("f/README.md", "---\nconfigs: &a [*a]\n---\n"), folder.write("f/a.jsonl", "{}");
  EXPECT_ERROR(find("f"), "README.md:1: ");
}

}  // namespace
}  // namespace halftone::data_formats_test
