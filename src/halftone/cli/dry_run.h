#pragma once
#include <cstdint>

#include "halftone/config/job_config.h"

namespace halftone {

// What a step of `world` processes would take, without data or devices (comm.mode = fake_backend); returns the exit status of halftone
// estimate. Error as at a run's start.
int dry_run(JobConfig config, int64_t world);

}  // namespace halftone
