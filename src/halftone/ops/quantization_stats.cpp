#include "halftone/ops/quantization_stats.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "halftone/ops/dge.h"
#include "halftone/ops/operand.h"
#include "halftone/ops/rounding_keys.h"
#include "halftone/ops/stored_weight.h"

namespace halftone {
namespace {

// The values of a weight that an unquantised GEMM would read; a stored weight has only those of its codes.
at::Tensor original(const Weight& w) {
  if (w.master.defined()) return w.master.to(at::kBFloat16);
  return w.stored ? dequantize(*w.stored) : w.value.detach();
}

// A . B in fp32. CPUs have no GEMM with bf16 operands and an fp32 result.
at::Tensor product(const at::Tensor& a, const at::Tensor& b) {
  const bool narrow = a.scalar_type() == at::kBFloat16 && b.scalar_type() == at::kBFloat16;
  return narrow && !a.is_cpu() ? at::mm(a, b, at::kFloat) : at::mm(a.to(at::kFloat), b.to(at::kFloat));
}
// The operand that all row ranges of a GEMM share, converted once where `product` would convert it each time.
at::Tensor shared_operand(const at::Tensor& x) { return x.is_cpu() ? x.to(at::kFloat) : x; }

std::string layer_name(const std::string& weight) {
  constexpr std::string_view kSuffix = ".weight";
  return weight.ends_with(kSuffix) ? weight.substr(0, weight.size() - kSuffix.size()) : weight;
}

}  // namespace

struct QuantizationStats::Site {
  FusedLinears& fused;
  LinearPlan plan;  // its specs and roles, which do not depend on the use
  at::Tensor x;
  StepContext context;
  int64_t first_row;   // of x in the step's batch
  at::Tensor padding;  // bool [T] or undefined

  const LinearRecipe& recipe() const { return fused.recipe; }
  const std::string& name() const { return fused.weights.front()->name; }

  // Quantises a matrix as the step does: the same formulas, draws and signs (numerics.md section 4).
  Operand quantized(const at::Tensor& m, const OperandPlan& p, const std::string& weight, int64_t row) const {
    CopyRequest request;
    request.spec = p.copy.spec, request.codes = true;
    request.rounding = operand_rounding(request.spec, weight, p.role, context, row);
    request.signs = rotation_signs(request.spec, name(), p.sign_role(), context);
    const OperandCopies copies = quantize(m, p.columns ? nullptr : &request, p.columns ? &request : nullptr);
    return p.columns ? copies.transposed : copies.row;
  }

  CodedMatrix coded(const at::Tensor& m, const OperandPlan& p, const std::string& weight, int64_t row) const {
    CodedMatrix q;
    q.spec = p.copy.spec;
    q.signs = rotation_signs(q.spec, name(), p.sign_role(), context);
    const Operand o = quantized(m, p, weight, row);
    q.codes = o.codes, q.numbers = dequantize(o);
    return q;
  }

  ErrorSums operand(const at::Tensor& m, const OperandPlan& p, const std::string& weight, int64_t row) const {
    if (!p.copy.spec.quantized() || p.copy.spec.stored) return plain_sums(m);
    return coded_sums(p.columns ? m.t() : m, coded(m, p, weight, row));
  }

  // For sums over a matrix with one row per token: excludes the padding rows.
  ErrorSums of_tokens(ErrorSums s) const {
    if (padding.defined()) s.values.select(0, ErrorSums::kPadding).add_(padding.to(at::kDouble).mean() * static_cast<double>(s.elements));
    return s;
  }

  ErrorSums x_of_wgrad(at::ScalarType dy_type) const {
    if (!recipe().x_wgrad.quantized() || !wgrad_reads_forward_codes(recipe()))
      return of_tokens(operand(x, plan.wgrad.right, name(), first_row));
    CodedMatrix q = coded(x, plan.forward.left, name(), first_row);
    q.numbers = q.numbers.to(dy_type);
    return of_tokens(coded_sums(x, q));
  }

  // Slopes that a weight's gradient is multiplied by, or undefined.
  at::Tensor slopes(const Weight& w) const {
    if (!recipe().dge) return {};
    return dge_slopes(w.value.detach(), quantized(w.value.detach(), plan.forward.right, w.name, 0));
  }
};

std::shared_ptr<QuantizationStats>& quantization_stats() {
  static std::shared_ptr<QuantizationStats> current;
  return current;
}

QuantizationStats::Layer& QuantizationStats::layer(const Weight& w) {
  const std::string name = layer_name(w.name);
  for (const auto& l : layers_) {
    if (l->name == name) return *l;
  }
  layers_.push_back(std::make_unique<Layer>());
  layers_.back()->name = name, layers_.back()->call = calls_;
  return *layers_.back();
}

void QuantizationStats::add(const FusedLinears& fused, Slot slot, const ErrorSums& sums) {
  for (const Weight* w : fused.weights) layer(*w).sums[slot].add(sums);
}

LinearCall QuantizationStats::watch(const at::Tensor& x, FusedLinears& fused, const LinearOptions& options, LinearCall call) {
  ++calls_;
  for (const Weight* w : fused.weights) layer(*w);  // a recomputed block runs in reverse order: its first pass defines the order
  if (!options.keep || x.size(0) == 0) return call;
  const at::NoGradGuard no_grad;
  const StepContext context = options.step;
  const Site site{fused,   plan_linear(fused.recipe, {}),         x,
                  context, context.first_row + options.first_row, pads_ ? x.ne(0).any(1).logical_not() : at::Tensor()};
  forward(site, call.y);
  const auto seen = std::make_shared<std::pair<at::Tensor, at::Tensor>>();  // dY and dX, held until wgrad
  call.dgrad = [seen, dgrad = std::move(call.dgrad)](const Activation& dy, bool want_dx) {
    *seen = {dy.value, dgrad(dy, want_dx)};
    return seen->second;
  };
  call.wgrad = [self = shared_from_this(), site, seen, wgrad = std::move(call.wgrad)] {
    std::vector<at::Tensor> dw;  // gradients before the call, then the call's contribution
    for (Weight* w : site.fused.weights) {
      dw.push_back(!w->trainable() ? at::Tensor() : self->products_ ? w->grad_to_add().clone() : w->value.detach());
    }
    wgrad();
    for (size_t i = 0; i < dw.size() && self->products_; ++i) {
      if (dw[i].defined()) dw[i] = site.fused.weights[i]->grad - dw[i];
    }
    const auto [dy, dx] = std::exchange(*seen, {});
    self->backward(site, dy, dx, dw);
  };
  return call;
}

void QuantizationStats::forward(const Site& site, const at::Tensor& y) {
  const LinearRecipe& r = site.recipe();
  add(site.fused, kXForward, site.of_tokens(site.operand(site.x, site.plan.forward.left, site.name(), site.first_row)));
  int64_t n0 = 0;
  for (size_t i = 0; i < site.fused.weights.size(); ++i) {
    const Weight& w = *site.fused.weights[i];
    const at::Tensor value = original(w);
    Layer& l = layer(w);
    // Weights are quantised once per step, so they are counted once.
    if (l.sums[kWForward].elements == 0) l.sums[kWForward].add(site.operand(value, site.plan.forward.right, w.name, 0));
    const int64_t n = value.size(0);
    if (products_ && (r.x_forward.quantized() || r.w_forward.quantized())) {
      const at::Tensor w_kn = shared_operand(value).t();
      const Weight* bias = site.fused.biases.empty() ? nullptr : site.fused.biases[i];
      const auto reference = [&](int64_t first, int64_t rows) {
        const at::Tensor part = product(site.x.narrow(0, first, rows), w_kn);
        return bias == nullptr ? part : part + bias->value.detach();
      };
      l.sums[kY].add(product_sums(y.narrow(1, n0, n), reference, site.padding));
    }
    n0 += n;
  }
}

void QuantizationStats::backward(const Site& site, const at::Tensor& dy, const at::Tensor& dx, const std::vector<at::Tensor>& dw) {
  const LinearRecipe& r = site.recipe();
  const bool any_dw = std::any_of(dw.begin(), dw.end(), [](const at::Tensor& t) { return t.defined(); });
  const bool quantized_dw = products_ && (r.dy_wgrad.quantized() || r.x_wgrad.quantized());
  const at::Tensor x = any_dw && quantized_dw ? shared_operand(site.x) : at::Tensor();
  if (any_dw) add(site.fused, kXWgrad, site.x_of_wgrad(dy.scalar_type()));
  std::vector<at::Tensor> parts, weights;
  int64_t n0 = 0;
  for (size_t i = 0; i < dw.size(); ++i) {
    const Weight& w = *site.fused.weights[i];
    const int64_t n = w.value.size(0);
    const at::Tensor part = dy.narrow(1, n0, n);
    n0 += n;
    Layer& l = layer(w);
    if (dx.defined()) {
      parts.push_back(part), weights.push_back(original(w));
      if (l.sums[kWDgrad].elements == 0) l.sums[kWDgrad].add(site.operand(weights.back(), site.plan.dgrad.right, w.name, 0));
      l.sums[kDyDgrad].add(site.of_tokens(site.operand(part, site.plan.dgrad.left, w.name, site.first_row)));
    }
    if (!dw[i].defined()) continue;
    l.sums[kDyWgrad].add(site.of_tokens(site.operand(part, site.plan.wgrad.left, w.name, site.first_row)));
    if (!quantized_dw) continue;
    const at::Tensor slopes = site.slopes(w);
    l.sums[kDw].add(product_sums(dw[i], [&](int64_t first, int64_t rows) {
      const at::Tensor reference = product(part.narrow(1, first, rows).t(), x);
      return slopes.defined() ? reference * slopes.narrow(0, first, rows) : reference;
    }));
  }
  if (!products_ || !dx.defined() || !(r.dy_dgrad.quantized() || r.w_dgrad.quantized())) return;
  for (at::Tensor& w : weights) w = shared_operand(w);
  add(site.fused, kDx, product_sums(dx, [&](int64_t first, int64_t rows) {
        at::Tensor sum;
        for (size_t i = 0; i < parts.size(); ++i) {
          const at::Tensor part = product(parts[i].narrow(0, first, rows), weights[i]);
          sum = sum.defined() ? sum.add_(part) : part;
        }
        return sum;
      }));
}

std::vector<QuantizationFigures> QuantizationStats::read() const {
  std::vector<at::Tensor> all;
  for (const auto& l : layers_) {
    for (const ErrorSums& s : l->sums) {
      if (s.elements > 0) all.push_back(s.values);
    }
  }
  std::vector<QuantizationFigures> result;
  if (all.empty()) return result;
  const at::Tensor host = at::stack(all).cpu();
  const auto* v = host.const_data_ptr<double>();
  for (const auto& l : layers_) {
    for (size_t slot = 0; slot < l->sums.size(); ++slot) {
      const ErrorSums& s = l->sums[slot];
      if (s.elements == 0) continue;
      QuantizationFigures f{l->name, kWatched[slot], v[ErrorSums::kAmax], v[ErrorSums::kNonFinite], {}, {}, {}, l->call};
      const double elements = std::max(static_cast<double>(s.elements) - v[ErrorSums::kPadding], 1.0);
      if (s.has_shares) f.saturated = v[ErrorSums::kSaturated] / elements, f.flushed = v[ErrorSums::kFlushed] / elements;
      if (s.has_noise) f.sqnr = v[ErrorSums::kNoise] == 0 ? INFINITY : 10 * std::log10(v[ErrorSums::kSignal] / v[ErrorSums::kNoise]);
      result.push_back(f);
      v += ErrorSums::kCount;
    }
  }
  return result;
}

}  // namespace halftone
