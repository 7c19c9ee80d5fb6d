#include <cmath>
#include <limits>

#include "halftone/attention/causal_blocked.h"
#include "halftone/base/simd.h"

namespace halftone::attention {
namespace {

using V = Simd;
using F = V::F;

F load8(const float* p) { return V::load(p); }
F load8(const uint16_t* p) { return V::widen(p); }
void store8(float* p, F x) { V::store(p, x); }
void store8(uint16_t* p, F x) { V::narrow(p, x); }

template <class In>
void decode(const AttentionForward& p) {
  const AttentionShape& s = p.shape;
  const int hd = s.head_dim, vd = s.v_dim;
  const int64_t group = s.heads / s.kv_heads;
  for_items(s.batch * s.heads * s.q_len, [&](int64_t item) {
    const int64_t h = item % s.heads, i = item / s.heads % s.q_len, b = item / s.heads / s.q_len, position = i + s.positions() - s.q_len;
    const int64_t begin = first_seen(s, p.doc_start, b, position), last = smaller(position, s.kv_len - 1);
    float* prob = reinterpret_cast<float*>(scratch(static_cast<size_t>(larger<int64_t, int64_t>(s.kv_len, 1)) * sizeof(float)));
    const In* q = at<In>(p.q, p.q_layout, b, i, h);
    float top = -std::numeric_limits<float>::infinity(), sum = 0;
    for (int64_t j = begin; j <= last; ++j) {
      const In* k = at<In>(p.k, p.k_layout, b, j, h / group);
      F dot = V::set(0);
      for (int d = 0; d < hd; d += 8) dot = V::fma(load8(q + d), load8(k + d), dot);
      prob[j] = V::sum(dot) * p.scale;
      top = larger(prob[j], top);
    }
    F out[32];
    for (int d = 0; d < vd; d += 8) out[d / 8] = V::set(0);
    for (int64_t j = begin; j <= last; ++j) {
      const float weight = std::exp(prob[j] - top);
      sum += weight;
      const F by = V::set(weight);
      const In* v = at<In>(p.v, p.v_layout, b, j, h / group);
      for (int d = 0; d < vd; d += 8) out[d / 8] = V::fma(by, load8(v + d), out[d / 8]);
    }
    const F inverse = V::set(sum == 0 ? 0 : 1 / sum);
    In* to = at<In>(p.out, p.out_layout, b, i, h);
    for (int d = 0; d < vd; d += 8) store8(to + d, V::mul(out[d / 8], inverse));
    if (p.lse != nullptr)
      p.lse[(b * s.heads + h) * p.lse_head + i] = sum == 0 ? -std::numeric_limits<float>::infinity() : top + std::log(sum);
  });
}

}  // namespace

void forward_decode(const AttentionForward& p) { p.dtype == DType::f32 ? decode<float>(p) : decode<uint16_t>(p); }

}  // namespace halftone::attention
