#include "halftone/train/alarms.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <sstream>

#include "halftone/train/console.h"

namespace halftone {
namespace {

struct Sources {
  const std::vector<ExpertLoad>& experts;
  const std::vector<ActivationStats::Figure>& activations;
  const std::vector<QuantizationFigures>& codes;
};
using Readings = std::vector<std::pair<std::string, double>>;  // place, value

Readings expert_load(const Sources& s) {
  if (s.experts.empty()) return {};
  const ExpertLoad& first = s.experts.front();
  return {{first.layer, *std::max_element(first.share.begin(), first.share.end())}};
}

template <bool logit>
Readings activation(const Sources& s) {
  Readings all;
  for (const ActivationStats::Figure& f : s.activations) {
    if (f.logit == logit) all.emplace_back(f.layer, f.value);
  }
  return all;
}

template <std::optional<double> QuantizationFigures::*share>
Readings codes(const Sources& s) {
  Readings all;
  for (const QuantizationFigures& f : s.codes) {
    if (f.*share) all.emplace_back(fmt::format("{}/{}", f.layer, f.operand), *(f.*share));
  }
  return all;
}

struct Alarm {
  std::string_view name;
  AlarmConfig AlarmsConfig::*config;
  const char* what;  // of the log line
  enum class From { step, activations, codes } from;
  Readings (*read)(const Sources&);
};

constexpr Alarm kAlarms[] = {
    {"expert_load", &AlarmsConfig::expert_load, "largest load of an expert", Alarm::From::step, expert_load},
    {"residual_norm", &AlarmsConfig::residual_norm, "RMS of the residual stream", Alarm::From::activations, activation<false>},
    {"attention_logit", &AlarmsConfig::attention_logit, "bound of the attention logits", Alarm::From::activations, activation<true>},
    {"clipped", &AlarmsConfig::clipped, "share of clipped codes", Alarm::From::codes, codes<&QuantizationFigures::saturated>},
    {"underflowed", &AlarmsConfig::underflowed, "share of underflowed codes", Alarm::From::codes, codes<&QuantizationFigures::flushed>},
};

// 3 for "layers.3.attention": orders the blocks of a pipeline's ranks.
int64_t block_of(const std::string& place) {
  constexpr std::string_view kBlock = "layers.";
  return place.starts_with(kBlock) ? std::strtoll(place.c_str() + kBlock.size(), nullptr, 10) : INT64_MAX;
}

constexpr std::string_view kActions[] = {"", "warn", "rollback", "stop"};  // by strength

bool measured(const AlarmsConfig& config, const Alarm& a) { return (config.*a.config).threshold > 0; }
bool measured(const AlarmsConfig& config, Alarm::From from) {
  return std::any_of(std::begin(kAlarms), std::end(kAlarms), [&](const Alarm& a) { return a.from == from && measured(config, a); });
}

}  // namespace

AlarmProbe::AlarmProbe(const AlarmsConfig& config, bool pads) {
  if (measured(config, Alarm::From::activations)) activation_stats() = activations_ = std::make_shared<ActivationStats>();
  if (!measured(config, Alarm::From::codes)) return;
  codes_ = quantization_stats();
  owns_codes_ = codes_ == nullptr;
  if (owns_codes_) quantization_stats() = codes_ = std::make_shared<QuantizationStats>(pads, QuantizationStats::Detail::operands);
}

void AlarmProbe::stop() {
  if (activations_ && activation_stats() == activations_) activation_stats().reset();
  if (owns_codes_ && quantization_stats() == codes_) quantization_stats().reset();
}

std::string AlarmProbe::read(const AlarmsConfig& config, const StepResult& result) const {
  const auto activations = activations_ ? activations_->read() : std::vector<ActivationStats::Figure>();
  const auto codes = codes_ ? codes_->read() : std::vector<QuantizationFigures>();
  std::string text;
  for (const Alarm& a : kAlarms) {
    if (!measured(config, a)) continue;
    for (const auto& [place, value] : a.read({result.experts, activations, codes})) text += fmt::format("{} {} {}\n", a.name, place, value);
  }
  return text;
}

AlarmVerdict judge_alarms(const AlarmsConfig& config, int64_t step, const std::vector<std::string>& said) {
  std::map<std::string, Readings> by_alarm;
  for (const std::string& text : said) {
    std::istringstream words(text);
    for (std::string alarm, place, number; words >> alarm >> place >> number;) {
      const double value = std::strtod(number.c_str(), nullptr);  // accepts nan and inf
      Readings& all = by_alarm[alarm];
      const auto at = std::find_if(all.begin(), all.end(), [&](const auto& r) { return r.first == place; });
      if (at == all.end()) {
        all.emplace_back(place, value);
      } else if (!(value <= at->second)) {
        at->second = value;
      }
    }
  }
  AlarmVerdict verdict;
  size_t strongest = 0;
  for (const Alarm& a : kAlarms) {
    const AlarmConfig& limit = config.*a.config;
    size_t above = 0;
    const std::pair<std::string, double>*first = nullptr, *worst = nullptr;
    Readings& all = by_alarm[std::string(a.name)];
    std::ranges::stable_sort(all, {}, [](const auto& r) { return block_of(r.first); });
    for (const auto& r : all) {
      verdict.scalars.emplace_back(fmt::format("alarms/{}/{}", a.name, r.first), r.second);
      if (std::isinf(limit.threshold) || r.second <= limit.threshold) continue;  // NaN is above
      ++above;
      if (first == nullptr) first = &r;
      if (worst == nullptr || (!std::isnan(worst->second) && !(r.second <= worst->second))) worst = &r;
    }
    if (above == 0) continue;
    std::string line = fmt::format("alarm {} at step {}: {} is {:.4g} in {}, above alarms.{}.threshold = {}", a.name, step, a.what,
                                   plain_nan(worst->second), worst->first, a.name, limit.threshold);
    if (above > 1) line += fmt::format(" ({} of {} above it, first {})", above, all.size(), first->first);
    verdict.lines.push_back(line);
    const auto* found = std::find(std::begin(kActions), std::end(kActions), limit.action);
    strongest = std::max(strongest, static_cast<size_t>(found - std::begin(kActions)));
  }
  verdict.action = kActions[strongest];
  return verdict;
}

bool alarms_measure(const JobConfig& config, int64_t step) {
  const bool any = std::any_of(std::begin(kAlarms), std::end(kAlarms), [&](const Alarm& a) { return measured(config.alarms, a); });
  const bool saves = config.checkpoint.enable && (step % config.checkpoint.interval == 0 || step == config.training.steps ||
                                                  (step == 1 && config.checkpoint.enable_first_step_checkpoint));
  return any && (saves || step % config.alarms.freq == 0);
}

std::string alarms_text(const AlarmsConfig& config) {
  std::vector<std::string> parts;
  for (const Alarm& a : kAlarms) {
    const AlarmConfig& limit = config.*a.config;
    if (limit.threshold > 0)
      parts.push_back(std::isinf(limit.threshold) ? fmt::format("{} measured", a.name)
                                                  : fmt::format("{} above {}: {}", a.name, limit.threshold, limit.action));
  }
  return fmt::format("{}", fmt::join(parts, "; "));
}

}  // namespace halftone
