#include "halftone/fused/grad_norm.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "halftone/base/parallel.h"
#include "halftone/fused/arguments.h"
#include "halftone/fused/kernels.h"

namespace halftone {
namespace {

constexpr int64_t kGrain = 16384;  // minimum elements per thread

const char* at(const void* x, int64_t i, DType type) { return static_cast<const char*>(x) + i * static_cast<int64_t>(size_of(type)); }

}  // namespace

double sum_of_squares(const void* x, int64_t n, DType dtype) {
  check_float("sum_of_squares", dtype);
  if (n <= 0) return 0;
  const int64_t blocks = (n + kNormBlock - 1) / kNormBlock;
  std::vector<double> partial(static_cast<size_t>(blocks));
  parallel_for(blocks, kGrain / kNormBlock, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const int64_t first = b * kNormBlock;
      partial[static_cast<size_t>(b)] = fused_kernels().square(at(x, first, dtype), std::min(kNormBlock, n - first), dtype);
    }
  });
  double sum = 0;
  for (const double s : partial) sum += s;
  return sum;
}

void scale_in_place(float* x, int64_t n, float factor) {
  parallel_for(n, kGrain, [&](int64_t begin, int64_t end) { fused_kernels().scale(x + begin, end - begin, factor); });
}

void fill_zero(void* x, int64_t bytes) {
  parallel_for(bytes, 4 * kGrain,
               [&](int64_t begin, int64_t end) { std::memset(static_cast<char*>(x) + begin, 0, static_cast<size_t>(end - begin)); });
}

void cast_to_bf16(const float* x, bf16* y, int64_t n) {
  parallel_for(n, kGrain,
               [&](int64_t begin, int64_t end) { fused_kernels().convert(x + begin, DType::f32, y + begin, DType::bf16, end - begin); });
}

void cast_to_f32(const bf16* x, float* y, int64_t n) {
  parallel_for(n, kGrain,
               [&](int64_t begin, int64_t end) { fused_kernels().convert(x + begin, DType::bf16, y + begin, DType::f32, end - begin); });
}

void accumulate(float* sum, const void* x, int64_t n, DType dtype) {
  check_float("accumulate", dtype);
  parallel_for(n, kGrain,
               [&](int64_t begin, int64_t end) { fused_kernels().accumulate(sum + begin, at(x, begin, dtype), dtype, end - begin); });
}

}  // namespace halftone
