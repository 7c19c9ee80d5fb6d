#pragma once
#include "halftone/cli/commands.h"

// The benchmarks of `halftone bench`, one function each: gets the words behind its name, returns the exit status.
namespace halftone::bench {

int train_command(Arguments args);
int linear_command(Arguments args);
int experts_command(Arguments args);
int mm_command(Arguments args);
int quantize_command(Arguments args);
int roofline_command(Arguments args);

}  // namespace halftone::bench
