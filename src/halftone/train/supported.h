#pragma once
#include "halftone/config/job_config.h"

namespace halftone {

// Settings that are valid but have no effect in this build are errors, all listed together: a run never ignores what it was
// told.
void refuse_unsupported(const JobConfig& config);

}  // namespace halftone
