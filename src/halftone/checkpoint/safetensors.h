#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "halftone/checkpoint/file_io.h"

// The safetensors format: u64 little-endian length n, n bytes of JSON {name: {dtype, shape, data_offsets: [begin, end]}} with an optional
// "__metadata__" of strings, then the data section, which the tensors cover without gaps.
namespace halftone {

enum class FileDType { f64, f32, f16, bf16, i64, i32, i16, i8, u64, u32, u16, u8, boolean, f8_e4m3, f8_e5m2, f8_e8m0 };
const char* name_of(FileDType type);  // "F32", "BF16", ... as written in the file
size_t size_of(FileDType type);       // bytes per element
FileDType parse_file_dtype(std::string_view name, const std::string& what);

constexpr size_t kMaxDims = 16;  // of a tensor in a file

// Bytes of a tensor; Error that starts with `what` if the product overflows or an extent is negative.
uint64_t byte_count(FileDType type, std::span<const int64_t> shape, const std::string& what);
std::string shape_text(std::span<const int64_t> shape);  // "[2, 3]"

struct TensorEntry {
  std::string name;
  FileDType dtype = FileDType::f32;
  std::vector<int64_t> shape{};
  uint64_t begin = 0, end = 0;  // bytes, relative to the data section
};

struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;  // by increasing offset
  std::map<std::string, std::string> metadata;
  uint64_t data_start = 0;  // bytes from the start of the file
};

constexpr uint64_t kMaxSafetensorsHeader = 100'000'000;  // the limit of the reference implementation

// The length field at the start of a file, checked against kMaxSafetensorsHeader and the file's size.
uint64_t safetensors_header_bytes(std::span<const uint8_t, 8> start, uint64_t file_bytes, const std::string& what);
// `json` is the header text, file_bytes the size of the entire file. Checks types, shapes, offsets (inside the file, no overlap, no gap)
// and duplicate names. Errors start with `what`.
SafetensorsHeader parse_safetensors_header(std::string_view json, uint64_t file_bytes, const std::string& what);

// Reads one file by pread, so that a file that shrinks is an Error and never a signal.
class SafetensorsFile {
 public:
  // Unless `keep_open`, only the header stays in memory and every read reopens the file: there can be too many files to keep open.
  explicit SafetensorsFile(const std::filesystem::path& path, bool keep_open = true);
  const SafetensorsHeader& header() const { return header_; }
  const TensorEntry* find(const std::string& name) const;  // nullptr when absent
  const TensorEntry& at(const std::string& name) const;    // an error names the file and the tensor
  // Reads `bytes` bytes of the tensor, starting at its byte `offset`.
  void read(const TensorEntry& tensor, void* data, uint64_t bytes, uint64_t offset = 0) const;
  void will_read(const TensorEntry& tensor, uint64_t bytes, uint64_t offset) const;  // a hint: these bytes are read soon
  const std::filesystem::path& path() const { return file_.path(); }

 private:
  File file_;
  SafetensorsHeader header_;
  std::unordered_map<std::string, size_t> by_name_;
};

struct WrittenFile {
  uint64_t bytes = 0;
  uint64_t checksum = 0;  // xxh3-64 of the entire file
};

// Writes one file front to back: first the complete header, then the tensors in order().
class SafetensorsWriter {
 public:
  // `tensors` need name, dtype and shape; offsets are computed here. Larger element types come first, so that every tensor is aligned to
  // its element size, or in_order in the given order if that aligns them; the data section starts at a multiple of 8. `direct`: bypasses
  // the page cache.
  SafetensorsWriter(const std::filesystem::path& path, std::vector<TensorEntry> tensors, const std::map<std::string, std::string>& metadata,
                    bool checksum = true, bool direct = false, bool in_order = false);
  ~SafetensorsWriter();
  const std::vector<TensorEntry>& order() const { return tensors_; }
  // The next `bytes` bytes of the data section.
  void write(const void* data, uint64_t bytes);
  // All tensors must be complete; fsyncs and closes.
  WrittenFile finish();

 private:
  struct Hash;
  void put(const void* data, uint64_t bytes);
  File file_;
  std::vector<TensorEntry> tensors_;
  std::unique_ptr<Hash> hash_;
  uint64_t expected_ = 0, data_written_ = 0, total_ = 0;
};

}  // namespace halftone
