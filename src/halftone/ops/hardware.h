#pragma once
#include <c10/core/Device.h>

#include "halftone/formats/support.h"

namespace halftone {

// The row of formats/support.h that a device belongs to. Error: a GPU below compute capability 8.0.
Hardware hardware_of(c10::Device device);

// That of the first GPU if there is one, otherwise of the CPU; loads only the driver, not the CUDA runtime.
Hardware this_machine();

}  // namespace halftone
