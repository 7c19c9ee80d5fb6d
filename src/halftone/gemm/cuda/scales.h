#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "halftone/gemm/product.h"

// Converts dequantisation factors from the quantisers' layouts to those of the GEMMs (numerics.md 2.4), with the second-level factors
// multiplied in. A few kilobytes to a few megabytes: cheap compared to the GEMM.
namespace halftone::gemm {

enum class ScaleLayout {
  vector,    // [rows]
  column,    // block128: [ceil(k / 128), rows], one column of blocks after the other
  row_of_4,  // tile128: [ceil(rows / 128), ceil(k / 128) rounded up to 4], padded with 1
};

struct ScaleJob {
  ProductOperand from;  // scales, scale, outer, macro
  ScaleLayout layout = ScaleLayout::vector;
  int64_t rows = 0;    // number of rows to convert, from the first
  int64_t blocks = 0;  // ceil(k / 128)
  float factor = 1;
  float* to = nullptr;  // null: nothing to do
};

int64_t scale_count(const ScaleJob& job);  // number of floats at `to`
cudaError_t arrange_scales(const ScaleJob& a, const ScaleJob& b, cudaStream_t stream);

// out = {alpha * scale_a * outer_a * scale_b * outer_b, accumulate ? 1 : 0}, for operands with at most one factor.
cudaError_t scalar_factor(const ProductOperand& a, const ProductOperand& b, float alpha, bool accumulate, float* out, cudaStream_t stream);

// Converts a bias to the type in which the GEMM adds it.
cudaError_t convert_bias(const void* bias, DType type, int64_t n, void* to, DType to_type, cudaStream_t stream);

// Decodes e5m2 codes to bf16 exactly: [count], a multiple of 16.
cudaError_t decode_e5m2(const void* codes, int64_t count, void* to, cudaStream_t stream);

// D (+)= (sum[m, n] * scale_m[m]) * scale_n[n] + bias[n]: unfused epilogue; without `sum`, the GEMM of an empty contraction.
struct Finish {
  const void* sum = nullptr;                           // [m, n] contiguous, or null: 0
  bool integer = false;                                // sum is int32, else fp32
  const float *scale_m = nullptr, *scale_n = nullptr;  // [m], [n]; needed with sum
  Product product{};                                   // shape, bias, D, accumulate
};
cudaError_t finish(const Finish& what, cudaStream_t stream);

}  // namespace halftone::gemm
