#pragma once
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <string>
#include <utility>
#include <vector>

#include "halftone/formats/float_code.h"
#include "halftone/formats/hadamard.h"
#include "halftone/formats/scale_code.h"
#include "halftone/ops/common.h"
#include "halftone/ops/stored_weight.h"
#include "halftone/ops/weight.h"
#include "halftone/quantize/operand_ref.h"
#include "ops/test_device.h"

// A linear layer by definition: every operand quantised by the scalar reference, values multiplied in fp64. Shares no code with
// ops/linear.cpp and the GEMMs.
namespace halftone {

// The values of one operand, fp64 [R, C], by the reference quantiser (numerics.md sections 2 to 5).
inline at::Tensor reference_numbers(const at::Tensor& x_in, const OperandSpec& spec, bool transposed, const std::string& key,
                                    const RotationSigns& signs) {
  const at::Tensor x = x_in.contiguous();
  const int64_t rows = x.size(0), cols = x.size(1), R = transposed ? cols : rows;
  QuantizedCopy c;
  c.spec = spec, c.signs = signs;
  c.rounding.stochastic = spec.stochastic, c.rounding.step = test_step().step;
  c.rounding.key = philox_key(test_step().seed, key + (spec.eden ? ".scale" : ""));
  c.rounding.first_row = key.find("#w.") == std::string::npos ? test_step().first_row : 0;
  const int64_t C = operand_length(c, transposed ? rows : cols), B = spec.block > 0 ? spec.block : 1;
  std::vector<uint8_t> codes(R * C), macro(R * C + 1);
  std::vector<float> scales(R * C + 1), zeros(R * C + 1);
  float outer = 1;
  c.codes = codes.data(), c.scales = scales.data(), c.zeros = zeros.data(), c.outer = &outer, c.macro = macro.data();
  QuantizeOperand p;
  p.x = x.const_data_ptr(), p.type = kernel_dtype(x), p.rows = rows, p.cols = cols, p.ld = cols;
  (transposed ? p.want_transposed : p.want_row) = true;
  (transposed ? p.transposed : p.row) = c;
  ref::quantize_operand(p);
  at::Tensor out = at::empty({R, C}, at::kDouble);
  auto* v = out.mutable_data_ptr<double>();
  const int64_t across = (C + B - 1) / B, macros = (C + 127) / 128;
  const bool tile = spec.granularity == Granularity::tile, block = spec.granularity == Granularity::block;
  for (int64_t r = 0; r < R; ++r) {
    for (int64_t j = 0; j < C; ++j) {
      const int64_t at = tile ? r / B * across + j / B : block ? r * across + j / B : spec.granularity == Granularity::row ? r : 0;
      const uint8_t q = codes[r * C + j];
      double value = 0;
      switch (spec.element) {
        case Element::e4m3:
          value = decode(Float::e4m3, q);
          break;
        case Element::e5m2:
          value = decode(Float::e5m2, q);
          break;
        case Element::e2m1:
          value = decode(Float::e2m1, q);
          break;
        default:
          value = static_cast<int8_t>(q);
      }
      const auto* bytes = reinterpret_cast<const uint8_t*>(scales.data());
      double scale = 0;
      switch (spec.scale) {
        case ScaleFormat::e8m0:
          scale = decode_e8m0(bytes[at]);
          break;
        case ScaleFormat::e4m3:
          scale = decode(Float::e4m3, bytes[at]);
          break;
        case ScaleFormat::ue5m3:
          scale = decode_ue5m3(bytes[at]);
          break;
        default:
          scale = scales[at];
      }
      if (spec.two_level == TwoLevel::tensor) scale *= outer;
      if (spec.two_level == TwoLevel::macro) scale /= inv_macro(macro[(tile ? r / 128 : r) * macros + j / 128]);
      if (spec.clip == Clip::fixed) scale *= 4.0 / 3.0;
      v[r * C + j] = value * scale;
    }
  }
  return out;
}

// Signs of a product's rotation; role: ends with the product.
inline RotationSigns reference_signs(const OperandSpec& s, const std::string& role, const std::string& first) {
  if (s.hadamard == 0 || s.signs == Signs::deterministic) return {};
  if (s.signs == Signs::torchao) return kFixedSigns16;
  const std::string key = first + (role.ends_with("dgrad") ? "#rht.dgrad" : "#rht");
  return RotationSigns(philox(philox_key(test_step().seed, key), 0, test_step().step, 0));
}

struct ReferenceLinear {
  at::Tensor y, dx, dw;  // fp64
};

// One weight, named `fqn`, computed on the CPU whatever the tensors' device. Stored weights are given by their codes. `first`: name of
// the first weight that reads X, which keys X's draws and the signs; empty: this one.
inline ReferenceLinear reference_linear(const LinearRecipe& r, const at::Tensor& x_in, const at::Tensor& w_in, const at::Tensor& dy_in,
                                        const std::string& fqn, const StoredWeight* stored = nullptr, std::string first = "") {
  if (first.empty()) first = fqn;
  const at::Tensor x = x_in.cpu(), w = w_in.cpu(), dy = dy_in.cpu();
  const auto numbers = [&](const at::Tensor& t, const OperandSpec& s, bool transposed, const char* role) {
    if (!s.quantized()) return (transposed ? t.t() : t).to(at::kDouble);
    return reference_numbers(t, s, transposed, (*role == 'x' ? first : fqn) + "#" + role, reference_signs(s, role, first));
  };
  const auto shared = [](const OperandSpec& s, const char* own, const char* forward) { return s.same_as_forward ? forward : own; };
  at::Tensor stored_w;
  if (stored != nullptr) {
    stored_w = dequantize(*stored).cpu();
    if (stored->spec.element == Element::uint4) stored_w = stored_w.to(x.scalar_type());  // numerics.md section 7: rounded
    stored_w = stored_w.to(at::kDouble);
  }
  ReferenceLinear out;
  const at::Tensor wf = stored != nullptr ? stored_w : numbers(w, r.w_forward, false, "w.fwd");
  out.y = at::mm(numbers(x, r.x_forward, false, "x.fwd"), wf.t());
  const at::Tensor wd = stored != nullptr ? stored_w.t() : numbers(w, r.w_dgrad, true, shared(r.w_dgrad, "w.dgrad", "w.fwd"));
  out.dx = at::mm(numbers(dy, r.dy_dgrad, false, "dy.dgrad"), wd.t());
  if (stored != nullptr && stored->spec.element == Element::int8) {  // the scales lie along the contraction: they are applied to dY
    out.dx = at::mm((dy.to(at::kFloat) * stored->scales.cpu()).to(dy.scalar_type()).to(at::kDouble), stored->codes.cpu().to(at::kDouble));
  }
  const bool forward_codes = r.x_wgrad.same_as_forward && r.x_wgrad.granularity == Granularity::row;
  at::Tensor xw = forward_codes ? numbers(x, r.x_forward, false, "x.fwd").to(dy.scalar_type()).to(at::kDouble).t()
                                : numbers(x, r.x_wgrad, true, shared(r.x_wgrad, "x.wgrad", "x.fwd"));
  out.dw = at::mm(numbers(dy, r.dy_wgrad, true, shared(r.dy_wgrad, "dy.wgrad", "dy.dgrad")), xw.t());
  return out;
}

}  // namespace halftone
