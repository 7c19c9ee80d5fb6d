#include "quantize_floor.h"

#include "halftone/quantize/cuda/blocks_kernel.cuh"

// The kernels of MXFP4 with nothing but what they cannot do without: they read, draw, rotate and store as many bytes, of
// elements and draws mixed anyhow, but find no maxima and encode nothing.
namespace halftone::device {
namespace {

template <class T, Form kForm>
struct FloorRule {
  uint32_t amax, byte;
  __device__ __forceinline__ void make(const CopyArgs&, uint32_t, Block<T>&) { byte = 0; }
  template <bool>
  __device__ __forceinline__ void take(const Block<T>&) {
    amax = 0;
  }
  template <bool, class Draw>
  __device__ __forceinline__ void encode8(const Block<T>& t, int group, uint32_t, Draw&& draw, uint32_t* out) const {
    uint32_t low = 0, high = 0;
    if constexpr (sizeof(T) == 2) {
      const uint32_t* w = t.w + 4 * group;
      low = w[0] ^ w[1], high = w[2] ^ w[3];
    } else {
      const float* v = t.v + 8 * group;
#pragma unroll
      for (int i = 0; i < 8; i += 2) low ^= __float_as_uint(v[i]), high ^= __float_as_uint(v[i + 1]);
    }
#pragma unroll
    for (int i = 0; i < 8; i += 2) low ^= draw(i), high ^= draw(i + 1);
    if constexpr (kForm == Form::packed) {
      out[0] = low ^ high;
    } else {
      out[0] = low, out[1] = high;
    }
  }
};

template <bool kStochastic, Form kForm, Copies kCopies, bool kRotated, class T = bf16>
void run(const void* x, int64_t rows, int64_t cols, void* row, void* transposed, cudaStream_t stream) {
  TileArgs a{};
  a.x = x, a.rows = static_cast<int>(rows), a.cols = static_cast<int>(cols), a.ld = cols;
  a.tiles_r = static_cast<int>((rows + kTile - 1) / kTile);
  const auto set = [&](CopyArgs& d, void* to, int64_t R, int64_t C) {
    d.codes = d.packed = static_cast<uint8_t*>(to), d.R = static_cast<int>(R), d.C = static_cast<int>(C);
    Rounding r;
    r.key = philox_key(1, "dy"), r.step = 3;
    d.draws = make_draws(r, cols), d.draw_constant = draw_constant<Coder::e2m1>();
    d.signs = 0xB5297A4Du;
  };
  set(a.row, row, rows, cols), set(a.transposed, transposed, cols, rows);
  constexpr size_t kBytes = sizeof(BlocksShared<T, kStochastic, kForm, kCopies, kRotated>);
  auto* kernel = blocks_kernel<T, Coder::e2m1, kStochastic, kForm, kCopies, kRotated, FloorRule<T, kForm>>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kBytes));
  const dim3 grid(static_cast<unsigned>(std::min(kBand, a.tiles_r)), static_cast<unsigned>((cols + kTile - 1) / kTile),
                  static_cast<unsigned>((a.tiles_r + kBand - 1) / kBand));
  kernel<<<grid, kTileThreads, kBytes, stream>>>(a);
}

}  // namespace
}  // namespace halftone::device

const std::vector<halftone::Floor>& halftone::quantize_floors() {
  using namespace halftone::device;
  constexpr Form kPacked = Form::packed, kByte = Form::codes;
  static const std::vector<Floor> floors = {
      {"floor 4 bits SR transposed", 0.5, run<true, kPacked, Copies::transposed, false>},
      {"floor 4 bits SR both", 1, run<true, kPacked, Copies::both, false>},
      {"floor 4 bits H32 transposed", 0.5, run<false, kPacked, Copies::transposed, true>},
      {"floor 4 bits H32 both", 1, run<false, kPacked, Copies::both, true>},
      {"floor 4 bits H32 SR transposed", 0.5, run<true, kPacked, Copies::transposed, true>},
      {"floor 4 bits H32 SR both", 1, run<true, kPacked, Copies::both, true>},
      {"floor least 4 bits SR both", 1.0625, halftone::run_least_packed},
      {"floor bytes SR both", 2, run<true, kByte, Copies::both, false>},
      {"floor bytes H32 SR both", 2, run<true, kByte, Copies::both, true>},
      {"floor 4 bits SR both", 1, run<true, kPacked, Copies::both, false, float>, DType::f32},
      {"floor 4 bits H32 SR both", 1, run<true, kPacked, Copies::both, true, float>, DType::f32},
      {"floor bytes H32 SR both", 2, run<true, kByte, Copies::both, true, float>, DType::f32},
  };
  return floors;
}
