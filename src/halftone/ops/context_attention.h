#pragma once
#include "halftone/ops/aten.h"

// Context-parallel attention (ops/context_rows.h): queries stay local, keys and values are exchanged. Without autograd and sinks,
// arguments as in attention_core.h; `args.context` is set.
namespace halftone {

// The state's log-sum-exp is [B, H, S / n].
aten::AttentionState attend_context(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionArgs& args);
aten::AttentionGradients attend_context_backward(const at::Tensor& d_out, const aten::AttentionState& state, const AttentionArgs& args,
                                                 const aten::AttentionGradients& room);

}  // namespace halftone
