#include "halftone/cli/plan_measure.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "halftone/base/error.h"
#include "halftone/base/log.h"
#include "halftone/base/stopwatch.h"
#include "halftone/cli/bench_layer.h"
#include "halftone/cli/plan_energy.h"
#include "halftone/nn/layers.h"
#include "halftone/ops/device.h"
#include "halftone/train/processes.h"
#include "halftone/train/run_checkpoints.h"
#include "halftone/train/run_data.h"
#include "halftone/train/schedule.h"
#include "halftone/train/silence.h"
#include "halftone/train/tokenizer_setup.h"
#include "halftone/train/validate_settings.h"

namespace halftone::plan {
namespace {

// Every layer in the compute dtype; the layers that the configuration leaves out of quantisation stay out of it.
QuantizeConfig unquantized(const QuantizeConfig& given) {
  QuantizeConfig q;
  q.ignore = given.ignore, q.skip_first_layers = given.skip_first_layers, q.skip_last_layers = given.skip_last_layers;
  return q;
}

JobConfig prepared(JobConfig c) {
  c.quantize = unquantized(c.quantize);
  c.model.converters.clear();
  c.validation.enable = false;
  check_run(c, 1);
  return c;
}

constexpr std::array<std::string_view, 3> kProducts = {"y", "dx", "dw"};

// The layer's figures; none if it is not quantised.
std::optional<Trial> trial_of(const std::vector<QuantizationFigures>& figures, const std::string& layer) {
  Trial t;
  bool quantized = false;
  for (const QuantizationFigures& f : figures) {
    if (f.layer != layer) continue;
    const auto* product = std::find(kProducts.begin(), kProducts.end(), f.operand);
    if (product != kProducts.end() && f.sqnr) {
      quantized = true;
      t.noise[static_cast<size_t>(product - kProducts.begin())] = std::pow(10, -*f.sqnr / 10);
    }
    t.clipped = std::max(t.clipped, f.saturated.value_or(0)), t.underflowed = std::max(t.underflowed, f.flushed.value_or(0));
  }
  return quantized ? std::optional(t) : std::nullopt;
}

void load(Engine& engine, const std::vector<std::pair<std::string, at::Tensor>>& weights) {
  const std::map<std::string, at::Tensor> by_name(weights.begin(), weights.end());
  for (nn::Parameter* p : engine.store().parameters()) p->master.copy_(by_name.at(p->fqn));
  engine.store().masters_changed();
}

}  // namespace

Workbench::Workbench(JobConfig config, int64_t steps)
    : config_(prepared(std::move(config))),
      steps_(steps),
      device_(select_device(config_.training.device, 0)),
      tokenizer_(prepare_tokenizer(config_)) {}

std::unique_ptr<Engine> Workbench::engine_of(const QuantizeConfig& quantize) const {
  JobConfig c = config_;
  c.quantize = quantize;
  Engine::Options options;
  options.device = device_, options.seed = static_cast<uint64_t>(c.debug.seed.value_or(0));
  options.vocab_size = tokenizer_.vocab_size(), options.positions = c.training.seq_len;
  auto engine = std::make_unique<Engine>(c, options);
  if (!weights_.empty()) load(*engine, weights_);
  return engine;
}

StepTime Workbench::train(Engine& engine) {
  const Schedule schedule = schedule_of(config_);
  const EnergyCounter energy(device_);
  energy_missing_ = energy.missing();
  const int64_t half = steps_ / 2;
  std::vector<double> seconds;
  StepTime out;
  double loss = 0;
  std::optional<double> before;
  for (int64_t step = 1; step <= steps_; ++step) {
    if (step == half + 1) before = energy.joules();
    const Stopwatch watch;
    engine.accumulate(rows_[static_cast<size_t>(step - 1)], step);
    engine.update(schedule.factor(step - 1));
    const StepResult r = engine.result();
    synchronize(device_);
    if (step <= half) continue;
    seconds.push_back(watch.seconds());
    loss += r.loss_sum / static_cast<double>(std::max<int64_t>(r.valid_labels, 1));
  }
  const std::optional<double> after = energy.joules();
  if (before && after) out.joules = (*after - *before) / static_cast<double>(steps_ - half);
  // On a CPU other programs only add to the time.
  out.seconds = device_.is_cpu() ? *std::min_element(seconds.begin(), seconds.end()) : bench::median(seconds);
  check(std::isfinite(loss), "plan: expected finite losses in the measured steps, found {}; lower optimizer.lr, or start from a checkpoint",
        loss);
  return out;
}

StepTime Workbench::reference() {
  const std::unique_ptr<Engine> engine = engine_of(config_.quantize);
  Processes alone({}, {});
  RunData data(config_, tokenizer_, *engine, alone);
  RunProgress progress;
  progress.seed = engine->seed();
  RunCheckpoints({config_, tokenizer_, *engine, data, progress}, nullptr).load();
  pads_ = data.loader().pads();
  while (static_cast<int64_t>(rows_.size()) < steps_) {
    auto rows = data.next_step([] { return false; });
    check(rows.has_value(), "plan: --steps {}: the training data have {} steps of {} rows; ask for fewer, or use more data", steps_,
          rows_.size(), data.loader().options().global_batch);
    rows_.push_back(std::move(*rows));
  }
  log_info("plan: {} steps of {} rows in {}", steps_, data.loader().options().global_batch, config_.training.mixed_precision_param);
  const StepTime time = train(*engine);
  for (const nn::Parameter* p : engine->store().parameters()) weights_.emplace_back(p->fqn, p->master.cpu().clone());

  std::map<std::string, const nn::Linear*> linears;
  engine->model().for_each_module([&](nn::Module& m) {
    if (const auto* l = dynamic_cast<nn::Linear*>(&m); l != nullptr && l->fqn().starts_with("layers.")) linears[l->fqn()] = l;
  });
  layers_ = static_cast<int64_t>(linears.size());
  int64_t call = -1;
  for (const QuantizationFigures& f : figures(*engine)) {
    const auto l = linears.find(f.layer);
    if (l == linears.end() || (!groups_.empty() && groups_.back().layers.back() == f.layer)) continue;
    if (f.call != call || groups_.empty()) groups_.push_back({{}, rows_.front().front().input.tokens.numel(), 0, l->second->in_features()});
    call = f.call;
    groups_.back().layers.push_back(f.layer), groups_.back().outputs += l->second->out_features();
  }
  check(!groups_.empty(), "plan: the model has no linear layer in its blocks");
  return time;
}

std::vector<QuantizationFigures> Workbench::figures(Engine& engine) const {
  const auto stats = quantization_stats() = std::make_shared<QuantizationStats>(pads_);
  engine.accumulate(rows_.back(), steps_ + 1);
  quantization_stats().reset();
  return stats->read();
}

std::vector<Group> Workbench::try_formats(const std::vector<std::string>& candidates) {
  std::vector<Group> groups = groups_;
  for (const std::string& name : candidates) {
    log_info("plan: errors of {}, candidate {} of {}", name, groups.front().trials.size() + 1, candidates.size());
    QuantizeConfig quantize = config_.quantize;
    quantize.scheme.name = name;
    std::vector<QuantizationFigures> found;
    {
      const Silence silence;
      found = figures(*engine_of(quantize));
    }
    for (Group& g : groups) {
      Trial all;
      std::vector<Noise> noise;
      for (const std::string& layer : g.layers) {
        const auto one = trial_of(found, layer);
        if (!one) break;
        noise.push_back(one->noise);
        for (size_t i = 0; i < kProducts.size(); ++i) all.noise[i] = std::max(all.noise[i], one->noise[i]);
        all.clipped = std::max(all.clipped, one->clipped), all.underflowed = std::max(all.underflowed, one->underflowed);
      }
      all.loss = loss_increase(noise, static_cast<double>(layers_));
      g.trials.push_back(noise.size() == g.layers.size() ? std::optional(all) : std::nullopt);
    }
  }
  time_groups(groups, candidates);
  return groups;
}

void Workbench::time_groups(std::vector<Group>& groups, const std::vector<std::string>& candidates) const {
  const double turn = device_.is_cpu() ? 0.02 : 0.05, micro_batches = static_cast<double>(rows_.front().size());
  constexpr int kRounds = 5;
  bench::warm_up(device_);
  std::map<bench::Shape, std::map<int, double>> seconds;  // of one call, by candidate; -1: the compute dtype
  for (const Group& g : groups) {
    auto& of_shape = seconds[{g.tokens, g.outputs, g.inputs}];
    std::vector<int> formats = {-1};
    for (size_t f = 0; f < candidates.size(); ++f)
      if (g.trials[f] && !of_shape.contains(static_cast<int>(f))) formats.push_back(static_cast<int>(f));
    if (formats.size() == 1) continue;
    log_info("plan: times of {} x {} x {} in {} formats", g.tokens, g.outputs, g.inputs, formats.size());
    const bench::LayerData data(g.tokens, g.outputs, g.inputs, device_);
    std::vector<bench::Parts> works;
    for (const int f : formats)
      works.push_back(bench::layer_work(bench::bench_recipe(f < 0 ? "none" : candidates[static_cast<size_t>(f)], "recommended"), data));
    const auto times = bench::time_in_turns(device_, works, {kRounds, turn});
    for (size_t i = 0; i < formats.size(); ++i) of_shape[formats[i]] = bench::seconds_of(times[i], bench::kAll);
  }
  for (Group& g : groups) {
    auto& of_shape = seconds[{g.tokens, g.outputs, g.inputs}];
    g.seconds = of_shape[-1] * micro_batches;
    for (size_t f = 0; f < candidates.size(); ++f)
      if (g.trials[f]) g.trials[f]->seconds = of_shape[static_cast<int>(f)] * micro_batches;
  }
}

StepTime Workbench::run(const std::string& recipe) {
  log_info("plan: {} steps with {}", steps_, recipe);
  QuantizeConfig quantize = config_.quantize;
  quantize.recipe = recipe;
  quantize.ignore = QuantizeConfig().ignore;
  const Silence silence;
  const std::unique_ptr<Engine> engine = engine_of(quantize);
  return train(*engine);
}

}  // namespace halftone::plan
