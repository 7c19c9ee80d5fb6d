#include "halftone/quantize/cuda/tile_kernel.cuh"

namespace halftone::device {

template void launch_tiles<bf16, Coder::e2m1, Step::multiply, 16, false, Form::any>(const TileArgs&, Copies, TileGrid, cudaStream_t);
template void launch_tiles<bf16, Coder::e2m1, Step::multiply, 16, true, Form::any>(const TileArgs&, Copies, TileGrid, cudaStream_t);

}  // namespace halftone::device
