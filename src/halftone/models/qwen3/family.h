#pragma once
#include "halftone/models/family.h"

namespace halftone::qwen3 {

extern const ModelFamily kQwen2;   // Qwen2 and 2.5 (Yang et al. 2024): biases on q, k and v
extern const ModelFamily kFamily;  // Qwen3 (Yang et al. 2025): norms of q and k instead
extern const ModelFamily kMoe;     // its MoE models

}  // namespace halftone::qwen3
