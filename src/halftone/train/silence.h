#pragma once
#include "halftone/base/log.h"

namespace halftone {

// While it lives nothing is logged: for models that measure or describe a run beside its own.
struct Silence {
  Silence() { set_log_enabled(false); }
  ~Silence() { set_log_enabled(true); }
};

}  // namespace halftone
