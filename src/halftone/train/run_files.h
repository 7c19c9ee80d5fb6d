#pragma once
#include "halftone/config/job_config.h"

namespace halftone {

// Writes the run's configuration into its folder, config.resolved.toml, recipe.resolved.yaml and job.save_config_file, over those of an
// earlier start, and logs it for job.print_config. Error naming the file that cannot be written.
void write_config_files(const JobConfig& config);

}  // namespace halftone
