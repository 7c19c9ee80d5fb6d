#pragma once
#include <c10/util/intrusive_ptr.h>

#include <chrono>

#include "halftone/base/environment.h"

namespace c10d {
class Store;
}

namespace halftone::comm {

// The key-value store through which the ranks of a job find each other: TCP at the environment's address and port, served by torchrun's
// agent, else by rank 0. Keys carry the restart count. Error in one line with the address where nothing answers within the timeout, or
// where the port belongs to another job or program.
c10::intrusive_ptr<c10d::Store> open_store(const Environment& environment, std::chrono::milliseconds timeout);

}  // namespace halftone::comm
