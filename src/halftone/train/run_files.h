#pragma once
#include "halftone/config/job_config.h"

namespace halftone {

// Writes the run's configuration to its folder (config.resolved.toml, recipe.resolved.yaml) and to job.save_config_file, replacing those
// of an earlier start, and logs it for job.print_config. Error naming a file that cannot be written.
void write_config_files(const JobConfig& config);

}  // namespace halftone
