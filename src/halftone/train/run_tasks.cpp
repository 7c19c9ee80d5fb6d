#include "halftone/train/run_tasks.h"

#include "halftone/base/error.h"

namespace halftone {
namespace {

ScorerOptions scorer_of(const Tokenizer& tokenizer) {
  ScorerOptions o;
  if (tokenizer.eos_id()) o.ends.push_back(*tokenizer.eos_id());
  return o;
}

}  // namespace

RunTasks::RunTasks(const JobConfig& config, const Tokenizer& tokenizer, Engine& engine, Processes& processes)
    : scorer_(engine, tokenizer, scorer_of(tokenizer), &processes) {
  options_.data = config.validation.tasks_data, options_.limit = config.validation.tasks_limit, options_.bootstrap_iters = 0;
  tasks_ = eval::prepare(eval::find_tasks(config.validation.tasks), options_);
  for (const eval::PreparedTask& p : tasks_) {
    check(p.task.kind != eval::Kind::generate || !processes.many(),
          "validation.tasks: {} generates text, which several ranks cannot; leave it to halftone eval", p.task.name);
  }
  scorer_.check_questions(tasks_);
}

Scalars RunTasks::evaluate() {
  const eval::Results results = eval::run(tasks_, scorer_, options_, false);
  Scalars scalars;
  for (const eval::TaskResult& task : results.tasks) {
    for (const eval::MetricResult& m : task.metrics) {
      const std::string filter = m.filter == "none" ? "" : m.filter + "/";
      scalars.emplace_back("eval/" + task.name + "/" + filter + m.metric, m.aggregate.value);
    }
  }
  scalars.emplace_back("eval/time(s)", results.seconds);
  return scalars;
}

}  // namespace halftone
