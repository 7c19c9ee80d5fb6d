// Time and bandwidth of every fused kernel on the shapes of recipes/bench_cpu.toml:
//   bench_fused_bench [T D F V]        OMP_NUM_THREADS and HALFTONE_ISA set the threads and the instruction set
// GB/s counts each operand once, as read or written, even if it is read again from a cache.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <vector>

#include "halftone/base/parallel.h"
#include "halftone/fused/cross_entropy.h"
#include "halftone/fused/embedding.h"
#include "halftone/fused/grad_norm.h"
#include "halftone/fused/norm_rope.h"
#include "halftone/fused/random_fill.h"
#include "halftone/fused/rms_norm.h"
#include "halftone/fused/swiglu.h"
#include "halftone/optim/step.h"

using namespace halftone;

namespace {

// Minimum over several runs, after a warm-up.
void measure(const char* name, double bytes, const std::function<void()>& f) {
  double best = 1e9, spent = 0;
  for (int i = 0; i < 1000 && (i < 5 || spent < 0.4); ++i) {
    const auto start = std::chrono::steady_clock::now();
    f();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (i > 0) best = std::min(best, seconds);
    spent += seconds;
  }
  fmt::print("{:<42} {:>9.3f} ms {:>8.1f} GB/s\n", name, best * 1e3, bytes / best / 1e9);
}

template <class T>
std::vector<T> random_values(int64_t n, double std) {
  std::vector<T> out(static_cast<size_t>(n));
  random_fill({.key = philox_key(1, "bench"),
               .count = n,
               .dtype = sizeof(T) == 2 ? DType::bf16 : DType::f32,
               .out = out.data(),
               .values = normal_values(0, std)});
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  const auto size = [&](int i, int64_t otherwise) { return argc > i ? std::atoll(argv[i]) : otherwise; };
  const int64_t tokens = size(1, 4096), dim = size(2, 256), ffn = size(3, 704), vocab = size(4, 4096), params = 6'500'000;
  const double td = static_cast<double>(tokens * dim), tf = static_cast<double>(tokens * ffn), n = static_cast<double>(params);
  fmt::print("T {} D {} F {} V {}, {} parameters, bf16, {} threads\n", tokens, dim, ffn, vocab, params, max_threads());

  auto x = random_values<bf16>(tokens * dim, 1), y = x, r = x, d_branch = x;
  auto stream = random_values<float>(tokens * dim, 2), sum = stream, d_sum = stream;
  auto w = random_values<float>(dim, 1);
  std::vector<float> rstd(static_cast<size_t>(tokens)), dw(static_cast<size_t>(dim));
  RmsNormForward norm;
  norm.rows = tokens, norm.cols = dim, norm.x = stream.data(), norm.x_stride = dim, norm.weight = w.data();
  norm.y = y.data(), norm.y_stride = dim, norm.rstd = rstd.data();
  measure("rms_norm", 6 * td, [&] { rms_norm_forward(norm); });
  norm.branch = r.data(), norm.branch_stride = dim, norm.sum = sum.data(), norm.sum_stride = dim;
  measure("rms_norm + branch", 12 * td, [&] { rms_norm_forward(norm); });
  RmsNormBackward norm_back;
  norm_back.rows = tokens, norm_back.cols = dim, norm_back.x = stream.data(), norm_back.x_stride = dim, norm_back.weight = w.data();
  norm_back.rstd = rstd.data(), norm_back.dy = y.data(), norm_back.dy_stride = dim, norm_back.d_sum = d_sum.data();
  norm_back.d_sum_stride = dim, norm_back.d_branch = d_branch.data(), norm_back.d_branch_stride = dim, norm_back.dx = sum.data(),
  norm_back.dx_stride = dim, norm_back.dw = dw.data();
  measure("rms_norm backward + branch", 16 * td, [&] { rms_norm_backward(norm_back); });

  const int64_t heads = std::max<int64_t>(1, dim / 32) * 3 / 2, width = heads * 32;
  const RopeTable table = rope_table(512, 32, 500000);
  auto qk = random_values<bf16>(tokens * width, 1);
  Rope rotate;
  rotate.tokens = tokens, rotate.heads = heads, rotate.head_dim = 32, rotate.x = rotate.out = qk.data(),
  rotate.x_stride = rotate.out_stride = width;
  rotate.cos = table.cos.data(), rotate.sin = table.sin.data(), rotate.max_positions = 512, rotate.seq_len = 512;
  measure("rope q and k, neighbours, in place", 4.0 * static_cast<double>(tokens * width), [&] { rope(rotate); });
  rotate.pairing = RopePairing::halves;
  measure("rope q and k, halves, in place", 4.0 * static_cast<double>(tokens * width), [&] { rope(rotate); });
  auto rotated = qk, norm_w = random_values<bf16>(32, 1);
  std::vector<float> norm_dw(32);
  NormRope norm_rotate{rotate, norm_w.data()};
  norm_rotate.rope.out = rotated.data();
  measure("norm_rope q and k, halves", 4.0 * static_cast<double>(tokens * width), [&] { norm_rope(norm_rotate); });
  NormRopeBackward norm_rotate_back{norm_rotate, qk.data(), width, norm_dw.data()};
  norm_rotate_back.norm.rope.x = rotated.data();
  measure("norm_rope backward", 6.0 * static_cast<double>(tokens * width), [&] { norm_rope_backward(norm_rotate_back); });

  auto gu = random_values<bf16>(tokens * 2 * ffn, 1), dgu = gu, h = random_values<bf16>(tokens * ffn, 1), dh = h;
  SwigluForward act;
  act.rows = tokens, act.cols = ffn, act.g = gu.data(), act.u = gu.data() + ffn, act.g_stride = act.u_stride = 2 * ffn;
  act.h = h.data(), act.h_stride = ffn;
  measure("swiglu", 6 * tf, [&] { swiglu_forward(act); });
  SwigluBackward act_back;
  act_back.rows = tokens, act_back.cols = ffn, act_back.g = gu.data(), act_back.u = gu.data() + ffn,
  act_back.g_stride = act_back.u_stride = 2 * ffn;
  act_back.dh = dh.data(), act_back.dh_stride = ffn, act_back.dg = dgu.data(), act_back.du = dgu.data() + ffn;
  act_back.dg_stride = act_back.du_stride = 2 * ffn;
  measure("swiglu backward", 10 * tf, [&] { swiglu_backward(act_back); });
  act_back.h = h.data(), act_back.h_stride = ffn;
  measure("swiglu backward, h again", 12 * tf, [&] { swiglu_backward(act_back); });

  auto embedding = random_values<float>(vocab * dim, 1), dembedding = embedding;
  std::vector<int64_t> ids(static_cast<size_t>(tokens));
  for (size_t t = 0; t < ids.size(); ++t) ids[t] = philox(philox_key(1, "ids"), t)[0] % static_cast<uint64_t>(vocab);
  EmbeddingForward gather;
  gather.tokens = tokens, gather.vocab = vocab, gather.cols = gather.table_stride = gather.out_stride = dim, gather.ids = ids.data();
  gather.table = embedding.data(), gather.out = y.data();
  measure("embedding (fp32 table)", 6 * td, [&] { embedding_forward(gather); });
  EmbeddingBackward scatter;
  scatter.tokens = tokens, scatter.vocab = vocab, scatter.cols = scatter.dy_stride = scatter.dtable_stride = dim, scatter.ids = ids.data();
  scatter.dy = x.data(), scatter.dtable = dembedding.data();
  measure("embedding backward (fp32 gradient)", 10 * td, [&] { embedding_backward(scatter); });

  for (const int64_t chunk : {256, 512}) {
    auto logits = random_values<bf16>(chunk * vocab, 2), dlogits = logits;
    std::vector<float> loss(static_cast<size_t>(tokens));
    CrossEntropy ce;
    ce.vocab = vocab, ce.logits = logits.data(), ce.logits_stride = ce.dlogits_stride = vocab, ce.dlogits = dlogits.data();
    ce.grad_scale = 1.0f / static_cast<float>(tokens);
    const double all = 4.0 * static_cast<double>(tokens * vocab);
    measure(fmt::format("cross_entropy, chunks of {}", chunk).c_str(), all, [&] {
      for (int64_t t = 0; t < tokens; t += chunk) {
        ce.rows = std::min(chunk, tokens - t), ce.labels = ids.data() + t, ce.loss = loss.data() + t;
        cross_entropy(ce);
      }
    });
  }

  auto p = random_values<float>(params, 1), m = random_values<float>(params, 0.01), v = m, g = m;
  for (float& s : v) s = s * s;
  std::vector<bf16> copy(p.size());
  const OptimizerSegment segment{.offset = 0, .count = params, .lr = 1e-3, .weight_decay = 0.1, .key = philox_key(1, "p#param")};
  OptimizerStep step;
  step.segments = {&segment, 1}, step.param = p.data(), step.states[0] = m.data(), step.states[1] = v.data(), step.grad = g.data();
  measure("adamw", 28 * n, [&] { optimizer_step(step); });
  step.compute_copy = copy.data();
  measure("adamw + bf16 copy", 30 * n, [&] { optimizer_step(step); });
  step.zero_grad = true;
  measure("adamw + bf16 copy + zero gradient", 34 * n, [&] { optimizer_step(step); });
  std::vector<bf16> m16(p.size()), v16(p.size()), p16(copy);
  step.state_dtype = step.param_dtype = DType::bf16, step.param = p16.data(), step.states[0] = m16.data(), step.states[1] = v16.data(),
  step.compute_copy = nullptr;
  step.zero_grad = false;
  measure("adamw, bf16 parameters and moments", 16 * n, [&] { optimizer_step(step); });
  step.stochastic_rounding = true;
  measure("adamw, the same, stochastic rounding", 16 * n, [&] { optimizer_step(step); });
  volatile double sink = 0;
  measure("sum_of_squares", 4 * n, [&] { sink = sum_of_squares(g.data(), params); });
  measure("cast_to_bf16", 6 * n, [&] { cast_to_bf16(g.data(), copy.data(), params); });
  measure("fill_zero", 4 * n, [&] { fill_zero(g.data(), 4 * params); });
  const RandomFill fill{
      .key = philox_key(1, "w#init"), .count = params, .out = g.data(), .values = truncated_normal_values(0, 0.02, -2, 2)};
  measure("random_fill, truncated normal", 4 * n, [&] { random_fill(fill); });
}
