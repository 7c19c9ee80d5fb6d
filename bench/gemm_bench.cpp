// Products and quantisers of a linear layer on the CPU: bench_gemm_bench [m n k]...
// For each shape the three products in int8, bf16 and fp32 with the epilogues that training uses (GOP/s, 2 m n k per
// product) and the combined int8 quantiser (GB/s of input read plus output written, once each). HALFTONE_ISA and
// OMP_NUM_THREADS choose instruction set and threads. bench/gemm_peer.py prints the same table for PyTorch.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <random>
#include <vector>

#include "halftone/base/parallel.h"
#include "halftone/gemm/cpu/gemm.h"
#include "halftone/quantize/fp8_rowwise.h"
#include "halftone/quantize/int8.h"

namespace {

using namespace halftone;

struct Memory {
  explicit Memory(int64_t bytes) : p(std::aligned_alloc(64, static_cast<size_t>(round_up(bytes + 1, 4096)))) {
    std::memset(p, 0, static_cast<size_t>(bytes));
  }
  ~Memory() { std::free(p); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  template <class T>
  T* as() {
    return static_cast<T*>(p);
  }
  void* p;
};

// Seconds; with one thread its processor time, so that other programs on the machine do not count.
double now() {
  timespec t{};
  clock_gettime(max_threads() == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// Best call of 250 ms.
template <class F>
double seconds(F&& f) {
  f(), f();
  double best = 1e9;
  const double end = now() + 0.25;
  for (int i = 0; i < 5 || now() < end; ++i) {
    const double start = now();
    f();
    best = std::min(best, now() - start);
  }
  return best;
}

void random_bf16(bf16* p, int64_t n) {
  std::mt19937 rng(1);
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < n; ++i) p[i] = bf16(normal(rng));
}

void shape(int64_t m, int64_t n, int64_t k) {
  const int64_t largest = std::max({m * n, m * k, n * k});
  Memory x(m * k * 4), w(n * k * 4), dy(m * n * 4), y(m * n * 4), dx(m * k * 4), dw(n * k * 4), scale(std::max({m, n, k}) * 4);
  random_bf16(x.as<bf16>(), m * k), random_bf16(w.as<bf16>(), n * k), random_bf16(dy.as<bf16>(), m * n);
  std::fill_n(scale.as<float>(), std::max({m, n, k}), 1e-3f);
  (void)largest;
  for (const DType type : {DType::s8, DType::bf16, DType::f32}) {
    Memory wf(gemm::packed_bytes(type, k, n)), wd(gemm::packed_bytes(type, n, k)), xp(gemm::packed_bytes(type, m, k)),
        dyp(gemm::packed_bytes(type, m, n));
    Memory xq(m * k * 4), dyq(m * n * 4), wq(n * k * 4), s1(largest * 4 / 64 + 4096), s2(largest * 4 / 64 + 4096);
    const float* sc = type == DType::s8 ? scale.as<float>() : nullptr;
    if (type == DType::s8) {
      int8_quantize({.x = x.p,
                     .rows = m,
                     .cols = k,
                     .ld = k,
                     .row_codes = xq.as<int8_t>(),
                     .row_scale = scale.as<float>(),
                     .col_panels = xp.p,
                     .col_scale = s2.as<float>()});
      int8_quantize({.x = dy.p,
                     .rows = m,
                     .cols = n,
                     .ld = n,
                     .row_codes = dyq.as<int8_t>(),
                     .row_scale = scale.as<float>(),
                     .col_panels = dyp.p,
                     .col_scale = s2.as<float>()});
      int8_quantize({.x = w.p,
                     .rows = n,
                     .cols = k,
                     .ld = k,
                     .row_codes = wq.as<int8_t>(),
                     .row_scale = scale.as<float>(),
                     .col_panels = wd.p,
                     .col_scale = s2.as<float>()});
    } else {
      const auto copy = [&](Memory& to, Memory& from, int64_t c) {
        for (int64_t i = 0; i < c; ++i)
          if (type == DType::bf16)
            to.as<bf16>()[i] = from.as<bf16>()[i];
          else
            to.as<float>()[i] = to_float(from.as<bf16>()[i]);
      };
      copy(xq, x, m * k), copy(dyq, dy, m * n), copy(wq, w, n * k);
      gemm::pack_columns(type, n, k, wq.p, k, wd.p);
    }
    gemm::pack_rows(type, n, k, wq.p, k, wf.p);
    const DType out = type == DType::f32 ? DType::f32 : DType::bf16;
    const double ops = 2e-9 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
    const double fwd = seconds([&] {
      gemm::run({.type = type,
                 .m = m,
                 .n = n,
                 .k = k,
                 .a = xq.p,
                 .lda = k,
                 .b = wf.p,
                 .scale_m = sc,
                 .scale_n = sc,
                 .c = y.p,
                 .c_type = out,
                 .ldc = n});
    });
    const double dgrad = seconds([&] {
      gemm::run({.type = type,
                 .m = m,
                 .n = k,
                 .k = n,
                 .a = dyq.p,
                 .lda = n,
                 .b = wd.p,
                 .scale_m = sc,
                 .scale_n = sc,
                 .c = dx.p,
                 .c_type = out,
                 .ldc = k});
    });
    const double pack = type == DType::s8 ? 0 : seconds([&] {
      gemm::pack_columns(type, m, k, xq.p, k, xp.p);
      gemm::pack_columns(type, m, n, dyq.p, n, dyp.p);
    });
    const double wgrad = seconds([&] {
      gemm::run({.type = type,
                 .m = n,
                 .n = k,
                 .k = m,
                 .a = dyp.p,
                 .a_panels = true,
                 .b = xp.p,
                 .scale_m = sc,
                 .scale_n = sc,
                 .c = dw.p,
                 .c_type = DType::f32,
                 .ldc = k,
                 .accumulate = true});
    });
    fmt::print("{:>5} {:>5} {:>5} {:>5}  fwd {:>7.0f} us {:>6.0f}  dgrad {:>7.0f} us {:>6.0f}  wgrad {:>7.0f} us {:>6.0f} GOP/s", m, n, k,
               type == DType::s8     ? "int8"
               : type == DType::bf16 ? "bf16"
                                     : "fp32",
               fwd * 1e6, ops / fwd, dgrad * 1e6, ops / dgrad, wgrad * 1e6, ops / wgrad);
    if (pack > 0) fmt::print("  (packing {:.0f} us, with it {:.0f})", pack * 1e6, ops / (wgrad + pack));
    fmt::print("\n");
  }
  Memory codes(m * k), panels(gemm::packed_bytes(DType::bf16, m, k)), rs(m * 4), cs(k * 4), values(m * k * 2);
  const auto report = [&](const char* what, double t, double bytes_per_element) {
    fmt::print("  {} {:.0f} us {:.1f} GB/s", what, t * 1e6, bytes_per_element * static_cast<double>(m * k) * 1e-9 / t);
  };
  const Int8Quantize row{.x = x.p, .rows = m, .cols = k, .ld = k, .row_codes = codes.as<int8_t>(), .row_scale = rs.as<float>()};
  Int8Quantize col{.x = x.p, .rows = m, .cols = k, .ld = k, .col_panels = panels.p, .col_scale = cs.as<float>()};
  Int8Quantize both = row;
  both.col_panels = panels.p, both.col_scale = cs.as<float>();
  fmt::print("      quantise [{}, {}]:", m, k);
  report("int8 rows", seconds([&] { int8_quantize(row); }), 3);
  report(" columns", seconds([&] { int8_quantize(col); }), 3);
  report(" both", seconds([&] { int8_quantize(both); }), 4);
  both.row_rounding = both.col_rounding = {.stochastic = true, .key = {1, 2}};
  report(" both, stochastic", seconds([&] { int8_quantize(both); }), 4);
  report(" fp8 both as bf16", seconds([&] {
           fp8_rowwise({.x = x.p,
                        .rows = m,
                        .cols = k,
                        .ld = k,
                        .row_values = values.as<bf16>(),
                        .row_scale = rs.as<float>(),
                        .col_panels = panels.p,
                        .col_scale = cs.as<float>()});
         }),
         6);
  fmt::print("\n");
}

}  // namespace

int main(int argc, char** argv) {
  fmt::print("{} threads, instruction set {}\n    m     n     k\n", max_threads(), name(best_isa()));
  if (argc > 3) {
    for (int i = 1; i + 2 < argc; i += 3) shape(std::atoll(argv[i]), std::atoll(argv[i + 1]), std::atoll(argv[i + 2]));
    return 0;
  }
  const int64_t shapes[][3] = {{4096, 512, 256}, {4096, 256, 256},  {4096, 1408, 256},
                               {4096, 256, 704}, {4096, 4096, 256}, {2048, 1024, 4096}};
  for (const auto& s : shapes) shape(s[0], s[1], s[2]);
  return 0;
}
