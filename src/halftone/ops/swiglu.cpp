#include "halftone/ops/swiglu.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/graph_task.h>

#include <utility>

#include "halftone/fused/swiglu.h"
#include "halftone/ops/aten.h"
#include "halftone/ops/autograd_node.h"
#include "halftone/ops/common.h"
#include "halftone/ops/cuda_module.h"

namespace halftone {
namespace {

const char* halves(const at::Tensor& gu) { return static_cast<const char*>(gu.const_data_ptr()) + gu.size(1) / 2 * gu.element_size(); }

at::Tensor maxima(const at::Tensor& of, int64_t count) { return at::empty({count}, of.options().dtype(at::kInt)); }

Activation forward(const at::Tensor& gu, bool want_amax) {
  const int64_t f = gu.size(1) / 2;
  at::Tensor h = at::empty({gu.size(0), f}, gu.options());
  SwigluForward p;
  p.rows = gu.size(0), p.cols = f, p.dtype = kernel_dtype(gu);
  p.g = gu.const_data_ptr(), p.u = halves(gu), p.g_stride = p.u_stride = gu.stride(0);
  p.h = h.data_ptr(), p.h_stride = f;
  at::Tensor amax;
  if (want_amax) {
    amax = maxima(gu, 1);
    p.amax = static_cast<uint32_t*>(amax.mutable_data_ptr());
  }
  if (gu.is_cpu()) {
    swiglu_forward(p);
  } else {
    cuda::launch("swiglu", &cuda::Module::swiglu_forward, p, gu.device());
  }
  return {h, amax};
}

// Tensors that backward reads and may overwrite. `gu` has no autograd history.
struct Saved {
  at::Tensor gu;
  std::shared_ptr<GradientAmax> gradients;
  at::Tensor dh, dgu;  // between dgrad and wgrad of the layer that reads h
  at::Tensor h;        // the same, if wgrad runs later
};

// There is no other reference to the memory, and no second backward pass will read it.
bool may_overwrite(const at::Tensor& saved) {
  return saved.storage().use_count() == 1 && !torch::autograd::get_current_graph_task_keep_graph();
}

// dgu[T, 2F]; writes h over dh on request.
at::Tensor backward(const at::Tensor& dh, const Saved& saved, bool h_over_dh = false) {
  const at::Tensor& gu = saved.gu;
  at::Tensor dgu = may_overwrite(gu) ? gu : at::empty_like(gu);
  SwigluBackward p;
  p.rows = gu.size(0), p.cols = gu.size(1) / 2, p.dtype = kernel_dtype(gu);
  p.g = gu.const_data_ptr(), p.u = halves(gu), p.g_stride = p.u_stride = gu.stride(0);
  p.dh = dh.const_data_ptr(), p.dh_stride = dh.stride(0);
  p.dg = dgu.data_ptr(), p.du = const_cast<char*>(halves(dgu)), p.dg_stride = p.du_stride = dgu.stride(0);
  if (h_over_dh) p.h = dh.data_ptr(), p.h_stride = dh.stride(0);
  if (saved.gradients != nullptr && amax_use().from_producers) {
    const at::Tensor amax = maxima(gu, 2);
    p.amax = static_cast<uint32_t*>(amax.mutable_data_ptr());
    saved.gradients->put(dgu, amax);
  }
  if (gu.is_cpu()) {
    swiglu_backward(p);
  } else {
    cuda::launch("swiglu", &cuda::Module::swiglu_backward, p, gu.device());
  }
  return dgu;
}

at::Tensor checked(const at::Tensor& gu) {
  check(gu.dim() == 2 && gu.size(1) % 2 == 0, "swiglu: expected [tokens, 2 * width], found {}", fmt::join(gu.sizes(), " x "));
  return gu.detach().contiguous();
}

}  // namespace

Activation swiglu(const at::Tensor& gu, bool want_amax, std::shared_ptr<GradientAmax> gradients) {
  Saved saved{checked(gu), std::move(gradients), {}, {}, {}};
  Activation h;
  {
    at::NoGradGuard no_grad;
    h = forward(saved.gu, want_amax && amax_use().from_producers);
  }
  if (records(gu)) {
    connect("swiglu", {gu}, {&h.value},
            [saved = std::move(saved)](const variable_list& g) -> variable_list { return {backward(g[0].contiguous(), saved)}; });
  }
  return h;
}

at::Tensor swiglu(const at::Tensor& g_in, const at::Tensor& u_in) {
  check(g_in.dim() == 2 && g_in.sizes() == u_in.sizes(), "swiglu: expected two tensors of one shape, found {} and {}",
        fmt::join(g_in.sizes(), " x "), fmt::join(u_in.sizes(), " x "));
  at::Tensor g = row_major(g_in.detach()), u = row_major(u_in.detach()), h = at::empty(g.sizes(), g.options());
  SwigluForward p;
  p.rows = g.size(0), p.cols = g.size(1), p.dtype = kernel_dtype(g);
  p.g = g.const_data_ptr(), p.u = u.const_data_ptr(), p.g_stride = row_stride(g), p.u_stride = row_stride(u);
  p.h = h.data_ptr(), p.h_stride = h.size(1);
  g.is_cpu() ? swiglu_forward(p) : cuda::launch("swiglu", &cuda::Module::swiglu_forward, p, g.device());
  if (!records(g_in, u_in)) return h;
  connect("swiglu", {g_in, u_in}, {&h}, [g = std::move(g), u = std::move(u)](const variable_list& d) -> variable_list {
    const at::Tensor dh = d[0].contiguous();
    const at::Tensor dg = may_overwrite(g) ? g : at::empty(g.sizes(), g.options()),
                     du = may_overwrite(u) ? u : at::empty(u.sizes(), u.options());
    SwigluBackward p;
    p.rows = g.size(0), p.cols = g.size(1), p.dtype = kernel_dtype(g);
    p.g = g.const_data_ptr(), p.u = u.const_data_ptr(), p.g_stride = row_stride(g), p.u_stride = row_stride(u);
    p.dh = dh.const_data_ptr(), p.dh_stride = dh.size(1);
    p.dg = dg.data_ptr(), p.du = du.data_ptr(), p.dg_stride = row_stride(dg), p.du_stride = row_stride(du);
    g.is_cpu() ? swiglu_backward(p) : cuda::launch("swiglu", &cuda::Module::swiglu_backward, p, g.device());
    return {dg, du};
  });
  return h;
}

at::Tensor swiglu_linear(const at::Tensor& gu, FusedLinears& fused, const StepContext& step, std::shared_ptr<GradientAmax> gradients,
                         const RowShares& shares) {
  auto saved = std::make_shared<Saved>(Saved{checked(gu), std::move(gradients), {}, {}, {}});
  check(gu.size(1) == 2 * fused.in_features(), "{}: expected an input of [tokens, 2 * {}], found {}", fused.weights.front()->name,
        fused.in_features(), fmt::join(gu.sizes(), " x "));
  std::vector<at::Tensor> inputs = {gu};
  for (const Weight* w : fused.weights) inputs.push_back(w->value);
  LinearOptions options;
  options.step = step, options.keep = records(inputs), options.out = gu.scalar_type(), options.shares = shares;
  options.x_again = [saved] {
    if (saved->h.defined()) return std::exchange(saved->h, at::Tensor());
    saved->dgu = backward(saved->dh, *saved, true);
    return std::exchange(saved->dh, at::Tensor());
  };
  LinearCall call;
  {
    at::NoGradGuard no_grad;
    const Activation h = forward(saved->gu, reads_x_amax(fused.recipe) && amax_use().from_producers);
    options.x_amax = h.amax;
    call = linear_call(h.value, fused, options);
  }
  at::Tensor y = std::move(call.y);
  if (options.keep) {
    connect("swiglu_linear", inputs, {&y}, [call = std::move(call), saved, &fused, step](const variable_list& g) -> variable_list {
      saved->dh = call.dgrad(g[0], true);
      variable_list result(1 + fused.weights.size());
      if (step.gradients && step.gradients->later) {
        result[0] = backward(saved->dh, *saved, true);
        saved->h = std::exchange(saved->dh, at::Tensor()), saved->gu = at::Tensor();
        step.form_gradients([wgrad = call.wgrad, &fused] { wgrad(), fused.gradients_ready(); });
        return result;
      }
      call.wgrad();
      result[0] = saved->dgu.defined() ? std::exchange(saved->dgu, at::Tensor()) : backward(saved->dh, *saved);
      saved->dh = at::Tensor();
      fused.gradients_ready();
      return result;
    });
  }
  return y;
}

}  // namespace halftone
