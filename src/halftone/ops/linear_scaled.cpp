#include "halftone/ops/linear_scaled.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "halftone/base/error.h"
#include "halftone/ops/common.h"
#include "halftone/ops/cuda_module.h"
#include "halftone/ops/dge.h"
#include "halftone/ops/draws.h"
#include "halftone/ops/product.h"
#include "halftone/ops/stored_weight.h"

namespace halftone::scaled {
namespace {

struct Prepared final : PreparedWeights {
  at::ScalarType x_type{};  // dtype of X that they were made for
  uint64_t capture = 0;     // graph capture in which they were made: the replays' own
  std::vector<Operand> forward, dgrad;
  std::vector<at::Tensor> dge;  // slopes, see ops/dge.h
  at::Tensor bias;              // fp32 [sum N]
};

// dtype in which unquantised operands of a product meet: the wider of the two.
at::ScalarType hp_type(const OperandSpec& a, at::ScalarType a_type, const OperandSpec& b, at::ScalarType b_type) {
  if (a.quantized()) return b_type;
  return b.quantized() ? a_type : c10::promoteTypes(a_type, b_type);
}

class Call {
 public:
  Call(LinearGroup& group, const at::Tensor& x, const LinearOptions& options)
      : group_(group),
        r_(group.recipe),
        x_type_(x.scalar_type()),
        device_(x.device().type()),
        context_(options.step),
        capture_(cuda::current_capture(x.device())),
        first_row_(context_.first_row + options.first_row),
        x_again_(options.x_again) {
    check(!x_again_ || group.weights.size() == 1, "{}: X is made again for one weight, found {}", name(), group.weights.size());
  }

  at::Tensor forward(const Activation& input, bool keep, at::ScalarType out, bool product_wanted) {
    const at::Tensor& x = input.value;
    tokens_ = x.size(0);
    const int64_t n = group_.out_features();
    const bool trainable = std::any_of(group_.weights.begin(), group_.weights.end(), [](const Weight* w) { return w->trainable(); });
    at::Tensor y = at::empty({product_wanted ? tokens_ : 0, n}, x.options().dtype(out));
    if (tokens_ == 0) return y;
    Prepared& p = prepared(keep);
    Operand rows = quantize_input(input, keep && trainable);
    if (!product_wanted) return y;
    int64_t n0 = 0;
    for (const Operand& w : p.forward) {
      ProductOptions options = product(0);
      if (p.bias.defined()) options.bias = p.bias.narrow(0, n0, w.rows);
      multiply(rows, w, y.narrow(1, n0, w.rows), options);
      n0 += w.rows;
    }
    return y;
  }

  at::Tensor backward(const Activation& gradient, bool want_dx) {
    const at::Tensor& dy = gradient.value;
    at::Tensor dx;
    if (want_dx) dx = at::empty({dy.size(0), group_.in_features()}, dy.options());
    if (tokens_ == 0) return dx;
    Prepared& p = prepared(true);
    Operand x = wgrad_input(dy.scalar_type());
    int64_t n0 = 0;
    for (size_t i = 0; i < group_.weights.size(); ++i) {
      Weight& w = *group_.weights[i];
      const int64_t n = w.value.size(0);
      const at::Tensor part = dy.narrow(1, n0, n);
      n0 += n;
      const at::Tensor amax = gradient.amax.defined() ? gradient.amax.narrow(0, static_cast<int64_t>(i), 1) : at::Tensor();
      const auto [rows, columns] = quantize_gradient({part, amax}, w, want_dx);
      if (want_dx) {
        ProductOptions options = product(1);
        options.accumulate = i > 0;
        multiply(rows.defined() ? rows : plain_operand(dgrad_input(part, w), false), p.dgrad[i], dx, options);
      }
      if (w.trainable()) {
        // One weight's product may read X as it is; several share the form made for the first.
        if (group_.weights.size() > 1)
          prepare_right(x, r_.dy_wgrad, hp_type(r_.dy_wgrad, dy.scalar_type(), r_.x_wgrad, x_type_), r_.emulate);
        if (!x.defined()) x = plain_operand(x_again_(std::exchange(dx, at::Tensor())), true);
        add_weight_gradient(columns.defined() ? columns : plain_operand(part, true), x, p, i);
      }
      Weight* bias = group_.biases.empty() ? nullptr : group_.biases[i];
      if (bias != nullptr && bias->trainable()) bias->grad.add_(part.sum(0, false, at::kFloat));
    }
    return dx;
  }

 private:
  ProductOptions product(int which) const {
    ProductOptions o;
    o.fast_accum = r_.fast_accum[which], o.emulate = r_.emulate;
    return o;
  }
  const std::string& name() const { return group_.weights.front()->name; }
  // Where the replays of the graph that is being captured find the step; null outside of a capture, where the launch carries it.
  const uint32_t* replayed_step() const {
    if (capture_ == 0) return nullptr;
    check(context_.device_step != nullptr,
          "{}: expected StepContext::device_step in a graph capture of {}, whose replays would repeat the draws of one step; found none",
          name(), r_.name);
    return context_.device_step;
  }
  CopyRequest request(const OperandSpec& spec, const OperandSpec& other, at::ScalarType hp, bool kept, const std::string& name,
                      const char* role, int64_t first_row) const {
    CopyRequest c = product_request(spec, other, hp, device_, kept, r_.emulate);
    c.rounding = operand_rounding(spec, name, role, context_, first_row);
    if (spec.stochastic) c.rounding.device_step = replayed_step();
    return c;
  }
  // Copies of activations that contract tokens: rotated ones share their signs, 4-bit ones cannot be packed when odd.
  CopyRequest token_request(const OperandSpec& spec, const OperandSpec& other, at::ScalarType hp, bool kept, const std::string& name,
                            const char* role) const {
    CopyRequest c = request(spec, other, hp, kept, name, role, first_row_);
    c.signs = rotation_signs(spec, this->name(), context_);
    if (rotates_by_step(spec)) c.signs_step = replayed_step(), c.signs_key = rotation_key(this->name(), context_);
    if (c.packed && tokens_ % 2 != 0 && spec.hadamard == 0) c.packed = false, c.codes = true;
    return c;
  }

  // X as the forward product reads it; keeps what backward will need.
  Operand quantize_input(const Activation& input, bool keep) {
    const at::Tensor& x = input.value;
    const at::ScalarType w_type = group_.weights.front()->value.scalar_type();
    CopyRequest row, columns;
    if (r_.x_forward.quantized()) {
      row = request(r_.x_forward, r_.w_forward, hp_type(r_.x_forward, x_type_, r_.w_forward, w_type), false, name(), "x.fwd", first_row_);
    }
    const bool transposed = keep && r_.x_wgrad.quantized() && !wgrad_reads_forward_codes(r_);
    if (transposed) {
      columns = token_request(r_.x_wgrad, r_.dy_wgrad, x_type_, true, name(), x_wgrad_role(r_));
    }
    OperandCopies copies;
    if (row.spec.quantized() || transposed)
      copies = quantize(x, row.spec.quantized() ? &row : nullptr, transposed ? &columns : nullptr, input.amax);
    if (keep && transposed) {
      x_ = copies.transposed;
    } else if (keep && wgrad_reads_forward_codes(r_)) {
      x_ = copies.row;
    } else if (keep && !x_again_) {
      x_ = plain_operand(x, true);
    }
    return row.spec.quantized() ? copies.row : plain_operand(x, false);
  }

  Operand wgrad_input(at::ScalarType dy_type) const {
    if (!x_.defined() || !wgrad_reads_forward_codes(r_)) return x_;
    return plain_operand(dequantize(x_).to(dy_type), true);
  }

  // dY of a weight as dgrad reads it: stored int8 weights have a scale per contracted index, which belongs to dY.
  at::Tensor dgrad_input(const at::Tensor& dy, const Weight& w) const {
    if (!r_.w_dgrad.stored || r_.w_dgrad.granularity != Granularity::row) return dy;
    return (dy.to(at::kFloat) * w.stored->scales).to(dy.scalar_type());
  }

  OperandCopies quantize_gradient(const Activation& gradient, const Weight& w, bool want_dx) const {
    const at::Tensor& dy = gradient.value;
    const bool row = want_dx && r_.dy_dgrad.quantized(), columns = w.trainable() && r_.dy_wgrad.quantized();
    if (!row && !columns) return {};
    const at::ScalarType type = dy.scalar_type();
    CopyRequest a, b;
    if (row) {
      a = request(r_.dy_dgrad, r_.w_dgrad, hp_type(r_.dy_dgrad, type, r_.w_dgrad, w.value.scalar_type()), false, w.name, "dy.dgrad",
                  first_row_);
    }
    if (columns) {
      b = token_request(r_.dy_wgrad, r_.x_wgrad, hp_type(r_.dy_wgrad, type, r_.x_wgrad, x_type_), false, w.name, dy_wgrad_role(r_));
    }
    return quantize(dy, row ? &a : nullptr, columns ? &b : nullptr, gradient.amax);
  }

  void add_weight_gradient(const Operand& dy, const Operand& x, Prepared& p, size_t i) {
    Weight& w = *group_.weights[i];
    ProductOptions options = product(2);
    if (!r_.dge) {
      options.accumulate = true, options.over_zeros = std::exchange(w.grad_is_zero, false);
      return multiply(dy, x, w.grad, options);
    }
    const at::Tensor dw = at::empty(w.grad.sizes(), w.grad.options());
    multiply(dy, x, dw, options);
    w.grad.addcmul_(dw, p.dge[i]);
  }

  // The weights' operands, made once; with `both` those of dgrad, too, from the same read unless a pass without gradients (a block
  // that is recomputed) came first.
  Prepared& prepared(bool both) {
    const WeightState state = group_.weight_state(context_);
    auto* p = dynamic_cast<Prepared*>(group_.prepared.get());
    const bool forward = p == nullptr || p->made_of != state || p->x_type != x_type_ || p->capture != capture_;
    const bool dgrad = both && (forward || p->dgrad.empty());
    if (!forward && !dgrad) return *p;
    std::shared_ptr<Prepared> made;
    if (forward) {
      group_.prepared.reset();  // frees the old copies first
      made = std::make_shared<Prepared>();
      made->made_of = state, made->x_type = x_type_, made->capture = capture_;
      if (group_.has_bias()) made->bias = joined_bias();
    } else {
      made = std::make_shared<Prepared>(*p);
    }
    for (const Weight* w : group_.weights) prepare(*w, *made, forward, dgrad);
    group_.prepared = made;
    return *made;
  }

  void prepare(const Weight& w, Prepared& p, bool forward, bool dgrad) const {
    const at::Tensor value = w.value.detach();
    const at::ScalarType type = value.scalar_type();
    const at::ScalarType hp_f = hp_type(r_.x_forward, x_type_, r_.w_forward, type), hp_d = hp_type(r_.dy_dgrad, x_type_, r_.w_dgrad, type);
    CopyRequest f, d;
    const bool quantize_f = forward && r_.w_forward.quantized() && !r_.w_forward.stored;
    const bool quantize_d = dgrad && r_.w_dgrad.quantized() && !r_.w_dgrad.stored;
    if (quantize_f) f = request(r_.w_forward, r_.x_forward, hp_f, false, w.name, "w.fwd", 0), f.block_scales = r_.dge;
    if (quantize_d) d = request(r_.w_dgrad, r_.dy_dgrad, hp_d, false, w.name, w_dgrad_role(r_), 0);
    OperandCopies copies;
    if (quantize_f || quantize_d) copies = quantize(value, quantize_f ? &f : nullptr, quantize_d ? &d : nullptr);
    if (forward) {
      p.forward.push_back(quantize_f ? copies.row : r_.w_forward.stored ? stored_operand(*w.stored) : plain_operand(value, false));
      if (r_.dge) p.dge.push_back(dge_slopes(value, p.forward.back()));
      prepare_right(p.forward.back(), r_.x_forward, hp_f, r_.emulate);
    }
    if (!dgrad) return;
    p.dgrad.push_back(quantize_d ? copies.transposed : r_.w_dgrad.stored ? stored_transposed(*w.stored, hp_d) : plain_operand(value, true));
    prepare_right(p.dgrad.back(), r_.dy_dgrad, hp_d, r_.emulate);
  }

  at::Tensor joined_bias() const {
    std::vector<at::Tensor> parts;
    for (size_t i = 0; i < group_.weights.size(); ++i) {
      const Weight& w = *group_.weights[i];
      const Weight* b = group_.biases[i];
      parts.push_back(b != nullptr ? b->value.detach().to(at::kFloat) : at::zeros({w.value.size(0)}, w.value.options().dtype(at::kFloat)));
    }
    return at::cat(parts);
  }

  LinearGroup& group_;
  const LinearRecipe r_;
  const at::ScalarType x_type_;
  const c10::DeviceType device_;
  const StepContext context_;
  const uint64_t capture_;
  const int64_t first_row_;
  const std::function<at::Tensor(at::Tensor)> x_again_;
  int64_t tokens_ = 0;
  Operand x_;  // for wgrad; undefined where x_again_ makes it
};

}  // namespace

LinearCall linear_call(const at::Tensor& x_in, LinearGroup& group, const LinearOptions& options, bool product) {
  const at::Tensor x = row_major(x_in);
  auto call = std::make_shared<Call>(group, x, options);
  LinearCall result;
  result.y = call->forward({x, options.x_amax}, options.keep, options.out, product);
  if (options.keep) {
    result.backward = [call](const Activation& dy, bool want_dx) { return call->backward({row_major(dy.value), dy.amax}, want_dx); };
  }
  return result;
}

}  // namespace halftone::scaled
