#include "halftone/checkpoint/gguf_file.h"

#include <algorithm>
#include <array>
#include <bit>
#include <future>
#include <numeric>
#include <set>

#include "halftone/base/error.h"
#include "halftone/checkpoint/file_io.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;

static_assert(std::endian::native == std::endian::little);

constexpr uint32_t kVersion = 3;
constexpr int64_t kAlignment = 32;
constexpr size_t kMostNameBytes = 63;               // ggml keeps names in 64 bytes
constexpr int64_t kPieceBytes = int64_t{16} << 20;  // two pieces are in memory

constexpr std::array kTypes = std::to_array<GgufTypeRow>({
    {GgufType::f32, "f32", 1, 4, 0},
    {GgufType::f16, "f16", 1, 2, 1},
    {GgufType::bf16, "bf16", 1, 2, 32},
    {GgufType::q8_0, "q8_0", 32, 2 + 32, 7},
    {GgufType::q4_0, "q4_0", 32, 2 + 16, 2},
    {GgufType::mxfp4, "mxfp4", 32, 1 + 16, 38},
    {GgufType::nvfp4, "nvfp4", 64, 4 + 32, 39},
});

// Types of metadata values, in the order of GgufValue's alternatives.
enum class ValueType : uint32_t { u32 = 4, i32 = 5, f32 = 6, boolean = 7, string = 8, array = 9 };

class Bytes {
 public:
  template <class T>
  void number(T value) {
    const auto* raw = reinterpret_cast<const char*>(&value);
    text_.append(raw, sizeof(T));
  }
  void string(std::string_view text) {
    number<uint64_t>(text.size());
    text_.append(text);
  }
  void value(const GgufValue& v) {
    std::visit([&](const auto& x) { put(x); }, v);
  }
  void pad() { text_.resize((text_.size() + kAlignment - 1) / kAlignment * kAlignment); }
  const std::string& text() const { return text_; }

 private:
  void type(ValueType t) { number(static_cast<uint32_t>(t)); }
  void put(uint32_t x) { type(ValueType::u32), number(x); }
  void put(float x) { type(ValueType::f32), number(x); }
  void put(bool x) { type(ValueType::boolean), number<uint8_t>(x ? 1 : 0); }
  void put(const std::string& x) { type(ValueType::string), string(x); }
  void put(const std::vector<std::string>& x) {
    type(ValueType::array), type(ValueType::string), number<uint64_t>(x.size());
    for (const std::string& s : x) string(s);
  }
  void put(const std::vector<int32_t>& x) {
    type(ValueType::array), type(ValueType::i32), number<uint64_t>(x.size());
    for (const int32_t n : x) number(n);
  }
  std::string text_;
};

int64_t data_bytes(const GgufTensor& t) { return t.rows() * gguf_row_bytes(t.type, t.shape.back()); }

std::string header(const GgufMetadata& metadata, const std::vector<GgufTensor>& tensors) {
  Bytes out;
  for (const char c : std::string_view("GGUF")) out.number(c);
  out.number(kVersion), out.number<uint64_t>(tensors.size()), out.number<uint64_t>(metadata.size());
  std::set<std::string_view> keys, names;
  for (const auto& [key, value] : metadata) {
    check(keys.insert(key).second, "GGUF: the metadata entry {} appears twice", key);
    out.string(key), out.value(value);
  }
  int64_t offset = 0;
  for (const GgufTensor& t : tensors) {
    check(t.name.size() <= kMostNameBytes, "GGUF: the tensor name {} has {} bytes, expected at most {}", t.name, t.name.size(),
          kMostNameBytes);
    check(names.insert(t.name).second, "GGUF: the tensor {} appears twice", t.name);
    const bool positive = std::all_of(t.shape.begin(), t.shape.end(), [](int64_t n) { return n > 0; });
    check(!t.shape.empty() && t.shape.size() <= 4 && positive, "GGUF: tensor {} has {} dimensions, expected 1 to 4, none of them empty",
          t.name, t.shape.size());
    out.string(t.name), out.number(static_cast<uint32_t>(t.shape.size()));
    for (size_t i = t.shape.size(); i-- > 0;) out.number(static_cast<uint64_t>(t.shape[i]));
    out.number(static_cast<uint32_t>(t.type)), out.number(static_cast<uint64_t>(offset));
    offset += (data_bytes(t) + kAlignment - 1) / kAlignment * kAlignment;
  }
  out.pad();
  return out.text();
}

// A run of rows of one tensor, with the padding after its last row.
struct Piece {
  const GgufTensor* tensor;
  int64_t first, rows, bytes;
};

std::vector<Piece> pieces_of(const std::vector<GgufTensor>& tensors) {
  std::vector<Piece> pieces;
  for (const GgufTensor& t : tensors) {
    const int64_t row = gguf_row_bytes(t.type, t.shape.back()), all = t.rows();
    const int64_t step = std::max<int64_t>(kPieceBytes / row / t.unit, 1) * t.unit;
    for (int64_t first = 0; first < all; first += step) {
      const int64_t rows = std::min(step, all - first), bytes = rows * row;
      pieces.push_back({&t, first, rows, first + rows < all ? bytes : bytes + (kAlignment - data_bytes(t) % kAlignment) % kAlignment});
    }
  }
  return pieces;
}

void write_pieces(File& file, const std::vector<Piece>& pieces) {
  std::vector<uint8_t> current, next;
  const auto produce = [&](const Piece& piece, std::vector<uint8_t>& into) {
    into.resize(static_cast<size_t>(piece.bytes));
    std::fill_n(into.end() - std::min<int64_t>(piece.bytes, kAlignment), std::min<int64_t>(piece.bytes, kAlignment), uint8_t{0});
    piece.tensor->read(piece.first, piece.rows, into.data());
  };
  std::future<void> reading;
  for (size_t i = 0; i <= pieces.size(); ++i) {
    if (reading.valid()) reading.get();
    current.swap(next);
    if (i < pieces.size()) reading = std::async(std::launch::async, [&, i] { produce(pieces[i], next); });
    if (i > 0) file.write(current.data(), current.size());
  }
}

}  // namespace

std::span<const GgufTypeRow> gguf_types() { return kTypes; }

const GgufTypeRow& row_of(GgufType type) {
  return *std::find_if(kTypes.begin(), kTypes.end(), [&](const GgufTypeRow& row) { return row.type == type; });
}

int64_t gguf_row_bytes(GgufType type, int64_t columns) {
  const GgufTypeRow& row = row_of(type);
  check(columns % row.block == 0, "GGUF: a row of {} elements does not divide into the {} that share a scale in {}", columns, row.block,
        row.name);
  return columns / row.block * row.bytes;
}

int64_t GgufTensor::rows() const { return std::accumulate(shape.begin(), shape.end() - 1, int64_t{1}, std::multiplies<>()); }

int64_t write_gguf(const fs::path& path, const GgufMetadata& metadata, const std::vector<GgufTensor>& tensors,
                   const std::function<void()>& verify) {
  const std::string head = header(metadata, tensors);
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  make_folder(folder);
  const fs::path temporary = path.string() + ".tmp";
  try {
    File file = File::create_direct(temporary);
    file.write(head.data(), head.size());
    write_pieces(file, pieces_of(tensors));
    file.sync();
    const auto bytes = static_cast<int64_t>(file.size());
    file.close();
    if (verify) verify();
    std::error_code error;
    fs::rename(temporary, path, error);
    check(!error, "cannot rename {} to {}: {}", temporary.string(), path.string(), error.message());
    sync_folder(folder);
    return bytes;
  } catch (...) {
    std::error_code ignored;
    fs::remove(temporary, ignored);
    throw;
  }
}

}  // namespace halftone
