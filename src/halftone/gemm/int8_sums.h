#pragma once
#include <cstdint>

namespace halftone::gemm {

// The longest contraction of codes -127..127 whose sums int32 holds: 133144 * 127^2 < 2^31.
constexpr int64_t kMostInt8Products = 133144;

}  // namespace halftone::gemm
