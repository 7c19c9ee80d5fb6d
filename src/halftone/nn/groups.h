#pragma once
#include "halftone/comm/communicator.h"

namespace halftone::nn {

// The processes that share the work on the rows of a micro-batch with this one; null: this one does all of it.
struct Groups {
  comm::Communicator* tensor = nullptr;   // heads, widths and vocabulary (tp)
  comm::Communicator* context = nullptr;  // places of a row (cp)
  comm::Communicator* experts = nullptr;  // experts (ep)
  bool sequence_shards = true;            // between blocks each process of `tensor` has an equal share of the tokens; else all of them
};

}  // namespace halftone::nn
