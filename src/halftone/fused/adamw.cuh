#pragma once
#include "halftone/base/philox.h"
#include "halftone/device/vec.cuh"
#include "halftone/fused/optimizer_block.h"

namespace halftone::device {

constexpr int kSegmentsPerLaunch = 32;
constexpr int kOptimizerThreads = 256;

struct SegmentWork {
  OptimizerBlock block;
  PhiloxKey key;
  uint64_t first_index;
};
// Launch arguments, by value: no other copy to the device (at most 4 KiB of parameters).
struct OptimizerWork {
  SegmentWork segments[kSegmentsPerLaunch];
  void *param, *grad, *m, *v;
  bf16* compute_copy;
  const StepOutcome* outcome;
  uint32_t step;
  bool zero_grad;
};
static_assert(sizeof(OptimizerWork) < 4096);

// bf16 from fp32 with 16 bits per element of the group's four words (numerics.md section 4, L = 16).
__device__ inline void store_stochastic(float x, PhiloxKey key, uint64_t i, uint32_t step, bf16& out) {
  const uint32_t bits = __float_as_uint(x);
  if ((bits & 0x7F800000u) == 0x7F800000u) {
    out.bits = static_cast<uint16_t>((bits | (isnan(x) ? 0x400000u : 0u)) >> 16);
    return;
  }
  const uint32_t word = philox(key, i >> 3, step)[(i & 7) >> 1];
  const uint32_t noise = i & 1 ? word >> 16 : word & 0xFFFF;
  out.bits = static_cast<uint16_t>((bits + (0xFFFF - noise)) >> 16);
}

// Same operations in the same order as fused/rows/optimizer.h. One block row (blockIdx.y) per segment; kCount = 1 for segments that do not
// consist of whole vectors.
template <class P, class S, class G, OptimizerRule kRule, bool kStochastic, int kCount>
__global__ void __launch_bounds__(kOptimizerThreads) optimizer_kernel(const __grid_constant__ OptimizerWork work) {
  const SegmentWork& segment = work.segments[blockIdx.y];
  const OptimizerBlock& b = segment.block;
  auto* param = static_cast<P*>(work.param) + b.offset;
  auto* grad = static_cast<G*>(work.grad) + b.offset;
  auto* m = work.m ? static_cast<S*>(work.m) + b.offset : nullptr;
  auto* v = work.v ? static_cast<S*>(work.v) + b.offset : nullptr;
  auto* copy = work.compute_copy ? work.compute_copy + b.offset : nullptr;
  const float factor = work.outcome ? work.outcome->grad_factor : 1.0f;
  const bool updates = work.outcome ? work.outcome->updated : true;
  const int64_t stride = int64_t{gridDim.x} * kOptimizerThreads * kCount;
  for (int64_t i = (int64_t{blockIdx.x} * kOptimizerThreads + threadIdx.x) * kCount; i < b.count; i += stride) {
    if (!updates) {
      if (work.zero_grad) store(grad + i, Vec<G, kCount>{});
      continue;
    }
    Vec<P, kCount> x_vec = load<kCount>(param + i);
    Vec<G, kCount> g_vec = load<kCount>(grad + i);
    Vec<S, kCount> m_vec{}, v_vec{};
    if (m) m_vec = load<kCount>(m + i);
    if (v) v_vec = load<kCount>(v + i);
    Vec<bf16, kCount> copy_vec;
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      float g = to_f32(g_vec.value[j]) * factor, x = to_f32(x_vec.value[j]);
      if constexpr (kRule == OptimizerRule::adamw) {
        x = fmaf(-b.decay, x, x);
      } else {
        g = fmaf(b.decay, x, g);
      }
      if constexpr (kRule == OptimizerRule::sgd) {
        if (m) {
          g = fmaf(b.beta1, to_f32(m_vec.value[j]), g);
          from_f32(g, m_vec.value[j]);
        }
        x = fmaf(-b.step_size, g, x);
      } else {
        const float first = fmaf(b.beta1, to_f32(m_vec.value[j]), b.one_minus_beta1 * g);
        const float second = fmaf(b.beta2, to_f32(v_vec.value[j]), b.one_minus_beta2 * g * g);
        from_f32(first, m_vec.value[j]);
        from_f32(second, v_vec.value[j]);
        x = fmaf(-b.step_size, first / fmaf(sqrtf(second), b.denominator_scale, b.eps), x);
      }
      if constexpr (kStochastic) {
        store_stochastic(x, segment.key, segment.first_index + static_cast<uint64_t>(i + j), work.step, x_vec.value[j]);
      } else {
        from_f32(x, x_vec.value[j]);
      }
      from_f32(x, copy_vec.value[j]);
    }
    store(param + i, x_vec);
    if (m) store(m + i, m_vec);
    if (v) store(v + i, v_vec);
    if (copy) store(copy + i, copy_vec);
    if (work.zero_grad) store(grad + i, Vec<G, kCount>{});
  }
}

}  // namespace halftone::device
