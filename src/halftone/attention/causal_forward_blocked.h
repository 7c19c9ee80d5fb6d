#pragma once
#include <limits>

#include "halftone/attention/causal_blocked.h"

namespace halftone::attention {
namespace {

// A block of queries iterates over the keys in strips: S^T strip = K Q^T, then P = exp(S - m), then O^T += V^T P. Two choices of m: if
// Cauchy-Schwarz style bounds show that no score of the block exceeds kBoundedScore, m is 0 (fp32 and bf16 hold e^+-60 with full
// precision); else m is the running maximum and O^T is rescaled when it grows.
template <class P, class In>
class ForwardBlocks {
 public:
  using T = typename P::T;
  using F = typename P::F;
  static constexpr int kKeys = 32;  // per strip
  static_assert(kInvariantKeys % kKeys == 0);
  static constexpr int kAheadRows = 8;                          // rows fetched per strip
  static constexpr float kBoundedScore = 60, kHidden = -1e30f;  // nats; below any score

  // For at least the keys [first, end).
  ForwardBlocks(const AttentionForward& p, int64_t first, int64_t end)
      : p_(p),
        width_(static_cast<int>(round_up(p.shape.head_dim, P::kAlign))),
        v_width_(static_cast<int>(round_up(p.shape.v_dim, P::kAlign))),
        queries_(block_queries(p.shape)),
        first_strip_(first / kKeys),
        strips_((end + kKeys - 1) / kKeys - first_strip_) {
    Arena count;
    place(count);
    Arena arena{scratch(count.used)};
    place(arena);
  }

  static int block_queries(const AttentionShape& s) {
    const int most = larger(s.head_dim, s.v_dim) <= 32 ? 64 : 32;
    return static_cast<int>(smaller<int64_t, int64_t>(most, round_up(s.q_len, P::kAlign)));
  }

  // Converts the keys before `end` of one key/value head, and their values, to operand layout.
  void load_keys(int64_t b, int64_t kv_head, int64_t end) {
    const int64_t begin = first_strip_ * kKeys, keys = end - begin;
    load_rows<P>(k_, width_, strips_ * kKeys, at<In>(p_.k, p_.k_layout, b, begin, kv_head), p_.k_layout.row, keys, p_.shape.head_dim);
    for (int64_t first = 0; first < strips_ * kKeys; first += kKeys) {
      load_rows<P>(rows_, v_width_, kKeys, at<In>(p_.v, p_.v_layout, b, begin + first, kv_head), p_.v_layout.row,
                   smaller<int64_t, int64_t>(keys - first, kKeys), p_.shape.v_dim);
      transpose_a<P>(v_t_ + first * v_width_, kKeys, pack_rows<P>(pairs_, rows_, kKeys, v_width_), kKeys, v_width_);
    }
    for (int64_t strip = 0; strip < strips_; ++strip) {
      for (int d = 0; d < width_; d += P::kLanes)
        P::store(strip_abs_ + strip * width_ + d, largest_of_keys(d, strip * kKeys, (strip + 1) * kKeys, P::set(0)));
    }
  }

  // `next`: rows of the following block, or null.
  void run(int64_t b, int64_t head, int64_t q_begin, int64_t q_end, const In* next = nullptr) {
    const AttentionShape& shape = p_.shape;
    const int hd = shape.head_dim;
    const Visible<P> visible(shape, p_.doc_start, b, q_begin, q_end, queries_);
    load_rows<P>(rows_, width_, queries_, at<In>(p_.q, p_.q_layout, b, q_begin, head), p_.q_layout.row, q_end - q_begin, hd);
    pack_transposed<P>(q_t_, queries_, rows_, queries_, width_);
    std::memset(out_t_, 0, static_cast<size_t>(v_width_ * queries_) * sizeof(float));
    Ahead ahead;
    ahead.add(at<In>(p_.out, p_.out_layout, b, q_begin, head), p_.out_layout.row, q_end - q_begin, shape.v_dim);
    if (next != nullptr) ahead.add(next, p_.q_layout.row, queries_, hd);
    // The choice of m affects the last bits. If documents or windows begin inside the block, a query's choice must not depend on keys that
    // only another query attends to.
    const bool bounded = !p_.invariant && visible.one_begin(queries_) && bounded_scores(visible.key_begin, visible.key_end);
    for (int i = 0; i < queries_; ++i) sum_[i] = 0, top_[i] = bounded ? 0 : kHidden;

    const int64_t begin = visible.key_begin / kKeys, end = (visible.key_end + kKeys - 1) / kKeys;
    int first = 0, last = 0;
    if (begin < end) scores(visible, begin, first, last);
    for (int64_t strip = begin; strip < end; ++strip) {
      // The tile units compute the next strip's scores while the vector units compute this strip's exponentials.
      ahead.fetch(kAheadRows);
      const int from = first, to = last;
      if (strip + 1 < end) scores(visible, strip + 1, first, last);
      for (int c = from; c < to; c += P::kAlign) {
        const bool all = visible.all(c / P::kAlign, strip * kKeys, kKeys);
        if (bounded) {
          all ? exponentials<true, false>(visible, strip, c) : exponentials<true, true>(visible, strip, c);
        } else {
          all ? exponentials<false, false>(visible, strip, c) : exponentials<false, true>(visible, strip, c);
        }
      }
      P::template gemm<Start::add>(v_width_, to - from, kKeys, v_t_ + (strip - first_strip_) * kKeys * v_width_, kKeys, p_pairs_ + from,
                                   queries_, out_t_ + from, queries_, nullptr);
    }
    finish(b, head, q_begin, q_end);
  }

 private:
  void place(Arena& a) {
    k_ = a.take<T>(strips_ * kKeys * width_);
    v_t_ = a.take<T>(strips_ * kKeys * v_width_);
    rows_ = a.take<T>(larger(kKeys, queries_) * larger(width_, v_width_));
    pairs_ = a.take<uint32_t>(kKeys * v_width_ / P::kPair);
    q_t_ = a.take<uint32_t>(queries_ * width_ / P::kPair);
    for (float*& s : s_) s = a.take<float>(kKeys * queries_);
    p_pairs_ = a.take<uint32_t>(kKeys * queries_ / P::kPair);
    out_t_ = a.take<float>(v_width_ * queries_);
    strip_abs_ = a.take<float>(strips_ * width_);
    key_abs_ = a.take<float>(width_);
    sum_ = a.take<float>(queries_);
    top_ = a.take<float>(queries_);
  }

  // Maximum of `most` and |k| over lanes d of the loaded keys [begin, end).
  F largest_of_keys(int d, int64_t begin, int64_t end, F most) const {
    for (int64_t j = begin; j < end; ++j) most = P::max_abs(most, P::load_operand(k_ + j * width_ + d));
    return most;
  }

  // scale * sum_d |q_d| max_j |k_jd| bounds every score of a query. Only keys visible to the block count, so that the result depends
  // neither on other documents nor on the partition into blocks.
  bool bounded_scores(int64_t key_begin, int64_t key_end) {
    const int64_t first = key_begin - first_strip_ * kKeys, end = key_end - first_strip_ * kKeys;
    const int64_t whole = smaller((first + kKeys - 1) / kKeys, end / kKeys), after = larger(whole, end / kKeys);  // strips
    for (int d = 0; d < width_; d += P::kLanes) {
      F most = largest_of_keys(d, first, smaller(whole * kKeys, end), P::set(0));
      for (int64_t strip = whole; strip < after; ++strip) most = P::max(most, P::load(strip_abs_ + strip * width_ + d));
      P::store(key_abs_ + d, largest_of_keys(d, larger(after * kKeys, first), end, most));
    }
    F most = P::set(0);
    for (int c = 0; c < queries_; c += P::kLanes) {
      F bound = P::set(0);
      for (int d = 0; d < width_; d += P::kPair) bound = P::abs_dot(bound, q_t_ + d / P::kPair * queries_ + c, key_abs_ + d);
      if (P::any_not_finite(bound)) return false;
      most = P::max(most, bound);
    }
    return P::max_of(most) * p_.scale <= kBoundedScore;
  }

  void scores(const Visible<P>& visible, int64_t strip, int& first, int& last) {
    visible.columns(strip * kKeys, kKeys, queries_, first, last);
    P::template gemm<Start::zero>(kKeys, last - first, width_, k_ + (strip - first_strip_) * kKeys * width_, width_, q_t_ + first, queries_,
                                  s_[strip & 1] + first, queries_, nullptr);
  }

  // Weights of one strip for the two vectors of queries at column c; accumulates their sums.
  template <bool kBounded, bool kMasked>
  void exponentials(const Visible<P>& visible, int64_t strip, int c) {
    constexpr int kLanes = P::kLanes;
    const int key = static_cast<int>(strip * kKeys);
    const F by = P::set(p_.scale * kLog2E * P::kUnit), lowest = P::set(P::kLowest);
    for (int v = 0; v < P::kAlign; v += kLanes, c += kLanes) {
      const float* s = s_[strip & 1] + c;
      const int32_t *lo = visible.lo + c, *hi = visible.hi + c;
      F sums[2] = {P::load(sum_ + c), P::zero()}, one = P::set(P::kOne);
      if constexpr (!kBounded) {
        const F top = raise_top<kMasked>(s, key, c, lo, hi, sums);
        one = P::sub(one, top);
      }
      for (int j = 0; j < kKeys; j += 2) {
        F x[2] = {P::fma(P::load(s + j * queries_), by, one), P::fma(P::load(s + (j + 1) * queries_), by, one)};
        if constexpr (!kBounded) x[0] = P::max(lowest, x[0]), x[1] = P::max(lowest, x[1]);
        P::template weights<kMasked>(p_pairs_ + j / P::kPair * queries_ + c, queries_, x, key + j, lo, hi, sums);
      }
      P::store(sum_ + c, P::add(sums[0], sums[1]));
    }
  }

  // Updates the running maximum (as an exponent) with this strip and rescales the earlier sums.
  template <bool kMasked>
  F raise_top(const float* s, int key, int c, const int32_t* lo, const int32_t* hi, F (&sums)[2]) {
    F most = P::set(kHidden), poison = P::zero();
    for (int j = 0; j < kKeys; ++j) {
      F x = P::load(s + j * queries_);
      if constexpr (kMasked) x = keep_seen<P>(x, key + j, lo, hi, P::set(kHidden));
      most = P::max(x, most);
      poison = P::fma(x, P::zero(), poison);  // NaN if any score is not finite
    }
    const F old = P::load(top_ + c), top = P::max(P::whole(P::mul(most, P::set(p_.scale * kLog2E * P::kUnit))), old);
    if (P::any_less(old, top)) {
      const F by = P::mul(P::sub(old, top), P::set(1 / P::kUnit));
      // Exactly 1 for queries whose own maximum is unchanged: other queries' keys must not affect their last bits.
      const F less = P::select(P::lt(P::bits(by), P::seti(0)), exp2_of<P>(P::max(P::set(-126), by)), P::set(1));
      sums[0] = P::mul(sums[0], less);
      for (int d = 0; d < v_width_; ++d) P::store(out_t_ + d * queries_ + c, P::mul(P::load(out_t_ + d * queries_ + c), less));
      P::store(top_ + c, top);
    }
    sums[0] = P::add(sums[0], poison);
    return top;
  }

  void finish(int64_t b, int64_t head, int64_t q_begin, int64_t q_end) {
    const AttentionShape& shape = p_.shape;
    alignas(64) float lse[kMaxQueries];
    for (int c = 0; c < queries_; c += P::kLanes) {
      const F sum = P::load(sum_ + c);
      if (p_.lse != nullptr) {
        P::store(lse + c, P::fma(P::load(top_ + c), P::set(kLn2 / P::kUnit), natural_log<P>(sum)));
      }
      const F inverse = P::div(P::set(1), sum);
      P::store(top_ + c, inverse);
    }
    for (int i = 0; i < queries_; ++i) {
      if (sum_[i] == 0) top_[i] = 0, lse[i] = -std::numeric_limits<float>::infinity();
    }
    if (p_.lse != nullptr) {
      std::memcpy(p_.lse + (b * shape.heads + head) * p_.lse_head + q_begin, lse, static_cast<size_t>(q_end - q_begin) * sizeof(float));
    }
    store_transposed<P, In, false>(at<In>(p_.out, p_.out_layout, b, q_begin, head), p_.out_layout.row, q_end - q_begin, shape.v_dim, out_t_,
                                   v_width_, queries_, top_, rows_);
  }

  const AttentionForward& p_;
  const int width_, v_width_, queries_;  // rounded up: head_dim, v_dim, queries per block
  const int64_t first_strip_, strips_;
  T *k_, *v_t_, *rows_;  // [keys][width], per strip [v_width][kKeys], [queries][width] or [queries or kKeys][v_width]
  uint32_t *pairs_, *q_t_, *p_pairs_;
  float *s_[2], *out_t_;                       // [kKeys][queries], [v_width][queries]
  float *strip_abs_, *key_abs_, *sum_, *top_;  // maxima per strip [strips][width] and per block [width]; [queries], [queries]
};

// One item: a key/value head with its query heads, or a range of its query blocks if there are few heads.
template <class P, class In>
void forward_blocked(const AttentionForward& p) {
  const AttentionShape& s = p.shape;
  const int64_t heads = s.batch * s.kv_heads, group = s.heads / s.kv_heads;
  const int64_t step = ForwardBlocks<P, In>::block_queries(s), blocks = (s.q_len + step - 1) / step;
  // Every range packs the keys again, so ranges should be long; with enough heads there is one per head.
  int64_t ranges = heads >= 4 * omp_get_max_threads() ? 1 : (4 * omp_get_max_threads() + heads - 1) / heads;
  ranges = larger<int64_t, int64_t>(1, smaller(ranges, blocks * step / 256));
  for_items(heads * ranges, [&](int64_t item) {
    const int64_t head = item % heads, range = ranges - 1 - item / heads;  // longest ranges first
    const int64_t b = head / s.kv_heads, kv_head = head % s.kv_heads;
    const int64_t first = blocks * range / ranges * step, last = smaller(blocks * (range + 1) / ranges * step, s.q_len);
    const int64_t keys = larger<int64_t, int64_t>(0, smaller(s.kv_len, last + s.positions() - s.q_len));
    ForwardBlocks<P, In> work(p, smaller(keys, first_seen(s, nullptr, b, first + s.positions() - s.q_len)), keys);
    P::begin();
    work.load_keys(b, kv_head, keys);
    for (int64_t h = kv_head * group; h < (kv_head + 1) * group; ++h) {
      for (int64_t q = first; q < last; q += step) {
        const int64_t next_q = q + 2 * step <= last ? q + step : first, next_h = q + step < last ? h : h + 1;
        const bool whole = next_h < (kv_head + 1) * group && next_q + step <= last;
        work.run(b, h, q, smaller(q + step, last), whole ? at<In>(p.q, p.q_layout, b, next_q, next_h) : nullptr);
      }
    }
    P::end();
  });
}

}  // namespace
}  // namespace halftone::attention
