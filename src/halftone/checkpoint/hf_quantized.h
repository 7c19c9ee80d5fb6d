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

// Role of a tensor, from the last word of its name ("weight_scale").
enum class HfPart { plain, quantized, activation };  // a tensor of its own | codes or scales of a weight | for activations, not read
HfPart hf_part_of(std::string_view word);

// The module of a tensor of codes, scales or the like, and its role ("weight_scale"); empty unless a quantization_config describes such
// tensors. Stacked ones map to "weight_packed" and "weight_scale" too.
std::pair<std::string, std::string> hf_module_of(const std::string& name, const std::optional<HfQuantization>& quantization);

// The group whose targets match the module's weight. Error if none does.
const HfWeightScheme& scheme_of(const HfQuantization& quantization, const std::string& module, const std::string& what);

// A weight [N, K], or stacked ones [E, N, K], that a Hugging Face folder stores as codes with scales.
class HfQuantizedWeight {
 public:
  struct Part {
    const SafetensorsFile* file = nullptr;  // must outlive this
    const TensorEntry* entry = nullptr;
    void read(void* data, uint64_t bytes, uint64_t offset) const { file->read(*entry, data, bytes, offset); }
  };
  using Parts = std::map<std::string, Part, std::less<>>;  // by the last word of their names
  // Error naming a tensor that is missing, unexpected, or does not fit the others.
  HfQuantizedWeight(const std::string& module, const HfWeightScheme& scheme, const Parts& parts);
  std::vector<int64_t> shape() const;
  // Dequantised rows from `first` on, of all E * N, fp32 [rows, K]. Reads only the codes of these rows and the scales of their blocks.
  // `scales`: instead of its value, the scale of every element, without the global one.
  void read(int64_t first, int64_t rows, float* out, bool scales = false) const;
  const HfWeightScheme& scheme() const { return scheme_; }
  float global_scale() const { return global_scale_; }  // scales are divided by it; 1 if there is none

 private:
  // For `blocks` rows of blocks, [blocks, groups()].
  std::vector<float> scales_of(int64_t first_block, int64_t blocks) const;
  std::vector<float> zeros_of(int64_t first_block, int64_t blocks) const;  // empty: all are 0
  int64_t groups() const { return scheme_.cols == 0 ? 1 : (shape_[1] + scheme_.cols - 1) / scheme_.cols; }
  int64_t block_of(int64_t row) const { return scheme_.rows == 0 ? 0 : row / scheme_.rows; }
  HfWeightScheme scheme_;
  Part codes_, scale_, zero_;
  float global_scale_ = 1;
  int64_t experts_ = 0;         // number of stacked experts
  std::vector<int64_t> shape_;  // [E * N, K]
};

}  // namespace halftone
