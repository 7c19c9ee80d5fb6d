#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>

#include "halftone/fused/expert_rows.h"
#include "halftone/ops/autograd_node.h"
#include "halftone/ops/common.h"
#include "halftone/ops/cuda_module.h"
#include "halftone/ops/expert_products.h"

// Routing rows to their experts and back, and the elementwise ops between the experts' GEMMs (fused/expert_rows.h).
namespace halftone {
namespace {

int32_t* ints(const at::Tensor& t) { return t.mutable_data_ptr<int32_t>(); }

// Runs a kernel of fused/ on the tensor's device.
template <class P>
void run(const char* name, void (*cpu)(const P&), const char* (*cuda::Module::*device)(const P*, void*), const P& p, c10::Device at) {
  at.is_cpu() ? cpu(p) : cuda::launch(name, device, p, at);
}

at::Tensor gather(const at::Tensor& x, const ExpertRows& rows) { return in_buffer({x, true}, rows); }

}  // namespace

at::Tensor in_buffer(const BufferRows& of, const ExpertRows& rows, bool products_alone) {
  if (!of.gathered) return of.x;
  const at::Tensor in = of.x.contiguous();
  at::Tensor out;
  GatherRows p;
  p.rows = rows.rows, p.cols = in.size(1), p.top_k = rows.top_k, p.dtype = kernel_dtype(in), p.x = in.const_data_ptr();
  const RowSource from = rows.from(of.gates);
  p.source = from.source, p.order = from.order, p.weight = from.weight;
  if (!products_alone) out = at::empty({rows.rows, in.size(1)}, in.options()), p.out = out.data_ptr();
  if (of.d_gates.defined()) p.other = of.other.const_data_ptr(), p.dots = of.d_gates.mutable_data_ptr<float>();
  if (p.out != nullptr || p.dots != nullptr) run("gather_rows", gather_rows, &cuda::Module::gather_rows, p, in.device());
  return out;
}

at::Tensor combine(const at::Tensor& x, const at::Tensor& weight, const ExpertRows& rows, const at::Tensor& more) {
  const at::Tensor in = x.contiguous(), out = at::empty({rows.tokens, x.size(1)}, x.options());
  CombineRows p;
  p.tokens = rows.tokens, p.cols = x.size(1), p.top_k = rows.top_k, p.dtype = kernel_dtype(in);
  p.slot = ints(rows.slot), p.rows = in.const_data_ptr(), p.out = out.data_ptr();
  if (weight.defined()) p.weight = weight.const_data_ptr<float>();
  if (more.defined()) p.more = more.const_data_ptr();
  run("combine_rows", combine_rows, &cuda::Module::combine_rows, p, x.device());
  return out;
}

void check_gates(const at::Tensor& gates) {
  check(gates.scalar_type() == at::kFloat && gates.is_contiguous(), "experts: expected contiguous fp32 gates, found {}",
        c10::toString(gates.scalar_type()));
}

RowGroups ExpertRows::groups() const { return {experts, ints(offsets), ints(ends)}; }

RowSource ExpertRows::from(const at::Tensor& gates) const {
  return {ints(source), top_k, gates.defined() ? gates.const_data_ptr<float>() : nullptr, order.defined() ? ints(order) : nullptr};
}

ExpertRows place_experts(const at::Tensor& expert, int64_t experts, bool some_stay) {
  if (some_stay) {
    // The last group is no group.
    ExpertRows r = place_experts(expert, experts + 1);
    r.experts = experts, r.some_stay = true;
    r.source.masked_fill_(at::arange(r.rows, r.source.options()).ge(r.offsets.select(0, experts)), -1);
    r.offsets = r.offsets.narrow(0, 0, experts + 1);
    r.ends = r.ends.narrow(0, 0, experts), r.counts = r.counts.narrow(0, 0, experts);
    return r;
  }
  check(expert.dim() == 2 && expert.scalar_type() == at::kInt && expert.is_contiguous(),
        "experts: expected the choices as int32 [tokens, top_k], found {} of [{}]", c10::toString(expert.scalar_type()),
        fmt::join(expert.sizes(), " x "));
  ExpertRows r;
  r.tokens = expert.size(0), r.top_k = expert.size(1), r.experts = experts;
  r.rows = most_group_rows(r.tokens * r.top_k, experts);
  const auto make = [&](at::IntArrayRef shape) { return at::empty(shape, expert.options()); };
  r.offsets = make({experts + 1}), r.ends = make({experts}), r.counts = make({experts}), r.slot = make(expert.sizes());
  r.source = make({r.rows}), r.order = make({r.rows / kGroupRows});
  const PlaceExperts p{r.tokens,       r.top_k,         experts,      r.rows,       expert.const_data_ptr<int32_t>(),
                       ints(r.counts), ints(r.offsets), ints(r.ends), ints(r.slot), ints(r.source),
                       ints(r.order)};
  run("place_experts", place_experts, &cuda::Module::place_experts, p, expert.device());
  return r;
}

at::Tensor gather_rows(const at::Tensor& x, const ExpertRows& rows) {
  check(x.dim() == 2 && x.size(0) == rows.tokens, "experts: expected {} tokens, found {}", rows.tokens, fmt::join(x.sizes(), " x "));
  return linear_op(
      "gather_rows", x, [&](const at::Tensor& t) { return gather(t, rows); }, [rows](const at::Tensor& g) { return combine(g, {}, rows); });
}

at::Tensor sum_rows(const at::Tensor& y, const ExpertRows& rows) {
  check(y.dim() == 2 && y.size(0) == rows.rows, "experts: expected {} rows, found {}", rows.rows, fmt::join(y.sizes(), " x "));
  return linear_op(
      "sum_rows", y, [&](const at::Tensor& t) { return combine(t, {}, rows); }, [rows](const at::Tensor& g) { return gather(g, rows); });
}

at::Tensor combine_rows(const at::Tensor& y, const at::Tensor& gates, const ExpertRows& rows) {
  check(y.dim() == 2 && y.size(0) == rows.rows, "experts: expected {} rows, found {}", rows.rows, fmt::join(y.sizes(), " x "));
  check_gates(gates);
  const at::Tensor plain = y.detach(), weight = gates.detach();
  at::Tensor out;
  {
    at::NoGradGuard no_grad;
    out = combine(plain, weight, rows);
  }
  if (records(y, gates)) {
    connect("combine_rows", {y, gates}, {&out}, [plain, weight, rows](const variable_list& g) -> variable_list {
      const at::Tensor d_gates = at::zeros_like(weight);  // zero for dropped choices
      at::Tensor d_rows = in_buffer({g[0], true, weight, plain, d_gates}, rows);
      return {std::move(d_rows), d_gates};
    });
  }
  return out;
}

at::Tensor add_group_bias(const at::Tensor& x, Weight& bias, const ExpertRows& rows) {
  at::Tensor out = x.detach();
  GroupBias p{rows.groups(), x.size(0), x.size(1), kernel_dtype(x), kernel_dtype(bias.value), bias.value.const_data_ptr(), out.data_ptr()};
  run("group_bias", group_bias, &cuda::Module::group_bias, p, x.device());
  const std::vector<at::Tensor> inputs = {x, bias.value};
  if (records(inputs)) {
    connect("group_bias", inputs, {&out}, [&bias, rows](const variable_list& g) -> variable_list {
      const at::Tensor dy = g[0].contiguous();
      if (bias.trainable()) {
        GroupSums sums{rows.groups(),    dy.size(0),          dy.size(1),
                       kernel_dtype(dy), dy.const_data_ptr(), bias.grad_to_add().mutable_data_ptr<float>()};
        run("group_sums", group_sums, &cuda::Module::group_sums, sums, dy.device());
      }
      bias.grad_ready();
      return {dy, {}};
    });
  }
  return out;
}

at::Tensor clamped_swiglu(const at::Tensor& gu_in, double limit) {
  check(gu_in.dim() == 2 && gu_in.size(1) % 2 == 0, "clamped swiglu: expected [rows, 2 * width], found {}",
        fmt::join(gu_in.sizes(), " x "));
  const at::Tensor gu = gu_in.detach().contiguous();
  at::Tensor h = at::empty({gu.size(0), gu.size(1) / 2}, gu.options());
  const ClampedSwiglu p{h.size(0), h.size(1), kernel_dtype(gu), static_cast<float>(limit), gu.const_data_ptr(), h.data_ptr()};
  run("clamped_swiglu", clamped_swiglu, &cuda::Module::clamped_swiglu, p, gu.device());
  if (records(gu_in)) {
    connect("clamped_swiglu", {gu_in}, {&h}, [gu, limit = p.limit](const variable_list& g) -> variable_list {
      const at::Tensor dh = g[0].contiguous();
      at::Tensor dgu = at::empty_like(gu);
      const ClampedSwigluBackward b{dh.size(0),          dh.size(1),          kernel_dtype(gu), limit,
                                    gu.const_data_ptr(), dh.const_data_ptr(), dgu.data_ptr()};
      run("clamped_swiglu", clamped_swiglu_backward, &cuda::Module::clamped_swiglu_backward, b, gu.device());
      return {dgu};
    });
  }
  return h;
}

}  // namespace halftone
