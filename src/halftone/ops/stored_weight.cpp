#include "halftone/ops/stored_weight.h"

#include <ATen/ops/empty.h>

#include "halftone/base/error.h"
#include "halftone/fused/stored_weight.h"
#include "halftone/ops/common.h"
#include "halftone/ops/cuda_module.h"

namespace halftone {

StoredWeight allocate_stored(const OperandSpec& spec, int64_t n, int64_t k, c10::Device device) {
  const auto make = [&](at::IntArrayRef shape, at::ScalarType type) {
    return at::empty(shape, at::TensorOptions().device(device).dtype(type));
  };
  StoredWeight s;
  s.spec = spec;
  if (spec.element == Element::int8) {
    s.codes = make({n, k}, at::kChar), s.scales = make({n}, at::kFloat);
  } else {
    check(spec.element == Element::uint4 && k % spec.block == 0, "stored weight: {} columns do not divide into groups of {}", k,
          spec.block);
    s.codes = make({n, k / 2}, at::kByte);
    s.scales = make({n, k / spec.block}, at::kFloat), s.zeros = make({n, k / spec.block}, at::kFloat);
  }
  return s;
}

void store(const at::Tensor& w, const Rounding& rounding, StoredWeight& s, const StepOutcome* outcome) {
  check(w.scalar_type() == at::kFloat && w.is_contiguous(), "stored weight: expected contiguous float32 numbers");
  StoreWeight p;
  p.w = w.const_data_ptr<float>(), p.n = w.size(0), p.k = w.size(1), p.element = s.spec.element, p.rounding = rounding, p.outcome = outcome;
  if (s.spec.block > 0) p.group = s.spec.block;
  p.codes = static_cast<uint8_t*>(s.codes.data_ptr()), p.scales = s.scales.mutable_data_ptr<float>();
  p.zeros = s.zeros.defined() ? s.zeros.mutable_data_ptr<float>() : nullptr;
  if (w.is_cpu()) {
    store_weight(p);
  } else {
    cuda::launch("stored weight", &cuda::Module::store_weight, p, w.device());
  }
}

Operand stored_operand(const StoredWeight& s) {
  Operand o;
  o.spec = s.spec, o.scales = s.scales, o.zeros = s.zeros, o.outer = s.outer;
  o.rows = s.codes.size(0);
  if (s.spec.element != Element::uint4) {
    o.k = s.codes.size(1), o.codes = s.codes;
  } else {
    o.k = s.codes.size(1) * 2, o.packed = s.codes;
  }
  return o;
}

at::Tensor dequantize(const StoredWeight& stored) { return dequantize(stored_operand(stored)); }

Operand stored_transposed(const StoredWeight& stored, at::ScalarType hp) {
  return plain_operand(decode(stored_operand(stored), gemm::Decode::values, hp), true);
}

}  // namespace halftone
