#include "halftone/ops/head_loss.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <algorithm>
#include <iterator>

#include "halftone/fused/cross_entropy.h"
#include "halftone/ops/common.h"
#include "halftone/ops/cuda_module.h"
#include "halftone/ops/linear.h"
#include "halftone/ops/node.h"
#include "halftone/ops/range.h"

namespace halftone {
namespace {

// Sum of the chunk's cross-entropies (fp64); `d_logits`, when defined, gets their gradient. factor: fp32 scalar or undefined.
at::Tensor chunk_loss(const at::Tensor& logits, const at::Tensor& labels, double grad_scale, const at::Tensor& factor, double z_loss,
                      at::Tensor& d_logits) {
  const bool training = d_logits.defined();
  CrossEntropy p;
  p.rows = logits.size(0), p.vocab = logits.size(1), p.dtype = kernel_dtype(logits);
  p.logits = logits.const_data_ptr(), p.logits_stride = logits.stride(0);
  p.labels = labels.const_data_ptr(), p.grad_scale = static_cast<float>(grad_scale);
  p.z_loss = static_cast<float>(z_loss);
  if (factor.defined()) p.grad_factor = factor.const_data_ptr<float>();
  if (training) p.dlogits = d_logits.data_ptr(), p.dlogits_dtype = kernel_dtype(d_logits), p.dlogits_stride = d_logits.stride(0);
  if (logits.is_cpu()) return at::scalar_tensor(cross_entropy(p).loss_sum, at::TensorOptions().dtype(at::kDouble));
  const at::Tensor loss = at::empty({p.rows}, logits.options().dtype(at::kFloat));
  p.loss = loss.mutable_data_ptr<float>();
  cuda::launch("cross entropy", &cuda::Module::cross_entropy, p, logits.device());
  return loss.sum(at::kDouble);
}

}  // namespace

// Logits stay in fp32 on a CPU. On a device they are rounded to x's dtype, as its gradient is, which then lies in their memory.
at::ScalarType logits_type(at::ScalarType x, bool cpu) { return cpu ? at::kFloat : x; }

// Rows of a chunk: some 8 MiB of logits on a CPU and at most 1 GiB on a device, where every chunk reads and writes all of the head's
// gradient: 4,096 rows in bf16 of a vocabulary of 128,256. Whole blocks of every format that contracts rows (128 at most), so that those
// of a quantised head end where they do without chunks.
int64_t logits_rows(at::ScalarType x, bool cpu, int64_t vocab) {
  constexpr int64_t kBlock = 128, kMiB = 1 << 20;
  const auto row_bytes = std::max<int64_t>(vocab, 1) * static_cast<int64_t>(c10::elementSize(logits_type(x, cpu)));
  const int64_t rows = (cpu ? 8 : 1024) * kMiB / row_bytes / kBlock * kBlock;
  return cpu ? std::clamp<int64_t>(rows, kBlock, 1024) : std::max<int64_t>(rows, 2 * kBlock);
}

Head head_of(FusedLinears& fused) {
  std::vector<Weight*> weights = fused.weights;
  std::copy_if(fused.biases.begin(), fused.biases.end(), std::back_inserter(weights), [](const Weight* b) { return b != nullptr; });
  return {[&fused](const at::Tensor& x, const LinearOptions& options) { return linear_call(x, fused, options); }, std::move(weights),
          fused.out_features()};
}

HeadLoss head_loss(const at::Tensor& x, const Head& head, const at::Tensor& labels, double grad_scale, const StepContext& context,
                   const at::Tensor& grad_factor, double z_loss) {
  const Range range("head");
  check(x.dim() == 2 && labels.dim() == 1 && labels.size(0) == x.size(0),
        "head loss: expected one label per row, found {} rows and {} labels", x.size(0), labels.numel());
  std::vector<at::Tensor> inputs = {x};
  for (const Weight* w : head.weights) inputs.push_back(w->value);
  const bool training = records(inputs);
  at::NoGradGuard no_grad;
  StepContext of_chunk = context;
  of_chunk.last_pass = false;  // the next chunk reads the weights, too
  const at::Tensor plain = x.detach().contiguous();
  const int64_t rows = plain.size(0), step = logits_rows(plain.scalar_type(), plain.is_cpu(), head.out_features);
  at::Tensor sum = at::zeros({}, plain.options().dtype(at::kDouble));
  const at::Tensor factor = grad_factor.defined() ? grad_factor.to(at::kFloat) : at::Tensor();
  at::Tensor dx = training ? at::empty_like(plain) : at::Tensor();
  for (int64_t r = 0; r < rows; r += step) {
    const int64_t n = std::min(step, rows - r);
    const at::Tensor chunk = plain.narrow(0, r, n), target = labels.narrow(0, r, n).contiguous();
    const LinearCall call = head.call(chunk, {of_chunk, training, logits_type(chunk.scalar_type(), chunk.is_cpu()), r});
    at::Tensor d_logits;
    if (training) d_logits = call.y.scalar_type() == chunk.scalar_type() ? call.y : at::empty(call.y.sizes(), chunk.options());
    sum += chunk_loss(call.y, target, grad_scale, factor, z_loss, d_logits);
    if (training) dx.narrow(0, r, n).copy_(call.backward(d_logits, true));
  }
  const at::Tensor scaled = sum * grad_scale;
  HeadLoss result{(grad_factor.defined() ? scaled * grad_factor : scaled).to(at::kFloat), sum};
  if (training) {
    for (Weight* w : head.weights) w->grad_ready();
    at::Tensor loss = result.loss;
    connect("head_loss", inputs, {&loss}, [dx, count = inputs.size()](const variable_list&) -> variable_list {
      variable_list result(count);
      result[0] = dx;
      return result;
    });
    result.loss = loss;
  }
  return result;
}

}  // namespace halftone
