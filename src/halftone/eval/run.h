#pragma once
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "halftone/eval/metrics.h"
#include "halftone/eval/scorer.h"
#include "halftone/eval/task.h"

namespace halftone::eval {

struct RunOptions {
  std::string data;              // folder with the tasks' data
  std::optional<int64_t> shots;  // instead of the tasks' own
  bool first_shots = false;      // the first rows instead of drawn ones
  int64_t limit = 0;             // documents of each task; 0: all
  uint64_t seed = 1234;          // of the drawn examples
  int64_t bootstrap_iters = 100000;
};

// Tasks with their data read and their questions made; these errors precede the first answer.
struct PreparedTask {
  Task task;
  std::vector<Row> rows;  // the first ones, as many as there are questions
  std::vector<Question> questions;
  int64_t shots = 0, original = 0;  // examples; documents of the data
  std::string family;               // the task of the table, of which it is a part (split_by); else empty
};
std::vector<PreparedTask> prepare(const std::vector<Task>& tasks, const RunOptions& options);

struct MetricResult {
  std::string metric, filter = "none";
  Aggregate aggregate;
};
struct TaskResult {
  std::string name, alias;
  std::vector<MetricResult> metrics;
  int64_t documents = 0;
  const PreparedTask* prepared = nullptr;  // null: a group
  std::vector<std::string> parts;          // of a group: names of its tasks or groups
  double version = 1;
};
struct Results {
  std::vector<TaskResult> tasks;  // a group stands before its parts
  std::vector<Json> samples;      // one for each document and filter, as lm-evaluation-harness logs them, with its task
  double seconds = 0;             // of the answers
};

// Asks the scorer all questions, those of one form of all tasks at once, and aggregates. `log`: fills samples.
Results run(const std::vector<PreparedTask>& tasks, Scorer& scorer, const RunOptions& options, bool log);

// The layout of lm-evaluation-harness: results, groups, group_subtasks, configs, versions, n-shot, higher_is_better, n-samples.
Json results_json(const Results& results);
// A table with a header: task, version, filter, n-shot, metric, value, standard error.
std::vector<std::vector<std::string>> results_table(const Results& results);

}  // namespace halftone::eval
