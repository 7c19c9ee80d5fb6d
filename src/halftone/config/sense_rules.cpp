#include <algorithm>
#include <cmath>

#include "halftone/config/rules.h"

namespace halftone {
namespace {

// As rule(), for what may be intended.
template <class... Args>
void advise(const RuleContext& c, bool ok, std::initializer_list<const char*> names, fmt::format_string<Args...> format, Args&&... args) {
  for (const char* name : names) ok = ok || c.refused.contains(name);
  if (!ok && c.warnings != nullptr) c.warnings->push_back(where(c, names) + fmt::format(format, std::forward<Args>(args)...));
}

// Learning rate and weight decay of a parameter group; a null `group` means [optimizer] itself.
void check_rates(const OptimizerConfig& o, const ParamGroup* group, double lr, double weight_decay, const RuleContext& c) {
  const std::string of = group == nullptr ? "optimizer" : fmt::format("optimizer.param_groups '{}'", group->pattern);
  const char* field = group == nullptr ? "optimizer.lr" : "optimizer.param_groups";
  rule(c, std::isfinite(lr) && lr >= 0 && weight_decay >= 0, {field},
       "{}: expected a finite lr and a weight_decay, both at least 0, found {} and {}", of, lr, weight_decay);
  rule(c, !optim::optimizer_of(o.name).decoupled_decay || !std::isfinite(lr) || lr * weight_decay < 1,
       {group == nullptr ? "optimizer.weight_decay" : field, field},
       "{}: lr = {} times weight_decay = {} must be below 1: a step multiplies the weights by 1 minus that product", of, lr, weight_decay);
}

// Options that the optimizer does not take.
void check_options(const OptimizerConfig& o, const RuleContext& c) {
  const auto numbers = [](const optim::Options& options) {
    std::map<std::string_view, double> all;
    optim::Options::fields(options, [&](std::string_view name, const auto& value, std::string_view, const FieldInfo& = {}) {
      all[name] = static_cast<double>(value);
    });
    return all;
  };
  for (const auto& [name, usual] : numbers({})) {
    const std::string field = fmt::format("optimizer.{}", name);
    const double value = numbers(o).at(name);
    advise(c, value == usual || optim::optimizer_of(o.name).takes(name), {field.c_str()}, "{} = {} has no effect: {} does not take it",
           field, value, o.name);
  }
}

void check_updates(const JobConfig& j, const RuleContext& c) {
  const TrainingConfig& t = j.training;
  const OptimizerConfig& o = j.optimizer;
  rule(c, t.max_norm > 0, {"training.max_norm"},
       "training.max_norm = {} clips every gradient to 0: nothing is learned; inf measures the norm and clips nothing", t.max_norm);
  // In the optimizer's float32. Every parameter is in a group if there are some.
  const auto freezes = [](double lr) { return static_cast<float>(lr) == 0; };
  bool frozen = !o.param_groups.empty();
  check_options(o, c);
  check_rates(o, nullptr, o.lr, o.weight_decay, c);
  for (const ParamGroup& g : o.param_groups) {
    const double lr = g.number("lr").value_or(o.lr);
    frozen = frozen && freezes(lr);
    check_rates(o, &g, lr, g.number("weight_decay").value_or(o.weight_decay), c);
  }
  rule(c, !frozen, {"optimizer.param_groups"},
       "optimizer.param_groups: every group has lr = 0, which freezes all parameters: nothing would be learned; training.steps = 0 only "
       "validates");
  rule(c, !freezes(o.lr) || !o.param_groups.empty(), {"optimizer.lr"},
       "optimizer.lr must be above 0, found {}: nothing would be learned; training.steps = 0 only validates", o.lr);
  rule(c, t.spike_factor == 0 || t.spike_factor > 1, {"training.spike_factor"},
       "training.spike_factor must be 0 (off) or above 1, found {}: a loss at its running median would count as a spike", t.spike_factor);
  advise(c, t.seq_len > 1, {"training.seq_len"}, "training.seq_len = 1: every prediction sees one token, and attention nothing else");
}

void check_schedule(const JobConfig& j, const RuleContext& c) {
  const int64_t steps = j.training.steps;
  const LrSchedulerConfig& s = j.lr_scheduler;
  if (!s.total_steps) return;
  advise(c, steps <= *s.total_steps, {"training.steps", "lr_scheduler.total_steps"},
         "training.steps = {} exceeds lr_scheduler.total_steps = {}: the learning rate stays at its last value from there on", steps,
         *s.total_steps);
  const int64_t warmup = std::min(s.warmup_steps, *s.total_steps);
  advise(c, steps == 0 || steps >= warmup, {"lr_scheduler.warmup_steps", "training.steps"},
         "training.steps = {} ends inside the warmup of {} steps: the learning rate reaches {:.0f}% of optimizer.lr", steps, warmup,
         100.0 * static_cast<double>(steps) / static_cast<double>(std::max<int64_t>(warmup, 1)));
}

void check_validation(const JobConfig& j, const RuleContext& c) {
  const ValidationConfig& v = j.validation;
  advise(c, v.enable || v.holdout == 0, {"validation.holdout"},
         "validation.holdout = {} holds out documents that nothing reads: validation.enable is false", v.holdout);
  const bool named = v.dataset_path || j.training.dataset_path;
  const bool same = named ? v.dataset_path == j.training.dataset_path : v.dataset == j.training.dataset;
  advise(c, !v.enable || v.holdout > 0 || !same, {"validation.dataset_path", "validation.dataset", "validation.enable"},
         "validation reads the training data: its loss says nothing about unseen text; validation.holdout = 0.02 holds out some documents");
}

void check_alarms(const JobConfig& j, const RuleContext& c) {
  AlarmsConfig::fields(j.alarms, [&]<class T>(std::string_view name, const T& alarm, std::string_view, const FieldInfo& = {}) {
    if constexpr (std::is_same_v<T, AlarmConfig>) {
      const std::string threshold = fmt::format("alarms.{}.threshold", name), action = fmt::format("alarms.{}.action", name);
      rule(c, alarm.action != "rollback" || j.checkpoint.enable, {action.c_str()}, "{} = rollback needs checkpoint.enable", action);
      advise(c, alarm.action == "warn" || (alarm.threshold > 0 && std::isfinite(alarm.threshold)), {action.c_str(), threshold.c_str()},
             "{} = {} has no effect: {} is {}", action, alarm.action, threshold, alarm.threshold);
      const bool share = &alarm == &j.alarms.clipped || &alarm == &j.alarms.underflowed;
      rule(c, !share || alarm.threshold < 1 || std::isinf(alarm.threshold), {threshold.c_str()}, "{} is a share, below 1, or inf; found {}",
           threshold, alarm.threshold);
    }
  });
}

bool rolls_back(const AlarmsConfig& alarms) {
  bool any = false;
  AlarmsConfig::fields(alarms, [&]<class T>(std::string_view, const T& alarm, std::string_view, const FieldInfo& = {}) {
    if constexpr (std::is_same_v<T, AlarmConfig>) any = any || (alarm.threshold > 0 && alarm.action == "rollback");
  });
  return any;
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
  advise(c, k.enable || !j.sample.prompt, {"sample.prompt"}, "sample.prompt is ignored: the sample needs checkpoint.enable");
  if (!k.enable) return;
  const bool full = !k.load_only && (k.interval <= steps || k.enable_first_step_checkpoint || !k.last_save_model_only);
  advise(c, full || steps == 0 || k.load_only, {"checkpoint.interval", "training.steps"},
         "checkpoint.interval = {} exceeds training.steps = {}, and the last save holds only the model: no resumable step is written",
         k.interval, steps);
  const bool before_the_end = !k.load_only && (k.interval < steps || k.enable_first_step_checkpoint);
  const bool nonfinite = j.training.nonfinite == "rollback";
  advise(c, !(nonfinite || rolls_back(j.alarms)) || before_the_end, {"training.nonfinite", "checkpoint.interval", "checkpoint.load_only"},
         "{} = rollback: this run writes no step to go back to before its end{}", nonfinite ? "training.nonfinite" : "action of an alarm",
         k.load_only ? " (checkpoint.load_only)" : fmt::format(" (checkpoint.interval = {}, training.steps = {})", k.interval, steps));
}

}  // namespace

void check_sense(const JobConfig& config, const RuleContext& context) {
  check_updates(config, context);
  check_schedule(config, context);
  check_validation(config, context);
  check_alarms(config, context);
  check_saves(config, context);
}

}  // namespace halftone
