#include "halftone/quantize/cuda/tile_kernel.cuh"

namespace halftone::device {

template void launch_tiles<bf16, Coder::e5m2, Step::multiply, 32, false, Form::any>(const TileArgs&, Copies, TileGrid, cudaStream_t);
template void launch_tiles<bf16, Coder::e5m2, Step::multiply, 32, false, Form::codes>(const TileArgs&, Copies, TileGrid, cudaStream_t);
template void launch_tiles<bf16, Coder::e5m2, Step::multiply, 32, false, Form::bf16>(const TileArgs&, Copies, TileGrid, cudaStream_t);
template void launch_tiles<bf16, Coder::e5m2, Step::exact, 32, true, Form::any>(const TileArgs&, Copies, TileGrid, cudaStream_t);
template void launch_tiles<bf16, Coder::e5m2, Step::exact, 32, true, Form::codes>(const TileArgs&, Copies, TileGrid, cudaStream_t);
template void launch_tiles<bf16, Coder::e5m2, Step::exact, 32, true, Form::bf16>(const TileArgs&, Copies, TileGrid, cudaStream_t);

}  // namespace halftone::device
