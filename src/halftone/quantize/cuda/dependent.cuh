#pragma once
#include <algorithm>
#include <utility>

#include "halftone/device/ptx.cuh"
#include "halftone/quantize/cuda/kernels.h"

namespace halftone::device {

// Launch configuration; uses programmatic dependent launch if the kernel is dependent and the device supports it.
struct DependentLaunch {
  DependentLaunch(dim3 grid, int threads, cudaStream_t stream, bool dependent) {
    overlap_.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap_.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = grid, config.blockDim = dim3(static_cast<unsigned>(threads)), config.stream = stream;
    config.attrs = &overlap_, config.numAttrs = dependent && has_dependent_launches() ? 1 : 0;
  }
  DependentLaunch(const DependentLaunch&) = delete;  // config points to overlap_
  cudaLaunchConfig_t config{};

 private:
  cudaLaunchAttribute overlap_;
};

// Launches the kernel of `copies`: kernel_of<Copies>() returns it with its bytes of dynamic shared memory.
template <class KernelOf>
void launch_copies(DependentLaunch&& how, const TileArgs& a, Copies copies, KernelOf kernel_of) {
  const auto launch = [&]<Copies kCopies>() {
    const auto [kernel, bytes] = kernel_of.template operator()<kCopies>();
    if (bytes > 0) cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    how.config.dynamicSmemBytes = static_cast<size_t>(bytes);
    cudaLaunchKernelEx(&how.config, kernel, a);
  };
  if (copies == Copies::row) return launch.template operator()<Copies::row>();
  if (copies == Copies::transposed) return launch.template operator()<Copies::transposed>();
  launch.template operator()<Copies::both>();
}

// One thread block per tile, in bands of kBand tile rows.
inline dim3 band_grid(TileGrid tiles) {
  return dim3(std::min<unsigned>(kBand, tiles.rows), tiles.columns, (tiles.rows + kBand - 1) / kBand);
}
// Tile of a thread block of that grid. backwards: last bands and columns first.
struct TileAt {
  int r, c;
  __device__ __forceinline__ explicit TileAt(bool backwards)
      : r(static_cast<int>(backwards ? gridDim.z - 1 - blockIdx.z : blockIdx.z) * kBand + static_cast<int>(blockIdx.x)),
        c(static_cast<int>(backwards ? gridDim.y - 1 - blockIdx.y : blockIdx.y)) {}
};

}  // namespace halftone::device
