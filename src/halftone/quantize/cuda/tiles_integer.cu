#include "halftone/quantize/cuda/tile_kernel.cuh"

namespace halftone::device {

HALFTONE_TILES_INTEGER(HALFTONE_INSTANTIATE_TILES, false)
HALFTONE_TILES_INTEGER(HALFTONE_INSTANTIATE_TILES, true)

}  // namespace halftone::device
