#pragma once
#include "halftone/base/log.h"

namespace halftone {

// Suppresses logging during its lifetime: for models that only measure or describe a run.
struct Silence {
  ~Silence() { set_log_enabled(before); }
  const bool before = set_log_enabled(false);
};

}  // namespace halftone
