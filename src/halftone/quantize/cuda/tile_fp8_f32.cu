#include "halftone/quantize/cuda/tile_kernel.cuh"

namespace halftone::device {

template void launch_tiles<float, Coder::e4m3, Step::multiply, 0, false, Form::any>(const TileArgs&, Copies, TileGrid, cudaStream_t);
template void launch_tiles<float, Coder::e5m2, Step::multiply, 0, false, Form::any>(const TileArgs&, Copies, TileGrid, cudaStream_t);
template void launch_tiles<float, Coder::e4m3, Step::multiply, 128, false, Form::any>(const TileArgs&, Copies, TileGrid, cudaStream_t);
template void launch_tiles<float, Coder::e4m3, Step::multiply, 128, true, Form::any>(const TileArgs&, Copies, TileGrid, cudaStream_t);
template void launch_tiles<float, Coder::integer, Step::multiply, 0, false, Form::any>(const TileArgs&, Copies, TileGrid, cudaStream_t);
template void launch_tiles<float, Coder::integer, Step::multiply, 0, true, Form::any>(const TileArgs&, Copies, TileGrid, cudaStream_t);

}  // namespace halftone::device
