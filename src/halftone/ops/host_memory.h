#pragma once
#include <ATen/core/Tensor.h>

namespace halftone {

inline constexpr const char* kHostMemory = "host memory";  // its owner in a dry run (ops/range.h)

// `count` zeros in host memory that kernels of the device access through data_ptr(): for a GPU it is page-locked and accessed over the
// bus. Host code must call synchronize before it reads or writes them. Kernels queued before the tensor is destroyed may still use the
// memory. If it cannot be allocated, Error with the size and the `remedy`.
at::Tensor host_zeros(int64_t count, at::ScalarType type, c10::Device device, const char* remedy = "leave training.offload unset");

}  // namespace halftone
