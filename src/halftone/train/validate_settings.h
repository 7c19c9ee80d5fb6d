#pragma once
#include "halftone/config/job_config.h"

namespace halftone {

// Error that lists the settings which this build cannot honor; a log line for those without effect in this run. `processes`: ranks of the
// run.
void check_run(const JobConfig& config, int64_t processes = 1);

// Logs settings that only a GPU uses.
void report_idle_on_cpu(const JobConfig& config);

}  // namespace halftone
