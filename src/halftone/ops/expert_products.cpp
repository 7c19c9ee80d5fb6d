#include "halftone/ops/expert_products.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>

#include "halftone/ops/dge.h"
#include "halftone/ops/stored_weight.h"

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

}  // namespace

OperandCopies quantize_groups(const BufferRows& x, const CopyRequest* row, const CopyRequest* columns, const ExpertRows& rows) {
  const auto reads_codes = [](const CopyRequest* r) { return r == nullptr || r->spec.quantized(); };
  GroupedRows groups{rows.groups()};
  if (!x.gathered || !reads_codes(row) || !reads_codes(columns))
    return quantize(in_buffer(x, rows), row, columns, {}, false, nullptr, &groups);
  in_buffer(x, rows, true);
  groups.from = rows.from(x.gates), groups.rows = rows.rows;
  return quantize(x.x, row, columns, {}, false, nullptr, &groups);
}

OperandCopies copies_of_experts(const Weight& w, const CopyRequest& f, const CopyRequest& d, const ExpertRows& rows) {
  const bool master = w.master.defined();
  const at::Tensor all = (master ? w.master : w.value).detach();
  const int64_t experts = all.size(0), n = all.size(1), k = all.size(2);
  const at::Tensor matrix = all.view({experts * n, k});
  const CopyRequest *row = f.spec.quantized() ? &f : nullptr, *transposed = d.spec.quantized() ? &d : nullptr;
  OperandCopies copies;
  // All experts at once if no block spans two experts and the scales of the transposed matrix already have the GEMM's layout.
  const bool by_128 = f.spec.block == 128 || d.spec.block == 128 || f.spec.two_level == TwoLevel::macro;
  if (!w.stored_experts.empty()) {
    std::vector<Operand> of_rows;
    for (const auto& expert : w.stored_experts) of_rows.push_back(stored_operand(*expert));
    copies.row = stacked(of_rows), copies.row.group_stride = n * copies.row.k;
  } else if ((row != nullptr || transposed != nullptr) && n % kGroupRows == 0 && !by_128) {
    const at::Tensor offsets = at::arange(experts + 1, rows.offsets.options()) * static_cast<int>(n);
    const GroupedRows groups{{experts, offsets.const_data_ptr<int32_t>(), offsets.const_data_ptr<int32_t>() + 1}, {}, 0, n};
    copies = quantize(matrix, row, transposed, {}, master, nullptr, &groups);
    copies.row.group_stride = n * copies.row.k, copies.transposed.group_ld = experts * n, copies.transposed.group_stride = n;
  } else if (row != nullptr || transposed != nullptr) {
    std::vector<Operand> of_rows, of_columns;
    for (int64_t e = 0; e < experts; ++e) {
      CopyRequest a = f, b = d;
      a.rounding.first_row += e * n, b.rounding.first_row += e * n;
      OperandCopies one = quantize(all.select(0, e), row ? &a : nullptr, transposed ? &b : nullptr, {}, master);
      of_rows.push_back(std::move(one.row)), of_columns.push_back(std::move(one.transposed));
    }
    if (row != nullptr) copies.row = stacked(of_rows), copies.row.group_stride = n * copies.row.k;
    if (transposed != nullptr) copies.transposed = stacked(of_columns), copies.transposed.group_stride = k * copies.transposed.k;
  }
  if (row == nullptr) copies.row = plain_operand(matrix, false), copies.row.group_stride = n * k;
  if (transposed == nullptr) {
    Operand o = plain_operand(matrix, true);
    o.rows = experts * k, o.k = n, o.group_stride = n * k;
    copies.transposed = std::move(o);
  }
  return copies;
}

void add_times_slopes(const at::Tensor& dw, Weight& w, const Operand& forward) {
  const at::Tensor grad = w.grad_to_add(), value = w.value.detach();
  const int64_t experts = value.size(0);
  for (int64_t e = 0; e < experts; ++e) {
    Operand one = forward;
    one.rows /= experts, one.groups = 0;
    for (at::Tensor* t : {&one.scales, &one.outer, &one.macro})
      if (t->defined()) *t = t->narrow(0, e * t->size(0) / experts, t->size(0) / experts);
    grad.select(0, e).addcmul_(dw.select(0, e), dge_slopes(value.select(0, e), one));
  }
}

}  // namespace halftone
