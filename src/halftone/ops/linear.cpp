#include "halftone/ops/linear.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include "halftone/base/error.h"
#include "halftone/base/log.h"
#include "halftone/ops/batch_invariant.h"
#include "halftone/ops/common.h"
#include "halftone/ops/cuda_module.h"
#include "halftone/ops/dge.h"
#include "halftone/ops/expert_products.h"
#include "halftone/ops/hardware.h"
#include "halftone/ops/product.h"
#include "halftone/ops/quantization_stats.h"
#include "halftone/ops/range.h"
#include "halftone/ops/recompute_results.h"
#include "halftone/ops/rounding_keys.h"
#include "halftone/ops/weight_source.h"
#include "halftone/quantize/panels.h"

namespace halftone {
namespace {

// Weights [first, first + count) and columns [n0, n0 + n) of Y that one GEMM covers.
struct Span {
  size_t first = 0, count = 1;
  int64_t n0 = 0, n = 0;
  bool operator==(const Span&) const = default;
};

// Key of cached weight copies: the weights' versions and, with stochastic rounding, the step whose random numbers they used, so that a pass
// between two steps (validation, a measurement) leaves no copy that the next step would reuse.
struct MadeOf {
  uint64_t version = 0;
  std::optional<uint32_t> step;
  DType x_type{};
  uint64_t capture = 0;  // graph capture in which they were made; they belong to its replays
  bool joined = false;   // siblings form one operand of the forward GEMM
  bool operator==(const MadeOf&) const = default;
};

bool any(const std::vector<Weight*>& weights, bool (*f)(const Weight&)) {
  return std::any_of(weights.begin(), weights.end(), [&](const Weight* w) { return w != nullptr && f(*w); });
}
bool trainable(const Weight& w) { return w.trainable(); }
bool exists(const Weight&) { return true; }

}  // namespace

struct PreparedWeights {
  MadeOf made_of;
  std::vector<Operand> forward, dgrad;  // one per GEMM
  std::vector<Span> dgrad_spans;
  std::vector<at::Tensor> found;  // amax, one per weight, if a quantiser computed it
  std::vector<at::Tensor> dge;    // slopes, see ops/dge.h
  at::Tensor bias;                // fp32 [sum N]
};

namespace {

// One call's forward and backward, which execute its plan: of a dense layer, or on a GPU of all experts, whose weights [E, N, K] multiply
// the rows of their groups in one grouped GEMM.
class Call {
 public:
  Call(FusedLinears& layer, const at::Tensor& x, const LinearOptions& o, const ExpertRows* experts = nullptr)
      : layer_(layer),
        r_(layer.recipe),
        context_(o.step),
        shares_(o.shares),
        first_row_(o.step.first_row + o.first_row),
        capture_(cuda::current_capture(x.device())),
        x_again_(o.x_again) {
    if (experts != nullptr) experts_ = *experts;
    const Weight& first = *layer.weights.front();
    use_.hardware = process_hardware(x.device().type());
    use_.x = use_.dy = kernel_dtype(x), use_.w = kernel_dtype(first.value);
    use_.tokens = experts_ ? experts_->rows : x.size(0) * (shares_.input != nullptr ? shares_.input->size() : 1);
    use_.grouped = experts_.has_value();
    for (const Weight* w : layer.weights) {
      use_.siblings_match = use_.siblings_match && !w->stored && w->value.scalar_type() == x.scalar_type();
      use_.whole_panels = use_.whole_panels && w->value.size(-2) % kPanelColumns == 0;
    }
    use_.biases = any(layer.biases, exists);
    use_.keep = o.keep, use_.last_pass = o.step.last_pass, use_.keeps_results = o.step.recompute_results != nullptr && !experts_;
    use_.x_again = static_cast<bool>(o.x_again);
    use_.gathers = shares_.input != nullptr, use_.scatters = shares_.output != nullptr, use_.in_parts = shares_.in_parts;
    plan_ = plan_linear(r_, use_);
    frees_weights_ = plan_.forward.right.life == Lifetime::product;
  }

  // One tensor, or of experts one per weight.
  std::vector<at::Tensor> forward(const BufferRows& input, const at::Tensor& amax, const LinearOptions& o) {
    at::Tensor y = o.y;
    if (!experts_) {
      if (!y.defined()) y = at::empty({o.product ? use_.tokens : 0, layer_.out_features()}, input.x.options().dtype(o.out));
      if (use_.tokens == 0) return {y};
    }
    PreparedWeights& p = prepared();
    if (!frees_weights_ || experts_) make_weights(p);
    const bool keep = o.keep && any(layer_.weights, trainable);
    std::optional<GatheredRows> coming;
    std::optional<ScatteredSum> going;
    const Operand rows = use_.gathers ? gather_input(input.x, amax, keep, coming) : quantize_input(input, amax, keep);
    if (!o.product) return {y};
    if (use_.scatters) going.emplace(y, shares_, *shares_.output);
    const std::vector<RowPart> parts = parts_of(coming, going);
    const std::vector<Span> spans = this->spans(plan_.forward.joined);
    std::vector<at::Tensor> of_experts;
    const auto multiply_part = [&](size_t i, const RowPart& part) {
      const Span& s = spans[i];
      ProductOptions options;
      if (p.bias.defined()) options.bias = p.bias.narrow(0, s.n0, s.n);
      if (coming) coming->wait(part);
      make_weights(p);
      if (experts_) of_experts.push_back(at::empty({use_.tokens, s.n}, input.x.options().dtype(o.out)));
      const at::Tensor out = experts_ ? of_experts.back() : part.of(y.narrow(1, s.n0, s.n));
      run(plan_.forward, rows_of(rows, part.first, part.rows), p.forward[i], out, options);
      if (going && i + 1 == spans.size()) going->send(part);
    };
    if (use_.keeps_results) {
      for (size_t i = 0; i < spans.size(); ++i) {
        context_.recompute_results->product(y.narrow(1, spans[i].n0, spans[i].n), [&] {
          for (const RowPart& part : parts) multiply_part(i, part);
        });
      }
    } else {
      for (const RowPart& part : parts) {
        for (size_t i = 0; i < spans.size(); ++i) multiply_part(i, part);
      }
    }
    if (experts_) return of_experts;
    if (frees_weights_) p.forward.clear();
    if (coming) coming->wait();
    if (keep && coming && !r_.x_forward.quantized()) x_ = x_columns(rows.values, {});
    if (!going) return {y};
    for (const RowPart& part : parts) going->send(part);
    return {going->sum()};
  }

  // dy: one matrix for all weights, or of experts one per weight. The result likewise; undefined or empty unless wanted.
  std::vector<at::Tensor> dgrad(std::vector<BufferRows> dy, at::Tensor amax, bool want_dx) {
    std::optional<GatheredRows> coming;
    std::optional<ScatteredSum> going;
    dy_.clear();
    if (const DType type = kernel_dtype(dy[0].x); type != use_.dy) use_.dy = type, plan_ = plan_linear(r_, use_);
    if (use_.scatters) {
      amax = whole_amax(dy[0].x, amax, plan_.dgrad.left.copy,
                        *shares_.output);  // all-reduced before the rows arrive
      coming.emplace(std::vector{dy[0].x}, shares_, *shares_.output);
      dy[0].x = coming->whole().front();
      if (!shares_.in_parts) coming->wait(), coming.reset();
    }
    std::vector<at::Tensor> dx;
    if (!experts_) {
      dx.push_back(want_dx ? at::empty({use_.tokens, layer_.in_features()}, dy[0].x.options()) : at::Tensor());
      if (use_.tokens == 0) return dx;
    }
    if (x_rows_.defined() && !(context_.gradients && context_.gradients->later)) gather_again();
    if (any(layer_.biases, trainable)) bias_dy_ = dy[0].x;
    const std::vector<Span> of_wgrad = wgrad_spans();
    if (want_dx) {
      if (use_.gathers) going.emplace(dx[0], shares_, *shares_.input);
      PreparedWeights& p = dgrad_weights();
      const bool one_read = !coming && p.dgrad_spans == of_wgrad;
      const std::vector<RowPart> parts = parts_of(coming, going);
      std::vector<Operand> made;  // operands of all rows, once all rows have arrived
      const auto left = [&](size_t i, const RowPart& part) {
        const Span& s = p.dgrad_spans[i];
        if (coming) {
          coming->wait(part);
          return scaled(quantize_gradient({{part.of(dy[0].x)}}, amax, s, true, false, part.first).row, s);
        }
        if (i < made.size()) return rows_of(made[i], part.first, part.rows);
        OperandCopies copies = quantize_gradient(dy, amax, s, true, one_read);
        if (one_read) dy_.push_back(std::move(copies.transposed));
        Operand whole = scaled(std::move(copies.row), s);
        if (parts.size() == 1) return whole;
        made.push_back(std::move(whole));
        return rows_of(made[i], part.first, part.rows);
      };
      for (const RowPart& part : parts) {
        for (size_t i = 0; i < p.dgrad.size(); ++i) {
          const Operand a = left(i, part);
          if (experts_) dx.push_back(at::empty({use_.tokens, layer_.in_features()}, dy[i].x.options()));
          ProductOptions options;
          options.accumulate = i > 0 && !experts_;
          run(plan_.dgrad, a, p.dgrad[i], experts_ ? dx[i] : part.of(dx[0]), options);
        }
        if (going) going->send(part);
      }
      if (frees_weights_ && !experts_) p.dgrad.clear();
    }
    if (coming) coming->wait();
    if (dy_.empty()) {
      for (const Span& s : of_wgrad) dy_.push_back(quantize_gradient(dy, amax, s, false, true).transposed);
    }
    if (going) dx[0] = going->sum();
    return dx;
  }

  void wgrad() {
    if (dy_.empty()) return;
    const std::vector<Span> spans = wgrad_spans();
    Operand x = wgrad_input();
    // A single GEMM may read X as it is; several share the form made for the first.
    if (spans.size() > 1 && x.defined() && !experts_) x = right_operand({x}, plan_.wgrad.units);
    for (size_t i = 0; i < spans.size(); ++i) {
      if (dy_[i].defined()) add_weight_gradient(dy_[i], x, spans[i]);
    }
    dy_.clear();
    if (experts_) x_ = Operand();
    int64_t n0 = 0;
    for (size_t i = 0; i < layer_.biases.size(); ++i) {
      const int64_t n = layer_.weights[i]->value.size(0);
      Weight* b = layer_.biases[i];
      if (b != nullptr && b->trainable()) b->grad_to_add().add_(bias_dy_.narrow(1, n0, n).sum(0, false, at::kFloat));
      n0 += n;
    }
    bias_dy_ = at::Tensor();
  }

 private:
  void run(const ProductPlan& plan, const Operand& a, const Operand& b, const at::Tensor& out, ProductOptions options) {
    options.fast_accum = plan.fast_accum, options.emulate = plan.emulate;
    options.invariant = plan.product == LinearProduct::forward && batch_invariant();
    if (!std::exchange(layer_.logged[static_cast<size_t>(plan.product)], true)) {
      log_debug("{}{}: {}", name(), layer_.weights.size() > 1 ? " and siblings" : "", operands_text(plan, a.rows, b.rows, a.k));
    }
    experts_ ? cuda::multiply_groups(a, b, out, plan.product == LinearProduct::wgrad, *experts_, options) : multiply(a, b, out, options);
  }

  const std::string& name() const { return layer_.weights.front()->name; }
  std::span<Weight* const> weights(const Span& s) const { return std::span(layer_.weights).subspan(s.first, s.count); }
  std::vector<Span> spans(bool together) const {
    std::vector<Span> result;
    int64_t n0 = 0;
    for (size_t i = 0; i < layer_.weights.size(); ++i) {
      const int64_t n = layer_.weights[i]->value.size(-2);
      if (together && i > 0) {
        result.front().n += n, ++result.front().count;
      } else {
        result.push_back({i, 1, n0, n});
      }
      n0 += n;
    }
    return result;
  }
  std::vector<Span> wgrad_spans() const { return spans(plan_.wgrad.joined && joined(layer_.weights, &Weight::grad).defined()); }

  // Parts in order of arrival or departure.
  std::vector<RowPart> parts_of(const std::optional<GatheredRows>& coming, const std::optional<ScatteredSum>& going) const {
    return coming ? coming->parts() : going ? going->parts() : std::vector<RowPart>{{0, 0, use_.tokens}};
  }
  // All-reduced amax over all ranks' rows, if the copy has a per-tensor scale.
  static at::Tensor whole_amax(const at::Tensor& own, const at::Tensor& own_amax, const CopyRequest& r, comm::Communicator& ranks) {
    QuantizedCopy copy;
    copy.spec = r.spec, copy.form = r.form;
    if (!r.spec.quantized() || !uses_tensor_amax(copy)) return {};
    at::Tensor amax = own_amax.defined() ? own_amax.clone() : own.abs().max().to(at::kFloat).view({1}).view(at::kInt);
    ranks.all_reduce(amax, comm::Reduce::max).wait();
    return amax;
  }

  // The planned copy with its random numbers, those of rows from `first_row` on, and signs: the rotated operands of a product share theirs.
  CopyRequest request(const OperandPlan& plan, const std::string& weight, int64_t first_row) const {
    CopyRequest c = plan.copy;
    c.rounding = operand_rounding(c.spec, weight, plan.role, context_, first_row);
    if (takes_draws(c.spec)) c.rounding.device_step = replayed_step();
    c.signs = rotation_signs(c.spec, name(), plan.sign_role(), context_);
    if (rotates_by_step(c.spec)) c.signs_step = replayed_step(), c.signs_key = rotation_key(name(), plan.sign_role(), context_);
    return c;
  }
  // Address from which a graph's replays read the step. Null outside a capture: the launch passes the step as an argument.
  const uint32_t* replayed_step() const {
    if (capture_ == 0) return nullptr;
    check(context_.device_step != nullptr,
          "{}: expected StepContext::device_step in a graph capture of {}, "
          "whose replays would repeat the draws of one step; found none",
          name(), r_.name);
    return context_.device_step;
  }

  OperandCopies quantize_rows(const BufferRows& x, const CopyRequest* row, const CopyRequest* columns, const at::Tensor& amax) const {
    return experts_ ? quantize_groups(x, row, columns, *experts_) : quantize(x.x, row, columns, amax);
  }
  Operand x_columns(const at::Tensor& x, const at::Tensor& amax) const {
    const CopyRequest columns = request(plan_.wgrad.right, name(), first_row_);
    return quantize(x, nullptr, &columns, amax).transposed;
  }

  // The all-gathered X as the forward GEMM reads it, or its codes. `coming`: the gather in flight.
  Operand gather_input(const at::Tensor& x, const at::Tensor& own_amax, bool keep, std::optional<GatheredRows>& coming) {
    const CopyRequest row = request(plan_.forward.left, name(), first_row_ + shares_.input->index() * x.size(0));
    const at::Tensor amax = whole_amax(x, own_amax, row, *shares_.input);
    Operand o = quantize(x, &row, nullptr, amax).row;
    const std::vector<at::Tensor*> tensors = tensors_of_rows(o);
    std::vector<at::Tensor> own;
    for (const at::Tensor* t : tensors) own.push_back(*t);
    coming.emplace(own, shares_, *shares_.input);
    for (size_t i = 0; i < tensors.size(); ++i) *tensors[i] = coming->whole()[i];
    o.rows = use_.tokens;
    if (keep && plan_.wgrad.right.origin == Origin::read_again) reads_again_ = true, x_rows_ = x, x_amax_ = amax;
    if (keep && plan_.wgrad.right.origin == Origin::forward_codes) x_ = o;
    return o;
  }
  void gather_again() { x_coming_.emplace(std::vector{std::exchange(x_rows_, at::Tensor())}, RowShares{}, *shares_.input); }

  // X as the forward GEMM reads it; keeps what wgrad needs.
  Operand quantize_input(const BufferRows& input, const at::Tensor& amax, bool keep) {
    const CopyRequest row = request(plan_.forward.left, name(), first_row_);
    const Origin origin = plan_.wgrad.right.origin;
    CopyRequest columns;
    const bool both = keep && origin == Origin::shared_read;
    if (both) columns = request(plan_.wgrad.right, name(), first_row_);
    OperandCopies copies = quantize_rows(input, &row, both ? &columns : nullptr, amax);
    if (keep && origin == Origin::read_again) reads_again_ = true, x_amax_ = amax;
    if (both) x_ = std::move(copies.transposed);
    if (keep && origin == Origin::forward_codes) x_ = copies.row;
    return std::move(copies.row);
  }
  at::Tensor input_again() {
    if (!use_.gathers) return x_again_();
    if (x_rows_.defined()) gather_again();
    x_coming_->wait();
    const at::Tensor x = x_coming_->whole().front();
    x_coming_.reset();
    return x;
  }
  Operand wgrad_input() {
    // Random numbers and signs are keyed by name, role and position: they equal those of a copy made in the forward pass.
    if (reads_again_) return x_columns(input_again(), x_amax_);
    if (!x_.defined() || plan_.wgrad.right.origin != Origin::forward_codes) return x_;
    return plain_operand(decode(x_, gemm::Decode::everything, scalar_type(use_.dy)), true);
  }

  // For rows from `first` on.
  OperandCopies quantize_gradient(const std::vector<BufferRows>& dy, const at::Tensor& amaxes, const Span& s, bool row, bool columns,
                                  int64_t first = 0) const {
    const Weight& w = *layer_.weights[s.first];
    columns = columns && w.trainable();
    CopyRequest a, b;
    if (row) a = request(plan_.dgrad.left, w.name, first_row_ + first);
    if (columns) b = request(plan_.wgrad.left, w.name, first_row_);
    at::Tensor amax;
    if (amaxes.defined() && s.count == 1) amax = amaxes.narrow(0, static_cast<int64_t>(s.first), 1);
    const BufferRows rows = experts_ ? dy[s.first] : BufferRows{dy[0].x.narrow(1, s.n0, s.n)};
    return quantize_rows(rows, row ? &a : nullptr, columns ? &b : nullptr, amax);
  }
  Operand scaled(Operand dy, const Span& s) const {
    if (!plan_.dgrad.scales_left) return dy;
    at::Tensor values = at::empty_like(dy.values);
    at::mul_out(values, dy.values,
                layer_.weights[s.first]->stored->scales);  // in fp32, rounded once
    dy.values = values;
    return dy;
  }

  void add_weight_gradient(const Operand& dy, const Operand& x, const Span& s) {
    const at::Tensor grad = joined(weights(s), &Weight::grad);
    const bool slopes = plan_.wgrad.slopes;
    ProductOptions options;
    const auto of = weights(s);
    options.accumulate = !slopes;
    options.overwrite = !slopes && std::all_of(of.begin(), of.end(), [](const Weight* w) { return w->grad_is_stale; });
    for (Weight* w : of) options.overwrite ? w->grad_to_write() : w->grad_to_add();
    const at::Tensor dw = slopes ? at::empty(grad.sizes(), grad.options()) : grad;
    run(plan_.wgrad, dy, x, dw, options);
    if (!slopes) return;
    PreparedWeights& p = prepared();
    make_weights(p);
    if (experts_) return add_times_slopes(dw, *of.front(), p.forward[s.first]);
    grad.addcmul_(dw, p.dge[s.first]);
  }

  // The cached operands of the weights, if they are at the current version.
  PreparedWeights& prepared() {
    MadeOf state{0, {}, use_.x, capture_, plan_.forward.joined};
    for (const Weight* w : layer_.weights) state.version += w->version;
    if (changes_by_step(r_.w_forward) || changes_by_step(r_.w_dgrad)) state.step = context_.step;
    if (layer_.prepared == nullptr || layer_.prepared->made_of != state || (experts_ && frees_weights_)) {
      layer_.prepared.reset();  // frees the old copies first
      layer_.prepared = std::make_shared<PreparedWeights>();
      layer_.prepared->made_of = state, layer_.prepared->found.resize(layer_.weights.size());
      if (use_.biases) layer_.prepared->bias = joined_bias();
    }
    return *layer_.prepared;
  }

  // Makes the operands of the forward GEMM if missing, and those of dgrad if one read makes both.
  void make_weights(PreparedWeights& p) const {
    if (!p.forward.empty()) return;
    const Owner owner("weights' quantised copies");
    const OperandPlan &of_forward = plan_.forward.right, &of_dgrad = plan_.dgrad.right;
    const bool dgrad = experts_ || (of_dgrad.origin == Origin::shared_read && p.dgrad.empty());
    std::vector<Operand> made, made_dgrad;
    p.dge.clear();
    size_t i = 0;
    for (const Span& s : spans(plan_.forward.joined)) {
      std::vector<Operand> siblings;
      for (const Weight* w : weights(s)) {
        const CopyRequest f = request(of_forward, w->name, w->first_row), d = request(of_dgrad, w->name, w->first_row);
        if (experts_) {
          OperandCopies copies = copies_of_experts(*w, f, d, *experts_);
          made.push_back(std::move(copies.row)), made_dgrad.push_back(std::move(copies.transposed));
          continue;
        }
        OperandCopies copies = layer_.source->copies(*w, &f, dgrad ? &d : nullptr, scalar_type(of_dgrad.numbers), &p.found[i++]);
        if (r_.dge) p.dge.push_back(dge_slopes(w->value.detach(), copies.row));
        siblings.push_back(std::move(copies.row));
        if (dgrad) made_dgrad.push_back(right_operand({std::move(copies.transposed)}, plan_.dgrad.units));
      }
      if (!experts_) made.push_back(right_operand(std::move(siblings), plan_.forward.units));
    }
    p.forward = std::move(made);
    if (dgrad) p.dgrad = std::move(made_dgrad), p.dgrad_spans = spans(false);
  }

  // The dgrad operands; made here unless made with the forward ones, so that activations have been freed by then.
  PreparedWeights& dgrad_weights() {
    PreparedWeights& p = prepared();
    if (experts_) make_weights(p);
    if (!p.dgrad.empty()) return p;
    const Owner owner("weights' quantised copies");
    at::Tensor whole;
    if (plan_.dgrad.joined) whole = layer_.source->whole(layer_.weights);
    std::vector<Operand> made;
    p.dgrad_spans = spans(whole.defined());
    for (const Span& s : p.dgrad_spans) {
      const Weight& w = *layer_.weights[s.first];
      const OperandPlan& plan = plan_.dgrad.right;
      const CopyRequest d = request(plan, w.name, w.first_row);
      Operand o = whole.defined() ? plain_operand(whole, true)
                                  : layer_.source->copies(w, nullptr, &d, scalar_type(plan.numbers), &p.found[s.first]).transposed;
      made.push_back(right_operand({std::move(o)}, plan_.dgrad.units));
    }
    p.dgrad = std::move(made);
    return p;
  }

  at::Tensor joined_bias() const {
    std::vector<at::Tensor> parts;
    for (size_t i = 0; i < layer_.weights.size(); ++i) {
      const Weight& w = *layer_.weights[i];
      const Weight* b = layer_.biases[i];
      parts.push_back(b != nullptr ? b->value.detach().to(at::kFloat) : at::zeros({w.value.size(0)}, w.value.options().dtype(at::kFloat)));
    }
    return at::cat(parts);
  }

  FusedLinears& layer_;
  const LinearRecipe& r_;
  const StepContext context_;
  const RowShares shares_;
  const int64_t first_row_;  // index of the first row of X and dY for random numbers
  const uint64_t capture_;   // graph capture that the call is in, 0: none
  const std::function<at::Tensor()> x_again_;
  std::optional<ExpertRows> experts_;
  LinearUse use_;
  LinearPlan plan_;
  bool frees_weights_ = false, reads_again_ = false;
  at::Tensor x_rows_,
      x_amax_;                            // to read X again; this rank's rows of a sharded X
  std::optional<GatheredRows> x_coming_;  // the full X, with the other ranks' rows
  Operand x_;                             // otherwise: X for wgrad
  std::vector<Operand> dy_;               // of every wgrad GEMM, between dgrad and wgrad
  at::Tensor bias_dy_;
};

// Inlined into the op and into linear_call, so that neither adds a frame to the other.
[[gnu::always_inline]] inline LinearCall started(const at::Tensor& x_in, FusedLinears& layer, const LinearOptions& asked) {
  const at::Tensor x = row_major(x_in);
  const auto& stats = quantization_stats();
  LinearOptions options = asked;
  if (stats) options.x_again = nullptr;  // the statistics read X and dX
  const auto call = std::make_shared<Call>(layer, x, options);
  LinearCall result{call->forward({x}, options.x_amax, options)[0], {}, {}};
  if (options.keep) {
    result.dgrad = [call](const Activation& dy, bool want_dx) { return call->dgrad({{row_major(dy.value)}}, dy.amax, want_dx)[0]; };
    result.wgrad = [call] { call->wgrad(); };
  }
  if (stats && options.product) return stats->watch(x, layer, options, std::move(result));
  return result;
}

}  // namespace

int64_t FusedLinears::out_features() const {
  int64_t n = 0;
  for (const Weight* w : weights) n += w->value.size(-2);
  return n;
}

void FusedLinears::gradients_ready() {
  for (const auto* parameters : {&weights, &biases}) {
    for (Weight* w : *parameters) {
      if (w != nullptr) w->grad_ready();
    }
  }
}

bool can_share_rows(const LinearRecipe& r) {
  return std::ranges::all_of(std::array{r.x_forward, r.dy_dgrad}, [](const OperandSpec& s) {
    const bool other_statistic = s.granularity == Granularity::tensor && (s.element == Element::int4 || s.element == Element::ternary);
    return s.granularity != Granularity::tile && !uses_rotated_amax(s) && !other_statistic;
  });
}

LinearCall linear_call(const at::Tensor& x, FusedLinears& layer, const LinearOptions& options) { return started(x, layer, options); }

GroupedCall expert_products(const BufferRows& x, FusedLinears& layer, const ExpertRows& rows, const LinearOptions& options) {
  const auto call = std::make_shared<Call>(layer, x.x, options, &rows);
  GroupedCall result{call->forward(x, {}, options), {}, {}};
  if (!options.keep) return result;
  result.dgrad = [call](const std::vector<BufferRows>& dy, bool want_dx) { return call->dgrad(dy, {}, want_dx); };
  result.wgrad = [call] { call->wgrad(); };
  return result;
}

at::Tensor linear(const Activation& input, FusedLinears& layer, const StepContext& step, at::ScalarType out, const RowShares& shares) {
  const at::Tensor& x = input.value;
  check(x.dim() >= 1 && x.size(-1) == layer.in_features(), "{}: expected an input of [tokens, {}], found {}", layer.weights.front()->name,
        layer.in_features(), fmt::join(x.sizes(), " x "));
  std::vector<at::Tensor> inputs = {x};
  for (const Weight* w : layer.weights) inputs.push_back(w->value);
  LinearOptions options;
  options.step = step, options.keep = records(inputs);
  options.out = out == at::ScalarType::Undefined ? x.scalar_type() : out, options.x_amax = input.amax, options.shares = shares;
  if (input.kept) options.x_again = [rows = x.detach().reshape({-1, x.size(-1)})] { return rows; };
  const int64_t n = layer.out_features();
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = n;
  LinearCall call;
  {
    at::NoGradGuard no_grad;
    const at::Tensor plain = x.detach();
    call = started(plain.dim() == 2 ? plain : plain.reshape({-1, plain.size(-1)}), layer, options);
    if (x.dim() != 2) call.y = call.y.view(shape).detach();
  }
  at::Tensor y = std::move(call.y);
  if (options.keep) {
    connect_linear("linear", inputs, {&y}, layer, step, std::move(call.wgrad),
                   [dgrad = std::move(call.dgrad), &layer, n, want_dx = x.requires_grad(), sizes = x.sizes().vec(),
                    type = x.scalar_type()](const variable_list& g) {
                     variable_list result(1 + layer.weights.size());
                     Activation dy = layer.dy_amax ? layer.dy_amax->take(g[0]) : Activation(g[0].to(type));
                     if (g[0].dim() != 2) dy.value = g[0].reshape({-1, n});
                     result[0] = dgrad(dy, want_dx);
                     if (want_dx && sizes.size() != 2) result[0] = result[0].view(sizes);
                     return result;
                   });
  }
  return y;
}

}  // namespace halftone
