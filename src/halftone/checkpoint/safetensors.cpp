#include "halftone/checkpoint/safetensors.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "halftone/base/error.h"
#include "halftone/base/json_reader.h"

namespace halftone {
namespace {

struct DTypeRow {
  FileDType type;
  const char* name;
  uint8_t bytes;
};
constexpr std::array<DTypeRow, 16> kDTypes{{{FileDType::f64, "F64", 8},
                                            {FileDType::f32, "F32", 4},
                                            {FileDType::f16, "F16", 2},
                                            {FileDType::bf16, "BF16", 2},
                                            {FileDType::i64, "I64", 8},
                                            {FileDType::i32, "I32", 4},
                                            {FileDType::i16, "I16", 2},
                                            {FileDType::i8, "I8", 1},
                                            {FileDType::u64, "U64", 8},
                                            {FileDType::u32, "U32", 4},
                                            {FileDType::u16, "U16", 2},
                                            {FileDType::u8, "U8", 1},
                                            {FileDType::boolean, "BOOL", 1},
                                            {FileDType::f8_e4m3, "F8_E4M3", 1},
                                            {FileDType::f8_e5m2, "F8_E5M2", 1},
                                            {FileDType::f8_e8m0, "F8_E8M0", 1}}};
const DTypeRow& row_of(FileDType type) { return kDTypes[static_cast<size_t>(type)]; }

TensorEntry parse_entry(const std::string& name, const Json& value, uint64_t data_bytes, const std::string& what) {
  const std::string where = fmt::format("{}: tensor {}", what, name);
  check(value.is_object() && value.size() == 3, "{}: expected exactly dtype, shape and data_offsets", where);
  TensorEntry entry{.name = name, .dtype = parse_file_dtype(string_member(value, "dtype", where), where)};
  entry.shape = integer_list(member(value, "shape", where), kMaxDims, where + ": shape");
  const std::vector<int64_t> offsets = integer_list(member(value, "data_offsets", where), 2, where + ": data_offsets");
  check(offsets.size() == 2, "{}: data_offsets expects two numbers", where);
  entry.begin = static_cast<uint64_t>(offsets[0]);
  entry.end = static_cast<uint64_t>(offsets[1]);
  check(entry.begin <= entry.end && entry.end <= data_bytes, "{}: bytes {} to {} do not lie in the data section of {} bytes", where,
        entry.begin, entry.end, data_bytes);
  const uint64_t bytes = byte_count(entry.dtype, entry.shape, where);
  check(bytes == entry.end - entry.begin, "{}: {} {} takes {} bytes, data_offsets hold {}", where, name_of(entry.dtype),
        shape_text(entry.shape), bytes, entry.end - entry.begin);
  return entry;
}

std::string header_text(const std::vector<TensorEntry>& tensors, const std::map<std::string, std::string>& metadata) {
  std::string text = "{";
  if (!metadata.empty()) text += "\"__metadata__\":" + Json(metadata).dump() + (tensors.empty() ? "" : ",");
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorEntry& t = tensors[i];
    text += fmt::format("{}{}:{{\"dtype\":\"{}\",\"shape\":{},\"data_offsets\":[{},{}]}}", i ? "," : "", Json(t.name).dump(),
                        name_of(t.dtype), Json(t.shape).dump(), t.begin, t.end);
  }
  text += "}";
  text.append((8 - text.size() % 8) % 8, ' ');
  return text;
}

}  // namespace

const char* name_of(FileDType type) { return row_of(type).name; }
size_t size_of(FileDType type) { return row_of(type).bytes; }
FileDType parse_file_dtype(std::string_view name, const std::string& what) {
  for (const DTypeRow& row : kDTypes)
    if (name == row.name) return row.type;
  fail("{}: unknown dtype \"{}\"", what, name.substr(0, 40));
}

uint64_t byte_count(FileDType type, std::span<const int64_t> shape, const std::string& what) {
  uint64_t bytes = size_of(type);
  for (const int64_t extent : shape) {
    check(extent >= 0 && !__builtin_mul_overflow(bytes, static_cast<uint64_t>(extent), &bytes) && bytes <= uint64_t{INT64_MAX},
          "{}: the shape {} has too many elements", what, shape_text(shape));
  }
  return bytes;
}

std::string shape_text(std::span<const int64_t> shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

uint64_t safetensors_header_bytes(std::span<const uint8_t, 8> start, uint64_t file_bytes, const std::string& what) {
  uint64_t bytes = 0;
  for (int i = 7; i >= 0; --i) bytes = bytes << 8 | start[static_cast<size_t>(i)];
  check(bytes <= kMaxSafetensorsHeader, "{}: the header claims {} bytes, expected at most {}: not a safetensors file, or a damaged one",
        what, bytes, kMaxSafetensorsHeader);
  check(file_bytes >= 8 && bytes <= file_bytes - 8, "{}: the header claims {} bytes in a file of {}: the file is truncated", what, bytes,
        file_bytes);
  return bytes;
}

SafetensorsHeader parse_safetensors_header(std::string_view json, uint64_t file_bytes, const std::string& what) {
  check(file_bytes >= 8 + json.size(), "{}: the header of {} bytes does not fit in a file of {}", what, json.size(), file_bytes);
  check(!json.empty() && json.front() == '{', "{}: the header is not a JSON object: not a safetensors file, or a damaged one", what);
  const Json root = parse_json(json, what + " (header)");
  check(root.is_object(), "{}: the header is not a JSON object", what);
  SafetensorsHeader header;
  header.data_start = 8 + json.size();
  const uint64_t data_bytes = file_bytes - header.data_start;
  header.tensors.reserve(root.size());
  for (const auto& [name, value] : root.items()) {
    if (name == "__metadata__") {
      check(value.is_object(), "{}: __metadata__ expects an object of strings", what);
      for (const auto& [key, text] : value.items()) {
        check(text.is_string(), "{}: __metadata__ expects strings, found another type at \"{}\"", what, key);
        header.metadata[key] = text.get<std::string>();
      }
    } else {
      header.tensors.push_back(parse_entry(name, value, data_bytes, what));
    }
  }
  std::sort(header.tensors.begin(), header.tensors.end(),
            [](const TensorEntry& a, const TensorEntry& b) { return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name); });
  uint64_t covered = 0;
  for (const TensorEntry& entry : header.tensors) {
    check(entry.begin >= covered, "{}: tensor {} begins at byte {} inside the one before, which ends at {}", what, entry.name, entry.begin,
          covered);
    check(entry.begin == covered, "{}: {} unused bytes before tensor {}", what, entry.begin - covered, entry.name);
    covered = entry.end;
  }
  check(covered == data_bytes, "{}: the tensors take {} bytes, the file holds {}", what, covered, data_bytes);
  return header;
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path, bool keep_open) : file_(File::open_read(path)) {
  const uint64_t file_bytes = file_.size();
  check(file_bytes >= 8, "{}: a file of {} bytes is not a safetensors file: it is truncated", path.string(), file_bytes);
  std::array<uint8_t, 8> start{};
  file_.read_at(start.data(), start.size(), 0);
  std::string json(safetensors_header_bytes(start, file_bytes, path.string()), '\0');
  file_.read_at(json.data(), json.size(), 8);
  header_ = parse_safetensors_header(json, file_bytes, path.string());
  for (size_t i = 0; i < header_.tensors.size(); ++i) by_name_.emplace(header_.tensors[i].name, i);
  if (!keep_open) file_.close();
}

const TensorEntry* SafetensorsFile::find(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &header_.tensors[found->second];
}

const TensorEntry& SafetensorsFile::at(const std::string& name) const {
  const TensorEntry* entry = find(name);
  check(entry != nullptr, "{}: no tensor named {}", path().string(), name);
  return *entry;
}

void SafetensorsFile::read(const TensorEntry& tensor, void* data, uint64_t bytes, uint64_t offset) const {
  const uint64_t size = tensor.end - tensor.begin;
  check(offset <= size && bytes <= size - offset, "{}: tensor {} has {} bytes, asked for {} at {}", path().string(), tensor.name, size,
        bytes, offset);
  const uint64_t at = header_.data_start + tensor.begin + offset;
  file_.is_open() ? file_.read_at(data, bytes, at) : File::open_read(path()).read_at(data, bytes, at);
}

void SafetensorsFile::will_read(const TensorEntry& tensor, uint64_t bytes, uint64_t offset) const {
  if (file_.is_open()) file_.will_read(header_.data_start + tensor.begin + offset, bytes);
}

struct SafetensorsWriter::Hash {
  XXH3_state_t* state = XXH3_createState();
  Hash() { XXH3_64bits_reset(state); }
  ~Hash() { XXH3_freeState(state); }
  Hash(const Hash&) = delete;
  Hash& operator=(const Hash&) = delete;
};

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, std::vector<TensorEntry> tensors,
                                     const std::map<std::string, std::string>& metadata, bool checksum, bool direct, bool in_order)
    : tensors_(std::move(tensors)) {
  uint64_t at = 0;
  for (const TensorEntry& t : tensors_) in_order = in_order && at % size_of(t.dtype) == 0, at += byte_count(t.dtype, t.shape, t.name);
  if (!in_order)
    std::stable_sort(tensors_.begin(), tensors_.end(),
                     [](const TensorEntry& a, const TensorEntry& b) { return size_of(a.dtype) > size_of(b.dtype); });
  for (TensorEntry& t : tensors_) {
    check(t.name != "__metadata__", "{}: __metadata__ cannot be a tensor's name", path.string());
    t.begin = expected_;
    const uint64_t bytes = byte_count(t.dtype, t.shape, t.name);
    check(!__builtin_add_overflow(expected_, bytes, &expected_), "{}: too many bytes for one file", path.string());
    t.end = expected_;
  }
  std::string header;
  try {
    header = header_text(tensors_, metadata);
  } catch (const Json::exception&) {
    fail("{}: tensor names and metadata must be UTF-8", path.string());
  }
  check(header.size() <= kMaxSafetensorsHeader, "{}: a header of {} bytes is over the limit of {}; lower checkpoint.max_shard_bytes",
        path.string(), header.size(), kMaxSafetensorsHeader);
  if (checksum) hash_ = std::make_unique<Hash>();
  file_ = direct ? File::create_direct(path) : File::create(path);
  std::array<uint8_t, 8> start{};
  for (size_t i = 0; i < 8; ++i) start[i] = static_cast<uint8_t>(header.size() >> (8 * i));
  put(start.data(), start.size());
  put(header.data(), header.size());
}

SafetensorsWriter::~SafetensorsWriter() = default;

void SafetensorsWriter::put(const void* data, uint64_t bytes) {
  file_.write(data, bytes);
  if (hash_) XXH3_64bits_update(hash_->state, data, bytes);
  total_ += bytes;
  file_.start_writing();  // flushing overlaps with reading the next bytes
}

void SafetensorsWriter::write(const void* data, uint64_t bytes) {
  check(bytes <= expected_ - data_written_, "{}: {} bytes beyond the announced {}", file_.path().string(), bytes, expected_);
  put(data, bytes);
  data_written_ += bytes;
}

WrittenFile SafetensorsWriter::finish() {
  check(data_written_ == expected_, "{}: {} of {} bytes written", file_.path().string(), data_written_, expected_);
  file_.sync();
  file_.close();
  return {.bytes = total_, .checksum = hash_ ? XXH3_64bits_digest(hash_->state) : 0};
}

}  // namespace halftone
