#pragma once
#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

// cuBLASLt in halftone's row-major notation: D[m, n] = alpha * A[m, k] . B[n, k]^T + beta * D. cuBLASLt is column-major, so its first
// operand is our B and its result our D transposed, i.e. the same memory.
namespace halftone::gemm::lt {

// Everything that decides which algorithms fit; cache key of the chosen algorithm. Plain bytes without padding.
struct Problem {
  int64_t m = 0, n = 0, k = 0;
  int64_t lda = 0, ldb = 0, ldd = 0;                                         // row strides in elements
  int32_t a_type = CUDA_R_16BF, b_type = CUDA_R_16BF, d_type = CUDA_R_16BF;  // cudaDataType
  int32_t a_scale = -1, b_scale = -1;                                        // cublasLtMatmulMatrixScale_t; -1: operand without a scale
  int32_t bias_type = -1;                                                    // cudaDataType; -1: no bias
  int32_t pointer_mode = CUBLASLT_POINTER_MODE_HOST;                         // DEVICE: alpha and beta are read from device memory
  int32_t device = 0;
  uint8_t a_transposed = 0, b_transposed = 0;     // stored as [k, m], [k, n]
  uint8_t accumulate = 0;                         // beta = 1
  uint8_t fast = 0;                               // fp8: accumulate in the tensor core only (fast accumulation)
  uint8_t align_a = 4, align_b = 4, align_d = 4;  // log2 of the addresses' alignment, at most 8
  uint8_t none = 0;
  uint64_t workspace = 0;  // bytes
  bool operator==(const Problem&) const = default;
};

struct Pointers {
  const void *a = nullptr, *b = nullptr;
  void* d = nullptr;
  const void *a_scale = nullptr, *b_scale = nullptr;
  const void* bias = nullptr;
  const float* alpha_beta = nullptr;  // device memory, {alpha, beta}
  float alpha = 1;
  void* workspace = nullptr;
};

inline cublasComputeType_t compute_type(const Problem& p) { return p.a_type == CUDA_R_8I ? CUBLAS_COMPUTE_32I : CUBLAS_COMPUTE_32F; }
inline cudaDataType_t scale_type(const Problem& p) { return p.a_type == CUDA_R_8I ? CUDA_R_32I : CUDA_R_32F; }

// Descriptors of one problem, on the stack: no allocation.
class Call {
 public:
  explicit Call(const Problem& p);
  // Algorithms in the order of cuBLASLt's heuristic, at most `count`.
  std::vector<cublasLtMatmulAlgo_t> heuristic(int count) const;
  // Heuristic candidates of the same GEMM with other scale modes, if they fit: tensor scales for both operands, or row scales if the
  // problem itself has tensor scales. For other scale modes the heuristic returns a single algorithm, whose tile is too wide for small
  // GEMMs; for tensor scales it misses the one that is 5% faster than all its candidates at 8192^3.
  std::vector<cublasLtMatmulAlgo_t> siblings() const;
  // Variants of `algo` that differ only in cluster shape and tile order.
  std::vector<cublasLtMatmulAlgo_t> variants(const cublasLtMatmulAlgo_t& algo) const;
  // Whether cuBLASLt supports the problem with this algorithm and workspace.
  bool takes(const cublasLtMatmulAlgo_t& algo) const;
  cublasStatus_t run(const Pointers& x, const cublasLtMatmulAlgo_t& algo, cudaStream_t stream);

 private:
  Problem p_;
  cublasLtMatmulDescOpaque_t desc_;
  cublasLtMatrixLayoutOpaque_t a_, b_, d_;
};

// cuBLASLt handle of a device: created once, shared by all threads.
cublasLtHandle_t handle(int device);

enum class Choice { heuristic, measured };

// Runs the problem with its cached algorithm, or chooses one: the heuristic's first, or the fastest of its first `kMeasured`, their
// siblings and the variants of the winner (of the best two, if they take microseconds). Timing runs once on this device, waits for the
// stream and allocates scratch memory of the size of D. During stream capture the heuristic's first is used and not cached. Returns null,
// or why nothing ran.
constexpr int kMeasured = 16;
const char* matmul(const Problem& p, const Pointers& x, Choice choice, cudaStream_t stream);

}  // namespace halftone::gemm::lt
