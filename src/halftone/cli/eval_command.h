#pragma once
#include "halftone/cli/commands.h"

namespace halftone {

int eval_command(Arguments args);
int logprobs_command(Arguments args);

}  // namespace halftone
