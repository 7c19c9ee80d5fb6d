#include "halftone/ops/embedding.h"

#include <ATen/ops/empty.h>

#include "halftone/fused/embedding.h"
#include "halftone/ops/autograd_node.h"
#include "halftone/ops/common.h"

namespace halftone {
namespace {

at::Tensor forward(const at::Tensor& tokens, const at::Tensor& table, at::ScalarType dtype) {
  if (!tokens.is_cpu()) return table.index_select(0, tokens).to(dtype);
  at::Tensor out = at::empty({tokens.size(0), table.size(1)}, table.options().dtype(dtype));
  EmbeddingForward p;
  p.tokens = tokens.size(0), p.vocab = table.size(0), p.cols = table.size(1);
  p.ids = tokens.const_data_ptr();
  p.dtype = kernel_dtype(out), p.table_dtype = kernel_dtype(table), p.table = table.const_data_ptr(), p.table_stride = table.stride(0);
  p.out = out.data_ptr(), p.out_stride = out.stride(0);
  embedding_forward(p);
  return out;
}

void backward(const at::Tensor& tokens, const at::Tensor& dy, at::Tensor& grad) {
  if (!tokens.is_cpu()) {
    grad.index_add_(0, tokens, dy.to(at::kFloat));
    return;
  }
  EmbeddingBackward p;
  p.tokens = tokens.size(0), p.vocab = grad.size(0), p.cols = grad.size(1);
  p.ids = tokens.const_data_ptr(), p.dtype = kernel_dtype(dy), p.dy = dy.const_data_ptr(), p.dy_stride = dy.stride(0);
  p.dtable = grad.mutable_data_ptr<float>(), p.dtable_stride = grad.stride(0);
  embedding_backward(p);
}

}  // namespace

at::Tensor embedding(const at::Tensor& tokens, Weight& table, at::ScalarType dtype) {
  check(tokens.dim() == 1 && tokens.scalar_type() == at::kLong, "{}: expected int64 tokens [T], found {} {}", table.name,
        c10::toString(tokens.scalar_type()), fmt::join(tokens.sizes(), " x "));
  const at::Tensor ids = tokens.contiguous();
  at::Tensor out;
  {
    at::NoGradGuard no_grad;
    out = forward(ids, table.value.detach(), dtype);
  }
  if (records(table.value)) {
    connect("embedding", {table.value}, {&out}, [ids, &table](const variable_list& g) -> variable_list {
      if (table.trainable()) backward(ids, g[0].contiguous(), table.grad_to_add());
      table.grad_ready();
      return {at::Tensor()};
    });
  }
  return out;
}

}  // namespace halftone
