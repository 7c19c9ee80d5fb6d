#include "halftone/nn/deoscillation.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include "halftone/base/log.h"
#include "halftone/ops/operand.h"

namespace halftone::nn {
namespace {

at::Tensor on_grid(const at::Tensor& w, const OperandSpec& spec, const at::Tensor& amax = {}) {
  if (w.numel() == 0) return w.to(at::kFloat);
  CopyRequest request;
  request.spec = spec, request.codes = true;
  return dequantize(quantize(w, &request, nullptr, amax).row);
}

// [E, N, K]; all experts at once if no scale spans two of them.
at::Tensor of_experts(const at::Tensor& w, const OperandSpec& spec) {
  LinearRecipe recipe;
  recipe.w_forward = spec;
  if (spec.two_level != TwoLevel::tensor && spec.granularity != Granularity::tensor && w.size(1) % recipe.weight_rows() == 0)
    return on_grid(w.view({-1, w.size(2)}), spec).view_as(w);
  at::Tensor result = at::empty(w.sizes(), w.options().dtype(at::kFloat));
  for (int64_t e = 0; e < w.size(0); ++e) result.select(0, e).copy_(on_grid(w.select(0, e), spec));
  return result;
}

}  // namespace

Deoscillator::Deoscillator(Module& model) {
  model.for_each_module([&](Module& m) {
    auto* layer = dynamic_cast<QuantizableLayer*>(&m);
    if (layer == nullptr || layer->deoscillation().step == 0) return;
    for (Parameter* w : layer->weights()) {
      if (w->weight.value.defined()) layers_.push_back({w, layer->recipe().w_forward, layer->deoscillation(), {}, {}, {}});
    }
  });
}

at::Tensor Deoscillator::quantized(const Layer& layer, const at::Tensor& w) const {
  const at::Tensor read = w.to(layer.weight->weight.value.scalar_type());
  if (read.dim() == 3) return of_experts(read, layer.read_as);
  at::Tensor amax;
  if (largest_) {
    amax = (read.numel() > 0 ? read.abs().amax() : at::zeros({}, read.options())).to(at::kFloat).view({1});
    largest_(amax);
  }
  return on_grid(read, layer.read_as, amax.defined() ? amax.view(at::kInt) : amax);
}

void Deoscillator::start(Layer& layer) {
  layer.w_prev = layer.weight->master.detach().clone();
  layer.dist_w = at::zeros_like(layer.w_prev), layer.dist_q = at::zeros_like(layer.w_prev);
}

void Deoscillator::prepare(int64_t step) {
  for (Layer& layer : layers_) {
    if (step >= layer.options.step) {
      start(layer);
    } else {  // a run that was rolled back to before its window
      layer.w_prev = layer.dist_w = layer.dist_q = at::Tensor();
    }
  }
}

std::vector<std::pair<std::string, at::Tensor>> Deoscillator::state(const Parameter& parameter) const {
  for (const Layer& layer : layers_) {
    if (layer.weight != &parameter || !layer.w_prev.defined()) continue;
    return {{"deosc_w_prev", layer.w_prev}, {"deosc_dist_w", layer.dist_w}, {"deosc_dist_q", layer.dist_q}};
  }
  return {};
}

bool Deoscillator::step(int64_t step) {
  at::NoGradGuard no_grad;
  bool changed = false;
  int64_t triggered = 0, elements = 0, resets = 0;
  bool report = false;
  for (Layer& layer : layers_) {
    const Deoscillation& o = layer.options;
    if (step < o.step) continue;
    if (!layer.w_prev.defined()) {
      start(layer);
      continue;
    }
    const at::Tensor w = layer.weight->master.detach();
    layer.dist_w.add_((w - layer.w_prev).abs_());
    layer.dist_q.add_((quantized(layer, w) - quantized(layer, layer.w_prev)).abs_());
    layer.w_prev.copy_(w);
    const int64_t since = step - o.step;
    if (since == 0 || since % o.period != 0) continue;
    const int64_t n = reset(layer);
    changed = changed || n > 0;
    if (o.log_freq > 0 && since / o.period % o.log_freq == 0) {
      report = true;
      triggered += n > 0 ? 1 : 0, resets += n, elements += w.numel();
    }
  }
  if (report) {
    log_info("De-oscillation at step {}: {} weights, {:.4f}% of their elements snapped to the grid", step, triggered,
             elements > 0 ? 100.0 * static_cast<double>(resets) / static_cast<double>(elements) : 0.0);
  }
  return changed;
}

int64_t Deoscillator::reset(Layer& layer) const {
  const at::Tensor& w = layer.weight->master;
  const at::Tensor travelled = layer.dist_w.to(at::kFloat);
  const at::Tensor swings =
      travelled.gt(0).logical_and_(layer.dist_q.to(at::kFloat).div(travelled.clamp_min(1e-30)).ge(layer.options.ratio));
  const auto n = swings.sum().item<int64_t>();
  if (n > 0 || largest_) w.copy_(at::where(swings, quantized(layer, w).to(w.scalar_type()), w));  // other ranks may have some
  layer.w_prev.copy_(w);
  layer.dist_w.zero_(), layer.dist_q.zero_();
  return n;
}

}  // namespace halftone::nn
