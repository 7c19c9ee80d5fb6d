#include "halftone/quantize/cuda/fp4_slab_launch.cuh"

namespace halftone::device {

SlabLaunch slab_launch_torchao(bool stochastic, Copies copies, Form row, Form transposed, int width) {
  return slab_launch_of<bf16, Step::multiply, 16>(stochastic, copies, row, transposed, width);
}

}  // namespace halftone::device
