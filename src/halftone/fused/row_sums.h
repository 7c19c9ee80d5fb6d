#pragma once
#include <algorithm>
#include <vector>

#include "halftone/base/parallel.h"
#include "halftone/fused/arguments.h"
#include "halftone/fused/kernels.h"

namespace halftone {

// Calls add(begin, end, sum [cols]) for row blocks, each row `width` elements, on all threads, then adds the blocks' sums in order to `to`
// unless null. At most 64 blocks of at least 32 rows each; their bounds depend on `rows` only.
template <class F>
void add_over_rows(int64_t rows, int64_t width, int64_t cols, float* to, F&& add) {
  const int64_t block = std::max<int64_t>(32, (rows + 63) / 64), blocks = (rows + block - 1) / block;
  std::vector<float> partial(static_cast<size_t>(blocks * cols));
  parallel_for(blocks, (row_grain(width) + block - 1) / block, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) add(b * block, std::min(rows, (b + 1) * block), partial.data() + b * cols);
  });
  if (!to) return;
  for (int64_t b = 0; b < blocks; ++b) fused_kernels().accumulate(to, partial.data() + b * cols, DType::f32, cols);
}

}  // namespace halftone
