#include "halftone/quantize/cuda/fp4_slab_launch.cuh"

namespace halftone::device {

SlabLaunch slab_launch_alto(bool stochastic, Copies copies, Form row, Form transposed, int width) {
  return slab_launch_of<bf16, Step::divide, 32>(stochastic, copies, row, transposed, width);
}

}  // namespace halftone::device
