#pragma once
#include "halftone/models/family.h"

namespace halftone::qwen3 {

extern const ModelFamily kQwen2;   // Qwen2 and 2.5 (Yang et al. 2024): biases on q, k and v
extern const ModelFamily kFamily;  // Qwen3 (Yang et al. 2025): norms of q and k in their place
extern const ModelFamily kMoe;     // its models with experts

}  // namespace halftone::qwen3
