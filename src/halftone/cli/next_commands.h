#pragma once
#include <string>

#include "halftone/cli/commands.h"
#include "halftone/config/job_config.h"
#include "halftone/train/trainer.h"

namespace halftone {

// A word as a POSIX shell reads it back: unchanged where that is safe, else in single quotes.
std::string shell_word(const std::string& word);

// The run of these arguments with all its steps, in a folder of its own: training.minutes may cut it.
std::string full_run_command(Arguments args, const JobConfig& config);

// What to type after a run of `halftone train` with these arguments: commands of one line each, with every option that the user
// gave, since without them they would be about another model or another folder.
std::string next_commands(Arguments args, const JobConfig& config, const RunSummary& run);

}  // namespace halftone
