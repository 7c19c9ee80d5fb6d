#pragma once
#include "halftone/comm/communicator.h"
#include "halftone/formats/recipe.h"
#include "halftone/ops/activation.h"
#include "halftone/ops/row_exchange.h"

namespace halftone::nn {

// The processes that share the work on the rows of a micro-batch with this one; null: this one does all of it.
struct Groups {
  comm::Communicator* tensor = nullptr;   // heads, widths and vocabulary (tp)
  comm::Communicator* context = nullptr;  // places of a row (cp)
  comm::Communicator* experts = nullptr;  // experts (ep)
  bool sequence_shards = true;            // between blocks each process of `tensor` has an equal share of the tokens; else all of them
  bool cuts_experts = true;               // `tensor` has the widths of experts, too; else its processes have experts of their own
  double expert_capacity = 0;             // of what a process sends to each of `experts` (ops/expert_exchange.h)
  OperandSpec expert_format;              // in which it sends tokens
  bool in_parts = false;                  // products on `sequence_shards` run beside what of these is under way
  bool split_loss = true;                 // logits stay with the processes of `tensor` that have made them

  bool first_of_tensor() const { return tensor == nullptr || tensor->index() == 0; }
};

// Into and out of what the processes of `tensor` compute together (Korthikanti et al. 2022): all tokens from this process's share of them,
// and its share of the sum of what the processes have computed in parts.
Activation enter(const Activation& x, const Groups& groups);
at::Tensor leave(const at::Tensor& partial, const Groups& groups);
// The same as a part of the product behind or before it, where a product of the recipe can: linears are given these, and then neither enter
// nor leave is called. Else without processes.
enum class Way { in, out };
RowShares row_shares(Way way, const LinearRecipe& recipe, const Groups& groups);

}  // namespace halftone::nn
