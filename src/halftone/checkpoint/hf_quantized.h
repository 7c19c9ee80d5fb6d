#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "halftone/checkpoint/hf_quantization.h"
#include "halftone/checkpoint/safetensors.h"

namespace halftone {

// What a tensor is to the weight of its module, from the last word of its name ("weight_scale").
enum class HfPart { plain, quantized, activation };  // a tensor of its own | codes or scales of the weight | of activations, not read
HfPart hf_part_of(std::string_view word);

// The module of a tensor of codes, scales or the like, and what it is there ("weight_scale"); empty without a quantization_config that says
// how such are stored. Stacked ones are "weight_packed" and "weight_scale", too.
std::pair<std::string, std::string> hf_module_of(const std::string& name, const std::optional<HfQuantization>& quantization);

// The group that stores a module's weight, by its targets. Error where none does.
const HfWeightScheme& scheme_of(const HfQuantization& quantization, const std::string& module, const std::string& what);

// A weight [N, K], or stacked ones [E, N, K], of a Hugging Face folder that is stored as codes with scales.
class HfQuantizedWeight {
 public:
  struct Part {
    const SafetensorsFile* file = nullptr;  // outlives this
    const TensorEntry* entry = nullptr;
    void read(void* data, uint64_t bytes, uint64_t offset) const { file->read(*entry, data, bytes, offset); }
  };
  using Parts = std::map<std::string, Part, std::less<>>;  // by the last word of their names
  // Error naming the tensor that is missing, is not expected, or does not fit the others.
  HfQuantizedWeight(const std::string& module, const HfWeightScheme& scheme, const Parts& parts);
  std::vector<int64_t> shape() const;
  // Values of rows from `first` on, of all E * N, fp32 [rows, K]. Reads the codes of these rows and the scales of their blocks.
  void read(int64_t first, int64_t rows, float* out) const;

 private:
  // Of `blocks` rows of blocks, [blocks, groups()].
  std::vector<float> scales_of(int64_t first_block, int64_t blocks) const;
  std::vector<float> zeros_of(int64_t first_block, int64_t blocks) const;  // empty: all are 0
  int64_t groups() const { return scheme_.cols == 0 ? 1 : (shape_[1] + scheme_.cols - 1) / scheme_.cols; }
  int64_t block_of(int64_t row) const { return scheme_.rows == 0 ? 0 : row / scheme_.rows; }
  HfWeightScheme scheme_;
  Part codes_, scale_, zero_;
  float global_scale_ = 1;
  int64_t experts_ = 0;         // of stacked ones
  std::vector<int64_t> shape_;  // [E * N, K]
};

}  // namespace halftone
