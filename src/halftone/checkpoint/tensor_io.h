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
  // For a part of a tensor: shape of the full tensor, and the part's offset in it; empty for a full tensor.
  std::vector<int64_t> shape{}, offset{};

  std::vector<int64_t> whole_shape() const { return shape.empty() ? tensor.sizes().vec() : shape; }
};

struct TensorInfo {
  FileDType dtype = FileDType::f32;
  std::vector<int64_t> shape;
};

FileDType file_dtype_of(at::ScalarType type);
at::ScalarType scalar_type_of(FileDType type);

// The type in which a tensor is written when floating-point tensors become `dtype`; integers and 8-bit floats keep theirs.
at::ScalarType stored_type(const at::Tensor& tensor, std::optional<at::ScalarType> dtype);

// Whether read_tensor() and write_tensors() can convert the type to other floating-point types.
bool is_castable(at::ScalarType type);
// Whether `bytes` bytes of that type contain no NaN and no infinity.
bool is_finite(FileDType type, const void* data, size_t bytes);

// Groups tensors, in order, into files of at most `max_bytes` each (a larger tensor gets a file of its own), if floating-point tensors
// are written as `dtype`.
std::vector<std::vector<NamedTensor>> split_into_files(const std::vector<NamedTensor>& tensors, int64_t max_bytes,
                                                       std::optional<at::ScalarType> dtype = std::nullopt);

// Returns rows [first, first + rows) of a tensor, on the CPU; all of a tensor without dimensions.
using TensorSource = std::function<at::Tensor(const std::string& name, int64_t first, int64_t rows)>;

struct WrittenTensors : WrittenFile {
  std::vector<std::string> not_finite{};  // tensors with a NaN or an infinity
};
// Writes one safetensors file, with parts of tensors under chunk_name(); floating-point tensors as `dtype` if given. Copies a few MiB at
// a time. `source` returns the tensors piece by piece, by their names; if they have no data (device meta), on a separate thread while
// earlier pieces are written. computed: several threads call it at once, and a tensor's pieces come in their order in `tensors` where
// alignment allows.
WrittenTensors write_tensors(const std::filesystem::path& path, const std::vector<NamedTensor>& tensors,
                             const std::map<std::string, std::string>& metadata, bool checksum = true,
                             std::optional<at::ScalarType> dtype = std::nullopt, const TensorSource& source = {}, bool computed = false);

// Source of the rows of a tensor.
struct RowReader {
  at::ScalarType type;                                                // of the values that read() returns
  std::function<void(int64_t first, int64_t rows, void* data)> read;  // contiguous rows; called by several threads concurrently
  int64_t unit = 1;                                                   // reads are multiples of this, except the last
  std::function<at::Tensor(const at::Tensor& rows)> arrange{};        // reorders rows that were read in a different order
};
// Fills `out`, on any device and strided, with type conversion. On a CPU in pieces that are still in the cache after reading, on all
// threads. False if there is a NaN or an infinity.
bool fill_rows(at::Tensor out, const RowReader& source);

// Reads `entry`, or as many of its rows from `first_row` on as `out` has, into `out`, on any device and possibly strided. Shapes must be
// equal except for the number of rows; dtypes too, unless `cast` allows conversion between floating-point types. Errors name the file,
// the tensor and both sides. False if there is a NaN or an infinity.
bool read_tensor(const SafetensorsFile& file, const TensorEntry& entry, at::Tensor out, bool cast,
                 std::optional<int64_t> first_row = std::nullopt);

// Error listing the names (at most 8 of each kind) unless both lists contain the same names.
void check_same_names(const std::vector<std::string>& expected, const std::vector<std::string>& found, const std::string& what);

}  // namespace halftone
