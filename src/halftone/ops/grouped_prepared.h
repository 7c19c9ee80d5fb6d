#pragma once
#include <vector>

#include "halftone/ops/grouped_linear.h"
#include "halftone/ops/operand.h"

// What the two files of ops/grouped_linear.h share.
namespace halftone {

struct GroupedLinears::Prepared {
  // CPU: every expert as a dense layer.
  struct Expert {
    std::vector<Weight> parts;
    FusedLinears fused;
  };
  std::vector<Expert> experts;
};

LinearCall grouped_linear_cuda(const at::Tensor& x, GroupedLinears& grouped, const ExpertRows& rows, const LinearOptions& options);

}  // namespace halftone
