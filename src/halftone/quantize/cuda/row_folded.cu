#include "halftone/quantize/cuda/row_kernel.cuh"

namespace halftone::device {

template void launch_rows<bf16, Coder::e2m1, Step::exact, 32, false>(const RowArgs&, cudaStream_t);
template void launch_rows<bf16, Coder::e2m1, Step::multiply, 32, false>(const RowArgs&, cudaStream_t);
template void launch_rows<bf16, Coder::e2m1, Step::multiply, 32, true>(const RowArgs&, cudaStream_t);
template void launch_rows<float, Coder::e2m1, Step::multiply, 32, false>(const RowArgs&, cudaStream_t);
template void launch_rows<float, Coder::e2m1, Step::multiply, 32, true>(const RowArgs&, cudaStream_t);

}  // namespace halftone::device
