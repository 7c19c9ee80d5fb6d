#pragma once
#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "halftone/cli/bench_timer.h"
#include "halftone/formats/recipe.h"

namespace halftone::bench {

// Layouts of a GEMM, named as by cuBLAS: TN, NN and NT are forward, dgrad and wgrad of a linear layer. A and B of D[M,N] are stored as
//   TN   A[M,K]  B[N,K]      NN   A[M,K]  B[K,N]      NT   A[K,M]  B[K,N]
struct Layout {
  const char* name;
  bool a_transposed, b_transposed;
};
inline constexpr Layout kLayouts[] = {{"TN", false, false}, {"NN", false, true}, {"NT", true, true}};

// LibTorch's GEMMs for comparison.
enum class Reference { none, mm, tf32, fp8_tensor, fp8_row, fp8_block_tile, fp8_block_block, int_mm };

// A row of the table of `bench mm`.
struct ProductFormat {
  std::string name, meaning;
  OperandSpec a, b;
  bool fast = false;  // fast accumulation, fp8 units
  Reference reference = Reference::none;
  at::ScalarType hp = at::kBFloat16;  // dtype of unquantized operands
};
const std::vector<ProductFormat>& product_formats();

struct ProductWork {
  Work work;           // one GEMM of prepared operands
  std::string reads;   // form of the operands
  std::string absent;  // why there is no GEMM; then the rest is empty
};
// Normally distributed operands, quantized and prepared for the GEMM, in enough sets to miss the caches.
ProductWork product_work(const ProductFormat& format, int64_t m, int64_t n, int64_t k, const Layout& layout, c10::Device device);

at::Tensor normal(int64_t rows, int64_t cols, at::ScalarType type, c10::Device device);

}  // namespace halftone::bench
