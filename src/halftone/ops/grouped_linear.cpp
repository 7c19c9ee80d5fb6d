#include "halftone/ops/grouped_linear.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "halftone/base/error.h"
#include "halftone/ops/common.h"
#include "halftone/ops/grouped_prepared.h"
#include "halftone/ops/node.h"

namespace halftone {
namespace {

// Rows of a buffer are indexed for random draws after those of the preceding micro-batches.
StepContext of_buffer(StepContext step) {
  step.first_row *= kDrawsPerToken;
  return step;
}

// Expert e's slice of a parameter, a view of the full tensor.
Weight part_of(const Weight& whole, int64_t e) {
  Weight w;
  const auto cut = [&](const at::Tensor& t) { return t.defined() ? t.detach().select(0, e) : at::Tensor(); };
  w.name = whole.name, w.first_row = whole.first_row + e * whole.value.size(1), w.version = whole.version;
  w.value = cut(whole.value), w.master = cut(whole.master), w.grad = cut(whole.grad);
  return w;
}

// Runs each expert's rows through the dense layer, one expert after another.
class Loop {
 public:
  Loop(GroupedLinears& grouped, const ExpertRows& rows) : grouped_(grouped), rows_(rows) {
    if (!grouped.prepared) grouped.prepared = std::make_shared<GroupedLinears::Prepared>();
    grouped.prepared->experts.resize(static_cast<size_t>(rows.experts));
    find_runs();
  }

  std::vector<at::Tensor> forward(const at::Tensor& x, const LinearOptions& options) {
    find_parts();
    at::Tensor y = at::zeros({rows_.rows, grouped_.out_features()}, x.options().dtype(options.out));
    for (const Run& r : runs_) {
      LinearOptions o = options;
      o.step = of_buffer(options.step), o.first_row = r.first, o.y = y.narrow(0, r.first, r.count);
      calls_.push_back(linear_call(x.narrow(0, r.first, r.count), grouped_.prepared->experts[r.expert].fused, o));
    }
    std::vector<at::Tensor> parts;
    int64_t n0 = 0;
    for (const Weight* w : grouped_.weights) {
      parts.push_back(y.narrow(1, n0, w->value.size(1)).detach());
      n0 += w->value.size(1);
    }
    return parts;
  }

  std::vector<at::Tensor> dgrad(const std::vector<at::Tensor>& parts, bool want_dx) {
    find_parts();
    const at::Tensor dy = parts.size() == 1 ? row_major(parts[0]) : at::cat(parts, 1);
    at::Tensor dx = want_dx ? at::zeros({rows_.rows, grouped_.in_features()}, dy.options()) : at::Tensor();
    for (size_t i = 0; i < runs_.size(); ++i) {
      const at::Tensor part = calls_[i].dgrad(dy.narrow(0, runs_[i].first, runs_[i].count), want_dx);
      if (want_dx) dx.narrow(0, runs_[i].first, runs_[i].count).copy_(part);
    }
    return want_dx ? std::vector{dx} : std::vector<at::Tensor>();
  }

  // Writes every expert's slice of a gradient: its product if it has rows, otherwise zeros if the slice was stale.
  void wgrad() {
    for (size_t i = 0; i < grouped_.weights.size(); ++i) {
      Weight& whole = *grouped_.weights[i];
      if (!whole.trainable()) continue;
      const bool stale = whole.grad_is_stale;
      whole.grad_to_write();
      for (int64_t e = 0; e < rows_.experts; ++e) {
        Weight& part = grouped_.prepared->experts[static_cast<size_t>(e)].parts[i];
        part.grad = whole.grad.select(0, e), part.grad_is_stale = stale;
      }
    }
    for (LinearCall& call : calls_) call.wgrad();
    for (auto& expert : grouped_.prepared->experts) {
      for (Weight& part : expert.parts) {
        if (part.trainable()) part.grad_to_add();
      }
    }
    calls_.clear();
  }

 private:
  // The experts' slices of the weights at their current addresses.
  void find_parts() {
    for (int64_t e = 0; e < rows_.experts; ++e) {
      GroupedLinears::Prepared::Expert& expert = grouped_.prepared->experts[static_cast<size_t>(e)];
      expert.parts.resize(grouped_.weights.size());
      expert.fused.recipe = grouped_.recipe, expert.fused.weights.clear();
      for (size_t i = 0; i < grouped_.weights.size(); ++i) {
        expert.parts[i] = part_of(*grouped_.weights[i], e);
        expert.fused.weights.push_back(&expert.parts[i]);
      }
    }
  }
  void find_runs() {
    const RowGroups g = rows_.groups();
    const bool apart = rows_.documents.defined() && !grouped_.recipe.quantized();
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
  };
  GroupedLinears& grouped_;
  const ExpertRows rows_;
  std::vector<Run> runs_;
  std::vector<LinearCall> calls_;  // one per run
};

}  // namespace

int64_t GroupedLinears::out_features() const {
  int64_t n = 0;
  for (const Weight* w : weights) n += w->value.size(1);
  return n;
}

GroupedCall grouped_linear_call(const BufferRows& in, GroupedLinears& grouped, const ExpertRows& rows, const LinearOptions& options) {
  const at::Tensor& x = in.x;
  const int64_t given = in.gathered ? rows.tokens : rows.rows;
  check(x.dim() == 2 && x.size(0) == given && x.size(1) == grouped.in_features() && rows.experts == grouped.experts(),
        "{}: expected an input of [{}, {}] for {} experts, found {} for {}", grouped.weights.front()->name, given, grouped.in_features(),
        grouped.experts(), fmt::join(x.sizes(), " x "), rows.experts);
  if (!x.is_cpu()) return grouped_linear_cuda(in, grouped, rows, options);
  const auto loop = std::make_shared<Loop>(grouped, rows);
  GroupedCall result{loop->forward(row_major(in_buffer(in, rows)), options), {}, {}};
  if (!options.keep) return result;
  result.dgrad = [loop, rows](const std::vector<BufferRows>& dy, bool want_dx) {
    std::vector<at::Tensor> parts;
    for (const BufferRows& d : dy) parts.push_back(in_buffer(d, rows));
    return loop->dgrad(parts, want_dx);
  };
  result.wgrad = [loop] { loop->wgrad(); };
  return result;
}

namespace {

// The autograd node of a grouped linear. x: its rows, gathered from `source`, whose gradient is dx_of of theirs. gates: combine weights,
// or null.
std::vector<at::Tensor> connected(const at::Tensor& source, const BufferRows& x, GroupedLinears& grouped, const ExpertRows& rows,
                                  const StepContext& step, std::function<at::Tensor(const std::vector<at::Tensor>&)> dx_of,
                                  const at::Tensor* combined_by = nullptr) {
  const bool combined = combined_by != nullptr;
  std::vector<at::Tensor> inputs = {source};
  for (const Weight* w : grouped.weights) inputs.push_back(w->value);
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
    call = grouped_linear_call(x, grouped, rows, options);
    y = std::exchange(call.y, {});
    if (combined) {
      if (gates.defined()) made = y[0];
      y[0] = combine(y[0], gates, rows);
    }
  }
  if (!options.keep) return y;
  std::vector<at::Tensor*> outputs;
  for (at::Tensor& part : y) outputs.push_back(&part);
  connect("grouped_linear", inputs, outputs,
          [call = std::move(call), &grouped, rows, step, dx_of = std::move(dx_of), want_dx = source.requires_grad(), combined, gates, made,
           of_gates](const variable_list& g) {
            variable_list result(of_gates + (gates.defined() ? 1 : 0));
            std::vector<BufferRows> dy;
            for (const at::Tensor& part : g) dy.push_back({part, combined, gates});
            if (gates.defined()) {
              result[of_gates] = at::zeros_like(gates);  // zero for dropped choices
              dy[0].other = made, dy[0].d_gates = result[of_gates];
            }
            const std::vector<at::Tensor> d = call.dgrad(dy, want_dx);
            if (want_dx) result[0] = dx_of(d);
            step.form_gradients([wgrad = call.wgrad, &grouped] {
              wgrad();
              for (Weight* w : grouped.weights) w->grad_ready();
            });
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

std::vector<at::Tensor> grouped_linear(const at::Tensor& x, GroupedLinears& grouped, const ExpertRows& rows, const StepContext& step) {
  return connected(x, {x.detach()}, grouped, rows, step, sum_of);
}

std::vector<at::Tensor> gathered_linear(const at::Tensor& x, GroupedLinears& grouped, const ExpertRows& rows, const StepContext& step) {
  return connected(x, {x.detach(), true}, grouped, rows, step,
                   [rows](const std::vector<at::Tensor>& d) { return combine(d[0], {}, rows, d.size() > 1 ? d[1] : at::Tensor()); });
}

at::Tensor combined_linear(const at::Tensor& x, GroupedLinears& grouped, const ExpertRows& rows, const at::Tensor& gates,
                           const StepContext& step) {
  check(grouped.weights.size() == 1, "experts: expected rows of one weight to combine, found those of {}", grouped.weights.size());
  if (gates.defined()) check_gates(gates);
  return connected(x, {x.detach()}, grouped, rows, step, sum_of, &gates)[0];
}

}  // namespace halftone
