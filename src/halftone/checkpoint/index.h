#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "halftone/checkpoint/safetensors.h"

// index.json of a step folder: the step, its files, and the location of every tensor. A tensor is stored as one or more chunks; a chunk
// that is the full tensor has its plain name inside the safetensors file, any other is `fqn@o0,o1` (its offset).
namespace halftone {

struct TensorChunk {
  std::string file;
  std::vector<int64_t> offset{}, shape{};  // in elements of the full tensor, one number per dimension
  bool operator==(const TensorChunk&) const = default;
};
struct IndexedTensor {
  FileDType dtype = FileDType::f32;
  std::vector<int64_t> shape{};  // of the full tensor
  std::vector<TensorChunk> chunks{};
  bool finite = true;  // no NaN and no infinity; true for older files, which do not record it
  bool operator==(const IndexedTensor&) const = default;
};
struct IndexedFile {
  uint64_t bytes = 0;
  std::optional<uint64_t> checksum{};  // xxh3-64; none if checkpoint.checksum was off
  bool operator==(const IndexedFile&) const = default;
};

constexpr const char* kCheckpointFormat = "halftone-checkpoint";
constexpr int64_t kCheckpointVersion = 1;
constexpr uint64_t kMaxIndexBytes = uint64_t{1} << 30;

struct CheckpointIndex {
  int64_t step = 0;
  bool model_only = false;
  int64_t world = 1;
  std::map<std::string, int64_t> mesh{};  // degree per axis: dp_shard, pp, ...
  std::map<std::string, IndexedFile> files{};
  std::map<std::string, IndexedTensor> tensors{};
  bool operator==(const CheckpointIndex&) const = default;
};

// Name of a chunk inside its safetensors file.
std::string chunk_name(const std::string& fqn, const IndexedTensor& tensor, const TensorChunk& chunk);

std::string write_index(const CheckpointIndex& index);
// Strict: checks fields and types, file names without a path, every chunk inside its tensor and in a listed file. Unless this is a `part`
// (the output of one rank), chunks must be disjoint and cover the tensor. Errors start with `what`.
CheckpointIndex parse_index(std::string_view text, const std::string& what, bool part = false);
// Adds the files and chunks of another rank's part of the same step. Errors start with `what`.
void merge_part(CheckpointIndex& index, CheckpointIndex part, const std::string& what);
// The first tensor that is not finite; null if all are.
const std::string* first_not_finite(const CheckpointIndex& index);

// state.json: any JSON object (limits of json_reader.h). Errors start with `what`.
void check_state_json(std::string_view text, const std::string& what);

}  // namespace halftone
