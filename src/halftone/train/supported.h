#pragma once
#include "halftone/config/job_config.h"

namespace halftone {

// Settings that are valid but have no effect in this build are errors, all listed together: a run never ignores what it was
// told. `processes`: that train together.
void refuse_unsupported(const JobConfig& config, int64_t processes = 1);

}  // namespace halftone
