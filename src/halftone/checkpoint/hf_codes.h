#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "halftone/checkpoint/hf_quantization.h"
#include "halftone/models/family.h"

// Weights that are written to Hugging Face's folders as codes with scales, as published files have them; hf_quantized.h reads them back.
namespace halftone {

// Error unless files of the family can hold weights so.
void check_hf_codes(HfCodes codes, const ModelFamily& family);

// The two tensors of the files that a weight becomes.
struct HfCodedTensor {
  std::string name;
  std::vector<int64_t> shape;
  at::ScalarType type;
  bool scales = false;
};
// From a weight's name and shape there, and its name here: none where it stays numbers. Error where its shape does not fit.
std::vector<HfCodedTensor> coded_tensors(HfCodes codes, const ModelFamily& family, const std::string& native, const std::string& hf,
                                         at::IntArrayRef shape);

// Rows [first, first + rows) of one of them. `values(first, rows)` gives rows of the weight, [N, K] in the order of the file or
// [E, N, K], of which `count` there are. fp8_blockwise: first is a multiple of 128, rows, too, or they are the last ones.
at::Tensor coded_rows(HfCodes codes, bool scales, int64_t first, int64_t rows, int64_t count,
                      const std::function<at::Tensor(int64_t first, int64_t rows)>& values);

}  // namespace halftone
