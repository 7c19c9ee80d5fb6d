#include "halftone/quantize/cuda/fp4_slab_launch.cuh"

namespace halftone::device {

SlabLaunch slab_launch_alto_f32(bool stochastic, Copies copies, Form row, Form transposed, int width) {
  return slab_launch_of<float, Step::divide, 32>(stochastic, copies, row, transposed, width);
}

}  // namespace halftone::device
