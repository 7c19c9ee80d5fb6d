#include "halftone/base/error.h"
#include "halftone/ops/grouped_prepared.h"

namespace halftone {

LinearCall grouped_linear_cuda(const at::Tensor&, GroupedLinears& grouped, const ExpertRows&, const LinearOptions&) {
  fail("{}: grouped products on a GPU are not there yet", grouped.weights.front()->name);
}

}  // namespace halftone
