#pragma once
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "halftone/checkpoint/hf.h"
#include "halftone/checkpoint/index.h"
#include "halftone/checkpoint/tensor_io.h"

namespace halftone {

// How a step's files are verified. With several ranks each verifies a share: file i (in name order) on rank i mod world.
struct Verify {
  Verify(bool all_bytes, int64_t own_rank = 0, int64_t ranks = 1) : checksums(all_bytes), rank(own_rank), world(ranks) {}
  bool checksums;  // false: sizes only
  int64_t rank, world;
};

struct StepSummary {
  bool model_only = false;
  std::string problem;  // one line; empty for a valid step
};
// A step is valid if its index parses and says that all tensors are finite, and all listed files have the stated sizes, and checksums on
// request. A Hugging Face folder is a model-only step.
StepSummary inspect_step(const std::filesystem::path& step_folder, const Verify& verify);

// Error that says what was expected at `path` and what is there.
[[noreturn]] void fail_no_checkpoint(const std::filesystem::path& path);

// A checkpoint open for reading: a step folder, or a Hugging Face folder (model only, under native names).
class LoadedStep {
 public:
  // First compares files and their headers with the index. An error names the file and the problem.
  static LoadedStep open(const std::filesystem::path& step_folder, const Verify& verify);

  int64_t step() const;  // 0 for a Hugging Face folder
  bool model_only() const;
  const std::string& state_json() const { return state_json_; }  // "{}" for a Hugging Face folder
  const std::filesystem::path& folder() const { return folder_; }
  // Digest of the contents, to compare copies of a checkpoint: index.json, which has the checksums of a step's files, or config.json and
  // samples of the weights for a Hugging Face folder.
  std::string digest() const;
  // Degrees of the mesh that wrote the step, by axis; none of a Hugging Face folder.
  const std::map<std::string, int64_t>& mesh() const { return index_.mesh; }
  const std::string* not_finite() const { return first_not_finite(index_); }  // a tensor's name; null where all are finite
  // A Hugging Face folder's weights beside this one: reads give scales of elements instead of values (HfFolder::read_scales).
  static LoadedStep open_scales(const std::filesystem::path& folder);
  std::vector<const HfQuantizedWeight*> stored_as(const std::string& name) const {
    return hf_ ? hf_->stored_as(name) : std::vector<const HfQuantizedWeight*>();
  }
  bool holds_codes(const std::string& name) const { return hf_ && hf_->holds_codes(name); }
  const HfFolder* hf_folder() const { return hf_.get(); }  // null for a step folder
  const HfConfig* hf_config() const { return hf_ ? &hf_->config() : nullptr; }
  std::vector<std::string> model_names() const;
  std::vector<std::string> optim_names() const;  // names that start with "optim."
  bool has(const std::string& name) const;
  TensorInfo info(const std::string& name) const;
  // `out` has the full tensor's shape; any device and strides. With `cast`, floating-point types are converted.
  void read_into(const std::string& name, at::Tensor out, bool cast = false) const;
  // `out` has the tensor's shape except for the number of rows: reads rows from `first_row` on, and no other bytes (if Hugging Face's
  // layout permutes rows: those of their heads).
  void read_rows(const std::string& name, int64_t first_row, at::Tensor out, bool cast = false) const;
  // New CPU tensors in the stored type: the full tensor, or some rows.
  at::Tensor read(const std::string& name) const;
  at::Tensor read(const std::string& name, int64_t first_row, int64_t rows) const;
  // Reads the slice of a tensor at `offset`, one number per dimension, or empty for the full tensor.
  void read_part(const std::string& name, const std::vector<int64_t>& offset, at::Tensor out, bool cast = false) const;
  // Verifies the checksums, if any, of the files that hold the model; may run concurrently with reads.
  void verify_model() const;
  // Error listing missing and unknown names unless the model tensors are exactly `expected` (a tied head explains "output.weight"); with
  // `part` there may be others, for other stages of a pipeline.
  void check_model_names(const std::vector<std::string>& expected, bool part = false) const;

 private:
  const SafetensorsFile& file(const std::string& name) const;
  // Error unless the file and the index agree on the chunk.
  const TensorEntry& entry_of(const std::string& name, const IndexedTensor& tensor, const TensorChunk& chunk) const;
  std::filesystem::path folder_;
  CheckpointIndex index_;
  std::string state_json_ = "{}";
  mutable std::map<std::string, SafetensorsFile> files_;  // opened on first use
  std::unique_ptr<HfFolder> hf_;
};

}  // namespace halftone
