#pragma once
#include <cstdint>

namespace halftone::gemm {

// Longest contraction of codes -127..127 whose sums fit in int32: 133144 * 127^2 < 2^31.
constexpr int64_t kMostInt8Products = 133144;

}  // namespace halftone::gemm
