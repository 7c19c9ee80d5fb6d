#pragma once
#include <ATen/core/Tensor.h>

#include "halftone/cli/bench_runner.h"
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

// One GEMM of normally distributed operands, quantized and prepared for it, in enough sets to miss the caches.
Case product_case(const ProductFormat& format, int64_t m, int64_t n, int64_t k, const Layout& layout, c10::Device device);

}  // namespace halftone::bench
