#pragma once
#include "halftone/models/family.h"

namespace halftone::gpt_oss {

// GPT-OSS (OpenAI 2025): every other layer has a window, each head a sink, experts a clamped activation and biases.
extern const ModelFamily kFamily;

}  // namespace halftone::gpt_oss
