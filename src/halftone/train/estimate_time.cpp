#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "halftone/ops/activation.h"
#include "halftone/ops/product_plan.h"
#include "halftone/train/engine.h"
#include "halftone/train/estimate.h"

// A roofline: FLOPs or bytes of each kind of work over a measured rate.
namespace halftone {
namespace {

// docs/benchmarks/linear.md, "Each quantiser and GEMM by itself", one H200: total milliseconds of the three GEMMs for 16384 tokens, 4096
// inputs and 14336 outputs, and of the quantisers of X, W and dY. H100 and H200 have the same tensor cores; quantisers scale with
// bandwidth.
struct RecipeTimes {
  std::string_view recipe;
  double products, x, w, dy;
};
constexpr RecipeTimes kRecipes[] = {
    {"none", 8.411, 0, 0, 0},
    {"fp8_tensorwise", 4.366, 0.1099, 0.1008, 0.3746},
    {"fp8_rowwise", 4.496, 0.1162, 0.1049, 0.3918},
    {"fp8_rowwise_with_gw_hp", 5.751, 0.05789, 0.1049, 0.1821},
    {"fp8_blockwise", 5.671, 0.08093, 0.07002, 0.2678},
    {"mxfp8_e4m3", 7.588, 0.09840, 0.09888, 0.3796},
    {"mxfp8_e5m2", 7.395, 0.09840, 0.09875, 0.3792},
    {"mxfp4", 4.345, 0.1362, 0.1018, 0.5645},
    {"nvfp4", 7.682, 0.1613, 0.1481, 0.6939},
    {"amdfp4", 7.722, 0.1601, 0.1463, 0.7000},
    {"int8", 4.256, 0.1143, 0.1035, 0.3826},
    {"int4", 4.155, 0.1101, 0.1042, 0.3922},
    {"bitnet", 6.999, 0.06314, 0.1994, 0},
};
constexpr double kBus = 39e9;  // bytes/s in each direction, both at once: PCIe 5 x16, from an H100's optimizer
constexpr double kTokens = 16384, kIn = 4096, kOut = 14336, kMeasuredCopy = 4.22e12;  // of that H200 (docs/benchmarks/roofline.md)

// Attention in a training step on an H100, forward and backward together: FLOP/s for the half of the scores below the diagonal, and the
// forward pass's share of the time.
struct AttentionRate {
  double flops, forward_share;
};
constexpr AttentionRate kCudnn128{450e12, 0.25}, kCudnn64{350e12, 0.26}, kFlash{310e12, 0.26};

const RecipeTimes* times_of(std::string_view recipe) {
  const auto* found = std::find_if(std::begin(kRecipes), std::end(kRecipes), [&](const RecipeTimes& t) { return t.recipe == recipe; });
  return found == std::end(kRecipes) ? nullptr : found;
}

class Times {
 public:
  Times(const StepShape& s, std::vector<std::string>& remarks)
      : s_(s), remarks_(remarks), gpu_(*s.device.rates), t_(static_cast<double>(s.tokens)), micro_(static_cast<double>(s.micro_batches)) {}

  std::vector<WorkTime> all() {
    double parameters = 0, masters = 0, copies = 0;
    s_.for_each_parameter([&](nn::Parameter& p) {
      parameters += s_.held(p);
      if (!p.stored_as) masters += s_.held(p);
      if (s_.has_compute_copy(p)) copies += s_.held(p);
    });
    const auto width = static_cast<double>(c10::elementSize(s_.storage));
    const auto moments = static_cast<double>(moment_bytes(s_.config.optimizer));
    // Reads and writes weights and moments, writes the copy, reads gradients. Offloaded moments cross the bus at the same time.
    const double host = s_.host_states ? parameters * moments : 0;
    const double optimizer = masters * 2 * width + copies * s_.c + parameters * (2 * moments + 4) - 2 * host;
    if (host > 0) remarks_.push_back(fmt::format("optimizer: states cross the host bus at {:.0f} GB/s each way", kBus / 1e9));
    std::vector<WorkTime> work = {{"products", 1e3 * micro_ * products()},
                                  {"attention", 1e3 * micro_ * attention()},
                                  {"norm, activation, RoPE", 1e3 * micro_ * elementwise() / gpu_.copy},
                                  {"quantisers", 1e3 * (micro_ * quantised_activations() + quantised_weights())},
                                  {"head + loss", s_.has_head ? 1e3 * micro_ * head() : 0},
                                  {"optimizer", 1e3 * std::max(optimizer / gpu_.copy, host / kBus)},
                                  {"gradient norm", 1e3 * 4 * parameters / gpu_.read}};
    std::erase_if(work, [](const WorkTime& w) { return w.ms == 0; });
    return work;
  }

 private:
  const RecipeTimes& times(const nn::QuantizableLayer& l) {
    if (const RecipeTimes* found = times_of(l.recipe().name)) return *found;
    const std::string_view name = l.recipe().name;
    if (told_.insert(name).second) remarks_.push_back(fmt::format("{} has no measured rate: its GEMMs are timed as bf16", name));
    return kRecipes[0];
  }
  // Seconds of forward, dgrad and wgrad of a layer over `tokens` rows.
  double product(nn::Linear& l, double passes) {
    const double of_measured = t_ * static_cast<double>(l.in_features() * l.out_features()) / (kTokens * kIn * kOut);
    return times(l).products / 1e3 * of_measured * passes / 3;
  }
  double products() {
    double sum = 0;
    for (size_t i = 0; i < s_.blocks.size(); ++i) {
      const std::vector<nn::Linear*> linears = s_.blocks[i].linears();
      for (size_t j = 0; j < linears.size(); ++j)
        sum += product(*linears[j], s_.recomputed(i) && !StepShape::keeps_product(s_.recompute[i], j) ? 4 : 3);
      const StepShape::Block& b = s_.blocks[i];
      if (b.moe == nullptr) continue;
      // All experts' rows count as one matrix.
      const double weights = b.expert_weights() / static_cast<double>(b.moe->experts().weights()[0]->shape[0]);
      sum +=
          times(b.moe->experts()).products / 1e3 * t_ * b.expert_rows * weights / (kTokens * kIn * kOut) * (s_.recomputed(i) ? 4 : 3) / 3;
    }
    return sum;
  }

  double attention() const {
    double sum = 0;
    // With rows split into contiguous equal runs, the last rank reads the most keys.
    const bool balanced = s_.part.cp == 1 || s_.config.parallelism.context_parallel_load_balancer;
    const double most = balanced ? 1 : 2 - 1 / static_cast<double>(s_.part.cp);
    for (size_t i = 0; i < s_.blocks.size(); ++i) {
      // Forward 2 GEMMs, backward 5, each 2 FLOPs per score and channel; half of the scores, or those in the window.
      const auto seq = static_cast<double>(s_.config.training.seq_len), window = static_cast<double>(s_.blocks[i].window());
      const int64_t d = s_.size.v_dim;
      const auto channels = static_cast<double>(s_.size.heads * (4 * s_.size.qk_dim + 3 * d));
      const bool windowed = window > 0 && window < seq;
      const double twice_seen = windowed ? 2 * window - window * window / seq : seq;
      const double flops = t_ * twice_seen * channels * (windowed ? 1 : most);
      const bool cudnn = !s_.config.debug.deterministic && !windowed && (d == 64 || d == 128);
      const AttentionRate rate = !cudnn ? kFlash : d == 64 ? kCudnn64 : kCudnn128;
      sum += flops / rate.flops * (s_.recompute[i] == nn::Recompute::full ? 1 + rate.forward_share : 1);
    }
    return sum;
  }

  // Bytes of norms (forward: stream and branch in, sum and output out; backward: sum, two gradients in, two out), SwiGLU and RoPE.
  double elementwise() const {
    const double r = s_.r, c = s_.c, dim = static_cast<double>(s_.size.dim), sequence = static_cast<double>(s_.part.sequence);
    const double norm_forward = (2 * r + 2 * c) * dim / sequence, norm_backward = (3 * r + 2 * c) * dim / sequence;
    double bytes = s_.has_head ? norm_forward + norm_backward : 0;
    if (s_.has_embedding) bytes += (c + 2 * r) * dim;
    for (size_t i = 0; i < s_.blocks.size(); ++i) {
      const nn::ModelSize& m = s_.size;
      const auto qk = static_cast<double>((m.heads + m.kv_heads) * m.qk_dim), qkv = qk + static_cast<double>(m.kv_heads * m.v_dim);
      double forward = 2 * norm_forward + 2 * c * qk, backward = 2 * norm_backward + 2 * c * qkv;
      for (const StepShape::Branch& b : s_.blocks[i].branches()) {
        const bool again = !wgrad_reads_forward_codes(*b.down);  // SwiGLU's backward writes its output too
        forward += 3 * c * b.rows * b.ffn, backward += (again ? 6 : 5) * c * b.rows * b.ffn;
        // Rows routed to the experts and back, and their gradients.
        if (b.feed_forward != nullptr) continue;
        const double arranged = b.rows + (s_.part.ep > 1 ? s_.blocks[i].sent_rows : 0);  // also before they are sent
        forward += 4 * c * arranged * dim, backward += 5 * c * arranged * dim;
      }
      bytes += forward + backward;
      if (s_.recomputed(i)) bytes += forward;
    }
    return t_ * bytes;
  }

  // A per-tensor scale takes one more pass over the tensor, unless the producing op supplied the amax.
  static double passes(bool spared) { return spared ? 2.0 / 3 : 1; }
  double quantised_activations() {
    const double scale = kMeasuredCopy / gpu_.copy / 1e3;
    double seconds = 0;
    for (size_t i = 0; i < s_.blocks.size(); ++i) {
      const StepShape::Block& b = s_.blocks[i];
      const double again = s_.recomputed(i) ? 2 : 1;
      // Both copies from one read, or one read each if X is quantised again for wgrad.
      const auto x = [&](nn::Linear& l, bool given, bool reads_twice) {
        const LinearRecipe& r = l.recipe();
        const bool twice = reads_twice && r.x_forward.quantized() && r.x_wgrad.quantized() && !wgrad_reads_forward_codes(r);
        seconds += times(l).x * scale * t_ * static_cast<double>(l.in_features()) / (kTokens * kIn) * (again + (twice ? 0.5 : 0)) *
                   passes(given && reads_x_amax(r));
      };
      const auto dy = [&](nn::Linear& l, bool given) {
        seconds += times(l).dy * scale * t_ * static_cast<double>(l.out_features()) / (kTokens * kOut) *
                   passes(given && reads_dy_amax(l.recipe()));
      };
      x(*b.attention_readers().front(), true, false), x(b.attention_output(), false, true);
      for (nn::Linear* l : b.attention_readers()) dy(*l, false);
      dy(b.attention_output(), false);
      if (b.latent != nullptr)
        for (const nn::NormUse& use : b.latent->norm_uses())
          for (nn::Linear* l : use.readers) x(*l, true, false), dy(*l, false);
      if (b.feed_forward != nullptr) {
        x(*b.feed_forward->readers().front(), true, false), x(b.feed_forward->output(), true, true);
        for (nn::Linear* l : b.feed_forward->readers()) dy(*l, true);
        dy(b.feed_forward->output(), false);
      }
      if (b.moe == nullptr) continue;
      const auto dim = static_cast<double>(s_.size.dim), ffn = b.expert_width();
      const RecipeTimes& of = times(b.moe->experts());
      seconds += scale * t_ * b.expert_rows * (of.x * again * (dim + ffn) / (kTokens * kIn) + of.dy * (2 * ffn + dim) / (kTokens * kOut));
    }
    return seconds;
  }
  // Measured on bf16 weights, with one amax pass and one read for both copies: 6 bytes per element in 8 bits. From a float32 master it is
  // 10, and 14 if each copy has its own read (StepContext::last_pass), 10 in passes of a step after its first.
  double quantised_weights() {
    double seconds = 0;
    const auto add = [&](const nn::QuantizableLayer& l, bool master, double elements) {
      const double passes = s_.codes_pass() ? micro_ : 1;
      const double traffic = !master ? passes : (10 * passes + (s_.codes_pass() ? 4 : 0)) / 6;
      seconds += times(l).w / 1e3 * traffic * kMeasuredCopy / gpu_.copy * elements / (kIn * kOut);
    };
    const auto reads_master = [&](const nn::Parameter& p) { return s_.compute != s_.storage && !s_.has_compute_copy(p) && !p.stored_as; };
    for (nn::Linear* l : s_.linears) add(*l, reads_master(l->weight), static_cast<double>(l->in_features() * l->out_features()));
    for (const StepShape::Block& b : s_.blocks)
      if (b.moe != nullptr)
        b.moe->experts().for_each_parameter([&](const nn::Parameter& p) {
          if (p.shape.size() == 3) add(b.moe->experts(), reads_master(p), static_cast<double>(p.numel()));
        });
    return seconds;
  }

  // Three GEMMs, and the cross-entropy, which reads logits twice and writes their gradient.
  double head() { return product(*s_.head, 3) + t_ * static_cast<double>(s_.head->out_features()) * 3 * s_.c / gpu_.copy; }

  const StepShape& s_;
  std::vector<std::string>& remarks_;
  const GpuRates& gpu_;
  const double t_, micro_;
  std::set<std::string_view> told_;
};

}  // namespace

std::vector<WorkTime> work_times(const StepShape& s, std::vector<std::string>& remarks) {
  if (is_cpu(s.device.hardware)) {
    remarks.push_back("tokens/s are not estimated on a CPU; measure them: halftone bench train");
    return {};
  }
  const auto emulated = [](const nn::Linear* l) { return l->recipe().emulate; };
  const bool slow = std::any_of(s.linears.begin(), s.linears.end(), emulated) || emulated(s.head);
  if (s.device.rates == nullptr || s.compute != at::kBFloat16 || slow) {
    remarks.push_back(fmt::format("tokens/s are not estimated: {}; measure them: halftone bench train",
                                  s.device.rates == nullptr    ? "no rates are known for this device"
                                  : s.compute != at::kBFloat16 ? "rates are known only for training.mixed_precision_param = \"bfloat16\""
                                                               : "GEMMs are emulated"));
    return {};
  }
  return Times(s, remarks).all();
}

}  // namespace halftone
