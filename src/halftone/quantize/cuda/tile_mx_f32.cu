#include "halftone/quantize/cuda/tile_kernel.cuh"

namespace halftone::device {

template void launch_tiles<float, Coder::e2m1, Step::multiply, 32, false, Form::packed>(const TileArgs&, Copies, TileGrid, cudaStream_t);
template void launch_tiles<float, Coder::e2m1, Step::multiply, 32, false, Form::folded>(const TileArgs&, Copies, TileGrid, cudaStream_t);
template void launch_tiles<float, Coder::e2m1, Step::multiply, 32, true, Form::packed>(const TileArgs&, Copies, TileGrid, cudaStream_t);
template void launch_tiles<float, Coder::e2m1, Step::multiply, 32, true, Form::folded>(const TileArgs&, Copies, TileGrid, cudaStream_t);
template void launch_tiles<float, Coder::e4m3, Step::multiply, 32, false, Form::any>(const TileArgs&, Copies, TileGrid, cudaStream_t);
template void launch_tiles<float, Coder::e5m2, Step::multiply, 32, false, Form::any>(const TileArgs&, Copies, TileGrid, cudaStream_t);
template void launch_tiles<float, Coder::e2m1, Step::multiply, 32, false, Form::any>(const TileArgs&, Copies, TileGrid, cudaStream_t);
template void launch_tiles<float, Coder::e4m3, Step::multiply, 32, true, Form::any>(const TileArgs&, Copies, TileGrid, cudaStream_t);
template void launch_tiles<float, Coder::e5m2, Step::multiply, 32, true, Form::any>(const TileArgs&, Copies, TileGrid, cudaStream_t);
template void launch_tiles<float, Coder::e2m1, Step::multiply, 32, true, Form::any>(const TileArgs&, Copies, TileGrid, cudaStream_t);

}  // namespace halftone::device
