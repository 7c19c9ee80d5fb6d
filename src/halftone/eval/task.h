#pragma once
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "halftone/eval/python_text.h"
#include "halftone/eval/template.h"

namespace halftone::eval {

// The answers that a task needs: log-likelihoods of choices, of one continuation, of a whole text (rolling), or a text that it writes.
enum class Kind { multiple_choice, completion, perplexity, generate };
std::string_view name_of(Kind kind);

// How a generated text becomes the answer that is compared: re.findall's match number `select` (negative: from the end).
struct AnswerFilter {
  std::string name = "none";
  std::optional<python::Regex> regex{};
  int64_t select = 0;
};

// A task as its TOML table describes it (docs/evaluation.md#tasks-of-your-own).
struct Task {
  std::string name, what;  // what: "FILE:LINE: [name]" for messages
  Kind kind = Kind::multiple_choice;
  double version = 1;
  std::vector<std::string> folders;  // below --data, the first that exists; else the folder's name
  std::string subset, split = "test", shots_split = "train";
  std::string file, shots_file;  // instead: paths
  Template description, text, target, answer;
  std::vector<Template> contexts, choices, labels;  // one template that is a field stands for the strings of that list
  Clean clean = nullptr;
  std::string delimiter = " ", shots_delimiter = "\n\n";
  int64_t shots = 0;
  bool first_shots = false, shots_without_self = false;
  std::vector<std::string> metrics;
  std::vector<std::string> until;
  int64_t max_new_tokens = 256;
  std::vector<AnswerFilter> filters;
  std::vector<python::Regex> ignored;  // of exact_match
  bool ignore_case = false, ignore_punctuation = false;
  std::string split_by;                                    // field: a task for each of its values, named NAME_VALUE
  std::map<std::string, std::vector<std::string>> groups;  // of these tasks, by name
  Json source;                                             // the table, for the configs of a result
};

// Tasks of a TOML text: each table is one, with the fields of docs/evaluation.md. Error "NAME:LINE: ..." for unknown or missing fields and
// wrong values; `folder`: of relative paths.
std::vector<Task> parse_tasks(std::string_view toml, const std::string& name, const std::string& folder);

// Names of the built-in table, and files that end in .toml, whose tasks are all taken. Error for an unknown name.
std::vector<Task> find_tasks(const std::vector<std::string>& names);
std::string_view builtin_tasks();  // TOML

// The rows of a task, those that it is judged by and those that examples are drawn from.
struct TaskRows {
  std::vector<Row> rows, shots;
};
// `shots`: how many examples a prompt has. Error if the data are not there.
TaskRows read_task_rows(const Task& task, const std::string& data, int64_t shots);
// A task for each value of split_by, with its rows; the task itself without.
std::vector<std::pair<Task, TaskRows>> split_task(const Task& task, TaskRows rows);

}  // namespace halftone::eval
