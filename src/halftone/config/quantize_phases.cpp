#include "halftone/config/quantize_phases.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

#include "halftone/base/error.h"
#include "halftone/config/quantize_options.h"
#include "halftone/config/recipe_file.h"
#include "halftone/config/rules.h"
#include "halftone/config/value.h"
#include "halftone/formats/recipe.h"

namespace halftone {
namespace {

constexpr size_t kMostEntries = 32, kMostSources = 32;  // without a scheme an entry for some blocks doubles the sources

struct Entry {
  QuantizePhase phase;
  QuantizeConfig defaults;  // of fields that an entry with a scheme does not state
  std::string place;
};

// Targets, preset and emulation of [quantize] go for its entries too.
QuantizeConfig defaults_of(const QuantizeConfig& q) {
  QuantizeConfig d;
  d.targets = q.targets, d.ignore = q.ignore, d.preset = q.preset, d.emulate = q.emulate;
  return d;
}

std::vector<Entry> entries_of(const QuantizeConfig& q, const std::vector<RecipeModifier>& modifiers) {
  std::vector<Entry> entries;
  for (size_t i = 0; i < q.phases.size(); ++i) entries.push_back({q.phases[i], defaults_of(q), fmt::format("quantize.phases[{}]: ", i)});
  for (const RecipeModifier& m : modifiers) {
    if (m.phase) entries.push_back({*m.phase, m.options, m.place + ": "});
  }
  check(entries.size() <= kMostEntries, "quantize.phases: expected at most {} entries, found {}", kMostEntries, entries.size());
  return entries;
}

PhaseStart start_of(const Entry& e) {
  PhaseStart start;
  if (!e.phase.states("from")) return start;
  std::string_view text = e.phase.from;
  const bool percent = text.ends_with('%'), fraction = percent || text.find_first_of(".e") != std::string_view::npos;
  if (percent) text.remove_suffix(1);
  const auto parse = [&](auto& out) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
    return error == std::errc() && end == text.data() + text.size();
  };
  const bool parsed = fraction ? parse(start.fraction) : parse(start.step);
  if (percent) start.fraction /= 100;
  check(parsed && (fraction ? start.fraction > 0 && start.fraction < 1 : start.step >= 2),
        "{}from: expected a step from 2 on, or a share of the run above 0 and below 1 as 0.9 or \"90%\", found {}", e.place,
        shown(e.phase.from));
  return start;
}

bool selects(const QuantizePhase& p) {
  return p.states("targets") || p.states("ignore") || p.states("first_layers") || p.states("last_layers");
}

// Whether the field says when or at which depth, not how.
bool is_place(std::string_view field) { return field == "from" || field == "first_layers" || field == "last_layers"; }

// The value of each option that the entry states.
void set_options(RecipeOptions& to, const QuantizePhase& from, const std::function<bool(const FieldEntry&)>& wanted) {
  QuantizePhase copy = from;
  const ConfigIndex source = index_options(copy), target = index_options(to);
  for (const FieldEntry& option : source.fields) {
    if (from.states(leaf_of(option.name)) && wanted(option)) set_value(*target.find_field(option.name), get_value(option));
  }
}

void add_scheme(std::vector<RecipeSource>& sources, const Entry& e, RecipeSource added) {
  added.options = e.defaults;
  added.options.scheme = e.phase.scheme;
  if (e.phase.states("targets")) added.options.targets = e.phase.targets;
  if (e.phase.states("ignore")) added.options.ignore = e.phase.ignore;
  set_options(added.options, e.phase, [](const FieldEntry&) { return true; });
  if (!selects(e.phase)) sources.clear();
  sources.push_back(std::move(added));
}

void change_options(std::vector<RecipeSource>& sources, const Entry& e, const RecipeSource& added) {
  std::set<std::string> taken;
  std::vector<RecipeSource> changed = sources;
  for (RecipeSource& s : changed) {
    const std::vector<std::string_view> schemes = schemes_of(s.options.scheme);
    set_options(s.options, e.phase, [&](const FieldEntry& option) {
      const bool takes = std::ranges::any_of(
          schemes, [&](std::string_view scheme) { return scheme != "bf16" && scheme_takes(scheme, option, get_value(option)); });
      if (takes) taken.insert(option.name);
      return takes;
    });
    s.place = added.place;
    if (added.within.empty()) continue;
    s.order += added.order;  // of two changed sources the one that counted before counts
    s.within.insert(s.within.end(), added.within.begin(), added.within.end());
  }
  for (const std::string& name : e.phase.stated) {
    if (is_place(name)) continue;
    check(taken.contains("quantize." + name),
          "{}{}: no scheme in effect then has this option with this value; name a scheme, or leave it out", e.place, name);
  }
  if (added.within.empty()) {
    sources = std::move(changed);
  } else {
    check(2 * sources.size() <= kMostSources, "{}too many entries set options of some blocks; give the entry a scheme", e.place);
    sources.insert(sources.end(), changed.begin(), changed.end());
  }
}

// The entry may follow `sources`.
void check_form(const Entry& e) {
  const QuantizePhase& p = e.phase;
  check(!std::ranges::all_of(p.stated, is_place), "{}it changes nothing: expected a scheme or options", e.place);
  check(p.states("scheme") || !(p.states("targets") || p.states("ignore")),
        "{}targets and ignore need a scheme; without one the entry sets options of the schemes in effect", e.place);
  check(p.states("from") || selects(p),
        "{}it holds for all layers from the start: write it in [quantize], or add from, first_layers or "
        "last_layers",
        e.place);
  for (const auto& [name, value] : {std::pair{"first_layers", p.first_layers}, {"last_layers", p.last_layers}}) {
    check(!p.states(name) || (value > 0 && (value < 1 || value == std::floor(value))),
          "{}{} = {}: expected a count of blocks or a fraction below 1, above 0", e.place, name, value);
  }
  if (!p.states("scheme")) return;
  for (const std::string_view scheme : schemes_of(p.scheme)) {
    std::vector<std::string_view> valid = quantize_schemes();
    std::erase(valid, "none");
    check(contains(valid, scheme), "{}unknown scheme {}; expected one of {}", e.place, shown(std::string(scheme)), join(valid));
  }
  check(p.scheme.table.empty() || !p.states("targets"), "{}targets does not go with a table in scheme, which names its own", e.place);
}

std::vector<RecipeSource> sources_of(const QuantizeConfig& q, const std::vector<RecipeModifier>& modifiers,
                                     const std::vector<Entry>& entries, const std::vector<PhaseStart>& begun) {
  std::vector<RecipeSource> sources;
  if (!q.scheme.is_none()) sources.push_back({q, "", 0, {}}), sources[0].options.phases.clear();
  for (const RecipeModifier& m : modifiers) {
    if (!m.phase) sources.push_back({m.options, m.place + ": ", 0, {}});
  }
  for (const Entry& e : entries) {
    if (std::ranges::find(begun, start_of(e)) == begun.end()) continue;
    check_form(e);
    RecipeSource added;
    added.place = e.place;
    for (const RecipeSource& s : sources) added.order = std::max(added.order, s.order);
    ++added.order;
    if (e.phase.states("first_layers") || e.phase.states("last_layers")) added.within = {{e.phase.first_layers, e.phase.last_layers}};
    e.phase.states("scheme") ? add_scheme(sources, e, std::move(added)) : change_options(sources, e, added);
  }
  return sources;
}

std::vector<PhaseStart> starts_of(const std::vector<Entry>& entries) {
  std::vector<PhaseStart> starts = {{}};
  for (const Entry& e : entries) {
    if (const PhaseStart s = start_of(e); std::ranges::find(starts, s) == starts.end()) starts.push_back(s);
  }
  return starts;
}

// Whether the run's parameters depend on the scheme: it cannot begin or end in the middle.
std::string why_whole(const Scheme& row, const RecipeOptions& o) {
  if (row.w_forward.stored) return "whose weights exist as codes only";
  if (row.family->own_norms) return "which gives each layer a norm of its own";
  return o.lora_rank.value_or(0) > 0 ? "whose lora_rank adds parameters" : "";
}

void check_source(const RecipeSource& s, bool later) {
  if (!s.place.empty()) {  // otherwise check_quantize says it
    for (const Refusal& r : refusals(s.options, schemes_of(s.options.scheme))) fail("{}{}", s.place, r.text);
  }
  for (const std::string_view scheme : schemes_of(s.options.scheme)) {
    const std::optional<Scheme> row = find_linear_recipe(scheme);
    const std::string why = row && later ? why_whole(*row, s.options) : "";
    check(why.empty(), "{}{}, {}, holds for a whole run: it goes with no phase that begins later; leave out `from`",
          s.place.empty() ? "quantize.scheme: " : s.place, scheme, why);
  }
}

void check_order(const std::vector<Entry>& entries, int64_t scheduled, int64_t steps) {
  int64_t last = 1;
  PhaseStart before;
  for (const Entry& e : entries) {
    const PhaseStart start = start_of(e);
    const int64_t first = start.first_step(scheduled);
    check(first <= steps, "{}it begins at step {}, beyond the run's {} steps; choose an earlier one, or a share of the run as \"90%\"",
          e.place, first, steps);
    check(first > last || start == before, "{}it begins at step {}, expected one behind step {}, where the entries before it begin",
          e.place, first, last);
    last = first, before = start;
  }
}

}  // namespace

int64_t PhaseStart::first_step(int64_t steps) const {
  constexpr double kRounding = 1e-9;  // 0.29 of 100 is 29
  return fraction > 0 ? static_cast<int64_t>(std::floor(fraction * static_cast<double>(steps) + kRounding)) + 1 : step;
}

std::vector<PhaseStart> phase_starts(const QuantizeConfig& q) { return starts_of(entries_of(q, recipe_modifiers(q))); }

std::vector<RecipeSource> phase_sources(const QuantizeConfig& q, size_t phase) {
  const std::vector<RecipeModifier> modifiers = recipe_modifiers(q);
  const std::vector<Entry> entries = entries_of(q, modifiers);
  std::vector<PhaseStart> starts = starts_of(entries);
  starts.resize(std::min(starts.size(), phase + 1));
  return sources_of(q, modifiers, entries, starts);
}

int64_t scheduled_steps(const JobConfig& c) { return std::max<int64_t>(1, c.lr_scheduler.total_steps.value_or(c.training.steps)); }

std::string start_text(const PhaseStart& s) { return s.fraction > 0 ? fmt::format("{:g}%", 100 * s.fraction) : ""; }

void check_phases(const JobConfig& j, const RuleContext& c) {
  const QuantizeConfig& q = j.quantize;
  std::vector<RecipeModifier> modifiers;
  try {
    if (q.recipe_text) modifiers = recipe_modifiers(q);
  } catch (const Error&) {
    return;  // said by the reader
  }
  try {
    const std::vector<Entry> entries = entries_of(q, modifiers);
    if (entries.empty()) return;
    if (j.training.steps > 0) check_order(entries, scheduled_steps(j), std::max(scheduled_steps(j), j.training.steps));
    const std::vector<PhaseStart> starts = starts_of(entries);
    std::vector<PhaseStart> begun;
    for (const PhaseStart& start : starts) {
      begun.push_back(start);
      for (const RecipeSource& s : sources_of(q, modifiers, entries, begun)) check_source(s, starts.size() > 1);
    }
  } catch (const Error& error) {
    rule(c, false, {"quantize.phases", "quantize.scheme"}, "{}", error.what());
  }
}

}  // namespace halftone
