#pragma once
#include "halftone/attention/causal_blocked.h"

namespace halftone::attention {
namespace {

// The gradient for one key/value head. With P = exp(scale S - lse) and dS = P o (dP - delta), delta = rowsum(dO o O):
//   S^T = K Q^T    dP^T = V dO^T    dV += P^T dO    dK += scale dS^T Q    dQ^T += scale K^T dS^T
// lse and delta enter as the starting values of the first two products; the scale is applied once at the end.
// dK and dV stay in fp32 for the whole head while blocks of queries of all heads of its group pass by, in a fixed order.
template <class P, class In>
class BackwardBlocks {
 public:
  using T = typename P::T;
  using F = typename P::F;
  static constexpr int kKeys = 32;  // per strip

  explicit BackwardBlocks(const AttentionBackward& p)
      : p_(p),
        width_(static_cast<int>(round_up(p.shape.head_dim, P::kAlign))),
        queries_(block_queries(p.shape)),
        strips_((p.shape.kv_len + kKeys - 1) / kKeys) {
    Arena count;
    place(count);
    Arena arena{scratch(count.used)};
    place(arena);
  }

  static int block_queries(const AttentionShape& s) {
    const int most = s.head_dim <= 64 ? 128 : 64;
    return static_cast<int>(smaller<int64_t, int64_t>(most, larger<int64_t, int64_t>(round_up(s.q_len, P::kAlign), P::kAlign)));
  }

  void head(int64_t b, int64_t kv_head) {
    const AttentionShape& shape = p_.shape;
    const int64_t group = shape.heads / shape.kv_heads, elements = strips_ * kKeys * width_;
    load_keys(b, kv_head);
    std::memset(dk_, 0, static_cast<size_t>(elements) * sizeof(float));
    std::memset(dv_, 0, static_cast<size_t>(elements) * sizeof(float));
    for (int64_t h = kv_head * group; h < (kv_head + 1) * group; ++h) {
      for (int64_t q = 0; q < shape.q_len; q += queries_) block(b, h, q, smaller(q + queries_, shape.q_len));
    }
    store_sums(at<In>(p_.dk, p_.dk_layout, b, 0, kv_head, shape.head_dim), p_.dk_layout.row, dk_, p_.scale);
    store_sums(at<In>(p_.dv, p_.dv_layout, b, 0, kv_head, shape.head_dim), p_.dv_layout.row, dv_, 1);
  }

 private:
  void place(Arena& a) {
    const int64_t keys = strips_ * kKeys;
    k_ = a.take<T>(keys * width_), v_ = a.take<T>(keys * width_), k_t_ = a.take<T>(keys * width_);
    dk_ = a.take<float>(keys * width_), dv_ = a.take<float>(keys * width_);
    q_ = a.take<T>(queries_ * width_), d_out_ = a.take<T>(queries_ * width_), work_ = a.take<T>(queries_ * width_);
    q_t_ = a.take<uint32_t>(queries_ * width_ / P::kPair), d_out_t_ = a.take<uint32_t>(queries_ * width_ / P::kPair);
    if (P::kPair > 1) q_pairs_ = a.take<uint32_t>(queries_ * width_ / 2), d_out_pairs_ = a.take<uint32_t>(queries_ * width_ / 2);
    k_pairs_ = a.take<uint32_t>(kKeys * width_ / P::kPair);
    for (int i = 0; i < 2; ++i) s_[i] = a.take<float>(kKeys * queries_), dp_[i] = a.take<float>(kKeys * queries_);
    prob_ = a.take<T>(kKeys * queries_), ds_ = a.take<T>(kKeys * queries_);
    ds_pairs_ = P::kPair > 1 ? a.take<uint32_t>(kKeys * queries_ / 2) : reinterpret_cast<uint32_t*>(ds_);
    dq_t_ = a.take<float>(width_ * queries_);
    minus_lse_ = a.take<float>(queries_), minus_delta_ = a.take<float>(queries_), scales_ = a.take<float>(queries_);
  }

  void load_keys(int64_t b, int64_t kv_head) {
    const AttentionShape& shape = p_.shape;
    const int hd = shape.head_dim;
    load_rows<P>(k_, width_, strips_ * kKeys, at<In>(p_.k, p_.k_layout, b, 0, kv_head, hd), p_.k_layout.row, shape.kv_len, hd);
    load_rows<P>(v_, width_, strips_ * kKeys, at<In>(p_.v, p_.v_layout, b, 0, kv_head, hd), p_.v_layout.row, shape.kv_len, hd);
    for (int64_t first = 0; first < strips_ * kKeys * width_; first += kKeys * width_) {
      transpose_a<P>(k_t_ + first, kKeys, pack_rows<P>(k_pairs_, k_ + first, kKeys, width_), kKeys, width_);
    }
  }

  void block(int64_t b, int64_t h, int64_t q_begin, int64_t q_end) {
    const AttentionShape& shape = p_.shape;
    const int hd = shape.head_dim;
    const int64_t rows = q_end - q_begin;
    const Visible<P> visible(shape, p_.doc_start, b, q_begin, q_end, queries_);
    load_rows<P>(work_, width_, queries_, at<In>(p_.out, p_.out_layout, b, q_begin, h, hd), p_.out_layout.row, rows, hd);
    load_rows<P>(d_out_, width_, queries_, at<In>(p_.d_out, p_.d_out_layout, b, q_begin, h, hd), p_.d_out_layout.row, rows, hd);
    load_rows<P>(q_, width_, queries_, at<In>(p_.q, p_.q_layout, b, q_begin, h, hd), p_.q_layout.row, rows, hd);
    starting_values(p_.lse + (b * shape.heads + h) * shape.q_len + q_begin, rows);
    pack_transposed<P>(q_t_, queries_, q_, queries_, width_);
    pack_transposed<P>(d_out_t_, queries_, d_out_, queries_, width_);
    const uint32_t* q_pairs = pack_rows<P, 16>(q_pairs_, q_, queries_, width_);
    const uint32_t* d_out_pairs = pack_rows<P, 16>(d_out_pairs_, d_out_, queries_, width_);
    std::memset(dq_t_, 0, static_cast<size_t>(width_ * queries_) * sizeof(float));

    const int64_t begin = visible.key_begin / kKeys, end = (visible.key_end + kKeys - 1) / kKeys;
    int first = 0, last = 0;
    if (begin < end) scores(visible, begin, first, last);
    for (int64_t strip = begin; strip < end; ++strip) {
      const int from = first, to = last;
      if (strip + 1 < end) scores(visible, strip + 1, first, last);  // overlaps with the exponentials, as in the forward
      for (int c = from; c < to; c += P::kAlign) {
        visible.all(c / P::kAlign, strip * kKeys, kKeys) ? gradients<false>(visible, strip, c) : gradients<true>(visible, strip, c);
      }
      const int64_t rows_at = strip * kKeys * width_, pairs_at = from / P::kPair * width_;
      P::template gemm<Start::add>(kKeys, width_, to - from, prob_ + from, queries_, d_out_pairs + pairs_at, width_, dv_ + rows_at, width_,
                                   nullptr);
      P::template gemm<Start::add>(kKeys, width_, to - from, ds_ + from, queries_, q_pairs + pairs_at, width_, dk_ + rows_at, width_,
                                   nullptr);
      P::template gemm<Start::add>(width_, to - from, kKeys, k_t_ + rows_at, kKeys, ds_pairs_ + from, queries_, dq_t_ + from, queries_,
                                   nullptr);
    }
    store_transposed<P, In, true>(at<In>(p_.dq, p_.dq_layout, b, q_begin, h, hd), p_.dq_layout.row, rows, hd, dq_t_, width_, queries_,
                                  scales_, work_);
  }

  void starting_values(const float* lse, int64_t rows) {
    for (int i = 0; i < queries_; ++i) {
      F sum = P::set1(0);
      for (int d = 0; d < width_; d += P::kLanes) {
        sum = P::fma(P::load_operand(work_ + i * width_ + d), P::load_operand(d_out_ + i * width_ + d), sum);
      }
      minus_delta_[i] = -P::sum(sum);
      // A row that sees nothing has lse = -inf; rows past the end have zero dO, so any finite value will do.
      minus_lse_[i] = i >= rows || lse[i] == -__builtin_inff() ? -1e30f : -lse[i] / p_.scale;
      scales_[i] = p_.scale;
    }
  }

  void scores(const Visible<P>& visible, int64_t strip, int& first, int& last) {
    visible.columns(strip * kKeys, kKeys, queries_, first, last);
    const int64_t rows_at = strip * kKeys * width_, buffer = strip & 1;
    P::template gemm<Start::columns>(kKeys, last - first, width_, k_ + rows_at, width_, q_t_ + first, queries_, s_[buffer] + first,
                                     queries_, minus_lse_ + first);
    P::template gemm<Start::columns>(kKeys, last - first, width_, v_ + rows_at, width_, d_out_t_ + first, queries_, dp_[buffer] + first,
                                     queries_, minus_delta_ + first);
  }

  // P and dS of one strip and the two vectors of queries at column c, rounded to operands.
  template <bool kMasked>
  void gradients(const Visible<P>& visible, int64_t strip, int c) {
    constexpr int kLanes = P::kLanes;
    const float *s = s_[strip & 1] + c, *dp = dp_[strip & 1] + c;
    const int key = static_cast<int>(strip * kKeys);
    const F by = P::set1(p_.scale * kLog2E * P::kUnit), one = P::set1(P::kOne), lowest = P::set1(P::kLowest);
    for (int j = 0; j < kKeys; j += 2) {
      F x[4];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) x[i] = P::max(lowest, P::fma(P::load(s + (j + i / 2) * queries_ + i % 2 * kLanes), by, one));
      P::template gradients<kMasked>(prob_ + j * queries_ + c, ds_ + j * queries_ + c, ds_pairs_ + j / P::kPair * queries_ + c, queries_, x,
                                     dp + j * queries_, key + j, visible.lo + c, visible.hi + c);
    }
  }

  void store_sums(In* dst, int64_t stride, const float* sums, float factor) {
    const int hd = p_.shape.head_dim;
    const F by = P::set1(factor);
    for (int64_t j = 0; j < p_.shape.kv_len; ++j) {
      alignas(64) In row[256];
      for (int d = 0; d < width_; d += P::kLanes) {
        const F x = P::mul(P::load(sums + j * width_ + d), by);
        if constexpr (sizeof(In) == 2) {
          P::narrow(row + d, x);
        } else {
          P::store(row + d, x);
        }
      }
      std::memcpy(dst + j * stride, row, static_cast<size_t>(hd) * sizeof(In));
    }
  }

  const AttentionBackward& p_;
  const int width_, queries_;  // head_dim and queries of a block, rounded up
  const int64_t strips_;
  T *k_, *v_, *k_t_;       // [keys][width], [keys][width], per strip [width][kKeys]
  float *dk_, *dv_;        // [keys][width]
  T *q_, *d_out_, *work_;  // [queries][width]
  uint32_t *q_t_, *d_out_t_, *q_pairs_ = nullptr, *d_out_pairs_ = nullptr, *k_pairs_;  // B operands
  float *s_[2], *dp_[2];                                                               // [kKeys][queries]
  T *prob_, *ds_;                                                                      // [kKeys][queries]
  uint32_t* ds_pairs_;                                                                 // [kKeys / kPair][queries]
  float *dq_t_, *minus_lse_, *minus_delta_, *scales_;                                  // [width][queries], [queries] each
};

template <class P, class In>
void backward_blocked(const AttentionBackward& p) {
  for_items(p.shape.batch * p.shape.kv_heads, [&](int64_t item) {
    BackwardBlocks<P, In> work(p);
    P::begin();
    work.head(item / p.shape.kv_heads, item % p.shape.kv_heads);
    P::end();
  });
}

}  // namespace
}  // namespace halftone::attention
