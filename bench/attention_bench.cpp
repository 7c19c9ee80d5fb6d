// Attention forward and backward on the CPU, for each instruction set of this CPU:
//   attention_bench [filter]   only lines whose name contains the filter
// With OMP_NUM_THREADS=1 times are CPU time, which other programs on the machine disturb little.
#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "halftone/attention/causal_impl.h"
#include "halftone/base/parallel.h"

namespace halftone {
namespace {

struct Case {
  const char* name;
  AttentionShape shape;
  DType dtype;
};
constexpr Case kCases[] = {
    {"bench_bf16", {8, 512, 512, 8, 4, 32}, DType::bf16},          {"bench_f32", {8, 512, 512, 8, 4, 32}, DType::f32},
    {"hd64_bf16", {4, 1024, 1024, 8, 4, 64}, DType::bf16},         {"hd128_bf16", {1, 2048, 2048, 8, 2, 128}, DType::bf16},
    {"hd128_f32", {1, 2048, 2048, 8, 2, 128}, DType::f32},         {"long_bf16", {1, 8192, 8192, 4, 1, 64}, DType::bf16},
    {"mla_bf16", {1, 2048, 2048, 8, 8, 192, 0, 128}, DType::bf16},
};

std::vector<std::byte> random_tensor(int64_t count, DType dtype, uint64_t seed) {
  std::vector<std::byte> bytes(static_cast<size_t>(count) * size_of(dtype));
  uint64_t state = seed * 0x9E3779B97F4A7C15u + 1;
  for (int64_t i = 0; i < count; ++i) {
    float x = 0;  // sum of four uniforms: close to a normal of variance one
    for (int n = 0; n < 4; ++n) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      x += static_cast<float>(state >> 40) * 0x1p-24f - 0.5f;
    }
    x *= 1.7320508f;
    if (dtype == DType::f32) {
      reinterpret_cast<float*>(bytes.data())[i] = x;
    } else {
      reinterpret_cast<bf16*>(bytes.data())[i] = bf16(x);
    }
  }
  return bytes;
}

double now_ms() {
  timespec t;
  clock_gettime(max_threads() == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) * 1e3 + static_cast<double>(t.tv_nsec) * 1e-6;
}

struct Times {
  double min_ms, median_ms;
};
Times measure(const std::function<void()>& f) {
  std::vector<double> ms;
  f();
  const double start = now_ms();
  while (ms.size() < 5 || (now_ms() - start < 700 && ms.size() < 500)) {
    const double begin = now_ms();
    f();
    ms.push_back(now_ms() - begin);
  }
  std::sort(ms.begin(), ms.end());
  return {ms.front(), ms[ms.size() / 2]};
}

void run(const Case& c, const attention::Implementation& implementation) {
  const AttentionShape& s = c.shape;
  const int64_t hd = s.head_dim, vd = s.v_dim == 0 ? hd : s.v_dim, q_row = (s.heads + s.kv_heads) * hd + s.kv_heads * vd,
                out_row = s.heads * vd, tokens = s.batch * s.q_len;
  const auto qkv = random_tensor(tokens * q_row, c.dtype, 1), d_out = random_tensor(tokens * out_row, c.dtype, 2);
  std::vector<std::byte> out(d_out.size()), d_qkv(qkv.size());
  std::vector<float> lse(static_cast<size_t>(tokens * s.heads));
  const size_t k_at = static_cast<size_t>(s.heads * hd) * size_of(c.dtype),
               v_at = k_at + static_cast<size_t>(s.kv_heads * hd) * size_of(c.dtype);
  const AttentionLayout fused{q_row, 0}, dense{out_row, 0};
  const float scale = 1 / std::sqrt(static_cast<float>(hd));
  const AttentionForward forward = attention::checked(AttentionForward{s, c.dtype, scale, qkv.data(), qkv.data() + k_at, qkv.data() + v_at,
                                                                       out.data(), lse.data(), fused, fused, fused, dense, nullptr});
  const AttentionBackward backward = attention::checked(AttentionBackward{s,
                                                                          c.dtype,
                                                                          scale,
                                                                          qkv.data(),
                                                                          qkv.data() + k_at,
                                                                          qkv.data() + v_at,
                                                                          out.data(),
                                                                          d_out.data(),
                                                                          lse.data(),
                                                                          d_qkv.data(),
                                                                          d_qkv.data() + k_at,
                                                                          d_qkv.data() + v_at,
                                                                          fused,
                                                                          fused,
                                                                          fused,
                                                                          dense,
                                                                          dense,
                                                                          fused,
                                                                          fused,
                                                                          fused,
                                                                          nullptr});
  const double pairs = 0.5 * static_cast<double>(s.batch * s.heads * s.q_len * (s.kv_len + 1)),
               flop = pairs * 2 * static_cast<double>(hd + vd);
  const Times f = measure([&] { implementation.forward(forward); }), b = measure([&] { implementation.backward(backward); });
  fmt::print(
      "{:<11} {:<7} forward {:8.3f} ms (median {:8.3f}) {:7.1f} GFLOP/s   backward {:8.3f} ms (median {:8.3f}) {:7.1f} GFLOP/s   {:6.3f} "
      "us/token\n",
      c.name, implementation.name, f.min_ms, f.median_ms, flop / f.min_ms * 1e-6, b.min_ms, b.median_ms, 2.5 * flop / b.min_ms * 1e-6,
      (f.median_ms + b.median_ms) * 1e3 / static_cast<double>(tokens));
}

}  // namespace
}  // namespace halftone

int main(int argc, char** argv) {
  using namespace halftone;
  const std::string_view filter = argc > 1 ? argv[1] : "";
  fmt::print("{} threads; per layer, causal, flop of the visible half\n", max_threads());
  for (const Case& c : kCases) {
    for (const auto& implementation : attention::implementations()) {
      const std::string name = fmt::format("{} {}", c.name, implementation.name);
      if (implementation.usable(c.dtype) && name.find(filter) != std::string::npos) run(c, implementation);
    }
  }
}
