#pragma once
#include "halftone/models/family.h"

namespace halftone::llama3 {

// Llama 2 and 3 (Touvron et al. 2023, Dubey et al. 2024) and models of their architecture, such as SmolLM.
extern const ModelFamily kFamily;

}  // namespace halftone::llama3
