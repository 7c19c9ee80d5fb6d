#pragma once
#include "halftone/models/family.h"

namespace halftone::gpt_oss {

// GPT-OSS (OpenAI 2025): sliding window in every other layer, a sink per head, experts with biases and a clamped activation.
extern const ModelFamily kFamily;

}  // namespace halftone::gpt_oss
