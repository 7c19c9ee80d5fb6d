#include "halftone/checkpoint/hf_codes.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/clamp.h>

#include <algorithm>

#include "halftone/base/error.h"
#include "halftone/checkpoint/tensor_io.h"
#include "halftone/ops/operand.h"

namespace halftone {
namespace {

constexpr int64_t kMxBlock = 32, kFp8Block = 128;

bool is_stacked(const ModelFamily::TensorName& name) { return name.transposed; }

// Linear layers, except vocabulary tables and routers, which published models do not quantise.
bool is_linear(std::string_view native, at::IntArrayRef shape) {
  return shape.size() == 2 && native != "tok_embeddings.weight" && native != "output.weight" && !native.ends_with(".router.gate.weight");
}

OperandSpec spec_of(HfCodes codes) {
  OperandSpec spec;
  if (codes == HfCodes::fp8_blockwise) return find_linear_recipe("fp8_blockwise")->w_forward;
  spec = find_linear_recipe("mxfp4")->x_forward;
  // A block whose largest code is 4 or 6 round-trips to the same scale; a block of zeros has byte 0, as elsewhere.
  spec.mode = ScaleMode::even;
  return spec;
}

// The largest number that is written. Above it codes times their scale leave float32 (MXFP4: 4 * 2^126) or, as readers take the values,
// bfloat16.
double largest(HfCodes codes) { return codes == HfCodes::mxfp4 ? 6 * 0x1p125 : 255 * 0x1p120; }

// values [n, K] or [E, N, K].
at::Tensor encode(HfCodes codes, bool scales, const at::Tensor& values) {
  at::Tensor x = values.detach().to(at::kCPU);
  if (x.scalar_type() != at::kBFloat16) x = x.to(at::kFloat);
  x = x.contiguous();
  check(is_finite(file_dtype_of(x.scalar_type()), x.const_data_ptr(), x.nbytes()),
        "a weight that is to be written as codes holds a NaN or an infinity; export an earlier step");
  x = at::clamp(x, -largest(codes), largest(codes));
  const int64_t k = x.size(-1);
  const bool mx = codes == HfCodes::mxfp4;
  CopyRequest request{.spec = spec_of(codes)};
  (mx ? request.packed : request.codes) = true;
  const Operand o = quantize(x.view({-1, k}), &request, nullptr).row;
  if (!mx) return scales ? o.scales : o.codes.view(at::kFloat8_e4m3fn);
  return scales ? o.scales.view({x.size(0), x.size(1), k / kMxBlock}) : o.packed.view({x.size(0), x.size(1), k / kMxBlock, kMxBlock / 2});
}

}  // namespace

void check_hf_codes(HfCodes codes, const ModelFamily& family) {
  if (codes == HfCodes::none) return;
  const bool stacked = std::any_of(family.tensors.begin(), family.tensors.end(), is_stacked);
  check(stacked == (codes == HfCodes::mxfp4), "{} is not a code format of {} files; choose {}", name_of(codes), family.hf_architecture,
        stacked ? "mxfp4, in which all experts of a layer are stacked" : "fp8_blockwise");
}

std::vector<HfCodedTensor> coded_tensors(HfCodes codes, const ModelFamily& family, const std::string& native, const std::string& hf,
                                         at::IntArrayRef shape) {
  if (codes == HfCodes::mxfp4 && is_stacked(*family.tensor(native))) {
    const int64_t experts = shape[0], n = shape[1], k = shape[2];
    check(k % kMxBlock == 0, "{}: its {} columns are not a multiple of the {} that share a scale; leave mxfp4 out", native, k, kMxBlock);
    return {{hf + "_blocks", {experts, n, k / kMxBlock, kMxBlock / 2}, at::kByte},
            {hf + "_scales", {experts, n, k / kMxBlock}, at::kByte, true}};
  }
  if (codes == HfCodes::fp8_blockwise && is_linear(native, shape)) {
    const auto blocks = [](int64_t n) { return (n + kFp8Block - 1) / kFp8Block; };
    return {{hf, shape.vec(), at::kFloat8_e4m3fn}, {hf + "_scale_inv", {blocks(shape[0]), blocks(shape[1])}, at::kFloat, true}};
  }
  return {};
}

at::Tensor coded_rows(HfCodes codes, bool scales, int64_t first, int64_t rows, int64_t count,
                      const std::function<at::Tensor(int64_t first, int64_t rows)>& values) {
  // A few MiB of the weight at a time: an expert, or rows of blocks.
  const int64_t unit = codes == HfCodes::mxfp4 ? 1 : kFp8Block, end = scales ? std::min(count, (first + rows) * unit) : first + rows;
  std::vector<at::Tensor> parts;
  for (int64_t r = scales ? first * unit : first; r < end; r += unit)
    parts.push_back(encode(codes, scales, values(r, std::min(unit, end - r))));
  return at::cat(parts);
}

}  // namespace halftone
