#pragma once
#include "halftone/models/family.h"

namespace halftone::mistral {

// Mistral (Jiang et al. 2023): a sliding window in all layers or none.
extern const ModelFamily kFamily;

}  // namespace halftone::mistral
