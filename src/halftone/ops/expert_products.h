#pragma once
#include <functional>
#include <vector>

#include "halftone/ops/autograd_node.h"
#include "halftone/ops/grouped_linear.h"
#include "halftone/ops/product.h"

// Shared by the source files of ops/linear.h and ops/grouped_linear.h.
namespace halftone {

inline constexpr int64_t kDrawsPerToken =
    256;  // draw indices reserved per token for its rows of a buffer: more than a token's experts plus the padding

// The call of all experts on a GPU: one grouped GEMM per weight. options.step: with rows of the buffer, as its first_row.
GroupedCall expert_products(const BufferRows& x, FusedLinears& layer, const ExpertRows& rows, const LinearOptions& options);
// Operands of the rows, made directly from x if they are gathered, unless one of them is the unquantised rows.
OperandCopies quantize_groups(const BufferRows& x, const CopyRequest* row, const CopyRequest* columns, const ExpertRows& rows);
// Right operands of the weights w[E, N, K] (Operand::group_stride).
OperandCopies copies_of_experts(const Weight& w, const CopyRequest& row, const CopyRequest& transposed, const ExpertRows& rows);
// Adds dW of all experts times the slopes of their weights' quantisation (ops/dge.h), expert by expert: slopes are not stored.
void add_times_slopes(const at::Tensor& dw_enk, Weight& w, const Operand& forward);

namespace cuda {
// GEMMs over all groups of rows (gemm/grouped_product.h): out[R, N], or contracting rows out[E, M, N] (+)=.
void multiply_groups(const Operand& a, const Operand& b, const at::Tensor& out, bool contracts_rows, const ExpertRows& rows,
                     const ProductOptions& options);
}  // namespace cuda

// The rows as a tensor [R, N], and their d_gates. `products_alone`: computes only d_gates and returns an undefined tensor.
at::Tensor in_buffer(const BufferRows& of, const ExpertRows& rows, bool products_alone = false);
void check_gates(const at::Tensor& gates);
// out[t] = sum over j of weight[t, j] * (x + more)[slot[t, j]]; weight and more may be undefined.
at::Tensor combine(const at::Tensor& x, const at::Tensor& weight, const ExpertRows& rows, const at::Tensor& more = {});

// Autograd node of a linear: `dgrad` maps the outputs' gradients to those of the inputs, then wgrad runs or is deferred.
template <class Dgrad>
void connect_linear(const char* name, const std::vector<at::Tensor>& inputs, std::vector<at::Tensor*> outputs, FusedLinears& layer,
                    const StepContext& step, std::function<void()> wgrad, Dgrad dgrad) {
  connect(name, inputs, std::move(outputs), [&layer, step, wgrad = std::move(wgrad), dgrad = std::move(dgrad)](const variable_list& g) {
    variable_list result = dgrad(g);
    step.form_gradients([wgrad, &layer] { wgrad(), layer.gradients_ready(); });
    return result;
  });
}

}  // namespace halftone
