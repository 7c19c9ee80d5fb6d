#include "halftone/train/estimate.h"

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "halftone/base/error.h"
#include "halftone/models/registry.h"
#include "halftone/nn/recipe_config.h"
#include "halftone/ops/device.h"
#include "halftone/ops/hardware.h"
#include "halftone/parallel/data_parallel.h"
#include "halftone/parallel/stages.h"
#include "halftone/train/console.h"
#include "halftone/train/dry_run.h"
#include "halftone/train/engine.h"
#include "halftone/train/flops.h"
#include "halftone/train/recompute.h"
#include "halftone/train/silence.h"

namespace halftone {
namespace {

constexpr double kGiB = 1 << 30;
constexpr double kContext = 0.6 * kGiB;  // outside the allocator: CUDA context, kernels, the libraries' own memory
// NCCL's buffers per communicator: 4 MiB of NCCL_BUFFSIZE plus half as much for its other protocols, for each of 32 channels.
constexpr double kCommunicator = 32 * 6.0 * (1 << 20);

// Copy and read rates of large tensors in a training step: H100 from its optimizer (34 bytes per parameter) and gradient norm (4), H200
// from docs/benchmarks/roofline.md. Memory as the driver reports it.
constexpr GpuRates kGpus[] = {{"H100", 79.2, 2.8e12, 3.1e12}, {"H200", 139.8, 4.22e12, 4.67e12}};

std::string in_gib(double bytes) { return fmt::format("{:.2f}", bytes / kGiB); }

// The largest of a dry run's ranges of each kind.
std::vector<Phase> phases_of(const DryStep& step, const TrainingConfig& t, bool reshard) {
  const char* gathered = reshard ? "gathered weights: two blocks, embedding or head" : "gathered weights of all units";
  std::vector<Phase> phases;
  const auto add = [&](std::initializer_list<std::string_view> kinds) {
    const DryRun::Peak* most = nullptr;
    for (const DryRun::Peak& p : step.peaks) {
      const bool is = std::ranges::any_of(kinds, [&](std::string_view kind) { return p.range.ends_with(kind); });
      if (is && (most == nullptr || p.bytes > most->bytes)) most = &p;
    }
    if (most == nullptr) return;
    Phase& phase = phases.emplace_back(most->range);
    for (const auto& [owner, bytes] : most->owners) {
      const std::string name = owner == "weights"            ? fmt::format("weights in {}", t.dtype)
                               : owner == "weights' copy"    ? "weights' copy in " + t.mixed_precision_param
                               : owner == "gathered weights" ? gathered
                                                             : std::string(owner);
      if (bytes > 0) phase.shares.push_back({name, static_cast<double>(bytes)});
    }
  };
  add({"forward"}), add({"head"}), add({"backward"}), add({"weight gradients", "model"}), add({"optimizer", "gradient norm"});
  return phases;
}

double sum_of(const std::vector<WorkTime>& work) {
  double ms = 0;
  for (const WorkTime& w : work) ms += w.ms;
  return ms;
}

// The estimate of one rank; rates null: no times.
Estimate estimated(const JobConfig& config, int64_t vocab_size, const EstimateDevice& device, const StepMesh& step_mesh,
                   const RankPart& part, const GpuRates* rates) {
  const parallel::Mesh& mesh = step_mesh.mesh;
  const TrainingConfig& t = config.training;
  const ParallelismConfig& p = config.parallelism;
  DryStep step = dry_step(config, vocab_size, device.hardware, mesh.world_size(), part.rank, rates);
  Estimate e;
  e.memory_bytes = device.memory_gib * kGiB, e.world = mesh.world_size();
  std::set<std::string_view> communicators;
  for (const Traffic& traffic : step.traffic) communicators.insert(traffic.communicator);
  e.context_bytes = is_cpu(device.hardware) ? 0 : kContext + static_cast<double>(communicators.size()) * kCommunicator;
  const int64_t rows = mesh.size("pp") > 1 ? p.pipeline_parallel_microbatch_size : t.local_batch_size, tokens = rows * t.seq_len;
  e.tokens = tokens * parallel::microbatches_of_step(p, t, mesh.size("batch")) * mesh.size("batch");
  e.phases = phases_of(step, t, parallel::reshards(p));
  for (const DryRun::Peak& peak : step.peaks) {
    if (peak.range.starts_with("layers.") && peak.range.ends_with(" forward"))
      e.block_bytes = std::max(e.block_bytes, static_cast<double>(peak.kept * mesh.size("cp")) / static_cast<double>(tokens));
  }
  e.host_memory_bytes = device.host_gib * kGiB, e.host_bytes = static_cast<double>(step.host_bytes);
  if (rates != nullptr) e.work = work_times(step, mesh.size("pp"), step_mesh.bubble);
  e.traffic = std::move(step.traffic);
  return e;
}

// Memory of the rank that needs most; time and traffic of the slowest one, for which the others wait.
Estimate estimated(const JobConfig& config, int64_t vocab_size, const EstimateDevice& device, const StepMesh& mesh,
                   const GpuRates* rates = nullptr) {
  std::optional<Estimate> most, slowest;
  for (const RankPart& part : mesh.parts) {
    if (part.blocks.empty()) continue;  // a rank with only the embedding or head
    Estimate e = estimated(config, vocab_size, device, mesh, part, rates);
    e.heaviest = mesh.stages.empty()
                     ? "every rank"
                     : fmt::format("rank {}, number {} of {} in the pipeline", part.rank, part.stage_rank, mesh.parts.size());
    if (!slowest || e.step_ms() > slowest->step_ms()) slowest = e;
    if (!most || e.peak().bytes() > most->peak().bytes()) most = std::move(e);
  }
  most->work = std::move(slowest->work), most->traffic = std::move(slowest->traffic);
  return *std::move(most);
}

// Settings that need less memory for the same model, GPU and batch per step (training.global_batch_size holds the latter).
std::vector<Saving> savings(const JobConfig& config, int64_t vocab_size, const EstimateDevice& device, const Estimate& of, int64_t layers) {
  std::vector<Saving> all;
  const auto with = [&](const std::string& setting, auto&& set) {
    JobConfig other = config;
    set(other);
    Estimate e;
    try {
      e = estimated(other, vocab_size, device, StepMesh(other, of.world, layers));
    } catch (const Error&) {  // a schedule file has so many micro-batches
      return;
    }
    const double saved = of.peak().bytes() - e.peak().bytes();
    if (saved > 0 && (e.host_memory_bytes == 0 || e.host_bytes < e.host_memory_bytes)) all.push_back({setting, saved});
  };
  with("activation_checkpoint.mode = \"full\"", [](JobConfig& c) { c.activation_checkpoint.mode = "full"; });
  with("training.local_batch_size = 1",
       [](JobConfig& c) { c.training.local_batch_size = c.parallelism.pipeline_parallel_microbatch_size = 1; });
  with("training.offload = [\"optimizer\"]", [](JobConfig& c) { c.training.offload = {"optimizer"}; });
  with("optimizer.state_dtype = \"bfloat16\"", [](JobConfig& c) { c.optimizer.state_dtype = "bfloat16"; });
  with("training.dtype = \"bfloat16\" with optimizer.stochastic_rounding", [](JobConfig& c) { c.training.dtype = "bfloat16"; });
  std::stable_sort(all.begin(), all.end(), [](const Saving& a, const Saving& b) { return a.bytes > b.bytes; });
  return all;
}

}  // namespace

EstimateDevice estimate_device(std::string name, Hardware hardware, double memory_gib) {
  const auto* known =
      std::find_if(std::begin(kGpus), std::end(kGpus), [&](const GpuRates& g) { return name.find(g.name) != std::string::npos; });
  return {std::move(name), hardware, memory_gib, is_cpu(hardware) || known == std::end(kGpus) ? nullptr : known,
          device_info(at::kCPU).capacity_gib};
}

EstimateDevice estimate_device(const std::string& asked, const std::string& training_device) {
  std::string upper = asked;
  std::transform(upper.begin(), upper.end(), upper.begin(), [](unsigned char c) { return std::toupper(c); });
  for (const GpuRates& g : kGpus) {
    if (upper == g.name) return {std::string("NVIDIA ") + std::string(g.name), Hardware::sm_90, g.memory_gib, &g};
  }
  check(asked == "cpu" || asked == "auto", "estimate: --device: expected h100, h200, cpu or auto, found '{}'", asked);
  if (asked == "cpu" || training_device == "cpu") {
    const DeviceInfo info = device_info(at::kCPU);
    return estimate_device(info.name, hardware_of(at::kCPU), info.capacity_gib);
  }
  if (const Hardware here = this_machine(); !is_cpu(here)) {
    const DeviceInfo info = device_info({c10::DeviceType::CUDA, 0});
    return estimate_device(info.name, here, info.capacity_gib);
  }
  return estimate_device("h100", "");
}

double Phase::bytes() const {
  double sum = 0;
  for (const MemoryShare& s : shares) sum += s.bytes;
  return sum;
}

const Phase& Estimate::peak() const {
  return *std::max_element(phases.begin(), phases.end(), [](const Phase& a, const Phase& b) { return a.bytes() < b.bytes(); });
}

double Estimate::step_ms() const { return sum_of(work); }

double Estimate::mfu() const { return mfu_percent(model_flops, tokens_per_second() / static_cast<double>(world), peak_flops); }

Estimate estimate_step(const JobConfig& config, int64_t vocab_size, const EstimateDevice& device, int64_t world) {
  const BuiltModel built = build_model(config.model, vocab_size);
  nn::Model& model = *built.model;
  {
    const Silence silence;  // the run itself logs it
    const int64_t layers = model.size().layers;
    nn::apply_recipes(model, nn::recipe_rules(config.quantize, config.model, layers, config.quantize.phase.value_or(0)), layers,
                      device.hardware);
  }
  const nn::ModelSize size = model.size();
  const StepMesh mesh(config, world, size.layers);
  std::vector<std::string> plan, remarks;
  const std::vector<int64_t>& own = std::ranges::find_if(mesh.parts, [](const RankPart& p) { return !p.blocks.empty(); })->blocks;
  const GpuRates* rates = has_rates(model, config, device, remarks) ? device.rates : nullptr;
  if (world > 1) plan = plan_lines(model, config.parallelism, mesh);
  Estimate e = estimated(config, vocab_size, device, mesh, rates);
  e.plan = std::move(plan), e.remarks = std::move(remarks);
  e.model_flops = flops_per_token(size, config.training.seq_len), e.peak_flops = peak_flops(device.name).bf16;
  const nn::RecomputePlan recompute = recompute_plan(model, config, device.hardware, own);
  constexpr double kLaunchesMs = 0.5;  // host time to launch a block's kernels, forward and backward: some 80, at several microseconds each
  const auto passes = static_cast<double>(parallel::microbatches_of_step(config.parallelism, config.training, mesh.mesh.size("batch")));
  if (!e.work.empty() && e.step_ms() < kLaunchesMs * static_cast<double>(own.size()) * passes)
    e.remarks.emplace_back("at this size kernel launches, which are not counted, take longer than the kernels");
  e.savings = savings(config, vocab_size, device, e, size.layers);
  e.what = fmt::format("{} {}, {} layers, {} parameters, {} rows of {} tokens, recomputation {}, on {} with {:.1f} GiB", config.model.name,
                       config.model.flavor, size.layers, thousands(static_cast<double>(size.parameters)), config.training.local_batch_size,
                       thousands(static_cast<double>(config.training.seq_len)), recompute_text(config.activation_checkpoint, recompute),
                       device.name, device.memory_gib);
  if (built.block_causal) e.remarks.emplace_back("document masks: attention takes less time than estimated, on another path");
  return e;
}

std::string estimate_line(const Estimate& e) {
  std::string line = fmt::format("peak {} GiB in {}, {} of {:.1f} GiB with the device context", in_gib(e.peak().bytes()), e.peak().name,
                                 in_gib(e.needed_bytes()), e.memory_bytes / kGiB);
  if (e.context_bytes == 0)
    line = fmt::format("peak {} GiB in {}, of {:.1f} GiB", in_gib(e.peak().bytes()), e.peak().name, e.memory_bytes / kGiB);
  if (!e.work.empty()) line += fmt::format("; {} tokens/s", thousands(e.tokens_per_second()));
  return line;
}

std::string memory_text(const Estimate& e) {
  const auto row = [](std::string_view name, double bytes) { return fmt::format("  {:<64} {:>8}\n", name, in_gib(bytes)); };
  std::string text = fmt::format("estimated memory{} at the peak ({}), GiB:\n", e.world > 1 ? " of " + e.heaviest : "", e.peak().name);
  for (const MemoryShare& s : e.peak().shares) text += row(s.owner, s.bytes);
  text += row("allocator peak", e.peak().bytes());
  if (e.context_bytes > 0)
    text += row(e.world > 1 ? "device context, libraries and communicators" : "device context and libraries", e.context_bytes);
  text += row("device memory", e.memory_bytes);
  if (e.host_bytes > 0) text += row("optimizer states in host memory", e.host_bytes);
  if (e.host_bytes > 0 && e.host_memory_bytes > 0) text += row("host memory of this machine", e.host_memory_bytes);
  return text;
}

std::string estimate_advice(const Estimate& e) {
  std::string text;
  for (size_t i = 0; i < std::min<size_t>(2, e.savings.size()); ++i)
    text += fmt::format("{}{} saves {} GiB", i == 0 ? "" : "; ", e.savings[i].setting, in_gib(e.savings[i].bytes));
  return text;
}

namespace {

std::string traffic_text(const Estimate& e) {
  const bool times = !e.work.empty();
  std::string text = fmt::format("\nreceived per rank and step, GiB{}:\n", times ? "; ms, and exposed ms" : "");
  for (const Traffic& t : e.traffic) {
    text += fmt::format("  {:<64} {:>8}", fmt::format("{}: {} of {}", t.communicator, t.operation, t.dtype), in_gib(t.bytes));
    text += times ? fmt::format(" {:>9.1f} {:>9.1f}\n", t.ms, t.exposed_ms) : "\n";
  }
  return text;
}

}  // namespace

std::string estimate_text(const Estimate& e) {
  std::string text = e.what + "\n\n";
  for (const std::string& line : e.plan) text += line + "\n";
  if (!e.plan.empty()) text += "\n";
  text += memory_text(e) + "\npeak per phase, GiB:\n";
  for (const Phase& p : e.phases) text += fmt::format("  {:<64} {:>8}\n", p.name, in_gib(p.bytes()));
  text += fmt::format("\nkept by a block for backward, bytes per token: {}\n", thousands(e.block_bytes));
  if (!e.savings.empty()) text += "\nsettings that lower the peak, by GiB:\n";
  for (const Saving& s : e.savings) text += fmt::format("  {:<64} {:>8}\n", s.setting, in_gib(s.bytes));
  if (!e.traffic.empty()) text += traffic_text(e);
  if (!e.work.empty()) {
    text += "\nestimated step time, ms:\n";
    for (const WorkTime& w : e.work) text += fmt::format("  {:<64} {:>8.1f}\n", w.work, w.ms);
    text += fmt::format("  {:<64} {:>8.1f}\n\n{} tokens/s", "step", e.step_ms(), thousands(e.tokens_per_second()));
    if (e.world > 1)
      text += fmt::format(", {} per GPU, MFU {:.1f}%", thousands(e.tokens_per_second() / static_cast<double>(e.world)), e.mfu());
    text += "\n";
  }
  for (const std::string& remark : e.remarks) text += fmt::format("note: {}\n", remark);
  return text;
}

nlohmann::ordered_json estimate_json(const Estimate& e) {
  nlohmann::ordered_json phases, owners, work, savings;
  for (const Phase& p : e.phases) phases[p.name] = p.bytes() / kGiB;
  for (const MemoryShare& s : e.peak().shares) owners[s.owner] = s.bytes / kGiB;
  for (const WorkTime& w : e.work) work[w.work] = w.ms;
  for (const Saving& s : e.savings) savings[s.setting] = s.bytes / kGiB;
  nlohmann::ordered_json out = {{"what", e.what},
                                {"peak_memory_gib", e.peak().bytes() / kGiB},
                                {"peak_phase", e.peak().name},
                                {"needed_gib", e.needed_bytes() / kGiB},
                                {"device_gib", e.memory_bytes / kGiB},
                                {"fits", e.fits()},
                                {"memory_gib", owners},
                                {"phases_gib", phases},
                                {"block_bytes_per_token", e.block_bytes},
                                {"savings_gib", savings}};
  if (e.host_bytes > 0) out["host_memory_gib"] = e.host_bytes / kGiB;
  if (e.world > 1) {
    out["world"] = e.world;
    nlohmann::ordered_json& traffic = out["traffic"];
    for (const Traffic& t : e.traffic)
      traffic.push_back({{"communicator", t.communicator},
                         {"operation", t.operation},
                         {"dtype", t.dtype},
                         {"calls", t.calls},
                         {"bytes", t.bytes},
                         {"ms", t.ms},
                         {"exposed_ms", t.exposed_ms}});
  }
  if (e.world > 1 && !e.work.empty())
    out["tokens_per_second_per_gpu"] = e.tokens_per_second() / static_cast<double>(e.world), out["mfu_percent"] = e.mfu();
  if (!e.work.empty()) out["ms"] = work, out["ms_per_step"] = e.step_ms(), out["tokens_per_second"] = e.tokens_per_second();
  if (!e.remarks.empty()) out["notes"] = e.remarks;
  return out;
}

std::string out_of_memory_text(std::string_view said, std::string_view when, const Estimate& e) {
  constexpr std::string_view kFirst = "CUDA out of memory. ";
  if (said.starts_with(kFirst)) said.remove_prefix(kFirst.size());
  said = said.substr(0, said.find('\n'));
  const size_t first = said.find(". "), second = first == said.npos ? first : said.find(". ", first + 2);
  const std::string advice = estimate_advice(e);
  return fmt::format("out of memory {}: {}.{}\n{}", when, said.substr(0, second),
                     advice.empty() ? " Lower training.seq_len or use a smaller model" : " By the estimate, " + advice, memory_text(e));
}

}  // namespace halftone
