#pragma once
#include <ATen/core/Tensor.h>

#include <string_view>

#include "halftone/formats/recipe.h"

// debug.batch_invariant: the forward pass computes a token's values with the same bits whatever the other rows of the batch, the place of
// its document in a packed row, the chunks of a prompt or the state of a KV cache. Sums over the contraction have one order: on the CPU
// every GEMM has it anyway, on a GPU forward products run on grouped GEMMs of one tiling; attention sums its keys in blocks from
// the document's first key.
namespace halftone {

// One setting for all threads of the process, as LibTorch's deterministic algorithms; off at first.
bool batch_invariant();
void set_batch_invariant(bool on);

// The reason why an operand's codes of one row depend on other rows; empty if they do not.
std::string_view depends_on_batch(const OperandSpec& x);

// Elementwise functions whose last bits do not depend on an element's place in the tensor, as those of LibTorch's vector loops do. fp32.
at::Tensor even_sigmoid(const at::Tensor& x);                         // with its gradient
at::Tensor even_exp(const at::Tensor& x);                             // without
at::Tensor even_logaddexp(const at::Tensor& x, const at::Tensor& y);  // without; y is expanded
// Sum over the last dimension [.., n], n small, column by column; with its gradient.
at::Tensor even_sum(const at::Tensor& x);

}  // namespace halftone
