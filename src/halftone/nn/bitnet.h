#pragma once
#include <vector>

#include "halftone/nn/layers.h"

namespace halftone::nn {

// Model surgery for bitnet (numerics.md section 7): every quantised linear normalises its own input. Linears that read a block norm get
// copies of it, and the norm is retired; the others get a new norm. A norm with a single reader simply moves to it.
// Error if only some of a norm's readers are bitnet.
void add_bitnet_norms(Module& model, const std::vector<Linear*>& linears);

}  // namespace halftone::nn
