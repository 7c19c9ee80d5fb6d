#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "halftone/checkpoint/safetensors.h"

namespace halftone {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;  // CPU or CUDA, contiguous or not
  // Where it is a part of the rows (dim 0) of a tensor: the shape of that, empty where it is all of it, and its first row there.
  std::vector<int64_t> shape{};
  int64_t first_row = 0;

  std::vector<int64_t> whole_shape() const { return shape.empty() ? tensor.sizes().vec() : shape; }
};

struct TensorInfo {
  FileDType dtype = FileDType::f32;
  std::vector<int64_t> shape;
};

FileDType file_dtype_of(at::ScalarType type);
at::ScalarType scalar_type_of(FileDType type);

// The type in which a tensor is written when floating-point tensors are to become `dtype`; integers and 8-bit floats keep theirs.
at::ScalarType stored_type(const at::Tensor& tensor, std::optional<at::ScalarType> dtype);

// Groups tensors, in order, into files of at most `max_bytes` each (a larger single tensor has a file of its own).
std::vector<std::vector<NamedTensor>> split_into_files(const std::vector<NamedTensor>& tensors, int64_t max_bytes);

struct WrittenTensors : WrittenFile {
  std::vector<std::string> not_finite{};  // tensors that hold a NaN or an infinity
};
// Writes one safetensors file, parts of tensors under chunk_name(); floating-point tensors as `dtype` where it is given. Copies one
// tensor at a time at most. With `source` tensors need no contents (device meta): it gives them, one after the other.
WrittenTensors write_tensors(const std::filesystem::path& path, const std::vector<NamedTensor>& tensors,
                             const std::map<std::string, std::string>& metadata, bool checksum = true,
                             std::optional<at::ScalarType> dtype = std::nullopt,
                             const std::function<at::Tensor(const NamedTensor&)>& source = {});

// Reads `entry`, or as many of its rows from `first_row` on as `out` has, into `out`, which may lie on any device and be strided. Shapes
// must be equal but for the rows; dtypes too, unless `cast` allows conversion between floating-point types. Errors name the file, the
// tensor and both sides.
void read_tensor(const SafetensorsFile& file, const TensorEntry& entry, at::Tensor out, bool cast,
                 std::optional<int64_t> first_row = std::nullopt);

// Fails listing the names (at most 8 of each kind) unless both lists hold the same names.
void check_same_names(const std::vector<std::string>& expected, const std::vector<std::string>& found, const std::string& what);

}  // namespace halftone
