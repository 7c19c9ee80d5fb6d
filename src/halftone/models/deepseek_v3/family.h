#pragma once
#include "halftone/models/family.h"

namespace halftone::deepseek_v3 {

// DeepSeek V3 (2024) and what has its shape, as Moonlight: latent attention, shared experts, a bias for the choice of experts.
extern const ModelFamily kFamily;

}  // namespace halftone::deepseek_v3
