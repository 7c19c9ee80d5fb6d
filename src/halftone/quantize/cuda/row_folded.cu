#include "halftone/quantize/cuda/row_kernel.cuh"

namespace halftone::device {

template void launch_rows<bf16, Coder::e2m1, Step::exact, 32, false, Form::folded>(const RowArgs&, cudaStream_t);
template void launch_rows<bf16, Coder::e2m1, Step::exact, 32, false, Form::any>(const RowArgs&, cudaStream_t);
template void launch_rows<bf16, Coder::e2m1, Step::exact, 32, true, Form::folded>(const RowArgs&, cudaStream_t);
template void launch_rows<bf16, Coder::e2m1, Step::exact, 32, true, Form::any>(const RowArgs&, cudaStream_t);
template void launch_rows<bf16, Coder::e2m1, Step::multiply, 32, false, Form::any>(const RowArgs&, cudaStream_t);
template void launch_rows<bf16, Coder::e2m1, Step::multiply, 32, true, Form::any>(const RowArgs&, cudaStream_t);
template void launch_rows<float, Coder::e2m1, Step::multiply, 32, false, Form::any>(const RowArgs&, cudaStream_t);
template void launch_rows<float, Coder::e2m1, Step::multiply, 32, true, Form::any>(const RowArgs&, cudaStream_t);

}  // namespace halftone::device
