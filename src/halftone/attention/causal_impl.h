#pragma once
#include <cstddef>
#include <span>

#include "halftone/attention/causal.h"

namespace halftone::attention {

// Functions of one instruction set. The public functions use the first implementation that is `usable`; the tests and the benchmark call
// each one.
struct Implementation {
  const char* name;
  bool (*usable)(DType);  // supported by this CPU and correct for this element type
  void (*forward)(const AttentionForward&);
  void (*backward)(const AttentionBackward&);
};
std::span<const Implementation> implementations();  // fastest first

// Throws Error unless the problem is well formed; returns a copy with explicit strides and v_dim.
AttentionForward checked(const AttentionForward& p);
AttentionBackward checked(const AttentionBackward& p);

// The blocked implementations require problems returned by `checked`.
void forward_v3(const AttentionForward& p);
void backward_v3(const AttentionBackward& p);
void forward_avx512(const AttentionForward& p);
void backward_avx512(const AttentionBackward& p);
void forward_vnni(const AttentionForward& p);
void backward_vnni(const AttentionBackward& p);
void forward_amx(const AttentionForward& p);
void backward_amx(const AttentionBackward& p);

// One or a few queries against a KV cache: memory-bound on k and v, so nothing is packed. x86-64-v3.
void forward_decode(const AttentionForward& p);

// Per-thread workspace of at least `bytes`, 64-byte aligned; reused between calls, contents undefined.
std::byte* scratch(size_t bytes);

}  // namespace halftone::attention
