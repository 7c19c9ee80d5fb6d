// Throughput of every kind of grouped GEMM on the experts of Qwen3-30B-A3B (128 experts, hidden 2048, ffn 768, 32k tokens with 8 experts
// each), with random data and nearly balanced routing, on the current GPU:
//   bench_grouped_bench [portable]      also those without tensor cores
// TFLOP/s count the routed rows without padding. bench/peers/grouped_mm.py measures torch's kernels.
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "halftone/base/module.h"
#include "halftone/gemm/grouped_product_cuda.h"

using namespace halftone;
using namespace halftone::gemm;

namespace {

constexpr int64_t kExperts = 128, kHidden = 2048, kFfn = 768, kRouted = 32768 * 8;

void require(cudaError_t status) {
  if (status == cudaSuccess) return;
  fmt::print(stderr, "{}\n", cudaGetErrorString(status));
  std::exit(1);
}

template <class T>
T* on_device(const std::vector<T>& host, int64_t count) {
  T* at = nullptr;
  require(cudaMalloc(reinterpret_cast<void**>(&at), static_cast<size_t>(count) * sizeof(T)));
  for (int64_t i = 0; i < count; i += static_cast<int64_t>(host.size())) {
    const auto n = static_cast<size_t>(std::min(count - i, static_cast<int64_t>(host.size())));
    require(cudaMemcpy(at + i, host.data(), n * sizeof(T), cudaMemcpyHostToDevice));
  }
  return at;
}

struct Kind {
  const char* name;
  Numbers numbers;
  Scales scales, scales_b;  // scales_b: for B in `rows`
  bool stored;              // bf16: dgrad and wgrad read the operands that forward stored
  bool fast, portable;
};
constexpr Kind kKinds[] = {
    {"bf16", Numbers::bf16, Scales::none, Scales::none, true, false, false},
    {"bf16 of copies", Numbers::bf16, Scales::none, Scales::none, false, false, false},
    {"fp8 row-wise, fast", Numbers::e4m3, Scales::row, Scales::row, false, true, false},
    {"fp8 row-wise", Numbers::e4m3, Scales::row, Scales::row, false, false, false},
    {"int8", Numbers::s8, Scales::row, Scales::row, false, false, false},
    {"fp8 1x128 x 128x128", Numbers::e4m3, Scales::block128, Scales::tile128, false, false, false},
    {"fp8 e5m2 portable", Numbers::e5m2, Scales::tensor, Scales::tensor, false, false, true},
};

}  // namespace

int main(int argc, char** argv) {
  const bool portable = argc > 1 && std::strcmp(argv[1], "portable") == 0;
  const auto [handle, missing] = open_module("halftone_cuda.so", "build with HALFTONE_CUDA=ON");
  if (handle == nullptr) return fmt::print(stderr, "{}\n", missing), 1;
  const auto product = reinterpret_cast<decltype(&halftone_cuda_grouped_product)>(dlsym(handle, "halftone_cuda_grouped_product"));
  const auto workspace =
      reinterpret_cast<decltype(&halftone_cuda_grouped_product_workspace)>(dlsym(handle, "halftone_cuda_grouped_product_workspace"));
  if (product == nullptr || workspace == nullptr) return fmt::print(stderr, "halftone_cuda.so belongs to another build\n"), 1;

  std::mt19937 random(1);
  std::vector<int> counts(kExperts);
  std::normal_distribution<float> normal;
  std::vector<float> share(kExperts);
  for (float& s : share) s = std::exp(0.2f * normal(random));
  std::discrete_distribution<int> expert(share.begin(), share.end());
  for (int64_t i = 0; i < kRouted; ++i) ++counts[static_cast<size_t>(expert(random))];
  std::vector<int32_t> offsets{0}, ends;
  for (const int n : counts) ends.push_back(offsets.back() + n), offsets.push_back(offsets.back() + (n + 127) / 128 * 128);
  const int64_t rows = most_group_rows(kRouted, kExperts);
  fmt::print("{} rows routed, {} with padding, {} in the buffer, groups of {} to {}\n", kRouted, offsets.back(), rows,
             *std::min_element(counts.begin(), counts.end()), *std::max_element(counts.begin(), counts.end()));

  const int64_t most = std::max(rows, kExperts * kFfn * 2) * kHidden;
  std::vector<uint16_t> values(1 << 22);
  std::vector<uint8_t> codes(1 << 22);
  for (uint16_t& v : values) v = bf16(normal(random)).bits;
  for (uint8_t& c : codes) {  // valid e4m3 and s8 codes: no NaN, all bits toggle
    do c = static_cast<uint8_t>(random());
    while ((c & 0x7F) == 0x7F);
  }
  const auto* a16 = on_device(values, most);
  const auto* b16 = on_device(values, most);
  const auto* a8 = on_device(codes, most);
  const auto* b8 = on_device(codes, most);
  const auto* scales = on_device(std::vector<float>(1 << 20, 1e-3f), std::max(rows, kExperts * 128) * (kHidden / 128));
  auto* d = on_device(std::vector<float>(1 << 20), kExperts * 2 * kFfn * kHidden);
  GroupedProduct p;
  p.groups = {kExperts, on_device(offsets, kExperts + 1), on_device(ends, kExperts)};
  p.rows = rows, p.d = d, p.workspace_bytes = int64_t{64} << 20;
  require(cudaMalloc(&p.workspace, static_cast<size_t>(p.workspace_bytes)));
  cudaEvent_t start, stop;
  require(cudaEventCreate(&start)), require(cudaEventCreate(&stop));

  struct Shape {
    const char* name;
    Ragged ragged;
    int64_t other, n;
    bool transposed_a, transposed_b, accumulate;
  };
  const Shape shapes[] = {
      {"forward w1|w3", Ragged::rows, kHidden, 2 * kFfn, false, false, false},
      {"dgrad   w1|w3", Ragged::rows, 2 * kFfn, kHidden, false, true, false},
      {"forward w2", Ragged::rows, kFfn, kHidden, false, false, false},
      {"wgrad   w1|w3", Ragged::contraction, 2 * kFfn, kHidden, true, true, false},
      {"wgrad   w1|w3 accumulated", Ragged::contraction, 2 * kFfn, kHidden, true, true, true},
  };
  for (const Kind& kind : kKinds) {
    if (kind.portable && !portable) continue;
    for (const Shape& s : shapes) {
      const bool of_rows = s.ragged == Ragged::rows, wide = kind.numbers == Numbers::bf16;
      p.ragged = s.ragged, p.m = of_rows ? 0 : s.other, p.n = s.n, p.k = of_rows ? s.other : 0;
      p.accumulate = s.accumulate, p.d_type = of_rows ? DType::bf16 : DType::f32, p.fast_accumulation = kind.fast;
      p.a = p.b = {};
      p.a.numbers = p.b.numbers = kind.numbers;
      p.a.data = wide ? static_cast<const void*>(a16) : a8, p.b.data = wide ? static_cast<const void*>(b16) : b8;
      p.a.scales = kind.scales, p.b.scales = of_rows ? kind.scales_b : kind.scales;
      p.a.scale = p.b.scale = scales;
      p.a.transposed = kind.stored && s.transposed_a, p.b.transposed = kind.stored && s.transposed_b;
      if (of_rows) p.b.stride = s.n * s.other, p.b.scale_stride = (s.n + 127) / 128 * ((s.other + 127) / 128);
      if ((workspace(&p) == 0) != kind.portable) return fmt::print(stderr, "{}: unexpected kernel\n", kind.name), 1;
      float least = 1e9f;
      for (int i = 0; i < 13; ++i) {
        require(cudaEventRecord(start, nullptr));
        if (const char* problem = product(&p, nullptr)) return fmt::print(stderr, "{}: {}\n", kind.name, problem), 1;
        require(cudaEventRecord(stop, nullptr));
        require(cudaEventSynchronize(stop));
        float ms = 0;
        require(cudaEventElapsedTime(&ms, start, stop));
        if (i > 2) least = std::min(least, ms);
        if (kind.portable && i > 2) break;
      }
      const double flop = 2.0 * static_cast<double>(kRouted) * static_cast<double>(s.n * s.other);
      fmt::print("{:<20} {:<26} {:>8.3f} ms {:>7.0f} TFLOP/s\n", kind.name, s.name, least, flop / least * 1e-9);
    }
  }
  return 0;
}
