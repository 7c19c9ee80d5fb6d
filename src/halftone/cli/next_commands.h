#pragma once
#include <string>

#include "halftone/cli/commands.h"
#include "halftone/config/job_config.h"
#include "halftone/train/trainer.h"

namespace halftone {

// A word quoted for a POSIX shell, if necessary.
std::string shell_word(const std::string& word);

// The command that makes all steps in another folder: training.minutes may shorten the run.
std::string full_run_command(Arguments args, const JobConfig& config);

// Commands to try after `halftone train` with these arguments, one a line. They keep the user's options, which select the model and the
// folder.
std::string next_commands(Arguments args, const JobConfig& config, const RunSummary& run);

}  // namespace halftone
