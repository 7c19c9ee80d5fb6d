#pragma once
#include <vector>

#include "halftone/attention/causal.h"

namespace halftone::attention {

// The definition in fp64, one loop per index, for the tests: of problems that `checked` returned, tensors are read through their layouts,
// results are dense [B, q_len, H, hd] (out, dq), [B, kv_len, Hkv, hd] (dk, dv), hd of out and dv being v_dim, and [B, H, q_len] (lse).
struct ReferenceForward {
  std::vector<double> out, lse;
};
struct ReferenceBackward {
  std::vector<double> dq, dk, dv;
};
ReferenceForward reference_forward(const AttentionForward& p);
// Computes the forward's probabilities itself; ignores p.out and p.lse.
ReferenceBackward reference_backward(const AttentionBackward& p);

}  // namespace halftone::attention
