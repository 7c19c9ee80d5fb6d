#pragma once
#include <array>
#include <cstdint>
#include <type_traits>

namespace halftone::gemm {

// The way that was measured to be the fastest for one kind of product (Product::measure), as bytes that its owner understands: cuBLASLt's
// products (gemm/cublaslt), or ours (gemm/cuda/scaled_choice). No device is named: it belongs to the devices of one model.
struct ProductChoice {
  enum Owner : uint64_t { library, ours };
  uint64_t owner = library;
  std::array<uint8_t, 96> key{};    // shape, types, strides, alignment and what else decides
  std::array<uint8_t, 64> value{};  // algorithm, or kernel and order of tiles
};
static_assert(std::is_trivially_copyable_v<ProductChoice> && std::has_unique_object_representations_v<ProductChoice>);

}  // namespace halftone::gemm
