#include "halftone/ops/activation_stats.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include <cmath>

#include "halftone/ops/weight.h"

namespace halftone {
namespace {

// Squared norms [T, H] of the heads of x[T, H * d], after the norm that attention applies to them, if any. RoPE keeps them.
at::Tensor head_squares(const at::Tensor& x, int64_t heads, const Weight* norm, double eps) {
  const at::Tensor wide = x.reshape({x.size(0), heads, -1}).to(at::kFloat);
  const at::Tensor squares = wide.square();
  if (norm == nullptr) return squares.sum(2);
  return (wide * norm->value.detach().to(at::kFloat)).square().sum(2) / (squares.mean(2) + eps);
}

}  // namespace

std::shared_ptr<ActivationStats>& activation_stats() {
  static std::shared_ptr<ActivationStats> current;
  return current;
}

void ActivationStats::add(bool logit, const std::string& layer, const at::Tensor& values) {
  for (Sums& s : all_) {
    if (s.logit != logit || s.layer != layer) continue;
    s.values = logit ? at::maximum(s.values, values) : s.values + values;
    return;
  }
  all_.push_back({logit, layer, values});
}

void ActivationStats::residual(const std::string& layer, const at::Tensor& x) {
  const at::NoGradGuard no_grad;
  const at::Tensor squares = at::linalg_vector_norm(x, 2, at::IntArrayRef{1}, false, at::kFloat).square();
  const at::Tensor rows = squares.ne(0).sum(at::kDouble) * static_cast<double>(x.size(1));
  add(false, layer, at::stack({squares.sum(at::kDouble), rows}));
}

// Squared norms q_h[T, H] and k_h[T, Hkv]; a query meets the keys of its row.
void ActivationStats::add_bound(const std::string& layer, const at::Tensor& q_h, const at::Tensor& k_h, const AttentionArgs& args) {
  if (q_h.numel() == 0) return;
  const int64_t heads = k_h.size(1);
  const auto largest = [&](const at::Tensor& x_th) { return x_th.view({args.batch, -1, heads, x_th.size(1) / heads}).amax(1); };
  const at::Tensor bound = (largest(q_h).to(at::kDouble) * largest(k_h).to(at::kDouble)).amax().sqrt() * std::abs(args.scale);
  add(true, layer, at::stack({bound, at::ones_like(bound)}));
}

void ActivationStats::attention(const std::string& layer, const at::Tensor& qkv, const AttentionArgs& a) {
  const at::NoGradGuard no_grad;
  const int64_t q = a.heads * a.head_dim, k = a.kv_heads * a.head_dim;
  add_bound(layer, head_squares(qkv.narrow(1, 0, q), a.heads, a.q_norm, a.norm_eps),
            head_squares(qkv.narrow(1, q, k), a.kv_heads, a.k_norm, a.norm_eps), a);
}

void ActivationStats::latent_attention(const std::string& layer, const at::Tensor& q, const at::Tensor& kv, const at::Tensor& k_rope,
                                       const AttentionArgs& a) {
  const at::NoGradGuard no_grad;
  const int64_t nope = a.head_dim - k_rope.size(1);
  const at::Tensor keys = kv.reshape({kv.size(0), a.heads, -1}).narrow(2, 0, nope).reshape({kv.size(0), -1});
  add_bound(layer, head_squares(q, a.heads, nullptr, 0), head_squares(keys, a.heads, nullptr, 0) + head_squares(k_rope, 1, nullptr, 0), a);
}

std::vector<ActivationStats::Figure> ActivationStats::read() const {
  std::vector<Figure> figures;
  if (all_.empty()) return figures;
  std::vector<at::Tensor> values;
  for (const Sums& s : all_) values.push_back(s.values);
  const at::Tensor host = at::stack(values).cpu();
  const auto* v = host.const_data_ptr<double>();
  for (const Sums& s : all_) {
    figures.push_back({s.logit, s.layer, s.logit ? v[0] : v[0] == 0 ? 0.0 : std::sqrt(v[0] / v[1])});
    v += 2;
  }
  return figures;
}

}  // namespace halftone
