#include "halftone/quantize/cuda/eden_kernel.cuh"

namespace halftone::device {

#define HALFTONE_INSTANTIATE_EDEN(T, F) template void launch_eden<T, Form::F>(const TileArgs&, Copies, TileGrid, cudaStream_t);
HALFTONE_EDEN(HALFTONE_INSTANTIATE_EDEN)

}  // namespace halftone::device
