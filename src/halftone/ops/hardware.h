#pragma once
#include <c10/core/Device.h>

#include "halftone/formats/support.h"

namespace halftone {

// The row of formats/support.h that a device belongs to. Error: a GPU below compute capability 8.0.
Hardware hardware_of(c10::Device device);

// Of the first GPU where there is one, else of the processor; loads the driver only, nothing of CUDA.
Hardware this_machine();

}  // namespace halftone
