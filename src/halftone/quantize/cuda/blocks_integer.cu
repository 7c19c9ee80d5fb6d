#include "halftone/quantize/cuda/block_kernel.cuh"

namespace halftone::device {

HALFTONE_BLOCKS_INTEGER(HALFTONE_INSTANTIATE_BLOCKS, false)

}  // namespace halftone::device
