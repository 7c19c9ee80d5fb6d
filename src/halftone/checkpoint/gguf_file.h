#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

// Writes GGUF files, version 3 (ggml's docs/gguf.md): "GGUF", u32 version, u64 tensors, u64 metadata entries, the entries, the tensors'
// names, shapes, types and offsets, then the data; all little-endian, tensors at multiples of 32 bytes. No torch here.
namespace halftone {

// Values are those of the file.
enum class GgufType : uint32_t { f32 = 0, f16 = 1, q4_0 = 2, q8_0 = 8, bf16 = 30, mxfp4 = 39, nvfp4 = 40 };

struct GgufTypeRow {
  GgufType type;
  std::string_view name;  // as in --codes
  int64_t block, bytes;   // elements along a row that are stored together, and their bytes
  uint32_t file_type;     // general.file_type of a file whose matrices have this type
};
std::span<const GgufTypeRow> gguf_types();
const GgufTypeRow& row_of(GgufType type);
// Bytes of a row of `columns` elements, a multiple of the block.
int64_t gguf_row_bytes(GgufType type, int64_t columns);

using GgufValue = std::variant<uint32_t, float, bool, std::string, std::vector<std::string>, std::vector<int32_t>>;
using GgufMetadata = std::vector<std::pair<std::string, GgufValue>>;

struct GgufTensor {
  std::string name;
  std::vector<int64_t> shape;  // 1 to 4 extents, the last one contiguous; the file lists them in reverse
  GgufType type = GgufType::f32;
  // Writes rows [first, first + rows) as they are in the file. A row is the last extent; called in order, from another thread.
  std::function<void(int64_t first, int64_t rows, uint8_t* out)> read{};
  int64_t unit = 1;  // reads begin at multiples of this many rows

  int64_t rows() const;  // product of all extents but the last
};

// Writes PATH.tmp, a few MiB at a time, and renames it once it is on the disk and `verify`, if set, has returned; on failure `path` is
// unchanged and PATH.tmp is removed. Returns the bytes of the file. Error, one line, for names that are too long or appear twice and rows
// that do not divide into blocks.
int64_t write_gguf(const std::filesystem::path& path, const GgufMetadata& metadata, const std::vector<GgufTensor>& tensors,
                   const std::function<void()>& verify = {});

}  // namespace halftone
