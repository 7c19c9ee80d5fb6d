#include <algorithm>
#include <cmath>

#include "halftone/config/rules.h"

namespace halftone {
namespace {

// As rule(), for what may be meant.
template <class... Args>
void advise(const RuleContext& c, bool ok, std::initializer_list<const char*> names, fmt::format_string<Args...> format, Args&&... args) {
  for (const char* name : names) ok = ok || c.refused.contains(name);
  if (!ok && c.warnings != nullptr) c.warnings->push_back(where(c, names) + fmt::format(format, std::forward<Args>(args)...));
}

// The rates of a group of parameters; `group` is null for those in none.
void check_rates(const OptimizerConfig& o, const ParamGroup* group, double lr, double weight_decay, const RuleContext& c) {
  const std::string of = group == nullptr ? "optimizer" : fmt::format("optimizer.param_groups '{}'", group->pattern);
  const char* field = group == nullptr ? "optimizer.lr" : "optimizer.param_groups";
  rule(c, std::isfinite(lr) && lr >= 0 && weight_decay >= 0, {field},
       "{}: expected a finite lr and a weight_decay, both at least 0, found {} and {}", of, lr, weight_decay);
  const bool decoupled = o.name == "AdamW" || o.name == "Muon";
  rule(c, !decoupled || !std::isfinite(lr) || lr * weight_decay < 1, {group == nullptr ? "optimizer.weight_decay" : field, field},
       "{}: lr = {} times weight_decay = {} must be below 1: a step takes the weights times 1 less that product", of, lr, weight_decay);
}

void check_updates(const JobConfig& j, const RuleContext& c) {
  const TrainingConfig& t = j.training;
  const OptimizerConfig& o = j.optimizer;
  rule(c, t.max_norm > 0, {"training.max_norm"},
       "training.max_norm = {} takes every gradient times 0: nothing is learnt; inf measures the norm and clips nothing", t.max_norm);
  bool learns = o.lr > 0;
  check_rates(o, nullptr, o.lr, o.weight_decay, c);
  for (const ParamGroup& g : o.param_groups) {
    const double lr = g.number("lr").value_or(o.lr);
    learns = learns || lr > 0;
    check_rates(o, &g, lr, g.number("weight_decay").value_or(o.weight_decay), c);
  }
  rule(c, learns, {"optimizer.lr"},
       "optimizer.lr must be above 0, found {}: nothing would be learnt; training.steps = 0 validates and changes nothing", o.lr);
  rule(c, o.name == "SGD" || static_cast<float>(o.eps) > 0, {"optimizer.eps"},
       "optimizer.eps must be above 0 in float32, found {}: the update of an element without a gradient would be 0 / 0", o.eps);
  rule(c, t.spike_factor == 0 || t.spike_factor > 1, {"training.spike_factor"},
       "training.spike_factor must be 0 (off) or above 1, found {}: a loss at its running median would count as a spike", t.spike_factor);
  advise(c, t.seq_len > 1, {"training.seq_len"},
         "training.seq_len = 1: every prediction sees one token, and attention has nothing to look back at");
}

void check_schedule(const JobConfig& j, const RuleContext& c) {
  const int64_t steps = j.training.steps;
  const LrSchedulerConfig& s = j.lr_scheduler;
  if (!s.total_steps) return;
  advise(c, steps <= *s.total_steps, {"training.steps", "lr_scheduler.total_steps"},
         "training.steps = {} goes beyond lr_scheduler.total_steps = {}: the learning rate stays at its end from there on", steps,
         *s.total_steps);
  const int64_t warmup = std::min(s.warmup_steps, *s.total_steps);
  advise(c, steps == 0 || steps >= warmup, {"lr_scheduler.warmup_steps", "training.steps"},
         "training.steps = {} ends inside the warm-up of {} steps: the learning rate gets to {:.0f}% of optimizer.lr", steps, warmup,
         100.0 * static_cast<double>(steps) / static_cast<double>(std::max<int64_t>(warmup, 1)));
}

void check_validation(const JobConfig& j, const RuleContext& c) {
  const ValidationConfig& v = j.validation;
  advise(c, v.enable || v.holdout == 0, {"validation.holdout"},
         "validation.holdout = {} keeps documents from training, and nothing reads them: validation.enable is false", v.holdout);
  const bool named = v.dataset_path || j.training.dataset_path;
  const bool same = named ? v.dataset_path == j.training.dataset_path : v.dataset == j.training.dataset;
  advise(c, !v.enable || v.holdout > 0 || !same, {"validation.dataset_path", "validation.dataset", "validation.enable"},
         "validation reads the training data: its loss says nothing of other text; validation.holdout = 0.02 keeps some documents for it");
}

void check_saves(const JobConfig& j, const RuleContext& c) {
  const CheckpointConfig& k = j.checkpoint;
  const int64_t steps = j.training.steps;
  for (const auto& [name, set] : {std::pair{"checkpoint.initial_load_path", k.initial_load_path.has_value()},
                                  {"checkpoint.initial_load_in_hf", k.initial_load_in_hf},
                                  {"checkpoint.load_step", k.load_step >= 0},
                                  {"checkpoint.load_only", k.load_only}}) {
    advise(c, k.enable || !set, {name}, "{} is ignored: checkpoint.enable is false, and the run starts from fresh weights", name);
  }
  if (!k.enable) return;
  const bool full = !k.load_only && (k.interval <= steps || k.enable_first_step_checkpoint || !k.last_save_model_only);
  advise(
      c, full || steps == 0 || k.load_only, {"checkpoint.interval", "training.steps"},
      "checkpoint.interval = {} is beyond training.steps = {}, and the last save holds the model alone: no step to go on from is written",
      k.interval, steps);
  const bool before_the_end = !k.load_only && (k.interval < steps || k.enable_first_step_checkpoint);
  advise(c, j.training.nonfinite != "rollback" || before_the_end, {"training.nonfinite", "checkpoint.interval", "checkpoint.load_only"},
         "training.nonfinite = rollback: this start writes no step to go back to before its end{}",
         k.load_only ? " (checkpoint.load_only)" : fmt::format(" (checkpoint.interval = {}, training.steps = {})", k.interval, steps));
}

}  // namespace

void check_sense(const JobConfig& config, const RuleContext& context) {
  check_updates(config, context);
  check_schedule(config, context);
  check_validation(config, context);
  check_saves(config, context);
}

}  // namespace halftone
