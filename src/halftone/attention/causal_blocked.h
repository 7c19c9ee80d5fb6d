#pragma once
#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "halftone/attention/causal_impl.h"
#include "halftone/attention/causal_operand.h"

// Shared parts of the blocked forward and backward: templates over an operand policy P (causal_operand.h, operand_bf16.h) and the element
// type In of the tensors (uint16_t: bf16 bits, or float). Scores are computed transposed, S^T = K Q^T: a vector holds sixteen (eight)
// queries of one key, so the softmax needs no lane reductions, and the probabilities are already in the layouts that the next GEMMs read.
namespace halftone::attention {
namespace {

constexpr int kMaxQueries = 512;  // per block
constexpr float kLog2E = 1.44269504f, kLn2 = 0.693147181f;

constexpr int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
template <class A, class B>
constexpr auto smaller(A a, B b) {
  return a < b ? a : b;
}
template <class A, class B>
constexpr auto larger(A a, B b) {
  return a > b ? a : b;
}

// Bump allocator of 64-byte aligned pieces; with a null base it only counts.
struct Arena {
  std::byte* base = nullptr;
  size_t used = 0;
  template <class X>
  X* take(int64_t count) {
    X* piece = reinterpret_cast<X*>(base + used);
    used += static_cast<size_t>(round_up(count * static_cast<int64_t>(sizeof(X)), 64));
    return piece;
  }
};

// Calls item(i) for i in [0, count) on all threads; items are claimed in order as threads become free.
template <class F>
void for_items(int64_t count, F&& item) {
  const int threads = omp_in_parallel() ? 1 : static_cast<int>(smaller<int64_t, int64_t>(omp_get_max_threads(), count));
  if (threads <= 1) {
    for (int64_t i = 0; i < count; ++i) item(i);
    return;
  }
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
  for (int64_t i = 0; i < count; ++i) item(i);
}

// ln(x), x positive and normal, relative error about 1e-7: ln m = 2 artanh((m - 1) / (m + 1)).
template <class P>
typename P::F natural_log(typename P::F x) {
  using F = typename P::F;
  // x = m * 2^e, m in [sqrt(1/2), sqrt(2)).
  const auto bits = P::bits(x), n = P::template sar<23>(P::subi(bits, P::seti(0x3f3504f3)));
  const F m = P::floats(P::subi(bits, P::template shl<23>(n))), e = P::from_int(n);
  const F one = P::set(1), z = P::div(P::sub(m, one), P::add(m, one)), w = P::mul(z, z);
  F y = P::fma(P::set(2.0f / 9), w, P::set(2.0f / 7));
  y = P::fma(y, w, P::set(2.0f / 5));
  y = P::fma(y, w, P::set(2.0f / 3));
  y = P::fma(y, w, P::set(2));
  return P::fma(e, P::set(kLn2), P::mul(y, z));
}

// First key visible to a query at `position` of batch row b.
int64_t first_seen(const AttentionShape& s, const int32_t* doc_start, int64_t b, int64_t position) {
  const int64_t document = doc_start != nullptr && position >= 0 ? doc_start[b * s.positions() + position] : 0;
  return larger(larger<int64_t, int64_t>(document, 0), s.window > 0 ? position - s.window + 1 : int64_t{0});
}

// Keys visible to a block of queries: [lo, hi] per query, and bounds per group of kAlign queries.
template <class P>
struct Visible {
  static constexpr int kGroup = P::kAlign;
  alignas(64) int32_t lo[kMaxQueries], hi[kMaxQueries];
  struct Bounds {
    int32_t lo_min, lo_max, hi_min, hi_max;
  } group[kMaxQueries / kGroup];
  int64_t key_begin, key_end;  // of the full block

  // Queries q_begin .. q_end - 1 of batch row b fill the first of `columns` columns; the last query is repeated in the rest.
  Visible(const AttentionShape& s, const int32_t* doc_start, int64_t b, int64_t q_begin, int64_t q_end, int columns) {
    key_begin = s.kv_len, key_end = 0;
    for (int g = 0; g < columns / kGroup; ++g) {
      Bounds& x = group[g] = {INT32_MAX, INT32_MIN, INT32_MAX, INT32_MIN};
      for (int i = g * kGroup; i < (g + 1) * kGroup; ++i) {
        const int64_t position = smaller(q_begin + i, q_end - 1) + s.positions() - s.q_len;
        hi[i] = static_cast<int32_t>(larger<int64_t, int64_t>(smaller(position, s.kv_len - 1), -1));
        lo[i] = static_cast<int32_t>(first_seen(s, doc_start, b, position));
        x = {smaller(x.lo_min, lo[i]), larger(x.lo_max, lo[i]), smaller(x.hi_min, hi[i]), larger(x.hi_max, hi[i])};
      }
      key_begin = smaller<int64_t, int64_t>(key_begin, x.lo_min);
      key_end = larger<int64_t, int64_t>(key_end, x.hi_max + int64_t{1});
    }
  }
  // Whether all queries have the same first visible key.
  bool one_begin(int columns) const {
    return std::all_of(group, group + columns / kGroup, [&](const Bounds& x) { return x.lo_min == key_begin && x.lo_max == key_begin; });
  }
  bool any(int g, int64_t key, int count) const { return group[g].hi_max >= key && group[g].lo_min < key + count; }
  bool all(int g, int64_t key, int count) const { return group[g].hi_min >= key + count - 1 && group[g].lo_max <= key; }
  // Columns [first, last) contain every query of the block that attends to any of the `count` keys from `key`.
  void columns(int64_t key, int count, int width, int& first, int& last) const {
    int a = 0, z = width / kGroup;
    while (a < z && !any(a, key, count)) ++a;
    while (z > a && !any(z - 1, key, count)) --z;
    first = a * kGroup, last = z * kGroup;
  }
};

// Loads rows x dim elements into dst [padded][width], zero-padded, widened if In is narrower than the operand.
template <class P, class In>
void load_rows(typename P::T* dst, int width, int64_t padded, const In* src, int64_t stride, int64_t rows, int dim) {
  for (int64_t r = 0; r < rows; ++r) {
    typename P::T* to = dst + r * width;
    const In* from = src + r * stride;
    int d = 0;
    if constexpr (sizeof(In) == sizeof(typename P::T)) {
      constexpr int kStep = P::kLanes * 4 / static_cast<int>(sizeof(In));
      for (; d + kStep <= dim; d += kStep) P::store(to + d, P::loadi(from + d));
      if (d < dim) std::memcpy(to + d, from + d, static_cast<size_t>(dim - d) * sizeof(In));
    } else {
      for (; d + P::kLanes <= dim; d += P::kLanes) P::store(to + d, P::widen(from + d));
      for (; d < dim; ++d) {
        const uint32_t bits = static_cast<uint32_t>(from[d]) << 16;
        std::memcpy(to + d, &bits, 4);
      }
    }
    if (dim < width) std::memset(to + dim, 0, static_cast<size_t>(width - dim) * sizeof(*to));
  }
  if (rows < padded) std::memset(dst + rows * width, 0, static_cast<size_t>((padded - rows) * width) * sizeof(*dst));
}

// Packs src [count][width] as a B operand whose columns are the rows of src: dst [width / kPair][ld] dwords.
template <class P>
void pack_transposed(uint32_t* dst, int64_t ld, const typename P::T* src, int count, int width) {
  const auto* from = reinterpret_cast<const uint32_t*>(src);
  const int dwords = width / P::kPair;
  for (int r = 0; r < count; r += P::kLanes) {
    for (int d = 0; d < dwords; d += P::kLanes) P::transpose(dst + d * ld + r, ld * 4, from + r * dwords + d, dwords * 4);
  }
}

// Packs src as a B operand whose rows are the rows of src: dst [count / kPair][width] dwords; returns src itself if a dword is one element.
// A dword joins rows r and r + 1, or with kApart = 16 rows r and r + 16 of each 32.
template <class P, int kApart = 1>
const uint32_t* pack_rows(uint32_t* dst, const typename P::T* src, int count, int width) {
  if constexpr (P::kPair == 1) {
    return reinterpret_cast<const uint32_t*>(src);
  } else {
    for (int pair = 0; pair < count / 2; ++pair) {
      const typename P::T* row = src + (pair / kApart * 2 * kApart + pair % kApart) * width;
      for (int d = 0; d < width; d += 32) P::interleave(dst + pair * width + d, row + d, row + kApart * width + d);
    }
    return dst;
  }
}

// Transposes src [count][width] to an A operand: dst [width][ld] elements; pairs as returned by pack_rows.
template <class P>
void transpose_a(typename P::T* dst, int64_t ld, const uint32_t* pairs, int count, int width) {
  auto* to = reinterpret_cast<uint32_t*>(dst);
  const int64_t ld_dwords = ld / P::kPair;
  for (int r = 0; r < count / P::kPair; r += P::kLanes) {
    for (int d = 0; d < width; d += P::kLanes) P::transpose(to + d * ld_dwords + r, ld_dwords * 4, pairs + r * width + d, width * 4);
  }
}

// Writes the first `count` elements of an operand row to a tensor row.
template <class P, class In>
void store_row(In* dst, const typename P::T* src, int count) {
  if constexpr (sizeof(In) == sizeof(typename P::T)) {
    constexpr int kStep = P::kLanes * 4 / static_cast<int>(sizeof(In));
    int d = 0;
    for (; d + kStep <= count; d += kStep) P::store(dst + d, P::loadi(src + d));
    if (d < count) std::memcpy(dst + d, src + d, static_cast<size_t>(count - d) * sizeof(In));
  } else {
    int d = 0;
    for (; d + P::kLanes <= count; d += P::kLanes) P::narrow(dst + d, P::load(src + d));
    if (d < count) {
      uint16_t last[P::kLanes];
      P::narrow(last, P::load(src + d));  // operand rows are padded
      std::memcpy(dst + d, last, static_cast<size_t>(count - d) * 2);
    }
  }
}

// Software prefetch of tensor rows needed soon. They are far apart, one or a few cache lines each, so no hardware prefetcher follows them;
// fetched a few at a time between strips, they arrive while the CPU computes.
class Ahead {
 public:
  template <class In>
  void add(const In* rows, int64_t stride, int64_t count, int dim) {
    if (lists_ < kLists)
      list_[lists_++] = {reinterpret_cast<const char*>(rows), stride * static_cast<int64_t>(sizeof(In)), count,
                         dim * static_cast<int64_t>(sizeof(In))};
  }
  void fetch(int64_t rows) {
    for (int l = 0; l < lists_; ++l) {
      List& x = list_[l];
      for (int64_t r = 0; r < rows && x.count > 0; ++r, --x.count, x.row += x.stride) {
        for (int64_t byte = 0; byte < x.bytes; byte += 64) __builtin_prefetch(x.row + byte);
      }
    }
  }

 private:
  static constexpr int kLists = 4;
  struct List {
    const char* row;
    int64_t stride, count, bytes;
  };
  List list_[kLists];
  int lists_ = 0;
};

// Writes rows [q][dim] of a tensor from x [width][columns] fp32, column c times factor[c]; at most `rows` columns are written. kPaired:
// columns are in the order of P::column_of. `work`: columns * width operand elements.
template <class P, class In, bool kPaired>
void store_transposed(In* dst, int64_t stride, int64_t rows, int dim, const float* x, int width, int columns, const float* factor,
                      typename P::T* work) {
  auto* lines = reinterpret_cast<uint32_t*>(work);
  const int dwords = width / P::kPair;
  for (int c = 0; c < columns; c += P::kLanes) {
    alignas(64) uint32_t block[P::kLanes * P::kLanes];
    const typename P::F by = P::load(factor + c);
    for (int d = 0; d < dwords; d += P::kLanes) {
#pragma GCC unroll 4
      for (int i = 0; i < P::kLanes; ++i) {
        const float* row = x + (d + i) * P::kPair * columns + c;
        if constexpr (P::kPair == 2) {
          P::store(block + i * P::kLanes, P::pair(P::mul(P::load(row), by), P::mul(P::load(row + columns), by)));
        } else {
          P::store(reinterpret_cast<float*>(block) + i * P::kLanes, P::mul(P::load(row), by));
        }
      }
      P::transpose(lines + c * dwords + d, dwords * 4, block, P::kBytes);
    }
  }
  for (int c = 0; c < columns; ++c) {
    int q = c;
    if constexpr (kPaired && P::kPair == 2) q = c / 32 * 32 + P::column_of(c % 32);
    if (q < rows) store_row<P, In>(dst + q * stride, work + c * width, dim);
  }
}

template <class In>
const In* at(const void* base, const AttentionLayout& l, int64_t b, int64_t t, int64_t head) {
  return static_cast<const In*>(base) + b * l.batch_stride + t * l.row + head * l.head;
}
template <class In>
In* at(void* base, const AttentionLayout& l, int64_t b, int64_t t, int64_t head) {
  return static_cast<In*>(base) + b * l.batch_stride + t * l.row + head * l.head;
}

}  // namespace
}  // namespace halftone::attention
