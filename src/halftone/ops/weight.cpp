#include "halftone/ops/weight.h"

namespace halftone {

StepContext& step_context() {
  static StepContext context;
  return context;
}

}  // namespace halftone
