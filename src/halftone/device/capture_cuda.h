#pragma once
#include <cstdint>

#include "halftone/device/launch.h"

// Number of the graph capture that the stream is in, 0 outside of one. What a capture queues is done by the graph's replays
// alone: nothing that it writes exists outside of them.
HALFTONE_CUDA_EXPORT uint64_t halftone_cuda_capture_id(void* stream);
