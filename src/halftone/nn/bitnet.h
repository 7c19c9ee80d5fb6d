#pragma once
#include <vector>

#include "halftone/nn/layers.h"

namespace halftone::nn {

// Model surgery of bitnet (numerics.md section 7): every quantised linear normalises its own input. Readers of a block's norm
// take copies of it and the norm retires; the others get a new one. A norm with one reader is that reader's own already.
// Error when only some of a norm's readers are bitnet.
void add_bitnet_norms(Module& model, const std::vector<Linear*>& linears);

}  // namespace halftone::nn
