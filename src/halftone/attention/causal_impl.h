#pragma once
#include <cstddef>
#include <span>

#include "halftone/attention/causal.h"

namespace halftone::attention {

// One instruction set's pair of functions. The public functions take the first one whose `usable` holds; the tests and
// the benchmark call each.
struct Implementation {
  const char* name;
  bool (*usable)(DType);  // this processor has it and it is right for this element type
  void (*forward)(const AttentionForward&);
  void (*backward)(const AttentionBackward&);
};
std::span<const Implementation> implementations();  // fastest first

// Throws Error unless the problem is well formed; returns a copy whose strides and v_dim are all explicit.
AttentionForward checked(const AttentionForward& p);
AttentionBackward checked(const AttentionBackward& p);

// The blocked implementations take problems that `checked` returned.
void forward_v3(const AttentionForward& p);
void backward_v3(const AttentionBackward& p);
void forward_avx512(const AttentionForward& p);
void backward_avx512(const AttentionBackward& p);
void forward_vnni(const AttentionForward& p);
void backward_vnni(const AttentionBackward& p);
void forward_amx(const AttentionForward& p);
void backward_amx(const AttentionBackward& p);

// One or a few queries against a cache: bound by reading k and v once, so without any packing. x86-64-v3.
void forward_decode(const AttentionForward& p);

// This thread's work space of at least `bytes`, aligned to 64; kept between calls, contents undefined.
std::byte* scratch(size_t bytes);

}  // namespace halftone::attention
