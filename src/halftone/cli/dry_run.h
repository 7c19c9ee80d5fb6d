#pragma once
#include <cstdint>

#include "halftone/config/job_config.h"

namespace halftone {

// Predicts memory and step time of `world` ranks without data or devices (comm.mode = fake_backend). Returns the exit status of halftone
// estimate. Error as at the start of a run.
int dry_run(JobConfig config, int64_t world);

}  // namespace halftone
