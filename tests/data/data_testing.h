#pragma once
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "halftone/base/error.h"
#include "halftone/data/row_sequence.h"
#include "halftone/data/source.h"
#include "halftone/data/token_store.h"

namespace halftone {

// A temporary folder that is deleted with the test.
class TempFolder {
 public:
  TempFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "halftone_data_XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp " + name);
    path_ = name;
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  std::string str() const { return path_.string(); }
  std::string write(const std::string& name, const std::string& content) const {
    const auto file = path_ / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary) << content;
    return file.string();
  }

 private:
  std::filesystem::path path_;
};

// Message of the Error thrown by f; empty if none.
inline std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}
#define EXPECT_ERROR(statement, part) EXPECT_PRED_FORMAT2(testing::IsSubstring, part, error_of([&] { statement; }))

constexpr int32_t kBos = 256, kEos = 257, kVocab = 258;

// One id per byte, between BOS and EOS.
inline TextCodec byte_codec() {
  TextCodec codec;
  codec.encode_document = [](std::string_view text, std::vector<int32_t>& out) {
    out.push_back(kBos);
    for (const char c : text) out.push_back(static_cast<uint8_t>(c));
    out.push_back(kEos);
  };
  codec.encode_chat = [](std::string_view text, std::span<const ByteRange> learned, std::vector<int32_t>& ids, std::vector<uint8_t>& loss) {
    const auto is_learned = [&](size_t at) {
      return std::ranges::any_of(learned, [&](const ByteRange& r) { return r.begin <= at && at < r.end; });
    };
    ids.push_back(kBos), loss.push_back(is_learned(0));
    for (size_t i = 0; i < text.size(); ++i) ids.push_back(static_cast<uint8_t>(text[i])), loss.push_back(is_learned(i));
    ids.push_back(kEos), loss.push_back(is_learned(text.size() - 1));
  };
  codec.vocab_size = kVocab;
  codec.bos_id = kBos;
  codec.eos_id = kEos;
  codec.token_text.resize(kVocab);
  for (int b = 0; b < 256; ++b) codec.token_text[static_cast<size_t>(b)] = static_cast<char>(b);
  codec.digest = "bytes";
  return codec;
}

// Documents of random lengths as JSON lines.
inline std::string random_jsonl(int documents, int longest, unsigned seed) {
  std::mt19937 random(seed);
  std::string out;
  for (int i = 0; i < documents; ++i) {
    out += "{\"text\": \"";
    const int n = 1 + static_cast<int>(random() % static_cast<unsigned>(longest));
    for (int k = 0; k < n; ++k) out += static_cast<char>('a' + random() % 26);
    out += "\"}\n";
  }
  return out;
}

inline std::shared_ptr<const TokenStore> open_jsonl(const std::string& path, const std::string& cache, int threads = 2) {
  SourceOptions options;
  options.dataset = "jsonl";
  options.path = path;
  options.vocab_size = kVocab;
  return open_token_store(*open_source(options), byte_codec(), cache, threads);
}

inline std::vector<int32_t> document_ids(const TokenStore& store, int64_t i) {
  std::vector<int32_t> ids(static_cast<size_t>(store.length(i)));
  store.read(i, 0, ids);
  return ids;
}

struct Row {
  std::vector<int64_t> tokens, labels;
  std::vector<int32_t> positions, doc_start;
  explicit Row(int64_t S)
      : tokens(static_cast<size_t>(S), -7),
        labels(static_cast<size_t>(S), -7),
        positions(static_cast<size_t>(S), -7),
        doc_start(static_cast<size_t>(S), -7) {}
  RowView view() { return {tokens.data(), labels.data(), positions.data(), doc_start.data()}; }
  bool operator==(const Row&) const = default;
};

inline Row row_of(RowSequence& rows, RowCursor cursor) {
  Row row(rows.options().seq_len);
  rows.fill(cursor, row.view());
  return row;
}

}  // namespace halftone
