#pragma once
#include "halftone/base/row_groups.h"
#include "halftone/quantize/cuda/element_vector.cuh"
#include "halftone/quantize/operand.h"

namespace halftone::device {

// Gathered rows (RowSource, `from`): helpers for kernels that read tiles of kGroupRows rows.

// Tile processed at this turn.
__device__ __forceinline__ int tile_in_turn(const RowSource& from, int turn) { return from.order == nullptr ? turn : from.order[turn]; }

// Eight elements times a weight, each rounded to the element type.
__device__ __forceinline__ void scale8(ElementVector<bf16>& x, float by) {
#pragma unroll
  for (int k = 0; k < 4; ++k) x.w[k] = bf16_words(by * element(x, 2 * k), by * element(x, 2 * k + 1));
}
__device__ __forceinline__ void scale8(ElementVector<float>& x, float by) {
#pragma unroll
  for (int i = 0; i < 8; ++i) x.v[i] *= by;
}

// Source row of a matrix row (-1: zeros) and its weight.
struct SourceRow {
  int row;
  float weight;
  __device__ __forceinline__ SourceRow(const RowSource& from, int64_t r) {
    const int32_t source = from.source[r];
    row = source < 0 ? -1 : source / static_cast<int>(from.each);
    weight = from.weight == nullptr || source < 0 ? 1.0f : from.weight[source];
  }
};

// Each lane holds one of the warp's 32 rows, so rows are read and divided once.
class SourceRows {
 public:
  __device__ __forceinline__ SourceRows(const RowSource& from, int first, int lane) : own_(from, first + lane) {}
  // Called by all lanes.
  __device__ __forceinline__ int row(int i) const { return __shfl_sync(0xFFFFFFFFu, own_.row, i); }
  __device__ __forceinline__ float weight(int i) const { return __shfl_sync(0xFFFFFFFFu, own_.weight, i); }

 private:
  SourceRow own_;
};

// A lane's eight vectors: rows from 8 * (lane / 8) of the warp's 32 rows, which begin at row `first`. x: at the lane's column; `has`:
// whether the column lies inside the matrix. policy: L2 policy of load_vector.
template <class T, class... Policy>
__device__ __forceinline__ void load_rows(const RowSource& from, const T* x, int64_t ld, int first, int lane, bool has,
                                          ElementVector<T> (&v)[8], Policy... policy) {
  const SourceRows rows(from, first, lane);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int row = rows.row((lane & 24) + i);
    v[i] = {};
    if (has && row >= 0) load_vector(x + row * ld, v[i], policy...);
  }
  if (from.weight == nullptr) return;
#pragma unroll
  for (int i = 0; i < 8; ++i) scale8(v[i], rows.weight((lane & 24) + i));
}

}  // namespace halftone::device
