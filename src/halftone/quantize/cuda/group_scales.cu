#include "halftone/formats/eden.h"
#include "halftone/quantize/cuda/dependent.cuh"
#include "halftone/quantize/cuda/rules.cuh"
#include "halftone/quantize/operand_shape.h"

namespace halftone::device {
namespace {

constexpr int kThreads = 256;

// negative: int4's second maximum.
__device__ ScalePair scale_of(const CopyArgs& d, int64_t set, uint32_t amax, uint32_t negative) {
  if (d.element == Element::ternary) return d.scale_pair[set];
  if (d.element == Element::int8) return int8_scale(amax, d.scale_floor);
  if (d.element == Element::int4) return int4_scale(amax, negative, d.scale_floor);
  return fp8_scale(halftone::float_of(d.element), d.pow2, amax);
}
__device__ float fold_of(const CopyArgs& d, uint32_t amax) {
  const uint32_t byte = mx_byte(d.mx, amax);
  const Float target = d.form == ValueForm::fold_e5m2 ? Float::e5m2 : Float::e4m3;
  return byte == 255 ? quiet_nan() : fold_scale(target, static_cast<int>(byte) - 127);
}

// One thread per vector of a group, or per group if it has a single maximum. blockIdx.y: 0 row copy, 1 transposed copy.
__global__ void __launch_bounds__(kThreads) group_scales_kernel(const __grid_constant__ TileArgs a, int groups) {
  wait_for_primary();
  start_dependents();
  const CopyArgs& d = blockIdx.y == 0 ? a.row : a.transposed;
  if (d.tile_groups == nullptr) return;
  auto* scales = has_group_scales(d) ? static_cast<float*>(d.scales) : nullptr;
  float* folds = has_group_folds(d) ? d.fold_scale : nullptr;
  const int64_t vectors = d.set_words > 0 ? d.R : 1, step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < groups * vectors; i += step) {
    const int64_t set = i / vectors, r = i % vectors;
    const uint32_t tensor = d.tensor_amax != nullptr ? d.tensor_amax[set] : 0u;
    if (r == 0 && d.outer != nullptr)
      d.outer[set] = (d.eden ? eden_outer(d.hadamard, tensor) : fp4_outer(d.chain, d.range, d.two_level, tensor)).scale;
    const uint32_t* own = d.group_amax + set * d.set_words;
    if (scales != nullptr)
      scales[i] =
          (d.per_tensor ? scale_of(d, set, tensor, 0) : scale_of(d, set, own[r], d.element == Element::int4 ? own[d.R + r] : 0)).scale;
    if (folds == nullptr) continue;
    uint32_t amax = d.set_words > 0 ? own[r] : tensor;
    if (d.set_words > 0 && d.tile) {  // 32 vectors share their block scales
      for (int64_t k = r / 32 * 32; k < min(r / 32 * 32 + 32, vectors); ++k) amax = max(amax, own[k]);
    }
    folds[i] = fold_of(d, amax);
  }
}

}  // namespace

cudaError_t launch_group_scales(const TileArgs& a, int groups, cudaStream_t stream) {
  int64_t most = groups;
  for (const CopyArgs* d : {&a.row, &a.transposed}) {
    if (d->tile_groups != nullptr && d->set_words > 0) most = std::max(most, int64_t{groups} * d->R);
  }
  const auto blocks = static_cast<unsigned>(std::clamp<int64_t>((most + kThreads - 1) / kThreads, 1, 1024));
  const DependentLaunch launch(dim3(blocks, 2), kThreads, stream, true);
  return cudaLaunchKernelEx(&launch.config, group_scales_kernel, a, groups);
}

}  // namespace halftone::device
