#pragma once
#include <cstdint>

#include "halftone/device/launch.h"

// Id of the stream's active graph capture, 0 outside a capture. Captured work runs only when the graph is replayed; nothing it writes
// exists outside replays.
HALFTONE_CUDA_EXPORT uint64_t halftone_cuda_capture_id(void* stream);
