#include "halftone/ops/grouped_linear.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "halftone/base/error.h"
#include "halftone/ops/common.h"
#include "halftone/ops/expert_products.h"
#include "halftone/ops/hardware.h"

namespace halftone {

// The weights of every expert, views of the full tensors at their current addresses, as a dense layer.
struct ExpertSlices {
  struct Expert {
    std::vector<Weight> weights;
    FusedLinears layer;
  };
  std::vector<Expert> experts;
};

namespace {

Weight slice_of(const Weight& whole, int64_t e) {
  Weight w;
  const auto cut = [&](const at::Tensor& t) { return t.defined() ? t.detach().select(0, e) : at::Tensor(); };
  w.name = whole.name, w.first_row = whole.first_row + e * whole.value.size(1), w.version = whole.version;
  w.value = cut(whole.value), w.master = cut(whole.master), w.grad = cut(whole.grad);
  if (!whole.stored_experts.empty()) w.stored = whole.stored_experts[static_cast<size_t>(e)];
  return w;
}

// On the CPU each expert's rows run through its dense layer, one expert after another.
class Loop {
 public:
  Loop(FusedLinears& layer, const ExpertRows& rows) : layer_(layer), rows_(rows) {
    if (!layer.slices) layer.slices = std::make_shared<ExpertSlices>();
    layer.slices->experts.resize(static_cast<size_t>(rows.experts));
    find_runs();
  }

  std::vector<at::Tensor> forward(const at::Tensor& x, const LinearOptions& options) {
    slice();
    at::Tensor y = at::zeros({rows_.rows, layer_.out_features()}, x.options().dtype(options.out));
    for (const Run& r : runs_) {
      LinearOptions o = options;
      o.first_row = r.first, o.y = r.of(y);
      calls_.push_back(linear_call(r.of(x), layer_.slices->experts[r.expert].layer, o));
    }
    std::vector<at::Tensor> parts;
    int64_t n0 = 0;
    for (const Weight* w : layer_.weights) {
      parts.push_back(y.narrow(1, n0, w->value.size(1)).detach());
      n0 += w->value.size(1);
    }
    return parts;
  }

  std::vector<at::Tensor> dgrad(const std::vector<BufferRows>& gradients, bool want_dx) {
    slice();
    std::vector<at::Tensor> parts;
    for (const BufferRows& d : gradients) parts.push_back(in_buffer(d, rows_));
    const at::Tensor dy = parts.size() == 1 ? row_major(parts[0]) : at::cat(parts, 1);
    at::Tensor dx = want_dx ? at::zeros({rows_.rows, layer_.in_features()}, dy.options()) : at::Tensor();
    for (size_t i = 0; i < runs_.size(); ++i) {
      const at::Tensor part = calls_[i].dgrad(runs_[i].of(dy), want_dx);
      if (want_dx) runs_[i].of(dx).copy_(part);
    }
    return {dx};
  }

  // Writes every expert's slice of a gradient: its product if it has rows, otherwise zeros if the slice was stale.
  void wgrad() {
    for (size_t i = 0; i < layer_.weights.size(); ++i) {
      Weight& whole = *layer_.weights[i];
      if (!whole.trainable()) continue;
      const bool stale = whole.grad_is_stale;
      whole.grad_to_write();
      for (int64_t e = 0; e < rows_.experts; ++e) {
        Weight& part = layer_.slices->experts[static_cast<size_t>(e)].weights[i];
        part.grad = whole.grad.select(0, e), part.grad_is_stale = stale;
      }
    }
    for (LinearCall& call : calls_) call.wgrad();
    for (ExpertSlices::Expert& expert : layer_.slices->experts) {
      for (Weight& part : expert.weights) {
        if (part.trainable()) part.grad_to_add();
      }
    }
    calls_.clear();
  }

 private:
  void slice() {
    for (int64_t e = 0; e < rows_.experts; ++e) {
      auto& [weights, layer] = layer_.slices->experts[static_cast<size_t>(e)];
      weights.resize(layer_.weights.size());
      layer.recipe = layer_.recipe, layer.weights.clear();
      for (size_t i = 0; i < weights.size(); ++i) {
        weights[i] = slice_of(*layer_.weights[i], e);
        layer.weights.push_back(&weights[i]);
      }
    }
  }
  void find_runs() {
    if (rows_.source.is_meta()) {  // a dry run: even shares
      const int64_t each = rows_.rows / rows_.experts;
      for (int64_t e = 0; e < rows_.experts; ++e) runs_.push_back({static_cast<size_t>(e), e * each, each});
      return;
    }
    const RowGroups g = rows_.groups();
    const bool apart = rows_.documents.defined() && !layer_.recipe.quantized();
    const int32_t *source = rows_.source.const_data_ptr<int32_t>(), *start = apart ? rows_.documents.const_data_ptr<int32_t>() : nullptr;
    const int64_t in_row = apart ? rows_.tokens_in_row : rows_.tokens;
    // The document of a row, identified by its first token.
    const auto document = [&](int64_t r) {
      const int64_t token = source[r] / rows_.top_k;
      return apart ? token / in_row * in_row + start[token] : 0;
    };
    for (int64_t e = 0; e < g.groups; ++e) {
      for (int64_t first = g.offsets[e], r = first; r < g.ends[e]; ++r) {
        if (r + 1 < g.ends[e] && document(r + 1) == document(r)) continue;
        runs_.push_back({static_cast<size_t>(e), first, r + 1 - first});
        first = r + 1;
      }
    }
  }

  // Rows of an expert that run through its layer together: all of them, or those of one document.
  struct Run {
    size_t expert;
    int64_t first, count;
    at::Tensor of(const at::Tensor& t) const { return t.narrow(0, first, count); }
  };
  FusedLinears& layer_;
  const ExpertRows rows_;
  std::vector<Run> runs_;
  std::vector<LinearCall> calls_;  // one per run
};

}  // namespace

GroupedCall grouped_linear_call(const BufferRows& in, FusedLinears& layer, const ExpertRows& rows, const LinearOptions& asked) {
  const at::Tensor& x = in.x;
  const int64_t given = in.gathered ? rows.tokens : rows.rows, experts = layer.weights.front()->value.size(0);
  check(x.dim() == 2 && x.size(0) == given && x.size(1) == layer.in_features() && rows.experts == experts,
        "{}: expected an input of [{}, {}] for {} experts, found {} for {}", layer.weights.front()->name, given, layer.in_features(),
        experts, fmt::join(x.sizes(), " x "), rows.experts);
  LinearOptions options = asked;
  options.step.first_row *= kDrawsPerToken;  // rows of a buffer are indexed for random draws after those of the preceding micro-batches
  if (!is_cpu(process_hardware(x.device().type()))) return expert_products(in, layer, rows, options);
  const auto loop = std::make_shared<Loop>(layer, rows);
  GroupedCall result{loop->forward(row_major(in_buffer(in, rows)), options), {}, {}};
  if (!options.keep) return result;
  result.dgrad = [loop](const std::vector<BufferRows>& dy, bool want_dx) { return loop->dgrad(dy, want_dx); };
  result.wgrad = [loop] { loop->wgrad(); };
  return result;
}

namespace {

// A grouped linear and its autograd node. x: its rows, gathered from `source`, whose gradient is dx_of of theirs. gates: combine weights,
// or null.
std::vector<at::Tensor> connected(const at::Tensor& source, const BufferRows& x, FusedLinears& layer, const ExpertRows& rows,
                                  const StepContext& step, std::function<at::Tensor(const std::vector<at::Tensor>&)> dx_of,
                                  const at::Tensor* combined_by = nullptr) {
  const bool combined = combined_by != nullptr;
  std::vector<at::Tensor> inputs = {source};
  for (const Weight* w : layer.weights) inputs.push_back(w->value);
  const size_t of_gates = inputs.size();
  const at::Tensor gates = combined && combined_by->defined() ? combined_by->detach() : at::Tensor();
  if (gates.defined()) inputs.push_back(*combined_by);
  LinearOptions options;
  options.step = step, options.keep = records(inputs), options.out = x.x.scalar_type();
  GroupedCall call;
  std::vector<at::Tensor> y;
  at::Tensor made;  // the output rows that the gradient of the gates needs
  {
    at::NoGradGuard no_grad;
    call = grouped_linear_call(x, layer, rows, options);
    y = std::exchange(call.y, {});
    if (combined) {
      if (gates.defined()) made = y[0];
      y[0] = combine(y[0], gates, rows);
    }
  }
  if (!options.keep) return y;
  std::vector<at::Tensor*> outputs;
  for (at::Tensor& part : y) outputs.push_back(&part);
  connect_linear("grouped_linear", inputs, outputs, layer, step, std::move(call.wgrad),
                 [dgrad = std::move(call.dgrad), dx_of = std::move(dx_of), want_dx = source.requires_grad(), combined, gates, made,
                  of_gates](const variable_list& g) {
                   variable_list result(of_gates + (gates.defined() ? 1 : 0));
                   std::vector<BufferRows> dy;
                   for (const at::Tensor& part : g) dy.push_back({part, combined, gates});
                   if (gates.defined()) {
                     result[of_gates] = at::zeros_like(gates);  // zero for dropped choices
                     dy[0].other = made, dy[0].d_gates = result[of_gates];
                   }
                   const std::vector<at::Tensor> d = dgrad(dy, want_dx);
                   if (want_dx) result[0] = dx_of(d);
                   return result;
                 });
  return y;
}

at::Tensor sum_of(const std::vector<at::Tensor>& d) {
  at::Tensor dx = d[0];
  for (size_t i = 1; i < d.size(); ++i) dx.add_(d[i]);
  return dx;
}

}  // namespace

std::vector<at::Tensor> grouped_linear(const at::Tensor& x, FusedLinears& layer, const ExpertRows& rows, const StepContext& step) {
  return connected(x, {x.detach()}, layer, rows, step, sum_of);
}

std::vector<at::Tensor> gathered_linear(const at::Tensor& x, FusedLinears& layer, const ExpertRows& rows, const StepContext& step) {
  return connected(x, {x.detach(), true}, layer, rows, step,
                   [rows](const std::vector<at::Tensor>& d) { return combine(d[0], {}, rows, d.size() > 1 ? d[1] : at::Tensor()); });
}

at::Tensor combined_linear(const at::Tensor& x, FusedLinears& layer, const ExpertRows& rows, const at::Tensor& gates,
                           const StepContext& step) {
  check(layer.weights.size() == 1, "experts: expected rows of one weight to combine, found those of {}", layer.weights.size());
  if (gates.defined()) check_gates(gates);
  return connected(x, {x.detach()}, layer, rows, step, sum_of, &gates)[0];
}

}  // namespace halftone
