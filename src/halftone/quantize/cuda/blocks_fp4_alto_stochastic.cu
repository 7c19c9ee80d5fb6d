#include "halftone/quantize/cuda/block_kernel.cuh"

namespace halftone::device {

HALFTONE_BLOCKS_FP4_ALTO(HALFTONE_INSTANTIATE_BLOCKS, true)

}  // namespace halftone::device
