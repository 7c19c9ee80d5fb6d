#pragma once
#include "halftone/base/philox.h"
#include "halftone/device/vec.cuh"
#include "halftone/optim/step.h"

namespace halftone::device {

constexpr int kSegmentsPerLaunch = 32;
constexpr int kOptimizerThreads = 256;

template <class Rule>
struct SegmentWork {
  int64_t offset, count;
  Rule rule;
  PhiloxKey key;
  uint64_t first_index;
};
// Launch arguments, by value: no other copy to the device (at most 4 KiB of parameters).
template <class Rule>
struct OptimizerWork {
  static constexpr size_t kStates = Rule::kStates.size();
  SegmentWork<Rule> segments[kSegmentsPerLaunch];
  void *param, *grad, *states[kStates];
  bf16* compute_copy;
  const StepOutcome* outcome;
  uint32_t step;
  bool zero_grad;
};

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

// Same operations in the same order as optim/rows.h. One block row (blockIdx.y) per segment; kCount = 1 for segments that do not consist of
// whole vectors.
template <class P, class S, class G, class Rule, bool kStochastic, int kCount>
__global__ void __launch_bounds__(kOptimizerThreads) optimizer_kernel(const __grid_constant__ OptimizerWork<Rule> work) {
  static_assert(sizeof work < 4096);
  constexpr size_t kStates = Rule::kStates.size();
  const SegmentWork<Rule>& segment = work.segments[blockIdx.y];
  auto* param = static_cast<P*>(work.param) + segment.offset;
  auto* grad = static_cast<G*>(work.grad) + segment.offset;
  S* states[kStates];
#pragma unroll
  for (size_t k = 0; k < kStates; ++k) states[k] = work.states[k] ? static_cast<S*>(work.states[k]) + segment.offset : nullptr;
  auto* copy = work.compute_copy ? work.compute_copy + segment.offset : nullptr;
  const float factor = work.outcome ? work.outcome->grad_factor : 1.0f;
  const bool updates = work.outcome ? work.outcome->updated : true;
  const int64_t stride = int64_t{gridDim.x} * kOptimizerThreads * kCount;
  for (int64_t i = (int64_t{blockIdx.x} * kOptimizerThreads + threadIdx.x) * kCount; i < segment.count; i += stride) {
    if (!updates) {
      if (work.zero_grad) store(grad + i, Vec<G, kCount>{});
      continue;
    }
    Vec<P, kCount> x_vec = load<kCount>(param + i);
    Vec<G, kCount> g_vec = load<kCount>(grad + i);
    Vec<S, kCount> s_vec[kStates]{};
#pragma unroll
    for (size_t k = 0; k < kStates; ++k) {
      if (states[k]) s_vec[k] = load<kCount>(states[k] + i);
    }
    Vec<bf16, kCount> copy_vec;
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      float x = to_f32(x_vec.value[j]), s[kStates];
#pragma unroll
      for (size_t k = 0; k < kStates; ++k) s[k] = to_f32(s_vec[k].value[j]);
      segment.rule.update(x, to_f32(g_vec.value[j]) * factor, s);
#pragma unroll
      for (size_t k = 0; k < kStates; ++k) from_f32(s[k], s_vec[k].value[j]);
      if constexpr (kStochastic) {
        store_stochastic(x, segment.key, segment.first_index + static_cast<uint64_t>(i + j), work.step, x_vec.value[j]);
      } else {
        from_f32(x, x_vec.value[j]);
      }
      from_f32(x, copy_vec.value[j]);
    }
    store(param + i, x_vec);
#pragma unroll
    for (size_t k = 0; k < kStates; ++k) {
      if (states[k]) store(states[k] + i, s_vec[k]);
    }
    if (copy) store(copy + i, copy_vec);
    if (work.zero_grad) store(grad + i, Vec<G, kCount>{});
  }
}

}  // namespace halftone::device
