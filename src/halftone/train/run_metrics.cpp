#include "halftone/train/run_metrics.h"

#include <bit>
#include <cmath>
#include <nlohmann/json.hpp>

#include "halftone/base/log.h"
#include "halftone/config/load.h"
#include "halftone/train/flops.h"

namespace halftone {
namespace {

MetricsOptions metrics_options(const JobConfig& config, Processes& processes) {
  MetricsOptions m;
  m.rank = static_cast<int>(processes.rank());
  m.start = std::bit_cast<double>(processes.of_first(std::bit_cast<int64_t>(wall_clock())));  // clocks of hosts differ
  m.dump_folder = config.job.dump_folder, m.config = config.metrics, m.total_steps = config.training.steps;
  return m;
}

}  // namespace

RunFlops run_flops(const Engine& engine, const JobConfig& config, const DeviceInfo& info) {
  RunFlops flops;
  flops.per_token = flops_per_token(engine.size(), config.training.seq_len);
  if (engine.device().is_cpu()) return flops;
  const PeakFlops peak = peak_flops(info.name);
  if (!peak.known) log_warning("no peak FLOPS known for {}: mfu assumes an A100", info.name);
  flops.peak = peak.bf16;
  log_debug("Peak FLOPS used for computing MFU: {:.3e}", flops.peak);
  return flops;
}

RunMetrics::RunMetrics(const JobConfig& config, Processes& processes, at::Device device, const DeviceInfo& info, const RunFlops& flops,
                       const std::string& version, std::optional<int64_t> resumed_step)
    : config_(config),
      device_(device),
      capacity_gib_(info.capacity_gib),
      flops_(flops),
      logger_(metrics_options(config, processes), resumed_step,
              RunDescription{to_json(config), version, info.name, processes.world(), processes.degrees(), config.quantize.recipe_text}),
      processes_(processes.world()) {}

void RunMetrics::count_waits(const StepAgreement& agreed) {
  if (agreed.data_seconds >= longest_.data_seconds) longest_.data_seconds = agreed.data_seconds, longest_.data_rank = agreed.data_rank;
  if (agreed.lag_seconds >= longest_.lag_seconds) longest_.lag_seconds = agreed.lag_seconds, longest_.lag_rank = agreed.lag_rank;
}

bool RunMetrics::is_logged(int64_t step) const {
  return step == 1 || step % config_.metrics.log_freq == 0 || step == config_.training.steps;
}

void RunMetrics::start_interval() {
  interval_ = Stopwatch();
  tokens_ = steps_ = 0;
  longest_ = {};
}

void RunMetrics::log_step(int64_t step, const StepResult& r, double lr, int64_t tokens_seen, const RunData::Wait& wait) {
  const double seconds = interval_.seconds();
  const double tps = static_cast<double>(tokens_) / seconds / static_cast<double>(processes_);
  const double loss = r.loss_sum / static_cast<double>(r.valid_labels);
  const MemoryUse memory = peak_memory(device_);
  Scalars s = {{"loss_metrics/global_avg_loss", loss},
               {"loss_metrics/global_max_loss", r.max_loss},
               {"grad_norm", r.grad_norm},
               {"lr", lr},
               {"n_tokens_seen", static_cast<double>(tokens_seen)},
               {"throughput(tps)", tps},
               {"tflops", tflops(flops_.per_token, tps)}};
  if (flops_.peak > 0) s.emplace_back("mfu(%)", mfu_percent(flops_.per_token, tps, flops_.peak));
  s.insert(s.end(), {{"time_metrics/end_to_end(s)", seconds / static_cast<double>(steps_)},
                     {"time_metrics/data_loading(s)", wait.seconds / static_cast<double>(wait.batches)},
                     {"time_metrics/data_loading(%)", 100 * wait.seconds / seconds},
                     {"memory/max_active(GiB)", memory.active_gib},
                     {"memory/max_active(%)", 100 * memory.active_gib / capacity_gib_},
                     {"memory/max_reserved(GiB)", memory.reserved_gib},
                     {"memory/max_reserved(%)", 100 * memory.reserved_gib / capacity_gib_},
                     {"memory/num_alloc_retries", static_cast<double>(memory.alloc_retries)},
                     {"memory/num_ooms", static_cast<double>(memory.ooms)}});
  if (processes_ > 1) {
    s.insert(s.end(), {{"time_metrics/data_loading_max(s)", longest_.data_seconds},
                       {"time_metrics/data_loading_max_rank", static_cast<double>(longest_.data_rank)},
                       {"time_metrics/straggler_lag(s)", longest_.lag_seconds},
                       {"time_metrics/straggler_rank", static_cast<double>(longest_.lag_rank)}});
  }
  s.insert(s.end(), source_scalars_.begin(), source_scalars_.end());
  source_scalars_.clear();
  const Scalars experts = expert_scalars(r.experts);
  s.insert(s.end(), experts.begin(), experts.end());
  if (memory.alloc_retries > 0 || memory.ooms > 0)
    log_warning("{} allocation retries, {} times out of memory", memory.alloc_retries, memory.ooms);
  logger_.log_train(step, s);
  if (!r.experts.empty()) logger_.log_experts(step, expert_shares(r.experts));
  reset_peak_memory(device_);
  start_interval();
}

void RunMetrics::take_sources(const std::vector<std::string>& names, const at::Tensor& sums, Processes& processes) {
  nlohmann::json own = nlohmann::json::array();
  if (sums.defined()) {
    const at::Tensor host = sums.cpu().contiguous();
    own = std::vector<double>(host.const_data_ptr<double>(), host.const_data_ptr<double>() + host.numel());
  }
  std::vector<double> all(2 * names.size(), 0);
  for (const std::string& text : processes.texts(own.dump())) {
    const nlohmann::json said = nlohmann::json::parse(text);
    for (size_t i = 0; i < said.size(); ++i) all[i] += said[i].is_number() ? said[i].get<double>() : std::nan("");
  }
  source_sums_.resize(all.size(), 0);
  for (size_t i = 0; i < names.size(); ++i) {
    const double loss = all[i] - source_sums_[i], labels = all[names.size() + i] - source_sums_[names.size() + i];
    source_scalars_.emplace_back("data/" + names[i] + "/tokens", labels);
    if (labels > 0) source_scalars_.emplace_back("data/" + names[i] + "/loss", loss / labels);
  }
  source_sums_ = std::move(all);
}

void RunMetrics::log_validation(int64_t step, const Evaluation& e) {
  const MemoryUse memory = peak_memory(device_);
  Scalars s = {{"validation_metrics/loss", e.loss()},
               {"validation_metrics/throughput(tps)", static_cast<double>(e.tokens) / e.seconds},
               {"validation_metrics/memory/max_active(GiB)", memory.active_gib},
               {"validation_metrics/memory/max_active(%)", 100 * memory.active_gib / capacity_gib_},
               {"validation_metrics/memory/max_reserved(GiB)", memory.reserved_gib},
               {"validation_metrics/memory/max_reserved(%)", 100 * memory.reserved_gib / capacity_gib_}};
  if (e.label_bytes > 0) {
    s.emplace_back("validation_metrics/bits_per_byte", e.loss_sum / std::log(2.0) / static_cast<double>(e.label_bytes));
  }
  logger_.log_validate(step, s);
}

}  // namespace halftone
