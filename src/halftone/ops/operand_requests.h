#pragma once
#include <string>

#include "halftone/base/error.h"
#include "halftone/ops/cuda_module.h"
#include "halftone/ops/draws.h"
#include "halftone/ops/product.h"

namespace halftone {

// dtype that the unquantised operands of a GEMM are converted to: the wider of the two.
inline at::ScalarType hp_type(const OperandSpec& a, at::ScalarType a_type, const OperandSpec& b, at::ScalarType b_type) {
  if (a.quantized()) return b_type;
  return b.quantized() ? a_type : c10::promoteTypes(a_type, b_type);
}

// Requests of one layer call to the quantisers: the form that each GEMM reads, the random draws, the signs of rotations, and the
// address from which a graph's replays read the step that draws and signs depend on.
class OperandRequests {
 public:
  // first_weight: its name keys the draws of X and the signs. first_row: draw index of the first of `tokens` rows of X and dY.
  OperandRequests(const std::string& first_weight, const LinearRecipe& recipe, c10::Device device, const StepContext& context,
                  int64_t first_row, int64_t tokens)
      : name_(first_weight),
        r_(recipe),
        device_(device.type()),
        context_(context),
        capture_(cuda::current_capture(device)),
        first_row_(first_row),
        tokens_(tokens) {}
  uint64_t capture() const { return capture_; }  // capture that the call is in, 0: none

  CopyRequest of_weight(const OperandSpec& spec, const OperandSpec& other, at::ScalarType hp, CopyUse use, const Weight& w,
                        const char* role) const {
    return request(spec, other, hp, use, w.name, role, w.first_row);
  }
  // Row-wise copies of activations.
  CopyRequest of_rows(const OperandSpec& spec, const OperandSpec& other, at::ScalarType hp, const std::string& weight,
                      const char* role) const {
    return request(spec, other, hp, CopyUse::rows, weight, role, first_row_);
  }
  // Copies that contract tokens: rotated ones share their signs; 4-bit ones cannot be packed if the token count is odd.
  CopyRequest of_tokens(const OperandSpec& spec, const OperandSpec& other, at::ScalarType hp, CopyUse use, const std::string& weight,
                        const char* role) const {
    CopyRequest c = request(spec, other, hp, use, weight, role, first_row_);
    c.signs = rotation_signs(spec, name_, context_);
    if (rotates_by_step(spec)) c.signs_step = replayed_step(), c.signs_key = rotation_key(name_, context_);
    if (c.packed && tokens_ % 2 != 0 && spec.hadamard == 0) c.packed = false, c.codes = true;
    return c;
  }

 private:
  // Null outside a capture: the launch passes the step as an argument.
  const uint32_t* replayed_step() const {
    if (capture_ == 0) return nullptr;
    check(context_.device_step != nullptr,
          "{}: expected StepContext::device_step in a graph capture of {}, whose replays would repeat the draws of one step; found none",
          name_, r_.name);
    return context_.device_step;
  }
  CopyRequest request(const OperandSpec& spec, const OperandSpec& other, at::ScalarType hp, CopyUse use, const std::string& weight,
                      const char* role, int64_t first_row) const {
    CopyRequest c = product_request(spec, other, hp, device_, use, r_.emulate);
    c.rounding = operand_rounding(spec, weight, role, context_, first_row);
    if (spec.stochastic) c.rounding.device_step = replayed_step();
    return c;
  }

  const std::string& name_;
  const LinearRecipe& r_;
  const c10::DeviceType device_;
  const StepContext context_;
  const uint64_t capture_;
  const int64_t first_row_, tokens_;
};

}  // namespace halftone
