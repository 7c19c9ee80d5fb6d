#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "halftone/train/dry_run.h"
#include "halftone/train/engine.h"
#include "halftone/train/estimate.h"

// A roofline: FLOPs or bytes of each kernel over a measured rate.
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

double bytes_of(DType type) { return type == DType::f32 ? 4 : type == DType::bf16 ? 2 : 1; }

const RecipeTimes* times_of(std::string_view recipe) {
  const auto* found = std::find_if(std::begin(kRecipes), std::end(kRecipes), [&](const RecipeTimes& t) { return t.recipe == recipe; });
  return found == std::end(kRecipes) ? nullptr : found;
}

// Bytes per element that a quantiser moves: scales of the whole tensor, unless the amax is given, and of columns take one more pass.
double traffic(const QuantizeOperand& q) {
  const auto again = [&](const QuantizedCopy& c, bool transposed) {
    return uses_tensor_amax(c) ? q.amax == nullptr : scales_by_group(c, transposed);
  };
  const bool twice = (q.want_row && again(q.row, false)) || (q.want_transposed && again(q.transposed, true));
  return bytes_of(q.type) * (twice ? 2 : 1) + (q.want_row ? 1 : 0) + (q.want_transposed ? 1 : 0);
}

// Seconds per element and byte of traffic of the quantiser that writes such copies.
// Weights are known by their masters.
double quantiser_rate(const QuantizedCopy& copy, bool master) {
  const OperandSpec& spec = copy.spec;
  for (const RecipeTimes& t : kRecipes) {
    const LinearRecipe r = *find_linear_recipe(t.recipe);
    struct Role {
      double ms, elements;
      const OperandSpec &first, &second;
    };
    for (const auto& [ms, elements, first, second] : {Role{t.x, kTokens * kIn, r.x_forward, r.x_wgrad},
                                                      {t.w, kIn * kOut, r.w_forward, r.w_dgrad},
                                                      {t.dy, kTokens * kOut, r.dy_dgrad, r.dy_wgrad}}) {
      if (ms == 0 || !(spec == first || spec == second) || (master && ms != t.w)) continue;
      // The same codes of a weight are written in both layouts.
      const auto written = [&](const OperandSpec& s) { return s.quantized() && (!s.same_as_forward || ms == t.w); };
      QuantizeOperand measured;
      measured.row.form = measured.transposed.form = copy.form;
      measured.want_row = written(first), measured.row.spec = first;
      measured.want_transposed = written(second), measured.transposed.spec = second;
      return 1e-3 * ms / elements / traffic(measured);
    }
  }
  return 1 / kMeasuredCopy;
}

// Seconds of the three GEMMs of the recipe that multiplies such operands.
double product_rate(const gemm::ProductOperand& a, const gemm::ProductOperand& b) {
  const bool bytes = a.numbers != gemm::Numbers::bf16 && b.numbers != gemm::Numbers::bf16, integers = a.numbers == gemm::Numbers::s8;
  const auto scales = std::max(a.scales, b.scales);
  const RecipeTimes* t = times_of(!bytes                             ? "none"
                                  : integers                         ? "int8"
                                  : scales >= gemm::Scales::block128 ? "fp8_blockwise"
                                  : scales == gemm::Scales::row      ? "fp8_rowwise"
                                                                     : "fp8_tensorwise");
  return 1e-3 * t->products / (3 * 2 * kTokens * kIn * kOut);
}

}  // namespace

double seconds(const gemm::Product& p, const GpuRates&) {
  return 2.0 * static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k) * product_rate(p.a, p.b);
}

double seconds(const gemm::GroupedProduct& p, const GpuRates&) {
  return 2.0 * static_cast<double>(p.rows) * static_cast<double>(p.ragged == gemm::Ragged::rows ? p.n * p.k : p.m * p.n) *
         product_rate(p.a, p.b);
}

double seconds(const QuantizeOperand& q, const GpuRates& gpu) {
  const QuantizedCopy& copy = q.want_row ? q.row : q.transposed;
  const double bytes = static_cast<double>(q.rows) * static_cast<double>(q.cols) * traffic(q);
  return bytes * quantiser_rate(copy, q.as_bf16) * kMeasuredCopy / gpu.copy;
}

double seconds(const RmsNormForward& p, const GpuRates& gpu) {
  const double r = bytes_of(p.stream_dtype), c = bytes_of(p.dtype), parts = p.branch != nullptr ? r + c : 0;
  return static_cast<double>(p.rows * p.cols) * (r + c + parts) / gpu.copy;
}

double seconds(const RmsNormBackward& p, const GpuRates& gpu) {
  const double r = bytes_of(p.stream_dtype), c = bytes_of(p.dtype);
  return static_cast<double>(p.rows * p.cols) * (2 * r + c + (p.d_sum != nullptr ? r : 0) + (p.d_branch != nullptr ? c : 0)) / gpu.copy;
}

double seconds(const SwigluForward& p, const GpuRates& gpu) {
  return static_cast<double>(p.rows * p.cols) * 3 * bytes_of(p.dtype) / gpu.copy;
}

double seconds(const SwigluBackward& p, const GpuRates& gpu) {
  return static_cast<double>(p.rows * p.cols) * (p.h != nullptr ? 6 : 5) * bytes_of(p.dtype) / gpu.copy;
}

double seconds(const ClampedSwiglu& p, const GpuRates& gpu) {
  return static_cast<double>(p.rows * p.cols) * 3 * bytes_of(p.dtype) / gpu.copy;
}

double seconds(const ClampedSwigluBackward& p, const GpuRates& gpu) {
  return static_cast<double>(p.rows * p.cols) * 5 * bytes_of(p.dtype) / gpu.copy;
}

double seconds(const Rope& p, const GpuRates& gpu) {
  return static_cast<double>(p.tokens * p.heads * p.head_dim) * 2 * bytes_of(p.dtype) / gpu.copy;
}
double seconds(const NormRope& p, const GpuRates& gpu) { return seconds(p.rope, gpu); }
double seconds(const NormRopeBackward& p, const GpuRates& gpu) { return 1.5 * seconds(p.norm.rope, gpu); }

double seconds(const GatherRows& p, const GpuRates& gpu) {
  const int arrays = 1 + (p.out != nullptr ? 1 : 0) + (p.other != nullptr ? 1 : 0);
  return static_cast<double>(p.rows * p.cols) * arrays * bytes_of(p.dtype) / gpu.copy;
}

double seconds(const CombineRows& p, const GpuRates& gpu) {
  const auto rows = static_cast<double>(p.tokens * (p.top_k * (p.more != nullptr ? 2 : 1) + 1));
  return rows * static_cast<double>(p.cols) * bytes_of(p.dtype) / gpu.copy;
}

double seconds(const CrossEntropy& p, const GpuRates& gpu) {
  const double arrays = p.dlogits == nullptr ? 1 : p.whole_lse != nullptr ? 2 : 3;  // reads the logits twice unless the sums are given
  return static_cast<double>(p.rows * p.vocab) * arrays * bytes_of(p.dtype) / gpu.copy;
}

// Reads and writes weights and states, writes the copy, reads gradients. States in host memory cross the bus at the same time.
double optimizer_seconds(const OptimizerStep& p, const GpuRates& gpu, bool host_states) {
  double count = 0, states = 0;
  for (const OptimizerSegment& s : p.segments) count += static_cast<double>(s.count);
  for (const void* s : p.states) states += s != nullptr ? bytes_of(p.state_dtype) : 0;
  const double own = (p.param != nullptr ? 2 * bytes_of(p.param_dtype) : 0) + (p.compute_copy != nullptr ? 2 : 0) + bytes_of(p.grad_dtype);
  return count * (host_states ? std::max(own / gpu.copy, states / kBus) : (own + 2 * states) / gpu.copy);
}

double seconds(const PartialSquares& p, const GpuRates& gpu) { return 4.0 * static_cast<double>(p.n) / gpu.read; }

double attention_seconds(double flops, bool cudnn, int64_t d, int64_t v_dim, bool forward) {
  const AttentionRate rate = !cudnn ? kFlash : v_dim == 64 ? kCudnn64 : kCudnn128;
  const double share = static_cast<double>(d + v_dim) / static_cast<double>(4 * d + 3 * v_dim);  // of the FLOPs
  return flops / rate.flops * (forward ? rate.forward_share / share : (1 - rate.forward_share) / (1 - share));
}

std::vector<WorkTime> work_times(const DryStep& step, int64_t stage_ranks, double bubble) {
  std::vector<WorkTime> work;
  double passes = step.slower_ms;
  const auto add = [&](Work kind) {
    const double ms = 1e3 * step.seconds[static_cast<size_t>(kind)];
    if (ms > 0) work.push_back({std::string(kWorks[static_cast<size_t>(kind)]), ms});
    return ms;
  };
  for (const Work kind : {Work::products, Work::attention, Work::elementwise, Work::quantisers, Work::head}) passes += add(kind);
  std::map<std::string_view, double> waits;
  for (const Traffic& t : step.traffic) waits[t.axis()] += t.exposed_ms;
  for (const auto& [axis, ms] : waits)
    if (ms > 0) work.push_back({fmt::format("waits for {}", axis), ms}), passes += ms;
  if (step.slower_ms > 0) work.push_back({"work beside communication takes longer", step.slower_ms});
  if (stage_ranks > 1) {
    // Schedules hide all messages except those of the first micro-batch, there and back.
    double message = 0;
    for (const Traffic& t : step.traffic)
      if (t.operation == "recv") message = std::max(message, t.ms / static_cast<double>(t.calls));
    work.push_back({"waits for messages", 2 * static_cast<double>(stage_ranks - 1) * message});
    work.push_back({"bubble of the pipeline", passes * bubble / (1 - bubble)});
  }
  add(Work::optimizer), add(Work::norm);
  return work;
}

bool has_rates(nn::Model& model, const JobConfig& config, const EstimateDevice& device, std::vector<std::string>& remarks) {
  if (is_cpu(device.hardware)) {
    remarks.push_back("tokens/s are not estimated on a CPU; measure them: halftone bench train");
    return false;
  }
  bool emulated = false;
  std::set<std::string_view> unknown;
  model.for_each_module([&](nn::Module& m) {
    const auto* l = dynamic_cast<nn::QuantizableLayer*>(&m);
    if (l == nullptr) return;
    emulated = emulated || l->recipe().emulate;
    if (times_of(l->recipe().name) == nullptr) unknown.insert(l->recipe().name);
  });
  const bool bf16 = (config.training.dtype == "bfloat16" ? config.training.dtype : config.training.mixed_precision_param) == "bfloat16";
  if (device.rates == nullptr || !bf16 || emulated) {
    remarks.push_back(fmt::format("tokens/s are not estimated: {}; measure them: halftone bench train",
                                  device.rates == nullptr ? "no rates are known for this device"
                                  : !bf16                 ? "rates are known only for training.mixed_precision_param = \"bfloat16\""
                                                          : "GEMMs are emulated"));
    return false;
  }
  if (keeps_states_on_host(config.training))
    remarks.push_back(fmt::format("optimizer: states cross the host bus at {:.0f} GB/s each way", kBus / 1e9));
  for (const std::string_view name : unknown)
    remarks.push_back(fmt::format("{} has no measured rate: its GEMMs and quantisers are timed as those of like operands", name));
  return true;
}

}  // namespace halftone
