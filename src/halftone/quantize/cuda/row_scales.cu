#include "halftone/quantize/cuda/row_kernel.cuh"

namespace halftone::device {

template void launch_rows<bf16, Coder::e4m3, Step::multiply, 0, false, Form::any>(const RowArgs&, cudaStream_t);
template void launch_rows<bf16, Coder::e5m2, Step::multiply, 0, false, Form::any>(const RowArgs&, cudaStream_t);
template void launch_rows<bf16, Coder::integer, Step::multiply, 0, false, Form::any>(const RowArgs&, cudaStream_t);
template void launch_rows<bf16, Coder::integer, Step::multiply, 0, true, Form::any>(const RowArgs&, cudaStream_t);
template void launch_rows<bf16, Coder::integer, Step::multiply, 0, true, Form::packed>(const RowArgs&, cudaStream_t);
template void launch_rows<float, Coder::e4m3, Step::multiply, 0, false, Form::any>(const RowArgs&, cudaStream_t);
template void launch_rows<float, Coder::e5m2, Step::multiply, 0, false, Form::any>(const RowArgs&, cudaStream_t);
template void launch_rows<float, Coder::integer, Step::multiply, 0, false, Form::any>(const RowArgs&, cudaStream_t);
template void launch_rows<float, Coder::integer, Step::multiply, 0, true, Form::any>(const RowArgs&, cudaStream_t);

}  // namespace halftone::device
