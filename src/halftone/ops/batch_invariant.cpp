#include "halftone/ops/batch_invariant.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/sigmoid.h>

#include <atomic>
#include <cmath>

#include "halftone/ops/autograd_node.h"

namespace halftone {
namespace {

std::atomic<bool> invariant = false;

// f of every element, one by one, on the CPU; elsewhere LibTorch's kernel, which computes each element alike.
template <class F>
at::Tensor one_by_one(const at::Tensor& x, F&& f) {
  const at::Tensor in = x.contiguous();
  at::Tensor out = at::empty_like(in);
  const float* from = in.const_data_ptr<float>();
  float* to = out.mutable_data_ptr<float>();
  for (int64_t i = 0; i < in.numel(); ++i) to[i] = f(from[i], i);
  return out;
}

}  // namespace

bool batch_invariant() { return invariant; }
void set_batch_invariant(bool on) { invariant = on; }

std::string_view depends_on_batch(const OperandSpec& x) {
  if (x.stochastic || x.eden) return "draws random numbers by a row's place in the batch";
  if (x.granularity == Granularity::tensor || x.two_level == TwoLevel::tensor) return "has one scale for all rows";
  return x.granularity == Granularity::tile ? "has scales of several rows" : "";
}

at::Tensor even_sigmoid(const at::Tensor& x) {
  if (!x.is_cpu()) return at::sigmoid(x);
  at::Tensor y = one_by_one(x.detach(), [](float v, int64_t) { return 1 / (1 + std::exp(-v)); });
  if (records(x)) {
    connect("sigmoid", {x}, {&y}, [saved = y.detach()](const variable_list& g) -> variable_list { return {g[0] * saved * (1 - saved)}; });
  }
  return y;
}

at::Tensor even_exp(const at::Tensor& x) {
  return x.is_cpu() ? one_by_one(x, [](float v, int64_t) { return std::exp(v); }) : at::exp(x);
}

at::Tensor even_logaddexp(const at::Tensor& x, const at::Tensor& y) {
  if (!x.is_cpu()) return at::logaddexp(x, y);
  const at::Tensor other = y.expand_as(x).contiguous();
  const float* b = other.const_data_ptr<float>();
  return one_by_one(x, [b](float v, int64_t i) {
    const float top = std::max(v, b[i]);
    return std::isinf(top) ? top : top + std::log1p(std::exp(-std::abs(v - b[i])));
  });
}

at::Tensor even_sum(const at::Tensor& x) {
  at::Tensor sum = x.select(-1, 0);
  for (int64_t i = 1; i < x.size(-1); ++i) sum = sum + x.select(-1, i);
  return sum.unsqueeze(-1);
}

}  // namespace halftone
