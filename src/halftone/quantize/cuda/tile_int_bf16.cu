#include "halftone/quantize/cuda/tile_kernel.cuh"

namespace halftone::device {

template void launch_tiles<bf16, Coder::integer, Step::multiply, 0, false, Form::any>(const TileArgs&, Copies, TileGrid, cudaStream_t);
template void launch_tiles<bf16, Coder::integer, Step::multiply, 0, false, Form::codes>(const TileArgs&, Copies, TileGrid, cudaStream_t);
template void launch_tiles<bf16, Coder::integer, Step::multiply, 0, false, Form::packed>(const TileArgs&, Copies, TileGrid, cudaStream_t);
template void launch_tiles<bf16, Coder::integer, Step::multiply, 0, true, Form::any>(const TileArgs&, Copies, TileGrid, cudaStream_t);
template void launch_tiles<bf16, Coder::integer, Step::multiply, 0, true, Form::codes>(const TileArgs&, Copies, TileGrid, cudaStream_t);
template void launch_tiles<bf16, Coder::integer, Step::multiply, 0, true, Form::packed>(const TileArgs&, Copies, TileGrid, cudaStream_t);

}  // namespace halftone::device
