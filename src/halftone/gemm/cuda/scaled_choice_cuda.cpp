#include "halftone/gemm/cuda/scaled_choice.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <numeric>
#include <span>
#include <tuple>
#include <vector>

#include "halftone/gemm/cuda/choices.h"
#include "halftone/gemm/cuda/timing.h"

namespace halftone::gemm {
namespace {

using Launch = const char* (*)(const ScaledCall&);
struct Kernel {
  Launch launch;
  int m, n;           // tile
  double efficiency;  // tensor-core efficiency in the main loop, relative to the best tiling
  int overhead;       // exposed epilogue of a tile, in elements of k
};

constexpr double kPingpong = 0.95, kNarrow = 0.62;

template <DType kD, bool kAccumulate, Tiling kTiling>
constexpr Launch int8() {
  return scaled_product<Numbers::s8, Numbers::s8, kD, kAccumulate, kTiling>;
}
constexpr auto f32 = DType::f32, bf16_ = DType::bf16;
// Measured on an H200.
constexpr Kernel kInt8Bf16[] = {{int8<bf16_, false, Tiling::pingpong_128x128>(), 128, 128, kPingpong, 64},
                                {int8<bf16_, false, Tiling::cooperative_128x256>(), 128, 256, 1, 400},
                                {int8<bf16_, false, Tiling::pingpong_64x256>(), 64, 256, 0.9, 64},
                                {int8<bf16_, false, Tiling::pingpong_64x128>(), 64, 128, kNarrow, 64}};
constexpr Kernel kInt8Bf16Add[] = {{int8<bf16_, true, Tiling::pingpong_128x128>(), 128, 128, kPingpong, 64}};
constexpr Kernel kInt8F32[] = {{int8<f32, false, Tiling::pingpong_128x128>(), 128, 128, kPingpong, 64}};
constexpr Kernel kInt8F32Add[] = {{int8<f32, true, Tiling::pingpong_128x128>(), 128, 128, kPingpong, 64},
                                  {int8<f32, true, Tiling::cooperative_128x256>(), 128, 256, 1, 1300}};

template <DType kD>
constexpr Kernel kBf16 = {scaled_product<Numbers::bf16, Numbers::bf16, kD, false, Tiling::cooperative_128x256>, 128, 256, 1, 0};
constexpr Kernel kBf16All[] = {kBf16<bf16_>, kBf16<f32>};

std::span<const Kernel> kernels(const Product& p) {
  const bool wide = p.d_type == f32;
  if (p.a.numbers == Numbers::bf16) return p.accumulate ? std::span<const Kernel>{} : std::span<const Kernel>{&kBf16All[wide], 1};
  if (p.a.numbers != Numbers::s8) return {};
  if (wide) return p.accumulate ? std::span<const Kernel>(kInt8F32Add) : kInt8F32;
  return p.accumulate ? std::span<const Kernel>(kInt8Bf16Add) : kInt8Bf16;
}

int64_t tiles(const Kernel& k, const ScaledCall& c) { return ((int64_t{c.m} + k.m - 1) / k.m) * ((int64_t{c.n} + k.n - 1) / k.n); }
// Relative time: full waves of tiles over the SMs.
double cost(const Kernel& k, const ScaledCall& c) {
  const int64_t waves = (tiles(k, c) + c.sm_count - 1) / c.sm_count;
  return static_cast<double>(waves) * k.m * k.n * (c.k / k.efficiency + k.overhead);
}

struct Choice {
  int kernel;  // index in the list
  Launch launch;
  ScaledCall::Raster raster;
  int swizzle;
};
const char* launch(const Choice& choice, ScaledCall call) {
  call.raster = choice.raster, call.swizzle = choice.swizzle;
  return choice.launch(call);
}

// The model's choice comes first.
std::vector<Choice> candidates(std::span<const Kernel> list, const ScaledCall& call) {
  using Raster = ScaledCall::Raster;
  std::vector<int> order(list.size());
  std::iota(order.begin(), order.end(), 0);
  const auto cost_of = [&](int i) { return cost(list[static_cast<size_t>(i)], call); };
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return cost_of(a) < cost_of(b); });
  std::vector<Choice> out;
  for (const int i : order) {
    const Kernel& k = list[static_cast<size_t>(i)];
    if (cost_of(i) > 1.7 * cost_of(order[0])) continue;
    out.push_back({i, k.launch, Raster::automatic, 1});
    if (tiles(k, call) <= 2 * call.sm_count) continue;
    out.push_back({i, k.launch, Raster::along_m, 1});
    out.push_back({i, k.launch, Raster::along_n, 1});
    if (k.n == 256) out.push_back({i, k.launch, Raster::along_m, 4});
  }
  return out;
}

// Key and value of a choice shared between processes.
struct Asked {
  int32_t m, n, k, numbers, d_type, accumulate, fast;
};
struct Answer {
  int32_t kernel, tile_m, tile_n, raster, swizzle;
};
Answer answer_of(const Choice& c, std::span<const Kernel> list) {
  const Kernel& k = list[static_cast<size_t>(c.kernel)];
  return {c.kernel, k.m, k.n, static_cast<int32_t>(c.raster), c.swizzle};
}
// Decodes an answer; false if the kernel or tile order does not exist.
bool choice_from(const Answer& a, std::span<const Kernel> list, Choice& out) {
  if (a.kernel < 0 || a.kernel >= static_cast<int>(list.size())) return false;
  const Kernel& k = list[static_cast<size_t>(a.kernel)];
  if (a.tile_m != k.m || a.tile_n != k.n || a.raster < 0 || a.raster > 2 || (a.swizzle != 1 && a.swizzle != 4)) return false;
  out = {a.kernel, k.launch, static_cast<ScaledCall::Raster>(a.raster), a.swizzle};
  return true;
}

using Key = std::tuple<int, int, int, int, Numbers, DType, bool, bool>;
std::mutex mutex;
std::map<Key, Choice> measured;

}  // namespace

const char* scaled(const Product& p, const ScaledCall& call, bool measure) {
  const auto list = kernels(p);
  if (list.empty()) return "product: no kernel for these element types";  // unreachable: make_plan sends no such GEMM here
  if (!measure) {
    const Kernel& best =
        *std::min_element(list.begin(), list.end(), [&](const Kernel& a, const Kernel& b) { return cost(a, call) < cost(b, call); });
    return launch({0, best.launch, ScaledCall::Raster::automatic, 1}, call);
  }
  int device = 0;
  cudaGetDevice(&device);
  const Key key{device, call.m, call.n, call.k, p.a.numbers, p.d_type, p.accumulate, p.fast_accumulation};
  {
    const std::lock_guard lock(mutex);
    if (const auto it = measured.find(key); it != measured.end()) return launch(it->second, call);
  }
  const Asked asked{
      call.m, call.n, call.k, static_cast<int32_t>(p.a.numbers), static_cast<int32_t>(p.d_type), p.accumulate, p.fast_accumulation};
  Choice known{};
  if (Answer answer{}; recall(ProductChoice::ours, asked, answer) && choice_from(answer, list, known)) {
    const std::lock_guard lock(mutex);
    return launch(measured.insert_or_assign(key, known).first->second, call);
  }
  const std::vector<Choice> choices = candidates(list, call);
  size_t best = 0;
  if (choices.size() > 1) {
    if (is_capturing(call.stream)) return launch(choices[0], call);
    const Scratch scratch(call.m * call.ldd * static_cast<int64_t>(size_of(p.d_type)), call.stream);
    if (!scratch.get()) return launch(choices[0], call);
    ScaledCall trial = call;
    trial.d = scratch.get();
    best = fastest(time_in_turns(
        choices.size(), [&](size_t i) { return launch(choices[i], trial) == nullptr; }, 7, call.stream));
    note_choice(choice_of(ProductChoice::ours, asked, answer_of(choices[best], list)));
  }
  const std::lock_guard lock(mutex);
  return launch(measured.insert_or_assign(key, choices[best]).first->second, call);
}

}  // namespace halftone::gemm
