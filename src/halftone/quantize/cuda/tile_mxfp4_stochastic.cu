#include "halftone/quantize/cuda/tile_kernel.cuh"

namespace halftone::device {

template void launch_tiles<bf16, Coder::e2m1, Step::exact, 32, true, Form::any>(const TileArgs&, Copies, TileGrid, cudaStream_t);
template void launch_tiles<bf16, Coder::e2m1, Step::exact, 32, true, Form::packed>(const TileArgs&, Copies, TileGrid, cudaStream_t);
template void launch_tiles<bf16, Coder::e2m1, Step::exact, 32, true, Form::bf16>(const TileArgs&, Copies, TileGrid, cudaStream_t);
template void launch_tiles<bf16, Coder::e2m1, Step::exact, 32, true, Form::folded>(const TileArgs&, Copies, TileGrid, cudaStream_t);
template void launch_tiles<bf16, Coder::e2m1, Step::multiply, 32, true, Form::any>(const TileArgs&, Copies, TileGrid, cudaStream_t);

}  // namespace halftone::device
