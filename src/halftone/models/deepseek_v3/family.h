#pragma once
#include "halftone/models/family.h"

namespace halftone::deepseek_v3 {

// DeepSeek V3 (2024) and models of its architecture, such as Moonlight: latent attention, shared experts, a selection bias for experts.
extern const ModelFamily kFamily;

}  // namespace halftone::deepseek_v3
