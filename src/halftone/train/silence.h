#pragma once
#include "halftone/base/log.h"

namespace halftone {

// Suppresses logging during its lifetime: for models that only measure or describe a run.
struct Silence {
  Silence() { set_log_enabled(false); }
  ~Silence() { set_log_enabled(true); }
};

}  // namespace halftone
