#include "halftone/attention/causal_ref.h"

#include <cmath>
#include <limits>

namespace halftone::attention {
namespace {

double element(const void* base, DType dtype, const AttentionLayout& l, int64_t b, int64_t t, int64_t head, int64_t column) {
  const int64_t i = b * l.batch_stride + t * l.row + head * l.head + column;
  return dtype == DType::f32 ? static_cast<const float*>(base)[i] : to_float(static_cast<const bf16*>(base)[i]);
}

bool sees(const AttentionShape& s, const int32_t* doc_start, int64_t b, int64_t i, int64_t j) {
  const int64_t position = i + s.positions() - s.q_len;
  return j <= position && (s.window == 0 || j > position - s.window) &&
         (doc_start == nullptr || j >= doc_start[b * s.positions() + position]);
}

// Probabilities of query i (zero for invisible keys); returns the logarithm of their sum before normalisation.
template <class Problem>
double probabilities(const Problem& p, int64_t b, int64_t h, int64_t i, std::vector<double>& prob) {
  const AttentionShape& s = p.shape;
  const int64_t kv_head = h / (s.heads / s.kv_heads), hd = s.head_dim;
  prob.assign(static_cast<size_t>(s.kv_len), -std::numeric_limits<double>::infinity());
  double top = -std::numeric_limits<double>::infinity(), sum = 0;
  for (int64_t j = 0; j < s.kv_len; ++j) {
    if (!sees(s, p.doc_start, b, i, j)) continue;
    double dot = 0;
    for (int64_t d = 0; d < hd; ++d)
      dot += element(p.q, p.dtype, p.q_layout, b, i, h, d) * element(p.k, p.dtype, p.k_layout, b, j, kv_head, d);
    prob[j] = dot * p.scale;
    top = std::max(top, prob[j]);
  }
  for (double& x : prob) sum += x = std::isinf(x) ? 0 : std::exp(x - top);
  for (double& x : prob) x = sum > 0 ? x / sum : 0;
  return top + std::log(sum);
}

}  // namespace

ReferenceForward reference_forward(const AttentionForward& p) {
  const AttentionShape& s = p.shape;
  const int64_t vd = s.v_dim;
  ReferenceForward r;
  r.out.assign(static_cast<size_t>(s.batch * s.q_len * s.heads * vd), 0);
  r.lse.assign(static_cast<size_t>(s.batch * s.heads * s.q_len), 0);
  std::vector<double> prob;
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t h = 0; h < s.heads; ++h) {
      const int64_t kv_head = h / (s.heads / s.kv_heads);
      for (int64_t i = 0; i < s.q_len; ++i) {
        r.lse[(b * s.heads + h) * s.q_len + i] = probabilities(p, b, h, i, prob);
        double* out = &r.out[((b * s.q_len + i) * s.heads + h) * vd];
        for (int64_t j = 0; j < s.kv_len; ++j) {
          if (prob[j] == 0) continue;
          for (int64_t d = 0; d < vd; ++d) out[d] += prob[j] * element(p.v, p.dtype, p.v_layout, b, j, kv_head, d);
        }
      }
    }
  }
  return r;
}

ReferenceBackward reference_backward(const AttentionBackward& p) {
  const AttentionShape& s = p.shape;
  const int64_t hd = s.head_dim, vd = s.v_dim;
  ReferenceBackward r;
  r.dq.assign(static_cast<size_t>(s.batch * s.q_len * s.heads * hd), 0);
  r.dk.assign(static_cast<size_t>(s.batch * s.kv_len * s.kv_heads * hd), 0);
  r.dv.assign(static_cast<size_t>(s.batch * s.kv_len * s.kv_heads * vd), 0);
  std::vector<double> prob, d_prob(static_cast<size_t>(s.kv_len));
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t h = 0; h < s.heads; ++h) {
      const int64_t kv_head = h / (s.heads / s.kv_heads);
      for (int64_t i = 0; i < s.q_len; ++i) {
        probabilities(p, b, h, i, prob);
        const auto d_out = [&](int64_t d) { return element(p.d_out, p.dtype, p.d_out_layout, b, i, h, d); };
        double delta = 0;
        for (int64_t j = 0; j < s.kv_len; ++j) {
          d_prob[j] = 0;
          if (prob[j] == 0) continue;
          for (int64_t d = 0; d < vd; ++d) d_prob[j] += d_out(d) * element(p.v, p.dtype, p.v_layout, b, j, kv_head, d);
          delta += prob[j] * d_prob[j];
        }
        double* dq = &r.dq[((b * s.q_len + i) * s.heads + h) * hd];
        for (int64_t j = 0; j < s.kv_len; ++j) {
          if (prob[j] == 0) continue;
          const double d_score = prob[j] * (d_prob[j] - delta) * p.scale;
          const int64_t row = (b * s.kv_len + j) * s.kv_heads + kv_head;
          for (int64_t d = 0; d < hd; ++d) {
            dq[d] += d_score * element(p.k, p.dtype, p.k_layout, b, j, kv_head, d);
            r.dk[row * hd + d] += d_score * element(p.q, p.dtype, p.q_layout, b, i, h, d);
          }
          for (int64_t d = 0; d < vd; ++d) r.dv[row * vd + d] += prob[j] * d_out(d);
        }
      }
    }
  }
  return r;
}

}  // namespace halftone::attention
