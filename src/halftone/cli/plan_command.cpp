// halftone plan: which format where, measured on this machine.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "halftone/base/environment.h"
#include "halftone/base/error.h"
#include "halftone/cli/bench_layer.h"
#include "halftone/cli/commands.h"
#include "halftone/cli/next_commands.h"
#include "halftone/cli/parse.h"
#include "halftone/cli/plan_measure.h"
#include "halftone/cli/text_table.h"
#include "halftone/config/load.h"
#include "halftone/ops/device.h"
#include "halftone/ops/hardware.h"
#include "halftone/train/hf_model.h"

namespace halftone {
namespace {

using plan::Choice;
using plan::Group;
using plan::StepTime;
using Words = std::vector<std::string>;

constexpr const char* kPlanHelp =
    "halftone plan --config FILE [--section.field value ...] [--speedup X] [--loss-budget PERCENT] [--candidates A,B] [--out FILE.yaml]\n\n"
    "Measures the configuration's linear layers in each format on this machine, with its data and weights, and writes the recipe file\n"
    "(quantize.recipe) that is fastest within a budget, or loses least for a speed-up.\n\n"
    "  --speedup      of the whole step over the compute dtype, to be reached with the least predicted loss\n"
    "  --loss-budget  predicted increase of the final loss in percent, not to be exceeded; 0.5 by default, without a limit by --speedup\n"
    "  --candidates   schemes to choose from; default: all that quantise a master weight and have fast products here\n"
    "  --steps        training steps before the errors are measured, and timed; at least 4, 8 by default\n"
    "  --out          the file to write; plan.yaml by default\n\n"
    "Weights are fresh, or those of checkpoint.initial_load_path (a run's folder, one of its steps, or a Hugging Face folder), with which\n"
    "errors are more telling. [quantize] of the configuration has no effect but for ignore, skip_first_layers and skip_last_layers.\n"
    "The other options are those of halftone train; fewer --candidates or a smaller training.local_batch_size take less time. "
    "docs/plan.md\n"
    "defines the figures.\n\n"
    "  halftone plan --config recipes/demo.toml --loss-budget 1 --out demo_plan.yaml\n"
    "  halftone train --config recipes/demo.toml --quantize.scheme none --quantize.recipe demo_plan.yaml\n";

std::optional<double> take_number(Words& words, const std::string& option, double least) {
  const auto word = take_value(words, option, "plan");
  if (!word) return std::nullopt;
  char* end = nullptr;
  const double value = std::strtod(word->c_str(), &end);
  check(!word->empty() && *end == 0 && value >= least && std::isfinite(value), "plan: {}: expected a number of at least {}, found '{}'",
        option, least, *word);
  return value;
}

Support support_of(const std::string& scheme, Hardware hardware) {
  return recipe_support(bench::bench_recipe(scheme, "recommended"), hardware).worst();
}

// Schemes of a master weight that add nothing to the model; without `hardware` all, else those that it does not emulate.
Words schemes(std::optional<Hardware> hardware = std::nullopt) {
  Words out;
  for (const Scheme& s : kLinearRecipes) {
    if (s.quantized() && !s.w_forward.stored && !s.family->own_norms &&
        (!hardware || support_of(std::string(s.name), *hardware).how != How::emulated))
      out.emplace_back(s.name);
  }
  return out;
}

std::string decibels(double noise) { return noise > 0 ? fmt::format("{:.1f}", -10 * std::log10(noise)) : "-"; }
std::string percent(double share) { return fmt::format("{:.2f}%", 100 * share); }

// Each candidate on every group that takes it.
std::string candidates_text(const std::vector<Group>& groups, const Words& candidates, double step, Hardware hardware) {
  TextTable table({"candidate", "products", "layers", "ms", "speed-up", "loss", "y dB", "dx dB", "dw dB", "clipped", "underflowed"});
  double plain = 0;
  size_t layers = 0;
  for (const Group& g : groups) plain += g.seconds, layers += g.layers.size();
  table.row({"none", "", std::to_string(layers), fmt::format("{:.2f}", plain * 1e3), "1.000", "0%"});
  for (size_t f = 0; f < candidates.size(); ++f) {
    double seconds = plain, loss = 0;
    size_t taken = 0;
    plan::Trial worst;
    for (const Group& g : groups) {
      if (!g.trials[f]) continue;
      const plan::Trial& t = *g.trials[f];
      taken += g.layers.size(), seconds += t.seconds - g.seconds, loss += t.loss;
      for (size_t i = 0; i < worst.noise.size(); ++i) worst.noise[i] = std::max(worst.noise[i], t.noise[i]);
      worst.clipped = std::max(worst.clipped, t.clipped), worst.underflowed = std::max(worst.underflowed, t.underflowed);
    }
    const Support how = support_of(candidates[f], hardware);
    table.row({candidates[f], std::string(name(how.how)), std::to_string(taken), fmt::format("{:.2f}", seconds * 1e3),
               fmt::format("{:.3f}", step / (step - plain + seconds)), fmt::format("{:.2f}%", loss), decibels(worst.noise[0]),
               decibels(worst.noise[1]), decibels(worst.noise[2]), percent(worst.clipped), percent(worst.underflowed)});
  }
  return table.text();
}

std::string choice_text(const std::vector<Group>& groups, const Choice& choice, const Words& candidates) {
  TextTable table({"layers", "M x N x K", "format", "none ms", "ms", "loss", "y dB"});
  for (size_t g = 0; g < groups.size(); ++g) {
    const Group& group = groups[g];
    std::string name = group.layers.front();
    for (size_t i = 1; i < group.layers.size(); ++i) name += "|" + group.layers[i].substr(group.layers[i].rfind('.') + 1);
    const int f = choice.formats[g];
    const auto& t = f < 0 ? std::nullopt : group.trials[static_cast<size_t>(f)];
    table.row({name, fmt::format("{} x {} x {}", group.tokens, group.outputs, group.inputs),
               t ? candidates[static_cast<size_t>(f)] : "none", fmt::format("{:.3f}", group.seconds * 1e3),
               fmt::format("{:.3f}", (t ? t->seconds : group.seconds) * 1e3), t ? fmt::format("{:.3f}%", t->loss) : "0%",
               t ? decibels(t->noise[0]) : ""});
  }
  return table.text();
}

std::string energy_text(const StepTime& before, double predicted_seconds, const StepTime& after, const std::string& missing) {
  if (!before.joules || !after.joules) return fmt::format("Energy: not predicted, {}", missing);
  return fmt::format("Energy of a step: {:.2f} J in the compute dtype ({:.0f} W), {:.2f} J predicted at the same power, {:.2f} J measured",
                     *before.joules, *before.joules / before.seconds, *before.joules / before.seconds * predicted_seconds, *after.joules);
}

}  // namespace

int plan_command(Arguments args) {
  if (asked_help(args)) return print(kPlanHelp), 0;
  Words words(args.begin(), args.end());
  plan::Budget budget;
  budget.speedup = take_number(words, "--speedup", 1), budget.loss = take_number(words, "--loss-budget", 0);
  if (!budget.speedup && !budget.loss) budget.loss = 0.5;
  const double steps = take_number(words, "--steps", 4).value_or(8);
  check(steps == std::floor(steps) && steps <= 1e6, "plan: --steps: expected a whole number of at most 1000000, found {}", steps);
  const std::string out = take_value(words, "--out", "plan").value_or("plan.yaml"),
                    asked = take_value(words, "--candidates", "plan").value_or("");
  require_one_process(read_environment());
  LoadedConfig loaded = load_config(words, {1});
  resolve_model(loaded.config);
  check(loaded.config.job.config_file.has_value(), "plan: expected --config FILE, found none; for example --config recipes/demo.toml");
  const Hardware hardware = hardware_of(select_device(loaded.config.training.device, 0));
  Words wanted;
  for (size_t at = 0; at < asked.size();) {
    const size_t comma = std::min(asked.find(',', at), asked.size());
    wanted.push_back(asked.substr(at, comma - at)), at = comma + 1;
  }
  const Words candidates = bench::choose(wanted.empty() ? schemes(hardware) : wanted, schemes(), "plan: --candidates");

  const auto write = [&](const std::string& text, std::ios::openmode mode) {
    std::ofstream file(out, mode);
    file << text;
    file.close();
    check(file.good(), "plan: --out {}: cannot be written; choose a writable folder with free space", out);
  };
  const bool there = std::filesystem::exists(out);  // an error belongs before the measurements
  write("", std::ios::app);
  if (!there) std::filesystem::remove(out);

  plan::Workbench bench(loaded.config, static_cast<int64_t>(steps));
  const StepTime before = bench.reference();
  const std::vector<Group> groups = bench.try_formats(candidates);
  double linear = 0;
  for (const Group& g : groups) linear += g.seconds;
  const std::string most =
      linear < before.seconds ? fmt::format("no format makes it more than {:.2f} times as fast", before.seconds / (before.seconds - linear))
                              : "other programs disturbed the times; measure again, with more --steps";
  const double step = std::max(before.seconds, linear);
  print(fmt::format("\nA step in {} takes {:.1f} ms, the linear layers of the blocks alone {:.1f} ms ({:.0f}%): {}\n\n{}",
                    loaded.config.training.mixed_precision_param, before.seconds * 1e3, linear * 1e3, 100 * linear / before.seconds, most,
                    candidates_text(groups, candidates, step, hardware)));
  std::fflush(stdout);
  const Choice choice = plan::choose_formats(groups, step, budget);
  const std::string summary = fmt::format("predicted: step {:.1f} -> {:.1f} ms, speed-up {:.3f}, loss +{:.2f}%", step * 1e3,
                                          choice.seconds * 1e3, step / choice.seconds, choice.loss);
  const std::string command = fmt::format("halftone plan on {} ({})", device_info(bench.device()).name, name(hardware));
  write(plan::recipe_yaml(groups, choice, candidates, command + "\n" + summary), std::ios::trunc);
  const StepTime after = bench.run(out);
  std::string options;
  for (const std::string& word : words) options += " " + shell_word(word);
  print(
      fmt::format("\n{}\nThe plan, {}\nMeasured with it: step {:.1f} ms, speed-up {:.3f}\n{}\nWritten to {}; train with it:\n"
                  "halftone train{} --quantize.scheme none --quantize.recipe {}",
                  choice_text(groups, choice, candidates), summary, after.seconds * 1e3, before.seconds / after.seconds,
                  energy_text(before, choice.seconds, after, bench.energy_missing()), out, options, shell_word(out)));
  return 0;
}

}  // namespace halftone
