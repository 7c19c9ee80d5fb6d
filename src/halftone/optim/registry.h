#pragma once
#include "halftone/optim/adamw/adamw.h"
#include "halftone/optim/list.h"
#include "halftone/optim/sgd/sgd.h"

namespace halftone::optim {

// Every optimizer; the first is the default of an OptimizerStep.
using Optimizers = List<AdamW, Adam, Sgd>;
using Options = Optimizers::Options;

}  // namespace halftone::optim
