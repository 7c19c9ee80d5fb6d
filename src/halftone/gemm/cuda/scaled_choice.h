#pragma once
#include "halftone/gemm/cutlass/scaled.h"

namespace halftone::gemm {

// Runs the GEMM with the kernel and tile order that suit its shape: chosen by a wave-quantisation model, or measured once per shape
// (`measure`, see product.h). Returns null, or why nothing was enqueued.
const char* scaled(const Product& p, const ScaledCall& call, bool measure);

}  // namespace halftone::gemm
