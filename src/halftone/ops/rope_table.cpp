#include "halftone/ops/rope_table.h"

#include <ATen/ops/tensor.h>

namespace halftone {

std::pair<at::Tensor, at::Tensor> rope_tables(int64_t positions, int64_t head_dim, double theta, const RopeScaling& scaling,
                                              at::Device device) {
  const RopeTable table = rope_table(positions, head_dim, theta, scaling);
  const auto to_tensor = [&](const std::vector<float>& v) { return at::tensor(v).view({table.positions, table.half_dim}).to(device); };
  return {to_tensor(table.cos), to_tensor(table.sin)};
}

}  // namespace halftone
