#pragma once
#include <omp.h>

#include <algorithm>
#include <cstdint>

namespace halftone {

inline int max_threads() { return omp_get_max_threads(); }

// Calls f(begin, end) on disjoint chunks of [0, n), each at least `grain` long. Chunk bounds depend only on n, grain and the thread count.
// Runs inline inside another parallel region. oneDNN uses the same OpenMP pool.
template <class F> void parallel_for(int64_t n, int64_t grain, F&& f) {
  if (n <= 0) return;
  const int64_t chunks = omp_in_parallel() ? 1 : std::min<int64_t>(omp_get_max_threads(), (n + grain - 1) / std::max<int64_t>(grain, 1));
  if (chunks <= 1) return f(int64_t{0}, n);
  const int64_t size = (n + chunks - 1) / chunks;
#pragma omp parallel for schedule(static, 1) num_threads(static_cast<int>(chunks))
  for (int64_t c = 0; c < chunks; ++c) {
    const int64_t begin = c * size, end = std::min(n, begin + size);
    if (begin < end) f(begin, end);
  }
}

}  // namespace halftone
