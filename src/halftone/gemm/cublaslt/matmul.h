#pragma once
#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

// cuBLASLt behind halftone's row-major notation: D[m, n] = alpha * A[m, k] . B[n, k]^T + beta * D. cuBLASLt is
// column-major, so its first operand is our B and its result our D transposed, which is the same memory.
namespace halftone::gemm::lt {

// What decides which algorithms fit, and so the key under which the chosen one is kept. Plain bytes without padding.
struct Problem {
  int64_t m = 0, n = 0, k = 0;
  int64_t lda = 0, ldb = 0, ldd = 0;                                         // row strides in elements
  int32_t a_type = CUDA_R_16BF, b_type = CUDA_R_16BF, d_type = CUDA_R_16BF;  // cudaDataType
  int32_t a_scale = -1, b_scale = -1;                                        // cublasLtMatmulMatrixScale_t; -1: the operand has no scale
  int32_t bias_type = -1;                                                    // cudaDataType; -1: no bias
  int32_t pointer_mode = CUBLASLT_POINTER_MODE_HOST;                         // DEVICE: alpha and beta are read from device memory
  int32_t device = 0;
  uint8_t a_transposed = 0, b_transposed = 0;     // given as [k, m], [k, n]
  uint8_t accumulate = 0;                         // beta = 1
  uint8_t fast = 0;                               // fp8: sums stay in the tensor core
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

// Descriptors of one problem, on the stack: creating them costs no allocation.
class Call {
 public:
  explicit Call(const Problem& p);
  // Algorithms in the order of cuBLASLt's preference, at most `count`.
  std::vector<cublasLtMatmulAlgo_t> heuristic(int count) const;
  // What the heuristic prefers for the same product with other scales, where that fits: of both operands' tensors, or, where these are
  // the problem's own, of rows. For the others it knows a single algorithm, too wide for small products; of tensors it leaves out the
  // one that is 5% faster than all its own at 8192^3.
  std::vector<cublasLtMatmulAlgo_t> siblings() const;
  // Those that differ from `algo` in the cluster of thread blocks and in the order of tiles only.
  std::vector<cublasLtMatmulAlgo_t> variants(const cublasLtMatmulAlgo_t& algo) const;
  // Whether the library does the problem with this algorithm in this workspace.
  bool takes(const cublasLtMatmulAlgo_t& algo) const;
  cublasStatus_t run(const Pointers& x, const cublasLtMatmulAlgo_t& algo, cudaStream_t stream);

 private:
  Problem p_;
  cublasLtMatmulDescOpaque_t desc_;
  cublasLtMatrixLayoutOpaque_t a_, b_, d_;
};

// The library's handle for a device: made once, used by every thread.
cublasLtHandle_t handle(int device);

enum class Choice { heuristic, measured };

// Runs the problem with the algorithm that was chosen for it before, or chooses one now: the first of the heuristic, or the
// fastest of its first `kMeasured`, of their siblings and of the variants of that one (of the best two, where they take microseconds),
// timed on this device (once; waits for the stream and takes scratch memory of the size of D; during stream capture the heuristic's
// first is used and not kept). Null, or why nothing ran.
constexpr int kMeasured = 16;
const char* matmul(const Problem& p, const Pointers& x, Choice choice, cudaStream_t stream);

}  // namespace halftone::gemm::lt
