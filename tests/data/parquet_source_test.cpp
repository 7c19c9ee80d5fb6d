#include "halftone/data/parquet_source.h"

#include <arrow/api.h>
#include <arrow/io/file.h>
#include <gtest/gtest.h>
#include <parquet/arrow/writer.h>

#include <map>
#include <optional>
#include <thread>

#include "data/data_testing.h"
#include "halftone/data/parquet_values.h"

namespace halftone::parquet_source_test {
namespace {

using Texts = std::vector<std::optional<std::string>>;
using Builder = parquet::WriterProperties::Builder;

// Strings of any type that holds strings.
std::shared_ptr<arrow::Array> strings(const Texts& values, const std::shared_ptr<arrow::DataType>& type = arrow::utf8()) {
  auto builder = arrow::MakeBuilder(type).ValueOrDie();
  for (const auto& value : values) {
    const arrow::Status status = !value ? builder->AppendNull()
                                 : type->id() == arrow::Type::DICTIONARY
                                     ? static_cast<arrow::StringDictionaryBuilder&>(*builder).Append(*value)
                                 : type->id() == arrow::Type::LARGE_STRING || type->id() == arrow::Type::LARGE_BINARY
                                     ? static_cast<arrow::LargeBinaryBuilder&>(*builder).Append(*value)
                                 : arrow::is_binary_view_like(type->id()) ? static_cast<arrow::BinaryViewBuilder&>(*builder).Append(*value)
                                                                          : static_cast<arrow::BinaryBuilder&>(*builder).Append(*value);
    EXPECT_TRUE(status.ok()) << status.ToString();
  }
  return builder->Finish().ValueOrDie();
}

template <class B>
std::shared_ptr<arrow::Array> lists(const std::vector<std::optional<std::vector<int64_t>>>& rows, int64_t null_value = INT64_MIN) {
  auto values = std::make_shared<B>();
  arrow::ListBuilder builder(arrow::default_memory_pool(), values);
  for (const auto& row : rows) {
    EXPECT_TRUE((row ? builder.Append() : builder.AppendNull()).ok());
    for (const int64_t v : row.value_or(std::vector<int64_t>{}))
      EXPECT_TRUE((v == null_value ? values->AppendNull() : values->Append(static_cast<typename B::value_type>(v))).ok());
  }
  return builder.Finish().ValueOrDie();
}

std::shared_ptr<arrow::Array> structs(const std::vector<std::shared_ptr<arrow::Array>>& children, const std::vector<std::string>& names,
                                      const std::vector<bool>& valid = {}) {
  std::shared_ptr<arrow::Buffer> bits;
  if (!valid.empty()) {
    arrow::TypedBufferBuilder<bool> builder;
    for (const bool v : valid) EXPECT_TRUE(builder.Append(v).ok());
    bits = builder.Finish().ValueOrDie();
  }
  return arrow::StructArray::Make(children, names, bits).ValueOrDie();
}

std::shared_ptr<arrow::Table> table(const std::vector<std::pair<std::string, std::shared_ptr<arrow::Array>>>& columns) {
  std::vector<std::shared_ptr<arrow::Field>> fields;
  std::vector<std::shared_ptr<arrow::Array>> arrays;
  for (const auto& [name, array] : columns) fields.push_back(arrow::field(name, array->type())), arrays.push_back(array);
  return arrow::Table::Make(arrow::schema(fields), arrays);
}

void write(const std::string& path, const std::shared_ptr<arrow::Table>& table, int64_t group_rows = 1000, Builder options = Builder(),
           bool arrow_types = true) {
  auto out = arrow::io::FileOutputStream::Open(path).ValueOrDie();
  parquet::ArrowWriterProperties::Builder arrow_options;
  if (arrow_types) arrow_options.store_schema();
  const arrow::Status status =
      parquet::arrow::WriteTable(*table, arrow::default_memory_pool(), out, group_rows, options.build(), arrow_options.build());
  ASSERT_TRUE(status.ok()) << status.ToString();
  ASSERT_TRUE(out->Close().ok());
}

SourceOptions options_for(const std::string& path) {
  SourceOptions options;
  options.dataset = "parquet";
  options.path = path;
  options.vocab_size = 1000;
  return options;
}

// One line per document.
std::string shown(const Document& d) {
  if (d.kind == Document::Kind::bad) return "bad: " + d.bad->text();
  if (d.kind == Document::Kind::text) return "text: " + std::string(d.text);
  std::string out = "ids:";
  for (size_t i = 0; i < d.ids.size(); ++i) out += fmt::format(" {}{}", d.ids[i], d.loss.empty() || d.loss[i] != 0 ? "" : "-");
  return out;
}

using Lines = std::vector<std::string>;
Lines shard_of(const DocumentSource& source, int64_t shard) {
  Lines out;
  source.read_shard(shard, [&](const Document& d) { out.push_back(shown(d)); });
  return out;
}

// All documents, by shards; by files they must be the same.
Lines read(const SourceOptions& options) {
  const auto source = open_source(options);
  Lines out, by_file;
  for (int64_t s = 0; s < source->shard_count(); ++s) std::ranges::copy(shard_of(*source, s), std::back_inserter(out));
  for (size_t f = 0; f < source->files().files.size(); ++f) source->read_file(f, [&](const Document& d) { by_file.push_back(shown(d)); });
  EXPECT_EQ(out, by_file);
  return out;
}

const Texts kTexts = {"one", std::nullopt, "", "four \xE2\x82\xAC", "five", "one", "one"};
const Lines kLines = {"text: one", "text: ", "text: ", "text: four \xE2\x82\xAC", "text: five", "text: one", "text: one"};

TEST(ParquetSource, ShardsAreRowGroups) {
  const TempFolder folder;
  write(folder / "b.parquet", table({{"id", lists<arrow::Int64Builder>({{{1}}, {{2}}})}, {"text", strings({"eight", "nine"})}}));
  write(folder / "a.parquet", table({{"text", strings(kTexts)}}), 3);
  write(folder / "none.parquet", table({{"text", strings({})}}));
  const SourceOptions options = options_for(folder.str());
  Lines expected = kLines;
  expected.insert(expected.end(), {"text: eight", "text: nine"});
  EXPECT_EQ(read(options), expected);
  const auto source = open_source(options);
  EXPECT_EQ(source->kind(), "parquet");
  ASSERT_GE(source->shard_count(), 4);
  EXPECT_EQ(shard_of(*source, 1), (Lines{"text: four \xE2\x82\xAC", "text: five", "text: one"}));
  EXPECT_EQ(shard_of(*source, 3), (Lines{"text: eight", "text: nine"}));
}

TEST(ParquetSource, ReadsEveryStringType) {
  const TempFolder folder;
  for (const auto& type : {arrow::utf8(), arrow::large_utf8(), arrow::utf8_view(), arrow::binary(), arrow::large_binary(),
                           arrow::binary_view(), arrow::dictionary(arrow::int32(), arrow::utf8())}) {
    for (const bool arrow_types : {true, false}) {
      SCOPED_TRACE(type->ToString());
      write(folder / "x.parquet", table({{"text", strings(kTexts, type)}}), 4, Builder(), arrow_types);
      EXPECT_EQ(read(options_for(folder / "x.parquet")), kLines);
    }
  }
  write(folder / "null.parquet", table({{"text", arrow::MakeArrayOfNull(arrow::null(), 2).ValueOrDie()}}));
  EXPECT_EQ(read(options_for(folder / "null.parquet")), (Lines{"text: ", "text: "}));
}

TEST(ParquetSource, ReadsEveryEncoding) {
  const TempFolder folder;
  Texts texts;
  Lines lines;
  for (int i = 0; i < 3000; ++i) {
    texts.push_back(i % 7 == 0 ? std::string("again") : fmt::format("document {} {}", i, std::string(static_cast<size_t>(i % 50), 'x')));
    lines.push_back("text: " + *texts.back());
  }
  using enum parquet::Compression::type;
  for (const auto codec : {UNCOMPRESSED, SNAPPY, GZIP, BROTLI, ZSTD, LZ4}) {
    for (const auto version : {parquet::ParquetDataPageVersion::V1, parquet::ParquetDataPageVersion::V2}) {
      for (const int encoding : {0, 1, 2, 3}) {
        Builder b;
        b.compression(codec)->data_page_version(version)->data_pagesize(4096)->enable_page_checksum();
        encoding == 0 ? b.enable_dictionary() : b.disable_dictionary();
        if (encoding == 2) b.encoding(parquet::Encoding::DELTA_LENGTH_BYTE_ARRAY);
        if (encoding == 3) b.encoding(parquet::Encoding::DELTA_BYTE_ARRAY);
        SCOPED_TRACE(fmt::format("codec {} version {} encoding {}", static_cast<int>(codec), static_cast<int>(version), encoding));
        write(folder / "x.parquet", table({{"text", strings(texts)}}), 1100, b);
        EXPECT_EQ(read(options_for(folder / "x.parquet")), lines);
      }
    }
  }
}

TEST(ParquetSource, FindsNestedTexts) {
  const TempFolder folder;
  const auto inner = structs({strings({"a", "b", "c"}), strings({"1", "2", "3"})}, {"other", "text"}, {true, false, true});
  const auto outer = structs({inner, strings({"x", "y", "z"})}, {"in.ner", "text"}, {true, true, false});
  write(folder / "x.parquet", table({{"id", strings({"i", "j", "k"})}, {"outer", outer}, {"outer.top", strings({"p", "q", "r"})}}));
  SourceOptions options = options_for(folder / "x.parquet");
  options.text_key = "outer.in.ner.text";
  EXPECT_EQ(read(options), (Lines{"text: 1", "text: ", "text: "}));
  options.text_key = "outer.text";
  EXPECT_EQ(read(options), (Lines{"text: x", "text: y", "text: "}));
  options.text_key = "outer.top";
  EXPECT_EQ(read(options), (Lines{"text: p", "text: q", "text: r"}));
  options.text_key = "outer.missing";
  EXPECT_ERROR(read(options), "x.parquet: expected a column \"outer.missing\" (strings; dataloader.text_key), input_ids");
}

TEST(ParquetSource, NamesTheColumnsWhenTheTextIsMissing) {
  const TempFolder folder;
  write(folder / "x.parquet", table({{"content", strings({"a"})}, {"ids", lists<arrow::Int32Builder>({{{1}}})}}));
  SourceOptions options = options_for(folder / "x.parquet");
  EXPECT_ERROR(read(options), "found content (string), ids (list<element: int32>)");
  options.text_key = "ids";
  EXPECT_ERROR(read(options),
               "column \"ids\": expected strings, found list<element: int32>; dataloader.text_key names another: content (string)");
  write(folder / "y.parquet", table({{"text", strings({"a"})}, {"text", strings({"b"})}}));
  EXPECT_ERROR(read(options_for(folder / "y.parquet")), "y.parquet: several columns are named \"text\"");
}

TEST(ParquetSource, ReadsIdsOfEveryIntegerType) {
  const TempFolder folder;
  const std::vector<std::optional<std::vector<int64_t>>> rows = {{{1, 2, 100}}, std::nullopt, {{}}, {{7}}};
  const Lines expected = {"ids: 1 2 100", "ids:", "ids:", "ids: 7"};
  int n = 0;
  for (const auto& array : {lists<arrow::Int8Builder>(rows), lists<arrow::UInt8Builder>(rows), lists<arrow::Int16Builder>(rows),
                            lists<arrow::UInt16Builder>(rows), lists<arrow::Int32Builder>(rows), lists<arrow::UInt32Builder>(rows),
                            lists<arrow::Int64Builder>(rows), lists<arrow::UInt64Builder>(rows)}) {
    SCOPED_TRACE(array->type()->ToString());
    write(folder / "x.parquet", table({{"n", strings({"a", "b", "c", "d"})}, {++n % 2 == 0 ? "input_ids" : "tokens", array}}), 3);
    EXPECT_EQ(read(options_for(folder / "x.parquet")), expected);
  }
}

TEST(ParquetSource, RefusesIdsOutsideTheVocabulary) {
  const TempFolder folder;
  const std::string path = folder / "x.parquet";
  write(
      path,
      table({{"input_ids", lists<arrow::Int64Builder>({{{1}}, {{2, 1000}}, {{-1}}, {{5, 999}}, {{int64_t{1} << 40}}, {{3, -9, 3}}}, -9)}}),
      2);
  SourceOptions options = options_for(path);
  EXPECT_ERROR(read(options), "x.parquet: row 1: the list of ids holds 1000: expected ids from 0 to 999; dataloader.on_bad_line");
  options.on_bad_line = "skip";
  EXPECT_EQ(read(options), (Lines{"ids: 1", "bad: " + path + ": row 1: the list of ids holds 1000: expected ids from 0 to 999",
                                  "bad: " + path + ": row 2: the list of ids holds -1: expected ids from 0 to 999", "ids: 5 999",
                                  "bad: " + path + ": row 4: the list of ids holds 1099511627776: expected ids from 0 to 999",
                                  "bad: " + path + ": row 5: null among the ids: expected integers"}));
}

TEST(ParquetSource, ReadsIdsWithALossMask) {
  const TempFolder folder;
  write(folder / "x.parquet", table({{"input_ids", lists<arrow::Int32Builder>({{{1, 2, 3}}, {{4}}})},
                                     {"labels", lists<arrow::Int64Builder>({{{-100, 2, -100}}, std::nullopt})}}));
  EXPECT_EQ(read(options_for(folder / "x.parquet")), (Lines{"ids: 1- 2 3-", "ids: 4"}));
}

TEST(ParquetSource, SkipsRowsThatAreNotUtf8) {
  const TempFolder folder;
  const std::string path = folder / "x.parquet";
  write(path, table({{"text", strings({"a", "caf\xE9", "b", "\xE2\x82"})}}), 2);
  SourceOptions options = options_for(path);
  EXPECT_ERROR(read(options), "x.parquet: row 1: not UTF-8 at column 4 (byte 0xE9)");
  options.on_bad_line = "skip";
  EXPECT_EQ(read(options), (Lines{"text: a", "bad: " + path + ": row 1: not UTF-8 at column 4 (byte 0xE9)", "text: b",
                                  "bad: " + path + ": row 3: not UTF-8 at column 1 (byte 0xE2)"}));
}

TEST(ParquetSource, StreamsWithoutOpeningFiles) {
  const TempFolder folder;
  write(folder / "a.parquet", table({{"text", strings({"a"})}}));
  folder.write("b.parquet", "no Parquet");
  SourceOptions options = options_for(folder.str());
  EXPECT_ERROR(open_source(options), "b.parquet: no Parquet file");
  options.streamed = true;
  const auto source = open_source(options);
  EXPECT_EQ(source->shard_count(), 0);
  Lines lines;
  const auto visit = [&](const Document& d) { lines.push_back(shown(d)); };
  source->read_file(0, visit);
  EXPECT_EQ(lines, Lines{"text: a"});
  EXPECT_ERROR(source->read_file(1, visit), "b.parquet: no Parquet file, or one cut short: its 10 bytes do not end in PAR1");
}

TEST(ParquetSource, NoticesAChangedFile) {
  const TempFolder folder;
  const std::string path = folder / "x.parquet";
  write(path, table({{"text", strings(kTexts)}}), 3);
  const auto source = open_source(options_for(path));
  write(path, table({{"text", strings(kTexts)}}), 2);
  EXPECT_ERROR(shard_of(*source, 0), "x.parquet: 4 row groups, 3 when the data set was opened: it changed");
}

TEST(ParquetSource, BoundsDocumentsAndMemory) {
  const TempFolder folder;
  SourceOptions options = options_for(folder / "x.parquet");
  options.max_document_bytes = 100;
  write(options.path, table({{"text", strings({std::string(101, 'x'), std::string(100, 'y')})}}));
  EXPECT_ERROR(read(options), "row 0: a document of 101 bytes: expected at most 100 (dataloader.max_document_mib)");
  write(options.path, table({{"input_ids", lists<arrow::Int32Builder>({{std::vector<int64_t>(26)}})}}));
  EXPECT_ERROR(read(options), "row 0: a document of 26 ids: expected at most 25");
  // A page of 300 MB in a small file.
  Builder b;
  b.compression(parquet::Compression::ZSTD)
      ->compression_level(-20)
      ->disable_dictionary()
      ->disable_statistics()
      ->data_pagesize(int64_t{1} << 30);
  write(options.path, table({{"text", strings(Texts(3, std::string(100'000'000, 'x')))}}), 1000, b);
  ASSERT_LT(std::filesystem::file_size(options.path), 1'000'000u);
  EXPECT_ERROR(read(options), "x.parquet: row group 0, column text: the file needs more than the limit of 256 MiB of memory");
}

TEST(ParquetSource, BoundsExpansion) {
  const TempFolder folder;
  const std::string path = folder / "x.parquet";
  auto builder = arrow::MakeBuilder(arrow::dictionary(arrow::int32(), arrow::utf8())).ValueOrDie();
  const std::string entry(1'000'000, 'x');
  for (int i = 0; i < 1800; ++i) ASSERT_TRUE(static_cast<arrow::StringDictionaryBuilder&>(*builder).Append(entry).ok());
  Builder b;
  b.compression(parquet::Compression::ZSTD)->disable_statistics();
  write(path, table({{"text", builder->Finish().ValueOrDie()}}), 10000, b);
  ASSERT_LT(std::filesystem::file_size(path), 5'000u);
  int64_t documents = 0;
  EXPECT_ERROR(open_source(options_for(path))->read_file(0, [&](const Document&) { ++documents; }),
               "x.parquet: row group 0, column text: expands to more than");
  EXPECT_GT(documents, 1000);
}

// Every prefix of a file, and the file with any byte changed: documents or an Error, in either way of reading.
TEST(ParquetSource, SurvivesDamage) {
  const TempFolder folder;
  const std::string path = folder / "x.parquet", broken = folder / "y.parquet";
  write(path,
        table({{"text", strings(kTexts)}, {"input_ids", lists<arrow::Int32Builder>({{{1}}, {{2}}, {{3}}, {{4}}, {{5}}, {{6}}, {{7}}})}}), 4,
        Builder(), false);
  const std::string whole = read_file(path, 1 << 20);
  SourceOptions options = options_for(broken);
  int64_t errors = 0, equal = 0, different = 0;
  const auto attempt = [&](const std::string& bytes) {
    folder.write("y.parquet", bytes);
    for (const char* key : {"text", "input_ids"}) {
      options.text_key = key == std::string("text") ? key : "none";
      try {
        Lines lines;
        open_source(options)->read_file(0, [&](const Document& d) { lines.push_back(shown(d)); });
        ++(lines.size() == kLines.size() ? equal : different);
      } catch (const Error& error) {
        ++errors;
        EXPECT_NE(std::string(error.what()).find("y.parquet"), std::string::npos) << error.what();
        EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
      }
    }
  };
  for (size_t size = 0; size < whole.size(); ++size) attempt(whole.substr(0, size));
  EXPECT_EQ(errors, 2 * static_cast<int64_t>(whole.size()));
  for (size_t at = 0; at < whole.size(); ++at) {
    for (const int flip : {0x01, 0xFF}) {
      std::string bytes = whole;
      bytes[at] = static_cast<char>(bytes[at] ^ flip);
      attempt(bytes);
    }
  }
  EXPECT_GT(equal, 0);  // statistics, names of writers
  EXPECT_EQ(different, 0);
  EXPECT_GT(errors, 1000);
  folder.write("y.parquet", whole.substr(0, whole.size() - 4) + "PARE");
  EXPECT_ERROR(open_source(options), "y.parquet: the Parquet file is encrypted: decrypt it first");
}

TEST(ParquetSource, ThreadsShareFilesAndArrowStartsNone) {
  const TempFolder folder;
  Texts texts;
  for (int i = 0; i < 400; ++i) texts.push_back(fmt::format("document {}", i));
  for (int f = 0; f < 20; ++f)
    write(folder / fmt::format("{:02}.parquet", f), table({{"text", strings(texts)}, {"more", strings(texts)}}), 50);
  const auto threads_of_process = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/task"), std::filesystem::directory_iterator());
  };
  const auto source = open_source(options_for(folder.str()));
  ASSERT_EQ(source->shard_count(), 160);
  std::vector<Lines> alone, together(160);
  for (int64_t s = 0; s < 160; ++s) alone.push_back(shard_of(*source, s));
  const auto before = threads_of_process();
  std::atomic<int64_t> next = 0, most = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int64_t s; (s = next++) < 160;) {
        together[static_cast<size_t>(s)] = shard_of(*source, s);
        most = std::max<int64_t>(most, threads_of_process());
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(together, alone);
  EXPECT_LE(most, before + 4);
  EXPECT_LE(before, 2);  // of Arrow, its allocator has one
}

// A file in memory that counts its reads, or fails after some.
class RemoteFile : public ByteFile {
 public:
  struct Outage : Error {
    using Error::Error;
  };
  explicit RemoteFile(std::string bytes) : bytes_(std::move(bytes)) {}
  const std::string& path() const override { return path_; }
  int64_t size() const override { return static_cast<int64_t>(bytes_.size()); }
  size_t read(int64_t offset, char* out, size_t size) const override {
    if (++reads > most_reads) throw Outage("s3://bucket/x.parquet: the server is gone");
    return bytes_.copy(out, size, static_cast<size_t>(offset));
  }
  mutable int64_t reads = 0;
  int64_t most_reads = INT64_MAX;

 private:
  std::string path_ = "s3://bucket/x.parquet", bytes_;
};

TEST(ParquetReader, FetchesARowGroupAtOnce) {
  const TempFolder folder;
  std::mt19937 random(1);
  Texts texts;
  for (int i = 0; i < 4000; ++i) {
    texts.emplace_back(std::string(1000, ' '));
    for (char& c : *texts.back()) c = static_cast<char>('a' + random() % 26);
  }
  const auto more = structs({strings(texts), strings(texts)}, {"a", "b"});
  const std::string path = folder / "x.parquet";
  write(path, table({{"n", strings(texts)}, {"text", strings(texts)}, {"more", more}}), 1000);
  const SourceOptions options = options_for(path);
  const auto large = std::make_shared<RemoteFile>(read_file(path, 1 << 30));
  ASSERT_GT(large->size(), 10'000'000);
  ParquetReader reader(large, options);
  EXPECT_EQ(large->reads, 1);  // the footer
  ASSERT_EQ(reader.groups(), 4);
  size_t row = 0;
  for (int g = 0; g < 4; ++g) {
    reader.read(
        g, [&](const Document& d) { EXPECT_EQ(d.text, texts[row++]); }, [](int64_t, const std::string& reason) { FAIL() << reason; });
    EXPECT_LE(large->reads, 2 + g);
  }
  EXPECT_EQ(row, texts.size());

  large->most_reads = large->reads;
  EXPECT_THROW(reader.read(
                   0, [](const Document&) {}, [](int64_t, const std::string&) {}),
               RemoteFile::Outage);
  write(path, table({{"text", strings(kTexts)}}), 2);
  const auto small = std::make_shared<RemoteFile>(read_file(path, 1 << 20));
  ParquetReader small_reader(small, options);
  Lines lines;
  for (int g = 0; g < small_reader.groups(); ++g) small_reader.read(g, [&](const Document& d) { lines.push_back(shown(d)); }, {});
  EXPECT_EQ(lines, kLines);
  EXPECT_EQ(small->reads, 1);  // the whole file
}

// Lists of 2, 0 and 1 of three values.
std::shared_ptr<arrow::Array> offsets() {
  arrow::Int32Builder builder;
  for (const int32_t at : {0, 2, 2, 3}) EXPECT_TRUE(builder.Append(at).ok());
  return builder.Finish().ValueOrDie();
}

TEST(ParquetValues, BecomeJson) {
  const auto texts = strings({"user", "bot\n", std::nullopt});
  const auto floats = arrow::MakeArrayFromScalar(arrow::DoubleScalar(0.5), 3).ValueOrDie();
  const auto flags = arrow::MakeArrayFromScalar(arrow::BooleanScalar(true), 3).ValueOrDie();
  const auto days = arrow::MakeArrayFromScalar(arrow::Date32Scalar(1), 3).ValueOrDie();
  const auto inner = structs({texts, lists<arrow::UInt64Builder>({{{1, INT64_MAX}}, {{}}, std::nullopt}), floats, flags, days},
                             {"role", "n", "x", "f", "day"});
  const auto messages = arrow::ListArray::FromArrays(*offsets(), *inner).ValueOrDie();
  const auto map = arrow::MapArray::FromArrays(offsets(), strings({"a", "b", "c"}), inner).ValueOrDie();
  const auto kinds = strings({"k", "k", std::nullopt}, arrow::dictionary(arrow::int32(), arrow::utf8()));
  const auto rows = structs({messages, map, kinds}, {"messages", "map", "kind"}, {true, true, true});
  const std::string first = R"({"role":"user","n":[1,9223372036854775807],"x":0.5,"f":true,"day":"1970-01-02"})";
  const std::string second = R"({"role":"bot\n","n":[],"x":0.5,"f":true,"day":"1970-01-02"})",
                    third = R"({"x":0.5,"f":true,"day":"1970-01-02"})";
  const auto dumped = [&](const arrow::Array& array, int64_t i) {
    int64_t left = 1000;
    return json_at(array, i, left).dump();
  };
  EXPECT_EQ(dumped(*rows, 0), fmt::format(R"({{"messages":[{0},{1}],"map":{{"a":{0},"b":{1}}},"kind":"k"}})", first, second));
  EXPECT_EQ(dumped(*rows, 1), R"({"messages":[],"map":{},"kind":"k"})");
  EXPECT_EQ(dumped(*rows, 2), fmt::format(R"({{"messages":[{0}],"map":{{"c":{0}}}}})", third));
  EXPECT_EQ(dumped(*rows->Slice(2), 0), dumped(*rows, 2));
  int64_t few = 20;
  EXPECT_ERROR(json_at(*rows, 0, few), "the row is larger than a document may be");
  int64_t left = 100;
  EXPECT_ERROR(json_at(*strings({"\xFF"}), 0, left), "not UTF-8 at column 1");
}

}  // namespace
}  // namespace halftone::parquet_source_test
