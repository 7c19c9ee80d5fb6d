#pragma once
#include "halftone/attention/causal_blocked.h"

namespace halftone::attention {
namespace {

// Gradient of one key/value head. With P = exp(scale S - lse) and dS = P o (dP - delta), delta = rowsum(dO o O):
//   S^T = K Q^T    dP^T = V dO^T    dV += P^T dO    dK += scale dS^T Q    dQ^T += scale K^T dS^T
// lse and delta are the initial accumulator values of the first two GEMMs; the scale is applied once at the end.
// The tiles are small and their operands many, so traffic between L1 and L2 is the bottleneck. A strip of keys with its
// accumulators dK and dV stays in L1 while groups of kAlign queries pass: four forms of their Q and dO rows, and their
// accumulator dQ. These are packed consecutively for a long block of queries that stays in L2.
// All sums are in fp32, in a fixed order.
template <class P, class In>
class BackwardBlocks {
 public:
  using T = typename P::T;
  using F = typename P::F;
  static constexpr int kSub = 32;       // keys per GEMM of probabilities
  static constexpr int kAheadRows = 8;  // rows fetched per strip

  explicit BackwardBlocks(const AttentionBackward& p)
      : p_(p),
        width_(static_cast<int>(round_up(p.shape.head_dim, P::kAlign))),
        v_width_(static_cast<int>(round_up(p.shape.v_dim, P::kAlign))),
        queries_(block_queries(p.shape)),
        keys_(larger(width_, v_width_) <= 32 ? 32 : 64),
        strips_((p.shape.kv_len + keys_ - 1) / keys_) {
    Arena count;
    place(count);
    Arena arena{scratch(count.used)};
    place(arena);
  }

  // Block size for about half a megabyte of operands.
  static int block_queries(const AttentionShape& s) {
    const int64_t most = larger<int64_t, int64_t>(
        P::kAlign, smaller<int64_t, int64_t>(kMaxQueries, 16384 / larger(s.head_dim, s.v_dim) / P::kAlign * P::kAlign));
    return static_cast<int>(smaller(most, larger<int64_t, int64_t>(round_up(s.q_len, P::kAlign), P::kAlign)));
  }

  void head(int64_t b, int64_t kv_head) {
    const AttentionShape& shape = p_.shape;
    const int64_t group = shape.heads / shape.kv_heads, keys = strips_ * keys_;
    load_keys(b, kv_head);
    std::memset(dk_, 0, static_cast<size_t>(keys * width_) * sizeof(float));
    std::memset(dv_, 0, static_cast<size_t>(keys * v_width_) * sizeof(float));
    for (int64_t h = kv_head * group; h < (kv_head + 1) * group; ++h) {
      for (int64_t q = 0; q < shape.q_len; q += queries_) {
        Ahead ahead;
        fetch_ahead(ahead, b, h, q + queries_, (kv_head + 1) * group);
        block(b, h, q, smaller(q + queries_, shape.q_len), ahead);
      }
    }
    store_sums(at<In>(p_.dk, p_.dk_layout, b, 0, kv_head), p_.dk_layout.row, shape.head_dim, dk_, width_, p_.scale);
    store_sums(at<In>(p_.dv, p_.dv_layout, b, 0, kv_head), p_.dv_layout.row, shape.v_dim, dv_, v_width_, 1);
  }

 private:
  void place(Arena& a) {
    const int64_t keys = strips_ * keys_;
    k_ = a.take<T>(keys * width_), v_ = a.take<T>(keys * v_width_), k_t_ = a.take<T>(keys * width_);
    dk_ = a.take<float>(keys * width_), dv_ = a.take<float>(keys * v_width_);
    q_ = a.take<T>(queries_ * width_), d_out_ = a.take<T>(queries_ * v_width_);
    work_ = a.take<T>(queries_ * larger(width_, v_width_));
    q_t_ = a.take<uint32_t>(queries_ * width_ / P::kPair), d_out_t_ = a.take<uint32_t>(queries_ * v_width_ / P::kPair);
    if (P::kPair > 1) q_pairs_ = a.take<uint32_t>(queries_ * width_ / 2), d_out_pairs_ = a.take<uint32_t>(queries_ * v_width_ / 2);
    k_pairs_ = a.take<uint32_t>(keys_ * width_ / P::kPair);
    s_ = a.take<float>(kSub * P::kAlign), dp_ = a.take<float>(kSub * P::kAlign);
    prob_ = a.take<T>(kSub * P::kAlign), ds_ = a.take<T>(keys_ * P::kAlign);
    ds_pairs_ = P::kPair > 1 ? a.take<uint32_t>(keys_ * P::kAlign / 2) : reinterpret_cast<uint32_t*>(ds_);
    dq_t_ = a.take<float>(width_ * queries_);
    minus_lse_ = a.take<float>(queries_), minus_delta_ = a.take<float>(queries_), scales_ = a.take<float>(queries_);
  }

  void load_keys(int64_t b, int64_t kv_head) {
    const AttentionShape& shape = p_.shape;
    load_rows<P>(k_, width_, strips_ * keys_, at<In>(p_.k, p_.k_layout, b, 0, kv_head), p_.k_layout.row, shape.kv_len, shape.head_dim);
    load_rows<P>(v_, v_width_, strips_ * keys_, at<In>(p_.v, p_.v_layout, b, 0, kv_head), p_.v_layout.row, shape.kv_len, shape.v_dim);
    for (int64_t first = 0; first < strips_ * keys_ * width_; first += keys_ * width_) {
      transpose_a<P>(k_t_ + first, keys_, pack_rows<P>(k_pairs_, k_ + first, keys_, width_), keys_, width_);
    }
  }

  // Prefetches the next block of queries (of the next head after this one's last block) and the destination of this block's gradient.
  void fetch_ahead(Ahead& ahead, int64_t b, int64_t h, int64_t q, int64_t end) const {
    const AttentionShape& shape = p_.shape;
    ahead.add(at<In>(p_.dq, p_.dq_layout, b, q - queries_, h), p_.dq_layout.row,
              smaller<int64_t, int64_t>(queries_, shape.q_len - q + queries_), shape.head_dim);
    if (q >= shape.q_len) q = 0, ++h;
    if (h == end) return;
    const int64_t rows = smaller<int64_t, int64_t>(queries_, shape.q_len - q);
    ahead.add(at<In>(p_.q, p_.q_layout, b, q, h), p_.q_layout.row, rows, shape.head_dim);
    ahead.add(at<In>(p_.d_out, p_.d_out_layout, b, q, h), p_.d_out_layout.row, rows, shape.v_dim);
    ahead.add(at<In>(p_.out, p_.out_layout, b, q, h), p_.out_layout.row, rows, shape.v_dim);
  }

  void block(int64_t b, int64_t h, int64_t q_begin, int64_t q_end, Ahead& ahead) {
    const AttentionShape& shape = p_.shape;
    const int hd = shape.head_dim, vd = shape.v_dim;
    const int64_t rows = q_end - q_begin;
    const Visible<P> visible(shape, p_.doc_start, b, q_begin, q_end, queries_);
    load_rows<P>(work_, v_width_, queries_, at<In>(p_.out, p_.out_layout, b, q_begin, h), p_.out_layout.row, rows, vd);
    load_rows<P>(d_out_, v_width_, queries_, at<In>(p_.d_out, p_.d_out_layout, b, q_begin, h), p_.d_out_layout.row, rows, vd);
    load_rows<P>(q_, width_, queries_, at<In>(p_.q, p_.q_layout, b, q_begin, h), p_.q_layout.row, rows, hd);
    starting_values(p_.lse + (b * shape.heads + h) * shape.q_len + q_begin, rows);
    for (int c = 0; c < queries_; c += P::kAlign) {
      pack_transposed<P>(q_t_ + c * width_ / P::kPair, P::kAlign, q_ + c * width_, P::kAlign, width_);
      pack_transposed<P>(d_out_t_ + c * v_width_ / P::kPair, P::kAlign, d_out_ + c * v_width_, P::kAlign, v_width_);
    }
    const uint32_t* q_pairs = pack_rows<P, 16>(q_pairs_, q_, queries_, width_);
    const uint32_t* d_out_pairs = pack_rows<P, 16>(d_out_pairs_, d_out_, queries_, v_width_);
    std::memset(dq_t_, 0, static_cast<size_t>(width_ * queries_) * sizeof(float));

    const int64_t begin = visible.key_begin / keys_, end = (visible.key_end + keys_ - 1) / keys_;
    for (int64_t strip = begin; strip < end; ++strip) {
      int from, to;
      visible.columns(strip * keys_, keys_, queries_, from, to);
      for (int c = from; c < to; c += P::kAlign) {
        ahead.fetch(kAheadRows);
        tile(visible, strip * keys_, c, q_pairs + c / P::kPair * width_, d_out_pairs + c / P::kPair * v_width_);
      }
    }
    for (int c = 0; c < rows; c += P::kAlign) {
      store_transposed<P, In, true>(at<In>(p_.dq, p_.dq_layout, b, q_begin + c, h), p_.dq_layout.row, rows - c, hd, dq_t_ + c * width_,
                                    width_, P::kAlign, scales_, work_);
    }
  }

  // One strip of keys and the group of queries at column c.
  void tile(const Visible<P>& visible, int64_t key, int c, const uint32_t* q_pairs, const uint32_t* d_out_pairs) {
    const int group = c / P::kAlign;
    int begin = keys_, end = 0;  // range of visible keys, in units of kSub
    for (int sub = 0; sub < keys_; sub += kSub) {
      if (!visible.any(group, key + sub, kSub)) continue;
      begin = smaller(begin, sub), end = sub + kSub;
      const int64_t k_at = (key + sub) * width_, v_at = (key + sub) * v_width_;
      P::template gemm<Start::columns>(kSub, P::kAlign, width_, k_ + k_at, width_, q_t_ + c * width_ / P::kPair, P::kAlign, s_, P::kAlign,
                                       minus_lse_ + c);
      P::template gemm<Start::columns>(kSub, P::kAlign, v_width_, v_ + v_at, v_width_, d_out_t_ + c * v_width_ / P::kPair, P::kAlign, dp_,
                                       P::kAlign, minus_delta_ + c);
      visible.all(group, key + sub, kSub) ? gradients<false>(visible, key, sub, c) : gradients<true>(visible, key, sub, c);
      P::template gemm<Start::add>(kSub, v_width_, P::kAlign, prob_, P::kAlign, d_out_pairs, v_width_, dv_ + v_at, v_width_, nullptr);
      P::template gemm<Start::add>(kSub, width_, P::kAlign, ds_ + sub * P::kAlign, P::kAlign, q_pairs, width_, dk_ + k_at, width_, nullptr);
    }
    if (begin >= end) return;
    P::template gemm<Start::add>(width_, P::kAlign, end - begin, k_t_ + key * width_ + begin, keys_,
                                 ds_pairs_ + begin / P::kPair * P::kAlign, P::kAlign, dq_t_ + c * width_, P::kAlign, nullptr);
  }

  void starting_values(const float* lse, int64_t rows) {
    for (int i = 0; i < queries_; ++i) {
      F sum = P::set(0);
      for (int d = 0; d < v_width_; d += P::kLanes) {
        sum = P::fma(P::load_operand(work_ + i * v_width_ + d), P::load_operand(d_out_ + i * v_width_ + d), sum);
      }
      minus_delta_[i] = -P::sum(sum);
      // A row without visible keys has lse = -inf; rows past the end have zero dO, so any finite value works.
      minus_lse_[i] = i >= rows || lse[i] == -__builtin_inff() ? -1e30f : -lse[i] / p_.scale;
      scales_[i] = p_.scale;
    }
  }

  // P and dS of kSub keys and the group of queries at column c, rounded to operand precision.
  template <bool kMasked>
  void gradients(const Visible<P>& visible, int64_t key, int sub, int c) {
    const F by = P::set(p_.scale * kLog2E * P::kUnit), one = P::set(P::kOne), lowest = P::set(P::kLowest);
    for (int j = 0; j < kSub; j += 2) {
      F x[4];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) x[i] = P::max(lowest, P::fma(P::load(s_ + (2 * j + i) * P::kLanes), by, one));
      P::template gradients<kMasked>(prob_ + j * P::kAlign, ds_ + (sub + j) * P::kAlign, ds_pairs_ + (sub + j) / P::kPair * P::kAlign, x,
                                     dp_ + j * P::kAlign, static_cast<int>(key) + sub + j, visible.lo + c, visible.hi + c);
    }
  }

  void store_sums(In* dst, int64_t stride, int dim, const float* sums, int width, float factor) {
    const F by = P::set(factor);
    const auto store = [](In* to, F x) {
      if constexpr (sizeof(In) == 2) {
        P::narrow(to, x);
      } else {
        P::store(to, x);
      }
    };
    for (int64_t j = 0; j < p_.shape.kv_len; ++j, dst += stride, sums += width) {
      int d = 0;
      for (; d + P::kLanes <= dim; d += P::kLanes) store(dst + d, P::mul(P::load(sums + d), by));
      if (d < dim) {
        In last[P::kLanes];
        store(last, P::mul(P::load(sums + d), by));
        std::memcpy(dst + d, last, static_cast<size_t>(dim - d) * sizeof(In));
      }
    }
  }

  const AttentionBackward& p_;
  const int width_, v_width_, queries_, keys_;  // rounded up: head_dim, v_dim, queries per block; keys per strip, a multiple of kSub
  const int64_t strips_;
  T *k_, *v_, *k_t_;       // [keys][width], [keys][v_width], per strip [width][keys]
  float *dk_, *dv_;        // [keys][width], [keys][v_width]
  T *q_, *d_out_, *work_;  // [queries][width], [queries][v_width], either
  uint32_t *q_t_, *d_out_t_, *q_pairs_ = nullptr, *d_out_pairs_ = nullptr, *k_pairs_;  // B operands
  float *s_, *dp_;                                                                     // [kSub][kAlign]
  T *prob_, *ds_;                                                                      // [kSub][kAlign], [keys][kAlign]
  uint32_t* ds_pairs_;                                                                 // [keys / kPair][kAlign]
  float *dq_t_, *minus_lse_, *minus_delta_, *scales_;                                  // per group [width][kAlign]; [queries] each
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
