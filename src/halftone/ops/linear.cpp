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
#include "halftone/ops/common.h"
#include "halftone/ops/dge.h"
#include "halftone/ops/node.h"
#include "halftone/ops/operand_requests.h"
#include "halftone/ops/product.h"
#include "halftone/ops/quantization_stats.h"
#include "halftone/ops/saves.h"
#include "halftone/ops/weight_source.h"
#include "halftone/quantize/operand_shape.h"
#include "halftone/quantize/panels.h"

namespace halftone {
namespace {

// Weights [first, first + count) and columns [n0, n0 + n) of Y that one GEMM covers.
struct Span {
  size_t first = 0, count = 1;
  int64_t n0 = 0, n = 0;
  bool operator==(const Span&) const = default;
};

// Key of cached weight copies: the weights' versions and, with stochastic rounding, the step whose draws they used, so that a pass
// between two steps (validation, a measurement) leaves no copy that the next step would reuse.
struct MadeOf {
  uint64_t version = 0;
  std::optional<uint32_t> step;
  at::ScalarType x_type{};  // dtype of X
  uint64_t capture = 0;     // graph capture in which they were made; they belong to its replays
  bool joined = false;      // siblings form one operand of the forward GEMM
  bool operator==(const MadeOf&) const = default;
};

bool any(const std::vector<Weight*>& weights, bool (*f)(const Weight&)) {
  return std::any_of(weights.begin(), weights.end(), [&](const Weight* w) { return w != nullptr && f(*w); });
}
bool trainable(const Weight& w) { return w.trainable(); }

// Whether siblings run as one GEMM, where their operands can be joined: on the CPU, if both operands of every GEMM have one dtype or are
// codes in panels. Layers with biases accumulate dX weight by weight, because each rounds it. (On an H100 joined bf16 GEMMs were 3%
// slower.)
bool joins(const at::Tensor& x, const FusedLinears& f) {
  const LinearRecipe& r = f.recipe;
  if (!x.is_cpu() || r.dge || r.emulate || any(f.biases, [](const Weight&) { return true; })) return false;
  const auto joinable = [](const OperandSpec& s) { return !s.quantized() || (has_panels(s) && !s.same_as_forward && !s.stored); };
  for (const auto& [a, b] : {std::pair{&r.x_forward, &r.w_forward}, {&r.dy_dgrad, &r.w_dgrad}, {&r.dy_wgrad, &r.x_wgrad}}) {
    if (!joinable(*a) || !joinable(*b) || a->element != b->element) return false;
  }
  return std::all_of(f.weights.begin(), f.weights.end(),
                     [&](const Weight* w) { return !w->stored && w->value.scalar_type() == x.scalar_type(); });
}

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

// One call's forward and backward.
class Call {
 public:
  Call(FusedLinears& fused, const at::Tensor& x, const LinearOptions& o)
      : fused_(fused),
        r_(fused.recipe),
        x_type_(x.scalar_type()),
        device_(x.device().type()),
        context_(o.step),
        shares_(o.shares),
        tokens_(x.size(0) * (shares_.input != nullptr ? shares_.input->size() : 1)),
        requests_(name(), r_, x.device(), context_, o.step.first_row + o.first_row, tokens_),
        joins_(joins(x, fused)),
        joins_forward_(joins_ && o.step.saves == nullptr),
        passing_(o.step.last_pass && device_ != at::kCPU && !fused.recipe.dge),
        x_again_(o.x_again) {}

  at::Tensor forward(const Activation& input, const LinearOptions& o) {
    at::Tensor y = o.y;
    if (!y.defined()) y = at::empty({o.product ? tokens_ : 0, fused_.out_features()}, input.value.options().dtype(o.out));
    if (tokens_ == 0) return y;
    PreparedWeights& p = prepared();
    if (!passing_) make_forward(p, o.keep);
    const bool keep = o.keep && any(fused_.weights, trainable);
    std::optional<GatheredRows> coming;
    std::optional<ScatteredSum> going;
    const Operand rows = shares_.input != nullptr ? gather_input(input, keep, coming) : quantize_input(input, keep);
    if (!o.product) return y;
    if (shares_.output != nullptr) going.emplace(y, shares_, *shares_.output);
    const std::vector<RowPart> parts = parts_of(coming, going);
    const std::vector<Span> spans = forward_spans();
    const auto multiply_part = [&](size_t i, const RowPart& part) {
      const Span& s = spans[i];
      ProductOptions options;
      if (p.bias.defined()) options.bias = p.bias.narrow(0, s.n0, s.n);
      if (coming) coming->wait(part);
      make_forward(p, o.keep);
      run(kForward, rows_of(rows, part.first, part.rows), p.forward[i], part.of(y.narrow(1, s.n0, s.n)), options);
      if (going && i + 1 == spans.size()) going->send(part);
    };
    if (context_.saves) {
      for (size_t i = 0; i < spans.size(); ++i) {
        context_.saves->product(y.narrow(1, spans[i].n0, spans[i].n), [&] {
          for (const RowPart& part : parts) multiply_part(i, part);
        });
      }
    } else {
      for (const RowPart& part : parts) {
        for (size_t i = 0; i < spans.size(); ++i) multiply_part(i, part);
      }
    }
    if (passing_) p.forward.clear();
    if (coming) coming->wait();
    if (keep && coming && !r_.x_forward.quantized()) {
      const CopyRequest columns = x_columns(CopyUse::kept);
      x_ = quantize(rows.values, nullptr, &columns).transposed;
    }
    if (!going) return y;
    for (const RowPart& part : parts) going->send(part);
    return going->sum();
  }

  at::Tensor dgrad(const Activation& given, bool want_dx) {
    std::optional<GatheredRows> coming;
    std::optional<ScatteredSum> going;
    Activation gradient = given;
    dy_.clear(), dy_type_ = given.value.scalar_type();
    if (shares_.output != nullptr) {
      gradient.amax = whole_amax(given, gradient_request(0), *shares_.output);  // all-reduced before the rows arrive
      coming.emplace(std::vector{given.value}, shares_, *shares_.output);
      gradient.value = coming->whole().front();
      if (!shares_.in_parts) coming->wait(), coming.reset();
    }
    const at::Tensor& dy = gradient.value;
    at::Tensor dx;
    if (want_dx) dx = at::empty({tokens_, fused_.in_features()}, dy.options());
    if (tokens_ == 0) return dx;
    if (x_rows_.defined() && !(context_.gradients && context_.gradients->later)) gather_again();
    if (any(fused_.biases, trainable)) bias_dy_ = dy;
    const std::vector<Span> of_wgrad = wgrad_spans();
    if (want_dx) {
      if (shares_.input != nullptr) going.emplace(dx, shares_, *shares_.input);
      PreparedWeights& p = dgrad_weights();
      const bool one_read = !coming && p.dgrad_spans == of_wgrad;
      const std::vector<RowPart> parts = parts_of(coming, going);
      std::vector<Operand> made;  // operands of all rows, once all rows have arrived
      const auto left = [&](size_t i, const RowPart& part) {
        const Span& s = p.dgrad_spans[i];
        if (coming) {
          coming->wait(part);
          return dgrad_rows(quantize_gradient({part.of(dy), gradient.amax}, s, true, false, part.first).row, s);
        }
        if (i < made.size()) return rows_of(made[i], part.first, part.rows);
        OperandCopies copies = quantize_gradient(gradient, s, true, one_read);
        if (one_read) dy_.push_back(std::move(copies.transposed));
        Operand whole = dgrad_rows(std::move(copies.row), s);
        if (parts.size() == 1) return whole;
        made.push_back(std::move(whole));
        return rows_of(made[i], part.first, part.rows);
      };
      for (const RowPart& part : parts) {
        for (size_t i = 0; i < p.dgrad.size(); ++i) {
          ProductOptions options;
          options.accumulate = i > 0;
          run(kDgrad, left(i, part), p.dgrad[i], part.of(dx), options);
        }
        if (going) going->send(part);
      }
      if (passing_) p.dgrad.clear();
    }
    if (coming) coming->wait();
    if (dy_.empty()) {
      for (const Span& s : of_wgrad) dy_.push_back(quantize_gradient(gradient, s, false, true).transposed);
    }
    return going ? going->sum() : dx;
  }

  void wgrad() {
    if (dy_.empty()) return;
    const std::vector<Span> spans = wgrad_spans();
    Operand x = wgrad_input();
    // A single GEMM may read X as it is; several share the form made for the first.
    if (spans.size() > 1 && x.defined())
      x = right_operand({x}, r_.dy_wgrad, hp_type(r_.dy_wgrad, dy_type_, r_.x_wgrad, x_type_), r_.emulate);
    for (size_t i = 0; i < spans.size(); ++i) {
      if (dy_[i].defined()) add_weight_gradient(dy_[i], x, spans[i]);
    }
    dy_.clear();
    int64_t n0 = 0;
    for (size_t i = 0; i < fused_.biases.size(); ++i) {
      const int64_t n = fused_.weights[i]->value.size(0);
      Weight* b = fused_.biases[i];
      if (b != nullptr && b->trainable()) b->grad_to_add().add_(bias_dy_.narrow(1, n0, n).sum(0, false, at::kFloat));
      n0 += n;
    }
    bias_dy_ = at::Tensor();
  }

 private:
  enum Product { kForward, kDgrad, kWgrad };

  void run(Product which, const Operand& a, const Operand& b, const at::Tensor& out, ProductOptions options) {
    options.fast_accum = r_.fast_accum[which], options.emulate = r_.emulate;
    if (!std::exchange(fused_.logged[which], true)) {
      constexpr const char* kResults[] = {"Y", "dX", "dW"};
      log_debug("{}{}: {} is {} by {}", name(), fused_.weights.size() > 1 ? " and siblings" : "", kResults[which], a, b);
    }
    multiply(a, b, out, options);
  }

  const std::string& name() const { return fused_.weights.front()->name; }
  std::span<Weight* const> weights(const Span& s) const { return std::span(fused_.weights).subspan(s.first, s.count); }
  std::vector<Span> spans(bool together) const {
    std::vector<Span> result;
    int64_t n0 = 0;
    for (size_t i = 0; i < fused_.weights.size(); ++i) {
      const int64_t n = fused_.weights[i]->value.size(0);
      if (together && i > 0) {
        result.front().n += n, ++result.front().count;
      } else {
        result.push_back({i, 1, n0, n});
      }
      n0 += n;
    }
    return result;
  }
  // Random draws of dY are keyed by each weight's name and width.
  std::vector<Span> wgrad_spans() const {
    return spans(joins_ && !r_.dy_wgrad.stochastic && joined(fused_.weights, &Weight::grad).defined());
  }

  // Parts in order of arrival or departure.
  std::vector<RowPart> parts_of(const std::optional<GatheredRows>& coming, const std::optional<ScatteredSum>& going) const {
    return coming ? coming->parts() : going ? going->parts() : std::vector<RowPart>{{0, 0, tokens_}};
  }
  // All-reduced amax over all ranks' rows, if the copy has a per-tensor scale.
  static at::Tensor whole_amax(const Activation& own, const CopyRequest& r, comm::Communicator& ranks) {
    QuantizedCopy copy;
    copy.spec = r.spec, copy.form = r.form;
    if (!r.spec.quantized() || !uses_tensor_amax(copy)) return {};
    at::Tensor amax = own.amax.defined() ? own.amax.clone() : own.value.abs().max().to(at::kFloat).view({1}).view(at::kInt);
    ranks.all_reduce(amax, comm::Reduce::max).wait();
    return amax;
  }

  CopyRequest input_request() const {
    const at::ScalarType hp = hp_type(r_.x_forward, x_type_, r_.w_forward, fused_.weights.front()->value.scalar_type());
    return requests_.of_rows(r_.x_forward, r_.w_forward, hp, name(), "x.fwd");
  }
  // The all-gathered X as the forward GEMM reads it, or its codes. `coming`: the gather in flight.
  Operand gather_input(const Activation& input, bool keep, std::optional<GatheredRows>& coming) {
    CopyRequest row = input_request();
    row.rounding.first_row += shares_.input->index() * input.value.size(0);
    if (row.spec.quantized() && !is_fold(row.form)) {
      row.packed = row.spec.element == Element::e2m1 || row.spec.element == Element::int4;
      row.codes = !row.packed, row.form = ValueForm::none, row.block_scales = true;
    }
    const at::Tensor amax = whole_amax(input, row, *shares_.input);
    Operand o = quantize(input.value, &row, nullptr, amax).row;
    const std::vector<at::Tensor*> tensors = tensors_of_rows(o);
    std::vector<at::Tensor> own;
    for (const at::Tensor* t : tensors) own.push_back(*t);
    coming.emplace(own, shares_, *shares_.input);
    for (size_t i = 0; i < tensors.size(); ++i) *tensors[i] = coming->whole()[i];
    o.rows = tokens_;
    makes_x_again_ = keep && row.spec.quantized() && !wgrad_reads_forward_codes(r_);
    if (makes_x_again_) x_rows_ = input.value, x_amax_ = amax;
    if (keep && wgrad_reads_forward_codes(r_)) x_ = o;
    return o;
  }
  void gather_again() { x_coming_.emplace(std::vector{std::exchange(x_rows_, at::Tensor())}, RowShares{}, *shares_.input); }

  // X as the forward GEMM reads it; keeps what wgrad needs.
  Operand quantize_input(const Activation& input, bool keep) {
    const CopyRequest row = input_request();
    const bool codes = wgrad_reads_forward_codes(r_);
    makes_x_again_ = keep && !codes && x_again_;
    if (makes_x_again_) x_amax_ = input.amax, keep = false;
    CopyRequest columns;
    if (keep && !codes) columns = x_columns(CopyUse::kept);
    OperandCopies copies = quantize(input.value, &row, keep && !codes ? &columns : nullptr, input.amax);
    if (keep) x_ = codes ? copies.row : std::move(copies.transposed);
    return std::move(copies.row);
  }
  CopyRequest x_columns(CopyUse use) const { return requests_.of_tokens(r_.x_wgrad, r_.dy_wgrad, x_type_, use, name(), x_wgrad_role(r_)); }
  at::Tensor input_again() {
    if (shares_.input == nullptr) return x_again_();
    if (x_rows_.defined()) gather_again();
    x_coming_->wait();
    const at::Tensor x = x_coming_->whole().front();
    x_coming_.reset();
    return x;
  }
  Operand wgrad_input() {
    if (makes_x_again_) {  // draws and signs are keyed by name, role and position: they equal those of a copy made in the forward pass
      const CopyRequest columns = x_columns(CopyUse::columns);
      return quantize(input_again(), nullptr, &columns, x_amax_).transposed;
    }
    if (!x_.defined() || !wgrad_reads_forward_codes(r_)) return x_;
    return plain_operand(decode(x_, gemm::Decode::everything, dy_type_), true);
  }

  CopyRequest gradient_request(size_t weight) const {
    const Weight& w = *fused_.weights[weight];
    const at::ScalarType hp = hp_type(r_.dy_dgrad, dy_type_, r_.w_dgrad, w.value.scalar_type());
    return requests_.of_rows(r_.dy_dgrad, r_.w_dgrad, hp, w.name, "dy.dgrad");
  }
  // For rows from `first` on.
  OperandCopies quantize_gradient(const Activation& gradient, const Span& s, bool row, bool columns, int64_t first = 0) const {
    const Weight& w = *fused_.weights[s.first];
    columns = columns && w.trainable();
    CopyRequest a, b;
    if (row) a = gradient_request(s.first), a.rounding.first_row += first;
    if (columns) {
      const at::ScalarType hp = hp_type(r_.dy_wgrad, dy_type_, r_.x_wgrad, x_type_);
      b = requests_.of_tokens(r_.dy_wgrad, r_.x_wgrad, hp, CopyUse::columns, w.name, dy_wgrad_role(r_));
    }
    at::Tensor amax;
    if (gradient.amax.defined() && s.count == 1) amax = gradient.amax.narrow(0, static_cast<int64_t>(s.first), 1);
    return quantize(gradient.value.narrow(1, s.n0, s.n), row ? &a : nullptr, columns ? &b : nullptr, amax);
  }
  // Stored int8 weights have one scale per contracted index, which is applied to dY.
  Operand dgrad_rows(Operand dy, const Span& s) const {
    if (!r_.w_dgrad.stored || r_.w_dgrad.granularity != Granularity::row) return dy;
    at::Tensor scaled = at::empty_like(dy.values);
    at::mul_out(scaled, dy.values, fused_.weights[s.first]->stored->scales);  // in fp32, rounded once
    dy.values = scaled;
    return dy;
  }

  void add_weight_gradient(const Operand& dy, const Operand& x, const Span& s) {
    const at::Tensor grad = joined(weights(s), &Weight::grad);
    ProductOptions options;
    const auto of = weights(s);
    options.accumulate = !r_.dge;
    options.overwrite = !r_.dge && std::all_of(of.begin(), of.end(), [](const Weight* w) { return w->grad_is_stale; });
    for (Weight* w : of) options.overwrite ? w->grad_to_write() : w->grad_to_add();
    const at::Tensor dw = r_.dge ? at::empty(grad.sizes(), grad.options()) : grad;
    run(kWgrad, dy, x, dw, options);
    if (!r_.dge) return;
    PreparedWeights& p = prepared();
    make_forward(p, true);
    grad.addcmul_(dw, p.dge[s.first]);
  }

  // The cached operands of the weights, if they are at the current version.
  PreparedWeights& prepared() {
    MadeOf state{0, {}, x_type_, requests_.capture(), joins_forward_};
    for (const Weight* w : fused_.weights) state.version += w->version;
    if (r_.w_forward.stochastic || r_.w_dgrad.stochastic) state.step = context_.step;
    if (fused_.prepared == nullptr || fused_.prepared->made_of != state) {
      fused_.prepared.reset();  // frees the old copies first
      fused_.prepared = std::make_shared<PreparedWeights>();
      fused_.prepared->made_of = state, fused_.prepared->found.resize(fused_.weights.size());
      if (any(fused_.biases, [](const Weight&) { return true; })) fused_.prepared->bias = joined_bias();
    }
    return *fused_.prepared;
  }
  std::vector<Span> forward_spans() const {
    const bool whole_panels =
        std::all_of(fused_.weights.begin(), fused_.weights.end(), [](const Weight* w) { return w->value.size(0) % kPanelColumns == 0; });
    return spans(joins_forward_ && whole_panels);
  }

  // Makes the operands of the forward GEMM if missing; before a backward pass also those of dgrad, if one read makes both and both stay
  // cached.
  void make_forward(PreparedWeights& p, bool keep) const {
    if (!p.forward.empty()) return;
    const bool dgrad = keep && r_.w_dgrad.quantized() && !joins_ && !passing_ && p.dgrad.empty();
    std::vector<Operand> made, made_dgrad;
    p.dge.clear();
    size_t i = 0;
    for (const Span& s : forward_spans()) {
      std::vector<Operand> siblings;
      const at::ScalarType hp = hp_type(r_.x_forward, x_type_, r_.w_forward, fused_.weights[s.first]->value.scalar_type());
      for (const Weight* w : weights(s)) {
        CopyRequest f = requests_.of_weight(r_.w_forward, r_.x_forward, hp, CopyUse::rows, *w, "w.fwd"), d;
        f.block_scales = r_.dge;
        if (dgrad) d = dgrad_request(*w);
        OperandCopies copies = fused_.source->copies(*w, &f, dgrad ? &d : nullptr, dgrad_type(*w), &p.found[i++]);
        if (r_.dge) p.dge.push_back(dge_slopes(w->value.detach(), copies.row));
        siblings.push_back(std::move(copies.row));
        if (dgrad) made_dgrad.push_back(right_operand({std::move(copies.transposed)}, r_.dy_dgrad, dgrad_type(*w), r_.emulate));
      }
      made.push_back(right_operand(std::move(siblings), r_.x_forward, hp, r_.emulate));
    }
    p.forward = std::move(made);
    if (dgrad) p.dgrad = std::move(made_dgrad), p.dgrad_spans = spans(false);
  }

  // The dgrad operands; made here unless made with the forward ones, so that activations have been freed by then.
  PreparedWeights& dgrad_weights() {
    PreparedWeights& p = prepared();
    if (!p.dgrad.empty()) return p;
    at::Tensor whole;
    if (joins_ && !r_.dy_dgrad.quantized()) whole = fused_.source->whole(fused_.weights);
    std::vector<Operand> made;
    p.dgrad_spans = spans(whole.defined());
    for (const Span& s : p.dgrad_spans) {
      const Weight& w = *fused_.weights[s.first];
      const CopyRequest d = dgrad_request(w);
      Operand o =
          whole.defined() ? plain_operand(whole, true) : fused_.source->copies(w, nullptr, &d, dgrad_type(w), &p.found[s.first]).transposed;
      made.push_back(right_operand({std::move(o)}, r_.dy_dgrad, dgrad_type(w), r_.emulate));
    }
    p.dgrad = std::move(made);
    return p;
  }
  at::ScalarType dgrad_type(const Weight& w) const { return hp_type(r_.dy_dgrad, x_type_, r_.w_dgrad, w.value.scalar_type()); }
  CopyRequest dgrad_request(const Weight& w) const {
    return requests_.of_weight(r_.w_dgrad, r_.dy_dgrad, dgrad_type(w), CopyUse::columns, w, w_dgrad_role(r_));
  }

  at::Tensor joined_bias() const {
    std::vector<at::Tensor> parts;
    for (size_t i = 0; i < fused_.weights.size(); ++i) {
      const Weight& w = *fused_.weights[i];
      const Weight* b = fused_.biases[i];
      parts.push_back(b != nullptr ? b->value.detach().to(at::kFloat) : at::zeros({w.value.size(0)}, w.value.options().dtype(at::kFloat)));
    }
    return at::cat(parts);
  }

  FusedLinears& fused_;
  const LinearRecipe& r_;
  const at::ScalarType x_type_;
  const c10::DeviceType device_;
  const StepContext context_;
  const RowShares shares_;
  const int64_t tokens_;
  const OperandRequests requests_;
  const bool joins_, joins_forward_;  // saves hold the output of each weight's GEMM
  const bool passing_;                // copies of weights are freed once a GEMM has read them
  const std::function<at::Tensor()> x_again_;
  bool makes_x_again_ = false;
  at::Tensor x_rows_, x_amax_;            // for x_again; this rank's rows of a sharded X
  std::optional<GatheredRows> x_coming_;  // the full X, with the other ranks' rows
  Operand x_;                             // otherwise: X for wgrad
  std::vector<Operand> dy_;               // of every wgrad GEMM, between dgrad and wgrad
  at::ScalarType dy_type_{};
  at::Tensor bias_dy_;
};

}  // namespace

int64_t FusedLinears::out_features() const {
  int64_t n = 0;
  for (const Weight* w : weights) n += w->value.size(0);
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
    return s.granularity != Granularity::tile && s.hadamard == 0 && !other_statistic;
  });
}

LinearCall linear_call(const at::Tensor& x_in, FusedLinears& fused, const LinearOptions& asked) {
  const at::Tensor x = row_major(x_in);
  const auto& stats = quantization_stats();
  LinearOptions options = asked;
  if (stats) options.x_again = nullptr;  // the statistics read X and dX
  const auto call = std::make_shared<Call>(fused, x, options);
  LinearCall result{call->forward({x, options.x_amax}, options), {}, {}};
  if (options.keep) {
    result.dgrad = [call](const Activation& dy, bool want_dx) { return call->dgrad({row_major(dy.value), dy.amax}, want_dx); };
    result.wgrad = [call] { call->wgrad(); };
  }
  if (stats && options.product) return stats->watch(x, fused, options, std::move(result));
  return result;
}

at::Tensor linear(const Activation& input, FusedLinears& fused, const StepContext& step, at::ScalarType out, const RowShares& shares) {
  const at::Tensor& x = input.value;
  check(x.dim() >= 1 && x.size(-1) == fused.in_features(), "{}: expected an input of [tokens, {}], found {}", fused.weights.front()->name,
        fused.in_features(), fmt::join(x.sizes(), " x "));
  std::vector<at::Tensor> inputs = {x};
  for (const Weight* w : fused.weights) inputs.push_back(w->value);
  LinearOptions options;
  options.step = step, options.keep = records(inputs);
  options.out = out == at::ScalarType::Undefined ? x.scalar_type() : out, options.x_amax = input.amax, options.shares = shares;
  if (input.kept) options.x_again = [rows = x.detach().reshape({-1, x.size(-1)})] { return rows; };
  const int64_t n = fused.out_features();
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = n;
  LinearCall call;
  {
    at::NoGradGuard no_grad;
    const at::Tensor plain = x.detach();
    call = linear_call(plain.dim() == 2 ? plain : plain.reshape({-1, plain.size(-1)}), fused, options);
    if (x.dim() != 2) call.y = call.y.view(shape).detach();
  }
  at::Tensor y = std::move(call.y);
  if (options.keep) {
    connect("linear", inputs, {&y},
            [call = std::move(call), &fused, step, n, want_dx = x.requires_grad(), sizes = x.sizes().vec(),
             type = x.scalar_type()](const variable_list& g) -> variable_list {
              variable_list result(1 + fused.weights.size());
              Activation dy = fused.dy_amax ? fused.dy_amax->take(g[0]) : Activation(g[0].to(type));
              if (g[0].dim() != 2) dy.value = g[0].reshape({-1, n});
              result[0] = call.dgrad(dy, want_dx);
              if (want_dx && sizes.size() != 2) result[0] = result[0].view(sizes);
              step.form_gradients([wgrad = call.wgrad, &fused] { wgrad(), fused.gradients_ready(); });
              return result;
            });
  }
  return y;
}

}  // namespace halftone
