#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "halftone/eval/run.h"

namespace halftone::eval {
namespace {

Json number(double value) { return std::isfinite(value) ? Json(value) : Json(std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf"); }

Json metrics_json(const TaskResult& t) {
  Json j = {{"name", t.name}, {"alias", t.alias}, {"sample_len", t.documents}};
  for (const MetricResult& m : t.metrics) {
    j[m.metric + "," + m.filter] = number(m.aggregate.value);
    j[m.metric + "_stderr," + m.filter] = m.aggregate.error ? number(*m.aggregate.error) : Json("N/A");
  }
  return j;
}

Json config_json(const PreparedTask& p) {
  Json j = p.task.source;
  j["task"] = p.task.name, j["output_type"] = name_of(p.task.kind), j["num_fewshot"] = p.shots;
  j["metadata"] = {{"version", p.task.version}};
  j.erase("groups");
  return j;
}

int64_t shots_of(const Results& all, const TaskResult& t) {
  if (t.prepared != nullptr) return t.prepared->shots;
  for (const TaskResult& other : all.tasks)
    if (other.name == t.parts.front()) return shots_of(all, other);
  return 0;
}

}  // namespace

Json results_json(const Results& all) {
  Json j = {{"results", Json::object()}};
  Json groups = Json::object(), subtasks = Json::object(), configs = Json::object(), versions = Json::object(), shots = Json::object(),
       better = Json::object(), samples = Json::object();
  for (const TaskResult& t : all.tasks) {
    j["results"][t.name] = metrics_json(t), versions[t.name] = t.version, shots[t.name] = shots_of(all, t);
    for (const MetricResult& m : t.metrics) better[t.name][m.metric] = higher_is_better(m.metric);
    if (t.prepared == nullptr) {
      groups[t.name] = metrics_json(t), subtasks[t.name] = t.parts;
      continue;
    }
    configs[t.name] = config_json(*t.prepared);
    samples[t.name] = {{"original", t.prepared->original}, {"effective", t.documents}};
  }
  if (!groups.empty()) j["groups"] = groups;
  j["group_subtasks"] = subtasks, j["configs"] = configs, j["versions"] = versions, j["n-shot"] = shots;
  j["higher_is_better"] = better, j["n-samples"] = samples;
  return j;
}

std::vector<std::vector<std::string>> results_table(const Results& all) {
  std::vector<std::vector<std::string>> rows = {{"task", "version", "filter", "n-shot", "metric", "value", "stderr"}};
  for (const TaskResult& t : all.tasks) {
    const bool grouped = t.prepared == nullptr || !t.prepared->family.empty();
    std::string indent;
    if (grouped && std::any_of(all.tasks.begin(), all.tasks.end(),
                               [&](const TaskResult& g) { return std::find(g.parts.begin(), g.parts.end(), t.name) != g.parts.end(); }))
      indent = t.prepared == nullptr ? " - " : "  - ";
    bool first = true;
    for (const MetricResult& m : t.metrics) {
      rows.push_back({first ? indent + (indent.empty() ? t.name : t.alias) : "", first ? fmt::format("{}", t.version) : "", m.filter,
                      fmt::format("{}", shots_of(all, t)), fmt::format("{} {}", m.metric, higher_is_better(m.metric) ? "^" : "v"),
                      fmt::format("{:.4f}", m.aggregate.value), m.aggregate.error ? fmt::format("{:.4f}", *m.aggregate.error) : "N/A"});
      first = false;
    }
  }
  return rows;
}

}  // namespace halftone::eval
