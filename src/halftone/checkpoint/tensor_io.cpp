#include "halftone/checkpoint/tensor_io.h"

#include <ATen/ops/empty.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <array>
#include <set>
#include <unordered_map>

#include "halftone/base/error.h"
#include "halftone/checkpoint/index.h"

namespace halftone {
namespace {

constexpr std::array<std::pair<FileDType, at::ScalarType>, 16> kTypes{{{FileDType::f64, at::kDouble},
                                                                       {FileDType::f32, at::kFloat},
                                                                       {FileDType::f16, at::kHalf},
                                                                       {FileDType::bf16, at::kBFloat16},
                                                                       {FileDType::i64, at::kLong},
                                                                       {FileDType::i32, at::kInt},
                                                                       {FileDType::i16, at::kShort},
                                                                       {FileDType::i8, at::kChar},
                                                                       {FileDType::u64, at::ScalarType::UInt64},
                                                                       {FileDType::u32, at::ScalarType::UInt32},
                                                                       {FileDType::u16, at::ScalarType::UInt16},
                                                                       {FileDType::u8, at::kByte},
                                                                       {FileDType::boolean, at::kBool},
                                                                       {FileDType::f8_e4m3, at::kFloat8_e4m3fn},
                                                                       {FileDType::f8_e5m2, at::kFloat8_e5m2},
                                                                       {FileDType::f8_e8m0, at::kFloat8_e8m0fnu}}};

bool is_castable(at::ScalarType type) { return type == at::kFloat || type == at::kBFloat16 || type == at::kHalf || type == at::kDouble; }

std::string name_list(const std::vector<std::string>& names) {
  constexpr size_t kShown = 8;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kShown); ++i) text += (i ? ", " : "") + names[i];
  if (names.size() > kShown) text += fmt::format(" and {} more", names.size() - kShown);
  return text;
}

// Name of the tensor, or of the part of it, inside its file.
std::string stored_name(const NamedTensor& t) {
  TensorChunk chunk{.file = {}, .offset = std::vector<int64_t>(static_cast<size_t>(t.tensor.dim())), .shape = t.tensor.sizes().vec()};
  if (!chunk.offset.empty()) chunk.offset[0] = t.first_row;
  return chunk_name(t.name, {.shape = t.whole_shape()}, chunk);
}

// Whether no element has all of these bits, those of the exponent (of e4m3fn and e8m0, which have no infinity: of their NaN).
template <class Bits>
bool none_has(const void* data, size_t bytes, Bits bits) {
  const Bits* values = static_cast<const Bits*>(data);
  Bits found = 0;
  for (size_t i = 0; i < bytes / sizeof(Bits); ++i) found |= (values[i] & bits) == bits;
  return found == 0;
}

bool is_finite(FileDType type, const void* data, size_t bytes) {
  switch (type) {
    case FileDType::f64:
      return none_has<uint64_t>(data, bytes, 0x7ff0000000000000);
    case FileDType::f32:
      return none_has<uint32_t>(data, bytes, 0x7f800000);
    case FileDType::f16:
      return none_has<uint16_t>(data, bytes, 0x7c00);
    case FileDType::bf16:
      return none_has<uint16_t>(data, bytes, 0x7f80);
    case FileDType::f8_e4m3:
      return none_has<uint8_t>(data, bytes, 0x7f);
    case FileDType::f8_e5m2:
      return none_has<uint8_t>(data, bytes, 0x7c);
    case FileDType::f8_e8m0:
      return none_has<uint8_t>(data, bytes, 0xff);
    default:
      return true;
  }
}

}  // namespace

FileDType file_dtype_of(at::ScalarType type) {
  for (const auto& [file, scalar] : kTypes)
    if (scalar == type) return file;
  fail("a tensor of type {} can not be stored in a safetensors file", c10::toString(type));
}

at::ScalarType scalar_type_of(FileDType type) { return kTypes[static_cast<size_t>(type)].second; }

at::ScalarType stored_type(const at::Tensor& tensor, std::optional<at::ScalarType> dtype) {
  return dtype && is_castable(tensor.scalar_type()) ? *dtype : tensor.scalar_type();
}

std::vector<std::vector<NamedTensor>> split_into_files(const std::vector<NamedTensor>& tensors, int64_t max_bytes) {
  std::vector<std::vector<NamedTensor>> files;
  int64_t bytes = 0;
  for (const NamedTensor& t : tensors) {
    const int64_t size = static_cast<int64_t>(t.tensor.nbytes());
    if (files.empty() || (bytes > 0 && bytes + size > max_bytes)) {
      files.emplace_back();
      bytes = 0;
    }
    files.back().push_back(t);
    bytes += size;
  }
  return files;
}

WrittenTensors write_tensors(const std::filesystem::path& path, const std::vector<NamedTensor>& tensors,
                             const std::map<std::string, std::string>& metadata, bool checksum, std::optional<at::ScalarType> dtype,
                             const std::function<at::Tensor(const NamedTensor&)>& source) {
  std::vector<TensorEntry> entries;
  std::unordered_map<std::string, const NamedTensor*> by_name;
  for (const NamedTensor& t : tensors) {
    check(t.tensor.defined(), "{}: tensor {} is undefined", path.string(), t.name);
    const std::string name = stored_name(t);
    check(by_name.emplace(name, &t).second, "{}: two tensors named {}", path.string(), name);
    entries.push_back({.name = name, .dtype = file_dtype_of(stored_type(t.tensor, dtype)), .shape = t.tensor.sizes().vec()});
  }
  std::vector<std::string> not_finite;
  SafetensorsWriter writer(path, std::move(entries), metadata, checksum);
  for (const TensorEntry& entry : writer.order()) {
    const NamedTensor& t = *by_name.at(entry.name);
    const at::Tensor host = (source ? source(t) : t.tensor).detach().to(at::kCPU, scalar_type_of(entry.dtype)).contiguous();
    if (!is_finite(entry.dtype, host.const_data_ptr(), host.nbytes())) not_finite.push_back(t.name);
    writer.write(host.const_data_ptr(), host.nbytes());
  }
  return {writer.finish(), std::move(not_finite)};
}

void read_tensor(const SafetensorsFile& file, const TensorEntry& entry, at::Tensor out, bool cast, std::optional<int64_t> first_row) {
  const at::ScalarType stored = scalar_type_of(entry.dtype);
  std::vector<int64_t> shape = entry.shape;
  if (first_row && out.dim() > 0 && !shape.empty()) {
    check(*first_row >= 0 && *first_row <= shape[0] && out.size(0) <= shape[0] - *first_row,
          "{}: tensor {} has {} rows, asked for {} from row {} on", file.path().string(), entry.name, shape[0], out.size(0), *first_row);
    shape[0] = out.size(0);
  }
  check(out.sizes() == at::IntArrayRef(shape), "{}: tensor {} has shape {}, expected {}", file.path().string(), entry.name,
        shape_text(entry.shape), shape_text(out.sizes().vec()));
  check(out.scalar_type() == stored || (cast && is_castable(stored) && is_castable(out.scalar_type())),
        "{}: tensor {} has type {}, expected {}", file.path().string(), entry.name, name_of(entry.dtype), c10::toString(out.scalar_type()));
  if (out.numel() == 0) return;
  const uint64_t begin = first_row.value_or(0) == 0
                             ? 0
                             : (entry.end - entry.begin) / static_cast<uint64_t>(entry.shape[0]) * static_cast<uint64_t>(*first_row);
  out = out.detach();
  if (out.device().is_cpu() && out.is_contiguous() && out.scalar_type() == stored) {
    file.read(entry, out.mutable_data_ptr(), out.nbytes(), begin);
    return;
  }
  const at::Tensor staging = at::empty(shape, at::TensorOptions().dtype(stored));
  file.read(entry, staging.mutable_data_ptr(), staging.nbytes(), begin);
  out.copy_(staging);
}

void check_same_names(const std::vector<std::string>& expected, const std::vector<std::string>& found, const std::string& what) {
  const std::set<std::string> want(expected.begin(), expected.end()), have(found.begin(), found.end());
  std::vector<std::string> missing, unknown;
  std::set_difference(want.begin(), want.end(), have.begin(), have.end(), std::back_inserter(missing));
  std::set_difference(have.begin(), have.end(), want.begin(), want.end(), std::back_inserter(unknown));
  if (missing.empty() && unknown.empty()) return;
  std::string text;
  if (!missing.empty()) text += fmt::format("{} tensors are missing: {}", missing.size(), name_list(missing));
  if (!unknown.empty()) text += fmt::format("{}{} tensors are unknown: {}", text.empty() ? "" : "; ", unknown.size(), name_list(unknown));
  fail("{} does not fit this model: {}", what, text);
}

}  // namespace halftone
