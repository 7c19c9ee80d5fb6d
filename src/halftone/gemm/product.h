#pragma once
#include <cstdint>

#include "halftone/base/dtype.h"

namespace halftone::gemm {

// Element type of an operand.
enum class Numbers { bf16, f32, e4m3, e5m2, s8 };
// Granularity of the fp32 dequantisation factors (numerics.md section 1), in the layouts that the quantisers write
// (quantize/operand.h); R: rows of the operand:
//   none   tensor [1]   row [R]   block128 [R, ceil(k / 128)]   tile128 [ceil(R / 128), ceil(k / 128)]
enum class Scales { none, tensor, row, block128, tile128 };

// One operand, contracted along k.
struct ProductOperand {
  Numbers numbers = Numbers::bf16;
  bool transposed = false;     // data is [k, R] instead of [R, k]: bf16 and f32 only; 8-bit units read along k
  const void* data = nullptr;  // 8-bit: 16-byte aligned, rows 16-byte aligned
  int64_t ld = 0;              // row stride of data in elements; 0: contiguous
  Scales scales = Scales::none;
  const float* scale = nullptr;
  const float* outer = nullptr;    // [1], extra factor of the full operand (two-level scaling); null: 1
  const uint8_t* macro = nullptr;  // mantissa bytes of the macro blocks' inv_macro (numerics.md 3.5); null: none. Laid out like
  bool macro_tiles = false;        // block128, or like tile128
};

// GEMM on a device with a fused epilogue:
//   D[m, n] (+)= alpha * sum_k deq(A[m, k]) deq(B[n, k]) + bias[n],   deq(q) = q * scale * outer / inv_macro
// rounded once to the type of D; accumulates in int32 (s8, exact for k <= 133,144) or fp32.
//   forward  Y[M,N]  = X[M,K] . W[N,K]^T    a = X,    b = W
//   dgrad    dX[M,K] = dY[M,N] . W[N,K]     a = dY,   b = W^T [K,N]: the transposed copy; unquantised W with `transposed`
//   wgrad    dW[N,K] = dY[M,N]^T . X[M,K]   a = dY^T, b = X^T, likewise
// Supported (numerics.md 7.1): bf16 x bf16 and f32 x f32, scales none, tensor or row; e4m3 and e5m2 in any combination, any
// scales on either side; s8 x s8, scales none, tensor or row. mxfp4 runs as a GEMM of its folded codes; mxfp8, nvfp4 and
// amdfp4 of their bf16 values; int4 and ternary of bytes (product_operand.h).
// 8-bit GEMMs: k and n multiples of 16; zero-padding the contraction is exact.
struct Product {
  int64_t m = 0, n = 0, k = 0;  // m, n = 0: no-op; k = 0: the sum is 0
  ProductOperand a, b;          // R = m, R = n
  void* d = nullptr;            // [m, n]
  DType d_type = DType::bf16;   // bf16 or f32; s8 without scales also s32
  int64_t ldd = 0;              // row stride in elements; 0: contiguous
  bool accumulate = false;      // add to the contents of D
  float alpha = 1;
  // Added in fp32; library GEMMs (bf16 with aligned rows, and fp8 except e5m2 x e5m2) first round the bias to the type of D.
  const void* bias = nullptr;     // [n] or null
  DType bias_type = DType::bf16;  // bf16 or f32
  // fp8: accumulate the full contraction in the tensor core (14 fraction bits) instead of promoting to fp32 every 128 elements. Ignored
  // with block scales, which promote per block, and for other types.
  bool fast_accumulation = false;
  // Times the candidates of a new shape once and keeps the fastest, instead of the heuristic's first choice. Waits for the stream that
  // first time; the choice, and thus the last bits of a sum, may differ from run to run.
  bool measure = false;
  // Avoids kernels that need sm_90 instructions: runs what other devices run, with the same result up to summation order.
  bool portable = false;
  void* workspace = nullptr;  // device memory for this call only, 256-byte aligned; reusable by work enqueued later
  int64_t workspace_bytes = 0;
};

}  // namespace halftone::gemm
