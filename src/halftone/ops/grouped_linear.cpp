#include "halftone/ops/grouped_linear.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "halftone/base/error.h"
#include "halftone/ops/common.h"
#include "halftone/ops/grouped_prepared.h"
#include "halftone/ops/node.h"

namespace halftone {
namespace {

// A buffer's rows draw by their place behind those of the micro-batches before it.
StepContext of_buffer(StepContext step) {
  step.first_row *= kDrawsPerToken;
  return step;
}

// Expert e's part of a parameter, in the memory of the whole.
Weight part_of(const Weight& whole, int64_t e) {
  Weight w;
  const auto cut = [&](const at::Tensor& t) { return t.defined() ? t.detach().select(0, e) : at::Tensor(); };
  w.name = whole.name, w.first_row = e * whole.value.size(1), w.version = whole.version;
  w.value = cut(whole.value), w.master = cut(whole.master), w.grad = cut(whole.grad);
  return w;
}

// Each expert's rows through the dense layer, one expert after another.
class Loop : public std::enable_shared_from_this<Loop> {
 public:
  Loop(GroupedLinears& grouped, const ExpertRows& rows) : grouped_(grouped), rows_(rows) {
    if (!grouped.prepared) grouped.prepared = std::make_shared<GroupedLinears::Prepared>();
    grouped.prepared->experts.resize(static_cast<size_t>(rows.experts));
  }

  at::Tensor forward(const at::Tensor& x, const LinearOptions& options) {
    find_parts();
    at::Tensor y = at::zeros({rows_.rows, grouped_.out_features()}, x.options().dtype(options.out));
    calls_.resize(static_cast<size_t>(rows_.experts));
    for_each([&](size_t e, int64_t first, int64_t count) {
      LinearOptions o = options;
      o.step = of_buffer(options.step), o.first_row = first, o.y = y.narrow(0, first, count);
      calls_[e] = linear_call(x.narrow(0, first, count), grouped_.prepared->experts[e].fused, o);
    });
    return y;
  }

  at::Tensor dgrad(const at::Tensor& dy, bool want_dx) {
    find_parts();
    at::Tensor dx = want_dx ? at::zeros({rows_.rows, grouped_.in_features()}, dy.options()) : at::Tensor();
    for_each([&](size_t e, int64_t first, int64_t count) {
      const at::Tensor part = calls_[e].dgrad(dy.narrow(0, first, count), want_dx);
      if (want_dx) dx.narrow(0, first, count).copy_(part);
    });
    return dx;
  }

  // Every expert's part of a gradient is written: a product's sum where it has rows, else zeros where it was stale.
  void wgrad() {
    for (size_t i = 0; i < grouped_.weights.size(); ++i) {
      Weight& whole = *grouped_.weights[i];
      if (!whole.trainable()) continue;
      const bool stale = whole.grad_is_stale;
      whole.grad_to_write();
      for (size_t e = 0; e < calls_.size(); ++e) {
        Weight& part = grouped_.prepared->experts[e].parts[i];
        part.grad = whole.grad.select(0, static_cast<int64_t>(e)), part.grad_is_stale = stale;
      }
    }
    for_each([&](size_t e, int64_t, int64_t) { calls_[e].wgrad(); });
    for (auto& expert : grouped_.prepared->experts) {
      for (Weight& part : expert.parts) {
        if (part.trainable()) part.grad_to_add();
      }
    }
    calls_.clear();
  }

 private:
  // The experts' parts of the weights, where these lie now.
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
  // Of every expert that has rows: its number, its first row and how many they are.
  template <class F>
  void for_each(F&& f) const {
    const RowGroups g = rows_.groups();
    for (int64_t e = 0; e < g.groups; ++e) {
      if (g.ends[e] > g.offsets[e]) f(static_cast<size_t>(e), g.offsets[e], g.ends[e] - g.offsets[e]);
    }
  }

  GroupedLinears& grouped_;
  const ExpertRows rows_;
  std::vector<LinearCall> calls_;
};

}  // namespace

int64_t GroupedLinears::out_features() const {
  int64_t n = 0;
  for (const Weight* w : weights) n += w->value.size(1);
  return n;
}

LinearCall grouped_linear_call(const at::Tensor& x, GroupedLinears& grouped, const ExpertRows& rows, const LinearOptions& options) {
  check(x.dim() == 2 && x.size(0) == rows.rows && x.size(1) == grouped.in_features() && rows.experts == grouped.experts(),
        "{}: expected an input of [{}, {}] for {} experts, found {} for {}", grouped.weights.front()->name, rows.rows,
        grouped.in_features(), grouped.experts(), fmt::join(x.sizes(), " x "), rows.experts);
  if (!x.is_cpu()) return grouped_linear_cuda(row_major(x), grouped, rows, options);
  const auto loop = std::make_shared<Loop>(grouped, rows);
  LinearCall result{loop->forward(row_major(x), options), {}, {}};
  if (!options.keep) return result;
  result.dgrad = [loop](const Activation& dy, bool want_dx) { return loop->dgrad(row_major(dy.value), want_dx); };
  result.wgrad = [loop] { loop->wgrad(); };
  return result;
}

at::Tensor grouped_linear(const at::Tensor& x, GroupedLinears& grouped, const ExpertRows& rows, const StepContext& step) {
  std::vector<at::Tensor> inputs = {x};
  for (const Weight* w : grouped.weights) inputs.push_back(w->value);
  LinearOptions options;
  options.step = step, options.keep = records(inputs), options.out = x.scalar_type();
  LinearCall call;
  {
    at::NoGradGuard no_grad;
    call = grouped_linear_call(x.detach(), grouped, rows, options);
  }
  at::Tensor y = std::move(call.y);
  if (options.keep) {
    connect("grouped_linear", inputs, {&y},
            [call = std::move(call), &grouped, want_dx = x.requires_grad()](const variable_list& g) -> variable_list {
              variable_list result(1 + grouped.weights.size());
              result[0] = call.backward(g[0], want_dx);
              for (Weight* w : grouped.weights) w->grad_ready();
              return result;
            });
  }
  return y;
}

}  // namespace halftone
