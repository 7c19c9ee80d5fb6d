#include "halftone/ops/head_loss.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <algorithm>
#include <iterator>
#include <limits>

#include "halftone/fused/cross_entropy.h"
#include "halftone/ops/autograd_node.h"
#include "halftone/ops/common.h"
#include "halftone/ops/cuda_module.h"
#include "halftone/ops/linear.h"
#include "halftone/ops/range.h"

namespace halftone {
namespace {

CrossEntropy parameters(const at::Tensor& logits, const at::Tensor& labels, double grad_scale, const at::Tensor& factor, double z_loss,
                        const at::Tensor& d_logits) {
  CrossEntropy p;
  p.rows = logits.size(0), p.vocab = logits.size(1), p.dtype = kernel_dtype(logits);
  p.logits = logits.const_data_ptr(), p.logits_stride = logits.stride(0);
  p.labels = labels.const_data_ptr(), p.grad_scale = static_cast<float>(grad_scale);
  p.z_loss = static_cast<float>(z_loss);
  if (factor.defined()) p.grad_factor = factor.const_data_ptr<float>();
  if (d_logits.defined()) {
    p.dlogits = d_logits.data_ptr(), p.dlogits_dtype = kernel_dtype(d_logits), p.dlogits_stride = d_logits.stride(0);
  }
  return p;
}

// Sum of the chunk's cross-entropies (fp64), and those themselves, fp32 [rows]; `d_logits`, when defined, gets their gradient. factor: fp32
// scalar or undefined.
struct ChunkLoss {
  at::Tensor sum, rows;
};
ChunkLoss chunk_loss(const at::Tensor& logits, const at::Tensor& labels, double grad_scale, const at::Tensor& factor, double z_loss,
                     at::Tensor& d_logits) {
  CrossEntropy p = parameters(logits, labels, grad_scale, factor, z_loss, d_logits);
  const at::Tensor loss = at::empty({p.rows}, logits.options().dtype(at::kFloat));
  p.loss = loss.mutable_data_ptr<float>();
  if (logits.is_cpu()) return {at::scalar_tensor(cross_entropy(p).loss_sum, at::TensorOptions().dtype(at::kDouble)), loss};
  cuda::launch("cross entropy", &cuda::Module::cross_entropy, p, logits.device());
  return {loss.sum(at::kDouble), loss};
}

// The same where each process has some columns.
ChunkLoss split_chunk_loss(const at::Tensor& logits, const at::Tensor& labels, double grad_scale, const at::Tensor& factor, double z_loss,
                           const LogitColumns& part, at::Tensor& d_logits) {
  const int64_t rows = logits.size(0);
  const bool any = logits.size(1) > 0;
  const at::Tensor own = at::empty({2, rows}, logits.options().dtype(at::kFloat));  // lse and target logit of the local columns
  const auto launch = [&](CrossEntropy p) {
    p.first_column = part.first, p.whole_vocab = part.whole;
    if (logits.is_cpu()) return void(cross_entropy(p));
    cuda::launch("cross entropy", &cuda::Module::cross_entropy, p, logits.device());
  };
  if (any) {
    CrossEntropy p = parameters(logits, labels, grad_scale, factor, z_loss, {});
    p.lse = own.mutable_data_ptr<float>(), p.target = p.lse + rows;
    launch(p);
  } else {
    own[0].fill_(-std::numeric_limits<float>::infinity()), own[1].zero_();
  }
  const at::Tensor all = part.gather(own);
  const at::Tensor lse = all.select(1, 0).logsumexp(0), target = all.select(1, 1).sum(0);
  if (d_logits.defined() && any) {
    CrossEntropy p = parameters(logits, labels, grad_scale, factor, z_loss, d_logits);
    p.whole_lse = lse.const_data_ptr<float>();
    launch(p);
  }
  const at::Tensor loss = (lse - target).mul_(labels.ge(0));
  return {loss.sum(at::kDouble), loss};
}

// The columns of all processes; the last ones may have fewer.
at::Tensor gathered_columns(const at::Tensor& logits, const LogitColumns& part) {
  const at::Tensor own = at::zeros({logits.size(0), part.most}, logits.options());
  own.narrow(1, 0, logits.size(1)).copy_(logits);
  return part.gather(own).transpose(0, 1).flatten(1).narrow(1, 0, part.whole);
}

ChunkLoss shared_chunk_loss(const at::Tensor& logits, const at::Tensor& labels, double grad_scale, const at::Tensor& factor, double z_loss,
                            const LogitColumns& part, at::Tensor& d_logits) {
  if (part.stay) return split_chunk_loss(logits, labels, grad_scale, factor, z_loss, part, d_logits);
  const at::Tensor all = gathered_columns(logits, part);
  at::Tensor d_all = d_logits.defined() ? at::empty(all.sizes(), d_logits.options()) : at::Tensor();
  const ChunkLoss loss = chunk_loss(all, labels, grad_scale, factor, z_loss, d_all);
  if (d_logits.defined()) d_logits.copy_(d_all.narrow(1, part.first, d_logits.size(1)));
  return loss;
}

// Rows from `first` on of `rows` in all.
void score(RowScores& s, const at::Tensor& logits, const at::Tensor& labels, const at::Tensor& losses, int64_t first, int64_t rows) {
  const auto put = [&](at::Tensor& all, const at::Tensor& part) {
    if (first == 0) {
      std::vector<int64_t> sizes = part.sizes().vec();
      sizes[0] = rows, all = at::empty(sizes, part.options());
    }
    all.narrow(0, first, part.size(0)).copy_(part);
  };
  put(s.loss, losses);
  if (s.greedy) put(s.best, logits.argmax(1));
  if (s.top == 0) return;
  const at::Tensor wide = logits.to(at::kFloat);
  const auto [values, ids] = wide.topk(s.top, 1);
  put(s.top_logprobs, values - wide.logsumexp(1, true)), put(s.top_ids, ids);
  put(s.rank, wide.gt(wide.gather(1, labels.clamp_min(0).unsqueeze(1))).sum(1) + 1);
}

}  // namespace

// On a CPU, logits stay in fp32. On a GPU, they are rounded to x's dtype, as their gradient is, which then overwrites them.
at::ScalarType logits_type(at::ScalarType x, bool cpu) { return cpu ? at::kFloat : x; }

// Rows per chunk: about 8 MiB of logits on a CPU, at most 1 GiB on a GPU, where every chunk reads and writes the head's entire gradient:
// 4,096 rows in bf16 for a vocabulary of 128,256. A multiple of the block size of every format that contracts rows (128 at most), so that
// the blocks of a quantised head are the same as without chunks.
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

at::Tensor head_logits(const at::Tensor& x, const Head& head, const StepContext& context) {
  at::NoGradGuard no_grad;
  const at::Tensor y = head.call(x, {context, false, logits_type(x.scalar_type(), x.is_cpu())}).y;
  return (head.columns.gather ? gathered_columns(y, head.columns) : y).to(at::kFloat);
}

HeadLoss head_loss(const at::Tensor& x, const Head& head, const at::Tensor& labels, double grad_scale, const StepContext& context,
                   const at::Tensor& grad_factor, double z_loss) {
  const Range range("head");
  check(x.dim() == 2 && labels.dim() == 1 && labels.size(0) == x.size(0),
        "head loss: expected one label per row, found {} rows and {} labels", x.size(0), labels.numel());
  std::vector<at::Tensor> inputs = {x};
  for (const Weight* w : head.weights) inputs.push_back(w->value);
  check(!context.group_sums.defined() || context.loss_groups.numel() == x.size(0),
        "head loss: expected a group per row, found {} rows and {} groups", x.size(0), context.loss_groups.numel());
  const bool training = records(inputs);
  check(!training || !context.scores, "head loss: the scores of rows are those of a pass without gradients");
  at::NoGradGuard no_grad;
  StepContext of_chunk = context;
  of_chunk.last_pass = false;  // the next chunk reads the weights too
  const at::Tensor plain = x.detach().contiguous();
  const LogitColumns& part = head.columns;
  const int64_t vocabulary = !part.gather ? head.out_features : part.stay ? part.most : part.whole;
  const int64_t rows = plain.size(0), step = logits_rows(plain.scalar_type(), plain.is_cpu(), vocabulary);
  at::Tensor sum = at::zeros({}, plain.options().dtype(at::kDouble));
  const at::Tensor factor = grad_factor.defined() ? grad_factor.to(at::kFloat) : at::Tensor();
  at::Tensor dx = training ? at::empty_like(plain) : at::Tensor();
  for (int64_t r = 0; r < rows; r += step) {
    const int64_t n = std::min(step, rows - r);
    const at::Tensor chunk = plain.narrow(0, r, n), target = labels.narrow(0, r, n).contiguous();
    const LinearCall call = head.call(chunk, {of_chunk, training, logits_type(chunk.scalar_type(), chunk.is_cpu()), r});
    at::Tensor d_logits;
    if (training) d_logits = call.y.scalar_type() == chunk.scalar_type() ? call.y : at::empty(call.y.sizes(), chunk.options());
    const ChunkLoss loss = part.gather ? shared_chunk_loss(call.y, target, grad_scale, factor, z_loss, part, d_logits)
                                       : chunk_loss(call.y, target, grad_scale, factor, z_loss, d_logits);
    sum += loss.sum;
    if (context.scores)
      score(*context.scores, context.scores->wants_logits() && part.gather ? gathered_columns(call.y, part) : call.y, target, loss.rows, r,
            rows);
    if (context.group_sums.defined()) {
      const at::Tensor groups = context.loss_groups.narrow(0, r, n);
      context.group_sums[0].index_add_(0, groups, loss.rows.to(at::kDouble));
      context.group_sums[1].index_add_(0, groups, target.ge(0).to(at::kDouble));
    }
    if (training) dx.narrow(0, r, n).copy_(call.backward(d_logits, true));
  }
  if (!part.adds_loss) sum.zero_();
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
