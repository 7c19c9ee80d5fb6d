#include <ATen/ExpandUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <optional>
#include <tuple>

#include "halftone/train/dry_run.h"

// Functions on the meta device that LibTorch has in Python only: they allocate the results.
namespace halftone {
namespace {

using at::Tensor;
using Optional = std::optional<Tensor>;

Tensor like(const Tensor& t) { return at::empty(t.sizes(), t.options()); }
Tensor nothing(const Tensor& t) { return at::empty({0}, t.options()); }

Tensor index_select(const Tensor& x, int64_t dim, const Tensor& index) {
  std::vector<int64_t> shape = x.sizes().vec();
  shape[static_cast<size_t>(dim)] = index.numel();
  return at::empty(shape, x.options());
}

Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b) {
  return at::empty(at::infer_size(at::infer_size(condition.sizes(), a.sizes()), b.sizes()), a.dim() > 0 ? a.options() : b.options());
}

Tensor floor_divide(const Tensor& a, const Tensor& b) { return at::empty(at::infer_size(a.sizes(), b.sizes()), a.options()); }

Tensor searchsorted(const Tensor&, const Tensor& values, bool out_int32, bool, std::optional<c10::string_view>, const Optional&) {
  return at::empty(values.sizes(), values.options().dtype(out_int32 ? at::kInt : at::kLong));
}

Tensor& unary_out(const Tensor& x, Tensor& out) {
  if (out.sizes() != x.sizes()) out.resize_(x.sizes());
  return out;
}
Tensor& binary_out(const Tensor& a, const Tensor& b, Tensor& out) {
  const std::vector<int64_t> shape = at::infer_size(a.sizes(), b.sizes());
  if (out.sizes() != shape) out.resize_(shape);
  return out;
}

Tensor repeat_interleave(const Tensor& repeats, std::optional<c10::SymInt> size) {
  return at::empty({size->expect_int()}, repeats.options());
}

Tensor abs(const Tensor& x) { return like(x); }

Tensor max(const Tensor& x) { return at::empty({}, x.options()); }

// q, k, v [B, heads, S, d]; the output lies as q does: tokens before heads.
using CudnnForward = std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor>;
CudnnForward cudnn_forward(const Tensor& q, const Tensor& k, const Tensor& v, const Optional&, bool, double, bool causal, bool,
                           std::optional<double>) {
  note_attention(q.size(0), q.size(1), q.size(2), k.size(2), q.size(3), v.size(3), 0, causal, true, true);
  const Tensor out = at::empty({q.size(0), q.size(2), q.size(1), v.size(3)}, q.options()).transpose(1, 2);
  const Tensor lse = at::empty({q.size(0), q.size(1), q.size(2), 1}, q.options().dtype(at::kFloat)), seed = nothing(q);
  return {out, lse, Tensor(), Tensor(), q.size(2), k.size(2), seed, seed, seed};
}

std::tuple<Tensor, Tensor, Tensor> cudnn_backward(const Tensor&, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor&,
                                                  const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                                  c10::SymInt, c10::SymInt, double, bool causal, std::optional<double>) {
  note_attention(q.size(0), q.size(1), q.size(2), k.size(2), q.size(3), v.size(3), 0, causal, false, true);
  const auto turned = [](const Tensor& t) { return like(t.transpose(1, 2)).transpose(1, 2); };
  return {turned(q), turned(k), turned(v)};
}

int64_t window(const std::optional<c10::SymInt>& left) { return left ? left->expect_int() + 1 : 0; }

// q, k, v [B, S, heads, d], or [T, heads, d] with offsets.
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> flash_forward(const Tensor& q, const Tensor& k, const Tensor& v, const Optional& offsets,
                                                                 const Optional&, c10::SymInt, c10::SymInt, double, bool causal, bool,
                                                                 std::optional<double>, std::optional<c10::SymInt> left,
                                                                 std::optional<c10::SymInt>, const Optional&, const Optional&) {
  const int64_t heads = q.size(-2);
  note_attention(q.dim() == 4 ? q.size(0) : 1, heads, q.size(-3), k.size(-3), q.size(-1), v.size(-1), window(left), causal, true, false);
  const Tensor lse = offsets ? at::empty({heads, q.size(0)}, q.options().dtype(at::kFloat))
                             : at::empty({q.size(0), heads, q.size(1)}, q.options().dtype(at::kFloat));
  return {like(q), lse, nothing(q), nothing(q), nothing(q)};
}

std::tuple<Tensor, Tensor, Tensor> flash_backward(const Tensor&, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor&,
                                                  const Tensor&, const Tensor&, const Tensor&, c10::SymInt, c10::SymInt, double,
                                                  bool causal, const Tensor&, const Tensor&, std::optional<double>,
                                                  std::optional<c10::SymInt> left, std::optional<c10::SymInt>) {
  note_attention(q.dim() == 4 ? q.size(0) : 1, q.size(-2), q.size(-3), k.size(-3), q.size(-1), v.size(-1), window(left), causal, false,
                 false);
  return {like(q), like(k), like(v)};
}

}  // namespace

void add_meta_functions() {
  static torch::Library m(torch::Library::IMPL, "aten", c10::DispatchKey::Meta, __FILE__, __LINE__);
  static const bool added = [] {
    m.impl("index_select", &index_select);
    m.impl("where.self", &where);
    m.impl("floor_divide", &floor_divide);
    m.impl("searchsorted.Tensor", &searchsorted);
    m.impl("max", &max);
    m.impl("repeat_interleave.Tensor", &repeat_interleave);
    m.impl("abs", &abs);
    m.impl("abs.out", &unary_out);
    m.impl("logical_not.out", &unary_out);
    m.impl("logical_or.out", &binary_out);
    m.impl("logical_and.out", &binary_out);
    m.impl("_scaled_dot_product_cudnn_attention", &cudnn_forward);
    m.impl("_scaled_dot_product_cudnn_attention_backward", &cudnn_backward);
    m.impl("_flash_attention_forward", &flash_forward);
    m.impl("_flash_attention_backward", &flash_backward);
    return true;
  }();
  static_cast<void>(added);
}

}  // namespace halftone
