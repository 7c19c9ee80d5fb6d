#pragma once
#include <ATen/core/Tensor.h>

#include <utility>

#include "halftone/fused/rope.h"

namespace halftone {

// {cos, sin} fp32 [positions, head_dim / 2] on the device.
std::pair<at::Tensor, at::Tensor> rope_tables(int64_t positions, int64_t head_dim, double theta, const RopeScaling& scaling,
                                              at::Device device);

}  // namespace halftone
