#include "halftone/quantize/cuda/block_kernel.cuh"

namespace halftone::device {

HALFTONE_BLOCKS_MXFP8_STOCHASTIC(HALFTONE_INSTANTIATE_BLOCKS, true)

}  // namespace halftone::device
