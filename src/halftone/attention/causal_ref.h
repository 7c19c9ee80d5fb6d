#pragma once
#include <vector>

#include "halftone/attention/causal.h"

namespace halftone::attention {

// Reference for tests: the definition in fp64, one loop per index. Requires problems returned by `checked`; tensors are read through their
// layouts. Results are dense [B, q_len, H, hd] (out, dq), [B, kv_len, Hkv, hd] (dk, dv), with hd = v_dim for out and dv, and [B, H, q_len]
// (lse).
struct ReferenceForward {
  std::vector<double> out, lse;
};
struct ReferenceBackward {
  std::vector<double> dq, dk, dv;
};
ReferenceForward reference_forward(const AttentionForward& p);
// Recomputes the forward probabilities; ignores p.out and p.lse.
ReferenceBackward reference_backward(const AttentionBackward& p);

}  // namespace halftone::attention
