#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "halftone/checkpoint/hf_quantization.h"
#include "halftone/models/family.h"

// Writes weights to Hugging Face folders as codes with scales, as in published files; hf_quantized.h reads them back.
namespace halftone {

// Error unless files of the family can store weights this way.
void check_hf_codes(HfCodes codes, const ModelFamily& family);

// The two file tensors of one weight.
struct HfCodedTensor {
  std::string name;
  std::vector<int64_t> shape;
  at::ScalarType type;
  bool scales = false;
};
// From a weight's name and shape there, and its name here: empty if it is not quantised. Error if its shape does not fit.
std::vector<HfCodedTensor> coded_tensors(HfCodes codes, const ModelFamily& family, const std::string& native, const std::string& hf,
                                         at::IntArrayRef shape);

// Rows [first, first + rows) of one of them. `values(first, rows)` returns rows of the weight, [N, K] in file order or [E, N, K], with
// `count` rows in all. fp8_blockwise: first is a multiple of 128, and so is rows, unless they are the last ones.
at::Tensor coded_rows(HfCodes codes, bool scales, int64_t first, int64_t rows, int64_t count,
                      const std::function<at::Tensor(int64_t first, int64_t rows)>& values);

}  // namespace halftone
