#include "halftone/quantize/cuda/tile_kernel.cuh"

namespace halftone::device {

HALFTONE_TILES_FP8_NEAREST(HALFTONE_INSTANTIATE_TILES, false)
HALFTONE_TILES_FP8_BLOCKS(HALFTONE_INSTANTIATE_TILES, false)
HALFTONE_TILES_FP8_BLOCKS(HALFTONE_INSTANTIATE_TILES, true)

}  // namespace halftone::device
