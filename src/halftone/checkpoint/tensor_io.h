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
  // Where it is a part of a tensor: the shape of that, and where it begins there; empty where it is all of it.
  std::vector<int64_t> shape{}, offset{};

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

// Whether tensors of the type are numbers, which read_tensor() and write_tensors() convert into one another.
bool is_castable(at::ScalarType type);
// No NaN and no infinity among `bytes` bytes of that type.
bool is_finite(FileDType type, const void* data, size_t bytes);

// Groups tensors, in order, into files of at most `max_bytes` each (a larger single tensor has a file of its own), when floating-point
// tensors are written as `dtype`.
std::vector<std::vector<NamedTensor>> split_into_files(const std::vector<NamedTensor>& tensors, int64_t max_bytes,
                                                       std::optional<at::ScalarType> dtype = std::nullopt);

// Gives rows [first, first + rows) of a tensor, on the CPU; all of a tensor without dimensions.
using TensorSource = std::function<at::Tensor(const std::string& name, int64_t first, int64_t rows)>;

struct WrittenTensors : WrittenFile {
  std::vector<std::string> not_finite{};  // tensors that hold a NaN or an infinity
};
// Writes one safetensors file, parts of tensors under chunk_name(); floating-point tensors as `dtype` where it is given. Copies some MiB
// at a time. With `source` tensors need no contents (device meta): it gives them piece by piece, by their own names; where
// they have none on a thread, while others are written.
WrittenTensors write_tensors(const std::filesystem::path& path, const std::vector<NamedTensor>& tensors,
                             const std::map<std::string, std::string>& metadata, bool checksum = true,
                             std::optional<at::ScalarType> dtype = std::nullopt, const TensorSource& source = {});

// Where the rows of a tensor come from.
struct RowReader {
  at::ScalarType type;                                                // of what read() gives
  std::function<void(int64_t first, int64_t rows, void* data)> read;  // contiguous rows; called by several threads at a time
  int64_t unit = 1;                                                   // reads are of multiples of these, but the last
  std::function<at::Tensor(const at::Tensor& rows)> arrange{};        // what was read in another order
};
// Fills `out`, on any device and strided, converting what is of another type. On a CPU piece by piece, so that what was read is still in
// the cache, on all threads. False where there was a NaN or an infinity.
bool fill_rows(at::Tensor out, const RowReader& source);

// Reads `entry`, or as many of its rows from `first_row` on as `out` has, into `out`, which may lie on any device and be strided. Shapes
// must be equal but for the rows; dtypes too, unless `cast` allows conversion between floating-point types. Errors name the file, the
// tensor and both sides. False where there was a NaN or an infinity.
bool read_tensor(const SafetensorsFile& file, const TensorEntry& entry, at::Tensor out, bool cast,
                 std::optional<int64_t> first_row = std::nullopt);

// Fails listing the names (at most 8 of each kind) unless both lists hold the same names.
void check_same_names(const std::vector<std::string>& expected, const std::vector<std::string>& found, const std::string& what);

}  // namespace halftone
