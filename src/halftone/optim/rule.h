#pragma once
#include <array>
#include <cmath>
#include <cstdint>
#include <string_view>

#include "halftone/base/field.h"

// Included by the header of every optimizer (docs/adding_an_optimizer.md). Its functions are always inlined: files of different instruction
// sets must not share code.
#ifdef __CUDACC__
#define HALFTONE_RULE __host__ __device__ __forceinline__
#else
#define HALFTONE_RULE [[gnu::always_inline]] inline
#endif

namespace halftone::optim {

// A tensor with one element for each of the parameter's, float32 or bfloat16 (optimizer.state_dtype), zero before the first step. In
// checkpoints: optim.state.{fqn}.{name}.
struct State {
  std::string_view name;
  std::string_view formerly{};  // its name in checkpoints of earlier versions
};
// As torch.optim.AdamW calls them.
inline constexpr std::string_view kFirstMoment = "exp_avg", kSecondMoment = "exp_avg_sq";

#ifdef __CUDACC__
// Arithmetic of update() for one element; rows.h has that of vectors.
__device__ __forceinline__ float fma(float a, float b, float c) { return ::fmaf(a, b, c); }
__device__ __forceinline__ float neg_fma(float a, float b, float c) { return ::fmaf(-a, b, c); }  // c - a b
__device__ __forceinline__ float sqrt(float a) { return ::sqrtf(a); }
#endif

}  // namespace halftone::optim
