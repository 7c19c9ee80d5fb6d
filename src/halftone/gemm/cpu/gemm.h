#pragma once
#include <cstdint>

#include "halftone/base/dtype.h"
#include "halftone/quantize/isa.h"
#include "halftone/quantize/panels.h"

// GEMMs of a linear layer on the CPU with a fused epilogue. The B operand is always in panels (quantize/panels.h), the A
// operand row-major or in panels:
//   forward  Y[M,N]  = X[M,K] . W[N,K]^T    a = X (or its row codes) row-major, b = pack_rows(W)
//   dgrad    dX[M,K] = dY[M,N] . W[N,K]     a = dY row-major,                   b = pack_columns(W) or the col_panels of W
//   wgrad    dW[N,K] = dY[M,N]^T . X[M,K]   a = panels of dY (a_panels),        b = panels of X: pack_columns, or col_panels
// Weights are packed once per optimizer step, activations once per call; in the 8-bit schemes the quantiser packs them.
namespace halftone::gemm {

// C[m, n] = epilogue(sum over k of A[m, k] B[k, n]):
//   v = fp32(sum); v *= scale_m[m]; v *= scale_n[n]; v += bias[n]; v += C[m, n] if accumulate; C = v in c_type
// s8 accumulates in int32, exact for k <= 133,144; bf16 and f32 in fp32. Results depend on the instruction set (except s8,
// which is bit-identical everywhere) but never on the number of threads.
struct Gemm {
  DType type = DType::bf16;  // dtype of A and B: s8 (codes -127..127), bf16, f32
  int64_t m = 0, n = 0, k = 0;
  const void* a = nullptr;
  int64_t lda = 0;                 // row stride in elements; unused with a_panels
  bool a_panels = false;           // A is given as panels of A^T: panels_bytes(type, k, m) bytes
  const void* b = nullptr;         // panels_bytes(type, k, n) bytes; panels are 64-byte aligned
  const float* scale_m = nullptr;  // [m] or null (1)
  const float* scale_n = nullptr;  // [n] or null (1)
  const float* bias = nullptr;     // [n] or null (0)
  void* c = nullptr;               // [m, n], row stride ldc elements
  DType c_type = DType::bf16;      // bf16 or f32
  int64_t ldc = 0;
  bool accumulate = false;  // C += instead of C =
};

// m, n = 0: no-op; k = 0: epilogue of a zero sum. Throws Error on an invalid description.
void run(const Gemm& g, Isa isa = best_isa());

// Bytes of a B operand (or of an A operand with a_panels, n = m); the caller owns the buffer, 64-byte aligned.
constexpr int64_t packed_bytes(DType type, int64_t k, int64_t n) { return panels_bytes(type, k, n); }

// Packs src[n, k] (row stride ld), contracted along its columns: the forward weight.
void pack_rows(DType type, int64_t n, int64_t k, const void* src, int64_t ld, void* out);
// Packs src[k, n] (row stride ld), contracted along its rows: dgrad weight; X and dY for wgrad.
void pack_columns(DType type, int64_t k, int64_t n, const void* src, int64_t ld, void* out);

}  // namespace halftone::gemm
