// links: data base
// seeds: tests/fuzz/seeds/parquet
// dict: PAR1 text input_ids messages \x15 \x2c \x00\x00\x80\x3f
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "halftone/base/error.h"
#include "halftone/base/utf8.h"
#include "halftone/data/parquet_reader.h"

namespace {

class MemoryFile : public halftone::ByteFile {
 public:
  explicit MemoryFile(std::string bytes) : bytes_(std::move(bytes)) {}
  const std::string& path() const override { return path_; }
  int64_t size() const override { return static_cast<int64_t>(bytes_.size()); }
  size_t read(int64_t offset, char* out, size_t size) const override {
    const size_t begin = std::min(static_cast<size_t>(offset), bytes_.size());
    const size_t n = std::min(size, bytes_.size() - begin);
    std::memcpy(out, bytes_.data() + begin, n);
    return n;
  }

 private:
  std::string path_ = "x.parquet", bytes_;
};

// A few values may stand for very many rows: reading ends after these.
constexpr int64_t kMostBytes = int64_t{16} << 20, kMostRows = 20000;

void read(const std::string& bytes, const char* text_key) {
  constexpr int32_t kVocab = 300;
  halftone::SourceOptions options;
  options.text_key = text_key;
  options.vocab_size = kVocab;
  options.max_document_bytes = 1 << 20;
  try {
    halftone::ParquetReader reader(std::make_shared<MemoryFile>(bytes), options);
    for (int group = 0; group < std::min(reader.groups(), 4); ++group) {
      int64_t size = 0, rows = 0;
      const auto count = [&](size_t more) {
        size += static_cast<int64_t>(more);
        halftone::check(++rows < kMostRows && size < kMostBytes, "enough");
      };
      const auto visit = [&](const halftone::Document& d) {
        if (!halftone::is_valid_utf8(d.text) || static_cast<int64_t>(d.text.size()) > options.max_document_bytes) std::abort();
        for (const int32_t id : d.ids)
          if (id < 0 || id >= kVocab) std::abort();
        count(d.text.size() + d.ids.size_bytes());
      };
      reader.read(group, visit, [&](int64_t row, const std::string& reason) {
        if (row < 0 || reason.empty()) std::abort();
        count(reason.size());
      });
      if (rows != reader.rows(group)) std::abort();
    }
  } catch (const halftone::Error& error) {
    if (std::strchr(error.what(), '\n') != nullptr) std::abort();
  }
}

}  // namespace

// A Parquet file, read as text (plain and nested), ids and conversations: documents within bounds, as many as the footer states, or an
// Error. The prebuilt Arrow has no sanitizers; with malloc for its buffers, its copies and ours are checked against their sizes.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  [[maybe_unused]] static const int pool = setenv("ARROW_DEFAULT_MEMORY_POOL", "system", 1);
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  for (const char* key : {"text", "a.b"}) read(bytes, key);
  return 0;
}
