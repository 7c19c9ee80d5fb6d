#pragma once
#include <array>
#include <cstdint>
#include <type_traits>

namespace halftone::gemm {

// Fastest measured implementation for one kind of GEMM (Product::measure), as bytes that only its owner interprets: cuBLASLt
// (gemm/cublaslt), or our kernels (gemm/cuda/scaled_choice). Names no device: valid for all devices of one model.
struct ProductChoice {
  enum Owner : uint64_t { library, ours };
  uint64_t owner = library;
  std::array<uint8_t, 96> key{};    // shape, types, strides, alignment and all else that matters
  std::array<uint8_t, 64> value{};  // algorithm, or kernel and tile order
};
static_assert(std::is_trivially_copyable_v<ProductChoice> && std::has_unique_object_representations_v<ProductChoice>);

}  // namespace halftone::gemm
