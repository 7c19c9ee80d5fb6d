#pragma once
#include <ATen/core/Tensor.h>

namespace halftone {

// `count` zeros in main memory, which kernels of the device read and write, too, by data_ptr(): for a GPU the memory is page-locked and
// reached over the bus. Whoever reads or writes them on the host waits for the device before (synchronize). Kernels that are queued when
// the tensor dies still have the memory. Error with the size and the `remedy` where it cannot be had.
at::Tensor host_zeros(int64_t count, at::ScalarType type, c10::Device device, const char* remedy = "leave training.offload unset");

}  // namespace halftone
