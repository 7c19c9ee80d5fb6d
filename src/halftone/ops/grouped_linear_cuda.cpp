#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "halftone/base/error.h"
#include "halftone/ops/common.h"
#include "halftone/ops/dge.h"
#include "halftone/ops/grouped_prepared.h"
#include "halftone/ops/operand_requests.h"

namespace halftone {
namespace {

// Concatenates the experts' copies into one operand, [E * rows, k].
Operand stacked(const std::vector<Operand>& parts) {
  Operand all = parts.front();
  all.rows *= static_cast<int64_t>(parts.size()), all.groups = static_cast<int64_t>(parts.size());
  for (at::Tensor Operand::*member : {&Operand::codes, &Operand::packed, &Operand::scales, &Operand::zeros, &Operand::outer,
                                      &Operand::macro, &Operand::values, &Operand::fold_scale}) {
    if (!(all.*member).defined()) continue;
    std::vector<at::Tensor> tensors;
    for (const Operand& p : parts) tensors.push_back(p.*member);
    all.*member = at::cat(tensors);
  }
  return all;
}

// One call's forward and backward: one grouped GEMM over all experts per weight.
class Call {
 public:
  Call(GroupedLinears& grouped, const BufferRows& x, const ExpertRows& rows, const LinearOptions& o)
      : grouped_(grouped),
        r_(grouped.recipe),
        rows_(rows),
        x_type_(x.x.scalar_type()),
        context_(o.step),
        requests_(name(), r_, x.x.device(), context_, o.step.first_row * kDrawsPerToken, rows.rows) {}

  std::vector<at::Tensor> forward(const BufferRows& x, const LinearOptions& o) {
    make_weights();
    const CopyRequest row = requests_.of_rows(r_.x_forward, r_.w_forward, type_of(r_.x_forward, r_.w_forward), name(), "x.fwd");
    const bool keep =
        o.keep && std::any_of(grouped_.weights.begin(), grouped_.weights.end(), [](const Weight* w) { return w->trainable(); });
    const CopyRequest columns = requests_.of_tokens(r_.x_wgrad, r_.dy_wgrad, x_type_, CopyUse::kept, name(), x_wgrad_role(r_));
    OperandCopies copies = copies_of(x, &row, keep ? &columns : nullptr);
    if (keep) x_ = std::move(copies.transposed);
    std::vector<at::Tensor> parts;
    for (size_t i = 0; i < grouped_.weights.size(); ++i) {
      const Weight& w = *grouped_.weights[i];
      at::Tensor y = at::empty({rows_.rows, w.value.size(1)}, x.x.options().dtype(o.out));
      cuda::multiply_groups(copies.row, prepared().forward[i], y, gemm::Ragged::rows, rows_, product_options(0));
      parts.push_back(y);
    }
    return parts;
  }

  std::vector<at::Tensor> dgrad(const std::vector<BufferRows>& all, bool want_dx) {
    make_weights();
    dy_.clear(), dy_type_ = all[0].x.scalar_type();
    std::vector<at::Tensor> dx;
    for (size_t i = 0; i < grouped_.weights.size(); ++i) {
      const Weight& w = *grouped_.weights[i];
      const at::ScalarType hp = hp_type(r_.dy_dgrad, dy_type_, r_.w_dgrad, w.value.scalar_type());
      const CopyRequest row = requests_.of_rows(r_.dy_dgrad, r_.w_dgrad, hp, w.name, "dy.dgrad");
      const CopyRequest columns = requests_.of_tokens(r_.dy_wgrad, r_.x_wgrad, hp_type(r_.dy_wgrad, dy_type_, r_.x_wgrad, x_type_),
                                                      CopyUse::columns, w.name, dy_wgrad_role(r_));
      OperandCopies copies = copies_of(all[i], want_dx ? &row : nullptr, w.trainable() ? &columns : nullptr);
      dy_.push_back(std::move(copies.transposed));
      if (!want_dx) continue;
      const at::Tensor part = at::empty({rows_.rows, grouped_.in_features()}, all[i].x.options());
      cuda::multiply_groups(copies.row, prepared().dgrad[i], part, gemm::Ragged::rows, rows_, product_options(1));
      dx.push_back(part);
    }
    return dx;
  }

  void wgrad() {
    for (size_t i = 0; i < grouped_.weights.size(); ++i) {
      Weight& w = *grouped_.weights[i];
      if (!w.trainable()) continue;
      ProductOptions options = product_options(2);
      options.accumulate = !w.grad_is_stale && !r_.dge;
      const at::Tensor dw = r_.dge ? at::empty(w.grad.sizes(), w.grad.options()) : w.grad_to_write();
      cuda::multiply_groups(dy_[i], {x_}, dw, gemm::Ragged::contraction, rows_, options);
      if (r_.dge) add_times_slopes(dw, i);
    }
    dy_.clear(), x_ = Operand();
  }

 private:
  const std::string& name() const { return grouped_.weights.front()->name; }
  GroupedLinears::Prepared& prepared() const { return *grouped_.prepared; }
  at::ScalarType type_of(const OperandSpec& x, const OperandSpec& w) const {
    return hp_type(x, x_type_, w, grouped_.weights.front()->value.scalar_type());
  }
  ProductOptions product_options(size_t product) const {
    ProductOptions o;
    o.fast_accum = r_.fast_accum[product], o.emulate = r_.emulate;
    return o;
  }

  // Adds dW of all experts times the slopes of their weights' quantisation (ops/dge.h), expert by expert: slopes are not stored.
  void add_times_slopes(const at::Tensor& dw, size_t i) {
    make_weights();
    Weight& w = *grouped_.weights[i];
    const at::Tensor grad = w.grad_to_add(), value = w.value.detach();
    const int64_t experts = value.size(0);
    for (int64_t e = 0; e < experts; ++e) {
      Operand one = prepared().forward[i].operand;
      one.rows /= experts, one.groups = 0;
      for (at::Tensor* t : {&one.scales, &one.outer, &one.macro})
        if (t->defined()) *t = t->narrow(0, e * t->size(0) / experts, t->size(0) / experts);
      grad.select(0, e).addcmul_(dw.select(0, e), dge_slopes(value.select(0, e), one));
    }
  }

  // Operands of gathered rows are made directly from x, unless one of them is the unquantised rows.
  OperandCopies copies_of(const BufferRows& x, const CopyRequest* row, const CopyRequest* columns) const {
    const auto reads_codes = [](const CopyRequest* r) { return r == nullptr || r->spec.quantized(); };
    GroupedRows groups{rows_.groups()};
    if (!x.gathered || !reads_codes(row) || !reads_codes(columns))
      return quantize(in_buffer(x, rows_), row, columns, {}, false, nullptr, &groups);
    in_buffer(x, rows_, true);
    groups.from = rows_.from(x.gates), groups.rows = rows_.rows;
    return quantize(x.x, row, columns, {}, false, nullptr, &groups);
  }

  // The operands of the weights at their current version; if both products are quantised, both operands come from one read.
  void make_weights() {
    GroupedLinears::Prepared::MadeOf state{0, {}, x_type_, requests_.capture()};
    for (const Weight* w : grouped_.weights) state.version += w->version;
    if (r_.w_forward.stochastic || r_.w_dgrad.stochastic) state.step = context_.step;
    if (!grouped_.prepared) grouped_.prepared = std::make_shared<GroupedLinears::Prepared>();
    GroupedLinears::Prepared& p = prepared();
    const bool moved = !r_.w_forward.quantized() || !r_.w_dgrad.quantized();  // plain operands are views of the weights' current memory
    if (p.made_of == state && !p.forward.empty() && !moved) return;
    p.forward.clear(), p.dgrad.clear(), p.made_of = state;
    for (Weight* w : grouped_.weights) {
      CopyRequest f = requests_.of_weight(r_.w_forward, r_.x_forward, type_of(r_.x_forward, r_.w_forward), CopyUse::rows, *w, "w.fwd");
      f.block_scales = r_.dge;
      const CopyRequest d =
          requests_.of_weight(r_.w_dgrad, r_.dy_dgrad, type_of(r_.dy_dgrad, r_.w_dgrad), CopyUse::columns, *w, w_dgrad_role(r_));
      add_copies(*w, f, d, p);
    }
  }

  void add_copies(const Weight& w, const CopyRequest& f, const CopyRequest& d, GroupedLinears::Prepared& p) const {
    const bool master = w.master.defined();
    const at::Tensor all = (master ? w.master : w.value).detach();
    const int64_t experts = all.size(0), n = all.size(1), k = all.size(2);
    GroupedWeight forward, dgrad;
    if (!r_.w_forward.quantized()) forward.operand = plain_operand(all.view({experts * n, k}), false), forward.stride = n * k;
    if (!r_.w_dgrad.quantized()) {
      dgrad.operand = plain_operand(all.view({experts * n, k}), true);
      dgrad.operand.rows = experts * k, dgrad.operand.k = n, dgrad.stride = n * k;
    }
    const CopyRequest* row = r_.w_forward.quantized() ? &f : nullptr;
    const CopyRequest* transposed = r_.w_dgrad.quantized() ? &d : nullptr;
    std::vector<Operand> rows, columns;
    // All experts at once if no block spans two experts and the scales of the transposed matrix already have the GEMM's layout.
    const bool by_128 = r_.w_forward.block == 128 || r_.w_dgrad.block == 128 || r_.w_forward.two_level == TwoLevel::macro;
    if ((row != nullptr || transposed != nullptr) && n % kGroupRows == 0 && !by_128) {
      const at::Tensor offsets = at::arange(experts + 1, rows_.offsets.options()) * static_cast<int>(n);
      const GroupedRows groups{{experts, offsets.const_data_ptr<int32_t>(), offsets.const_data_ptr<int32_t>() + 1}, {}, 0, n};
      OperandCopies copies = quantize(all.view({experts * n, k}), row, transposed, {}, master, nullptr, &groups);
      if (row != nullptr) forward.operand = std::move(copies.row), forward.stride = n * forward.operand.k;
      if (transposed != nullptr) dgrad.operand = std::move(copies.transposed), dgrad.ld = experts * n, dgrad.stride = n;
    } else if (row != nullptr || transposed != nullptr) {
      for (int64_t e = 0; e < experts; ++e) {
        CopyRequest of_row = f, of_columns = d;
        of_row.rounding.first_row += e * n, of_columns.rounding.first_row += e * n;
        OperandCopies copies = quantize(all.select(0, e), row ? &of_row : nullptr, transposed ? &of_columns : nullptr, {}, master);
        if (row != nullptr) rows.push_back(std::move(copies.row));
        if (transposed != nullptr) columns.push_back(std::move(copies.transposed));
      }
      if (row != nullptr) forward.operand = stacked(rows), forward.stride = n * forward.operand.k;
      if (transposed != nullptr) dgrad.operand = stacked(columns), dgrad.stride = k * dgrad.operand.k;
    }
    p.forward.push_back(std::move(forward)), p.dgrad.push_back(std::move(dgrad));
  }

  GroupedLinears& grouped_;
  const LinearRecipe& r_;
  const ExpertRows rows_;
  const at::ScalarType x_type_;
  const StepContext context_;
  const OperandRequests requests_;
  Operand x_;                // for wgrad
  std::vector<Operand> dy_;  // between dgrad and wgrad
  at::ScalarType dy_type_{};
};

}  // namespace

GroupedCall grouped_linear_cuda(const BufferRows& x, GroupedLinears& grouped, const ExpertRows& rows, const LinearOptions& options) {
  const auto call = std::make_shared<Call>(grouped, x, rows, options);
  GroupedCall result{call->forward(x, options), {}, {}};
  if (!options.keep) return result;
  result.dgrad = [call](const std::vector<BufferRows>& dy, bool want_dx) { return call->dgrad(dy, want_dx); };
  result.wgrad = [call] { call->wgrad(); };
  return result;
}

}  // namespace halftone
