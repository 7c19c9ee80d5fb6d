#include "halftone/eval/task.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <functional>
#include <set>

#include "halftone/base/error.h"
#include "halftone/config/toml_reader.h"
#include "halftone/data/file_io.h"

namespace halftone::eval {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMostTasks = int64_t{4} << 20;  // bytes of a file of tasks

struct KindEntry {
  Kind kind;
  std::string_view name;
  std::vector<std::string> needs, metrics, other_metrics;  // metrics: by default
};
const std::array<KindEntry, 4>& kinds() {
  static const std::array<KindEntry, 4> kKinds = {{
      {Kind::multiple_choice, "multiple_choice", {"choices", "answer"}, {"acc", "acc_norm"}, {"acc_bytes"}},
      {Kind::completion, "completion", {"text", "target"}, {"perplexity", "acc"}, {}},
      {Kind::perplexity, "perplexity", {"text"}, {"word_perplexity", "byte_perplexity", "bits_per_byte"}, {}},
      {Kind::generate, "generate", {"text", "target"}, {"exact_match"}, {}},
  }};
  return kKinds;
}
const KindEntry& entry(Kind kind) {
  return *std::find_if(kinds().begin(), kinds().end(), [&](const KindEntry& e) { return e.kind == kind; });
}

// One field of the table at `what`.
struct Value {
  const Json& json;
  std::string what;

  [[noreturn]] void wrong(const char* expected) const { fail("{}: expected {}, found {}", what, expected, shown(json)); }
  std::string text() const { return json.is_string() ? json.get<std::string>() : (wrong("text"), ""); }
  bool flag() const { return json.is_boolean() ? json.get<bool>() : (wrong("true or false"), false); }
  double number() const { return json.is_number() ? json.get<double>() : (wrong("a number"), 0); }
  int64_t integer(int64_t least) const {
    if (!json.is_number_integer() || json.get<int64_t>() < least) wrong(least == 0 ? "a number from 0 on" : "a number");
    return json.get<int64_t>();
  }
  std::vector<std::string> texts() const {
    std::vector<std::string> all;
    if (json.is_string()) return {json.get<std::string>()};
    if (!json.is_array()) wrong("a list of texts");
    for (const Json& j : json) all.push_back(Value{j, what}.text());
    return all;
  }
  python::Regex regex() const {
    try {
      return python::Regex(text());
    } catch (const Error& error) {
      fail("{}: {}", what, error.what());
    }
  }
  Template one() const { return Template(text(), what); }
  // A template that is a field stands for a list.
  std::vector<Template> templates() const {
    std::vector<Template> all;
    for (const std::string& t : texts()) all.emplace_back(t, what);
    if (json.is_string() && !all[0].is_field()) wrong("a list of texts, or a text that is a field with a list, such as \"{choices}\"");
    if (all.empty()) wrong("a list that is not empty");
    return all;
  }
};

std::vector<AnswerFilter> filters_of(const Value& v) {
  std::vector<AnswerFilter> all;
  if (!v.json.is_array()) v.wrong("a list of filters such as {name = \"strict\", regex = \"#### (.*)\"}");
  for (const Json& j : v.json) {
    AnswerFilter filter;
    if (!j.is_object()) v.wrong("a list of tables");
    for (const auto& [key, value] : j.items()) {
      const Value field{value, v.what + "." + key};
      if (key == "name") {
        filter.name = field.text();
      } else if (key == "regex") {
        filter.regex = field.regex();
      } else if (key == "select") {
        filter.select = field.integer(INT64_MIN);
      } else {
        fail("{}: expected name, regex or select", field.what);
      }
    }
    all.push_back(std::move(filter));
  }
  return all;
}

using Setter = std::function<void(Task&, const Value&)>;
const std::vector<std::pair<std::string_view, Setter>>& fields() {
  static const std::vector<std::pair<std::string_view, Setter>> kFields = {
      {"kind",
       [](Task& t, const Value& v) {
         const auto found = std::find_if(kinds().begin(), kinds().end(), [&](const KindEntry& e) { return v.json == e.name; });
         if (found == kinds().end()) v.wrong("multiple_choice, completion, perplexity or generate");
         t.kind = found->kind;
       }},
      {"version", [](Task& t, const Value& v) { t.version = v.number(); }},
      {"folder", [](Task& t, const Value& v) { t.folders = v.texts(); }},
      {"subset", [](Task& t, const Value& v) { t.subset = v.text(); }},
      {"split", [](Task& t, const Value& v) { t.split = v.text(); }},
      {"shots_split", [](Task& t, const Value& v) { t.shots_split = v.text(); }},
      {"file", [](Task& t, const Value& v) { t.file = v.text(); }},
      {"shots_file", [](Task& t, const Value& v) { t.shots_file = v.text(); }},
      {"description", [](Task& t, const Value& v) { t.description = v.one(); }},
      {"text", [](Task& t, const Value& v) { t.text = v.one(); }},
      {"contexts", [](Task& t, const Value& v) { t.contexts = v.templates(); }},
      {"target", [](Task& t, const Value& v) { t.target = v.one(); }},
      {"choices", [](Task& t, const Value& v) { t.choices = v.templates(); }},
      {"labels", [](Task& t, const Value& v) { t.labels = v.templates(); }},
      {"answer", [](Task& t, const Value& v) { t.answer = v.one(); }},
      {"clean", [](Task& t, const Value& v) { t.clean = clean_of(v.text(), v.what); }},
      {"delimiter", [](Task& t, const Value& v) { t.delimiter = v.text(); }},
      {"shots_delimiter", [](Task& t, const Value& v) { t.shots_delimiter = v.text(); }},
      {"shots", [](Task& t, const Value& v) { t.shots = v.integer(0); }},
      {"first_shots", [](Task& t, const Value& v) { t.first_shots = v.flag(); }},
      {"shots_without_self", [](Task& t, const Value& v) { t.shots_without_self = v.flag(); }},
      {"metrics", [](Task& t, const Value& v) { t.metrics = v.texts(); }},
      {"until", [](Task& t, const Value& v) { t.until = v.texts(); }},
      {"max_new_tokens", [](Task& t, const Value& v) { t.max_new_tokens = std::max<int64_t>(1, v.integer(0)); }},
      {"filters", [](Task& t, const Value& v) { t.filters = filters_of(v); }},
      {"ignore",
       [](Task& t, const Value& v) {
         for (const std::string& s : v.texts()) t.ignored.push_back(Value{Json(s), v.what}.regex());
       }},
      {"ignore_case", [](Task& t, const Value& v) { t.ignore_case = v.flag(); }},
      {"ignore_punctuation", [](Task& t, const Value& v) { t.ignore_punctuation = v.flag(); }},
      {"split_by", [](Task& t, const Value& v) { t.split_by = v.text(); }},
      {"groups",
       [](Task& t, const Value& v) {
         if (!v.json.is_object()) v.wrong("a table of lists");
         for (const auto& [key, list] : v.json.items()) t.groups[key] = Value{list, v.what + "." + key}.texts();
       }},
  };
  return kFields;
}

// Fields that one kind alone reads.
constexpr std::array<std::pair<std::string_view, Kind>, 10> kOwnFields = {{{"choices", Kind::multiple_choice},
                                                                           {"contexts", Kind::multiple_choice},
                                                                           {"answer", Kind::multiple_choice},
                                                                           {"labels", Kind::multiple_choice},
                                                                           {"until", Kind::generate},
                                                                           {"max_new_tokens", Kind::generate},
                                                                           {"filters", Kind::generate},
                                                                           {"ignore", Kind::generate},
                                                                           {"ignore_case", Kind::generate},
                                                                           {"ignore_punctuation", Kind::generate}}};

void finish(Task& t) {
  const KindEntry& e = entry(t.kind);
  for (const auto& [field, kind] : kOwnFields)
    check(kind == t.kind || !t.source.contains(field), "{}: {} is a field of kind {}, the task is of kind {}", t.what, field, name_of(kind),
          e.name);
  check(t.groups.empty() || !t.split_by.empty(), "{}: groups need split_by, whose values they group", t.what);
  std::vector<std::string> needs = e.needs;
  if (t.kind == Kind::multiple_choice) needs.emplace_back(t.contexts.empty() ? "text" : "target");
  for (const std::string& need : needs) {
    const bool instead = need == "choices" && !t.contexts.empty();
    check(instead || t.source.contains(need), "{}: a task of kind {} needs the field '{}'", t.what, e.name, need);
  }
  check(t.contexts.empty() || t.choices.empty(),
        "{}: give either choices (continuations of one text) or contexts (beginnings of one target)", t.what);
  if (t.metrics.empty()) t.metrics = e.metrics;
  for (const std::string& metric : t.metrics) {
    std::vector<std::string> known = e.metrics;
    known.insert(known.end(), e.other_metrics.begin(), e.other_metrics.end());
    check(std::find(known.begin(), known.end(), metric) != known.end(), "{}: metrics: expected {} for kind {}, found '{}'", t.what,
          fmt::join(known, ", "), e.name, metric);
  }
  if (t.filters.empty()) t.filters.emplace_back();
  if (t.until.empty()) t.until = {t.shots_delimiter};
}

std::string chosen_folder(const Task& t, const std::string& data) {
  for (const std::string& folder : t.folders) {
    for (const std::string& below : {folder, fs::path(folder).filename().string()}) {
      for (const char* suffix : {"", ".jsonl", ".json", ".parquet"}) {
        const std::string path = (fs::path(data) / (below + suffix)).string();
        if (fs::exists(path)) return path;
      }
    }
  }
  fail("task {}: expected its data in {}, as the data set {} is published, or as {}.jsonl; get a copy, or give the folder with --data",
       t.name, (fs::path(data) / t.folders[0]).string(), t.folders.back(), t.folders[0]);
}

}  // namespace

std::string_view name_of(Kind kind) { return entry(kind).name; }

std::vector<Task> parse_tasks(std::string_view toml, const std::string& name, const std::string& folder) {
  std::vector<Task> tasks;
  std::set<std::string> names;
  for (const TomlItem& item : read_toml(toml, name, [](std::string_view section) { return section.find('.') == std::string_view::npos; })) {
    const size_t dot = item.name.find('.');
    check(dot != std::string::npos, "{}:{}: expected a table for each task such as [mine], found the field '{}' outside", name, item.line,
          item.name);
    const std::string task = item.name.substr(0, dot), field = item.name.substr(dot + 1);
    if (tasks.empty() || tasks.back().name != task) {
      check(names.insert(task).second, "{}:{}: the task {} stands there twice", name, item.line, task);
      Task& added = tasks.emplace_back();
      added.name = task, added.what = fmt::format("{}:{}: [{}]", name, item.line, task), added.source = Json::object();
      added.folders = {task};
    }
    const auto found = std::find_if(fields().begin(), fields().end(), [&](const auto& f) { return f.first == field; });
    if (found == fields().end()) {
      std::vector<std::string_view> known;
      for (const auto& f : fields()) known.push_back(f.first);
      fail("{}:{}: unknown field '{}' of task {}; expected {}", name, item.line, field, task, fmt::join(known, ", "));
    }
    tasks.back().source[field] = item.value;
    found->second(tasks.back(), Value{item.value, fmt::format("{}:{}: {}", name, item.line, item.name)});
  }
  check(!tasks.empty(), "{}: expected a table for each task such as [mine], found none", name);
  for (Task& t : tasks) {
    for (std::string* path : {&t.file, &t.shots_file})
      if (!path->empty() && path->find("://") == std::string::npos) *path = (fs::path(folder) / *path).string();
    finish(t);
  }
  return tasks;
}

std::vector<Task> find_tasks(const std::vector<std::string>& names) {
  static const std::vector<Task> kBuiltin = parse_tasks(builtin_tasks(), "built-in tasks", "");
  std::vector<Task> tasks;
  for (const std::string& name : names) {
    if (name.ends_with(".toml")) {
      for (Task& t : parse_tasks(read_file(name, kMostTasks), name, fs::path(name).parent_path().string())) tasks.push_back(std::move(t));
      continue;
    }
    const auto found = std::find_if(kBuiltin.begin(), kBuiltin.end(), [&](const Task& t) { return t.name == name; });
    if (found == kBuiltin.end()) {
      std::vector<std::string> known;
      for (const Task& t : kBuiltin) known.push_back(t.name);
      fail("unknown task '{}'; expected {}, or a .toml file with tasks", name, fmt::join(known, ", "));
    }
    tasks.push_back(*found);
  }
  check(!tasks.empty(), "expected at least one task, such as hellaswag");
  std::set<std::string> seen;
  for (const Task& t : tasks) check(seen.insert(t.name).second, "the task {} is given twice", t.name);
  return tasks;
}

TaskRows read_task_rows(const Task& t, const std::string& data, int64_t shots) {
  TaskRows all;
  const std::string folder = t.file.empty() ? chosen_folder(t, data) : "";
  all.rows = read_rows(t.file.empty() ? folder : t.file, t.subset, t.split);
  if (shots == 0) return all;
  check(t.file.empty() || !t.shots_file.empty(), "task {}: {} examples need shots_file, the rows that they are drawn from", t.name, shots);
  all.shots = read_rows(t.file.empty() ? folder : t.shots_file, t.subset, t.shots_split);
  return all;
}

std::vector<std::pair<Task, TaskRows>> split_task(const Task& task, TaskRows rows) {
  std::vector<std::pair<Task, TaskRows>> all;
  if (task.split_by.empty()) {
    all.emplace_back(task, std::move(rows));
    return all;
  }
  const Template by("{" + task.split_by + "}", task.what);
  std::map<std::string, TaskRows> parts;
  for (Row& row : rows.rows) parts[by.render(row)].rows.push_back(std::move(row));
  for (Row& row : rows.shots) parts[by.render(row)].shots.push_back(std::move(row));
  for (auto& [value, part] : parts) {
    if (part.rows.empty()) continue;
    Task t = task;
    t.name = task.name + "_" + value, t.split_by.clear();
    all.emplace_back(std::move(t), std::move(part));
  }
  return all;
}

}  // namespace halftone::eval
