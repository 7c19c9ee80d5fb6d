#pragma once
#include <ATen/core/Tensor.h>

#include <atomic>
#include <memory>
#include <utility>

#include "halftone/quantize/operand.h"

namespace halftone {

// A tensor and, if the op that wrote it computed it on the way, its amax in the form that quantisers take (QuantizeOperand::amax):
// bits32(|x|) as int32 [1], or one word per matrix for several matrices side by side, on the tensor's device.
struct Activation {
  at::Tensor value, amax;
  bool kept = false;  // the producing op keeps it for its own backward pass: consumers may keep it too, at no cost
  Activation() = default;
  Activation(at::Tensor v, at::Tensor a = {}) : value(std::move(v)), amax(std::move(a)) {}  // NOLINT: any tensor is one
  operator const at::Tensor&() const { return value; }                                      // NOLINT
};

// Passes the amax of a gradient from the node that writes it to the node that reads it next. If autograd changes the gradient in between
// (accumulates another into it), the result is a different tensor, which has no amax.
class GradientAmax {
 public:
  void put(at::Tensor gradient, at::Tensor amax) { of_ = std::move(gradient), amax_ = std::move(amax); }
  Activation take(const at::Tensor& gradient) {
    const at::Tensor of = std::move(of_), amax = std::move(amax_);
    return of.defined() && of.is_same(gradient) ? Activation(gradient, amax) : Activation(gradient);
  }

 private:
  at::Tensor of_, amax_;
};

// Whether a producer's amax saves the quantiser of these two copies of a matrix a read pass: one of them has a per-tensor scale, and
// neither has a per-tensor scale of the rotated matrix, which needs the pass anyway.
inline bool amax_spares_a_pass(const OperandSpec& a, const OperandSpec& b) {
  const auto of_tensor = [](const OperandSpec& s) {
    return s.quantized() && s.element != Element::ternary && (s.granularity == Granularity::tensor || s.two_level == TwoLevel::tensor);
  };
  return (of_tensor(a) || of_tensor(b)) && !(of_tensor(a) && uses_rotated_amax(a)) && !(of_tensor(b) && uses_rotated_amax(b));
}
inline bool reads_x_amax(const LinearRecipe& r) { return amax_spares_a_pass(r.x_forward, r.x_wgrad); }
inline bool reads_dy_amax(const LinearRecipe& r) { return amax_spares_a_pass(r.dy_dgrad, r.dy_wgrad); }

// For tests and measurements: without `from_producers` quantisers compute the amax themselves.
struct AmaxUse {
  bool from_producers = true;
  std::atomic<int64_t> taken = 0;  // quantisers that used a producer's amax
};
AmaxUse& amax_use();

}  // namespace halftone
