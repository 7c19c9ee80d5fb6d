#pragma once
#include "halftone/gemm/cutlass/scaled.h"

namespace halftone::gemm {

// Does the product with the kernel and the order of tiles that fit its shape: by a model of the waves of tiles, or measured
// once per shape (`measure`, see product.h). Null, or why nothing was queued.
const char* scaled(const Product& p, const ScaledCall& call, bool measure);

}  // namespace halftone::gemm
