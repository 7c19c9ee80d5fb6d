#include "halftone/eval/run.h"

#include <algorithm>

#include "halftone/base/error.h"
#include "halftone/base/stopwatch.h"

namespace halftone::eval {
namespace {

// The questions of all tasks by form; the answers lie in the same order.
struct Asked {
  std::vector<Continuation> continuations;
  std::vector<std::string> texts;
  std::vector<Prompt> prompts;
  bool greedy = false;
};
struct Answers {
  std::vector<LogLikelihood> continuations;
  std::vector<double> texts;
  std::vector<std::string> generations;
};

std::vector<Continuation> continuations_of(const Task& t, const Question& q) {
  std::vector<Continuation> all;
  if (t.kind == Kind::completion) return {{q.contexts[0], q.target}};
  for (size_t i = 0; i < q.choices.size(); ++i)
    all.push_back({q.contexts[q.contexts.size() > 1 ? i : 0], t.delimiter + (t.contexts.empty() ? q.choices[i] : q.target)});
  return all;
}

Asked ask(const std::vector<PreparedTask>& tasks) {
  Asked asked;
  for (const PreparedTask& p : tasks) {
    asked.greedy = asked.greedy || p.task.kind == Kind::completion;
    for (const Question& q : p.questions) {
      if (p.task.kind == Kind::perplexity) {
        asked.texts.push_back(q.text);
      } else if (p.task.kind == Kind::generate) {
        asked.prompts.push_back({q.contexts[0], p.task.until, p.task.max_new_tokens});
      } else {
        for (Continuation& c : continuations_of(p.task, q)) asked.continuations.push_back(std::move(c));
      }
    }
  }
  return asked;
}

// The question with its answers, as lm-evaluation-harness logs it.
Json logged(const PreparedTask& p, size_t document, Json arguments, Json answers, const std::string& filter, Json filtered_answers,
            const std::vector<Sample>& metrics) {
  const Question& q = p.questions[document];
  Json sample = {{"task", p.task.name},    {"doc_id", document},       {"doc", p.rows[document].fields},
                 {"arguments", arguments}, {"resps", answers},         {"filtered_resps", filtered_answers},
                 {"filter", filter},       {"metrics", p.task.metrics}};
  if (p.task.kind == Kind::multiple_choice && p.task.contexts.empty()) {
    sample["target"] = q.gold;
  } else {
    sample["target"] = p.task.kind == Kind::perplexity ? q.text : q.target;
  }
  for (size_t m = 0; m < metrics.size(); ++m) {
    Json& value = sample[p.task.metrics[m]];
    p.task.kind == Kind::perplexity ? value = {metrics[m].value, metrics[m].weight} : value = metrics[m].value;
  }
  return sample;
}

// Takes its answers from the front.
class Cursor {
 public:
  Cursor(const Asked& asked, const Answers& answers) : asked_(asked), answers_(answers) {}

  TaskResult result(const PreparedTask& p, int64_t bootstrap_iters, std::vector<Json>* samples) {
    const std::vector<AnswerFilter> plain(1);
    const std::vector<AnswerFilter>& filters = p.task.kind == Kind::generate ? p.task.filters : plain;
    std::vector<std::vector<Sample>> columns(filters.size() * p.task.metrics.size());
    for (size_t document = 0; document < p.questions.size(); ++document) {
      const Question& q = p.questions[document];
      Json arguments = Json::array(), answered = Json::array();
      std::vector<Sample> metrics;
      std::string generation;
      if (p.task.kind == Kind::perplexity) {
        const double value = answers_.texts.at(text_++);
        metrics = text_metrics(p.task, q, value), arguments.push_back({q.text}), answered.push_back(value);
      } else if (p.task.kind == Kind::generate) {
        const Prompt& prompt = asked_.prompts.at(prompt_);
        generation = answers_.generations.at(prompt_++);
        arguments.push_back({prompt.context, {{"until", prompt.until}, {"max_gen_toks", prompt.max_new_tokens}, {"do_sample", false}}});
        answered.push_back(generation);
      } else {
        std::vector<LogLikelihood> own;
        for (const Continuation& c : continuations_of(p.task, q)) {
          own.push_back(answers_.continuations.at(continuation_++));
          if (samples == nullptr) continue;
          arguments.push_back({c.context, c.continuation}), answered.push_back({own.back().value, own.back().greedy});
        }
        metrics = p.task.kind == Kind::completion ? completion_metrics(p.task, own[0]) : choice_metrics(p.task, q, own);
      }
      for (size_t f = 0; f < filters.size(); ++f) {
        Json after = answered;
        if (p.task.kind == Kind::generate) {
          const std::string answer = filtered(filters[f], generation);
          metrics = {{exact_match(p.task, q.target, answer)}}, after = {answer};
        }
        for (size_t m = 0; m < metrics.size(); ++m) columns[f * metrics.size() + m].push_back(metrics[m]);
        if (samples != nullptr) samples->push_back(logged(p, document, arguments, answered, filters[f].name, after, metrics));
      }
    }
    TaskResult r;
    r.name = p.task.name, r.prepared = &p, r.documents = static_cast<int64_t>(p.questions.size()), r.version = p.task.version;
    r.alias = p.family.empty() ? r.name : r.name.substr(p.family.size() + 1);
    for (size_t i = 0; i < columns.size(); ++i) {
      const std::string& metric = p.task.metrics[i % p.task.metrics.size()];
      r.metrics.push_back({metric, filters[i / p.task.metrics.size()].name, aggregate(metric, columns[i], bootstrap_iters)});
    }
    return r;
  }

 private:
  const Asked& asked_;
  const Answers& answers_;
  size_t continuation_ = 0, text_ = 0, prompt_ = 0;
};

TaskResult group(const std::string& name, const std::string& alias, const std::vector<const TaskResult*>& tasks, double version) {
  TaskResult g;
  g.name = name, g.alias = alias, g.version = version;
  for (const TaskResult* t : tasks) g.documents += t->documents;
  for (const MetricResult& m : tasks[0]->metrics) {
    std::vector<std::pair<Aggregate, int64_t>> parts;
    for (const TaskResult* t : tasks) {
      for (const MetricResult& own : t->metrics)
        if (own.metric == m.metric && own.filter == m.filter) parts.emplace_back(own.aggregate, t->documents);
    }
    if (!m.metric.ends_with("perplexity") && m.metric != "bits_per_byte") g.metrics.push_back({m.metric, m.filter, pooled(parts)});
  }
  return g;
}

// Groups of the parts of a task: those that it names, and one of all.
void add_groups(const Task& family, std::vector<TaskResult> parts, std::vector<TaskResult>& all) {
  std::vector<TaskResult> inner;
  std::vector<const TaskResult*> every;
  for (const TaskResult& t : parts) every.push_back(&t);
  TaskResult whole = group(family.name, family.name, every, 2);
  for (const auto& [name, members] : family.groups) {
    std::vector<const TaskResult*> own;
    for (const TaskResult& t : parts)
      if (std::find(members.begin(), members.end(), t.alias) != members.end()) own.push_back(&t);
    if (own.empty()) continue;
    TaskResult& g = inner.emplace_back(group(family.name + "_" + name, name, own, 2));
    for (const TaskResult* t : own) g.parts.push_back(t->name);
    whole.parts.push_back(g.name);
  }
  for (const TaskResult& t : parts) {
    const bool grouped = std::any_of(inner.begin(), inner.end(), [&](const TaskResult& g) {
      return std::find(g.parts.begin(), g.parts.end(), t.name) != g.parts.end();
    });
    if (!grouped) whole.parts.push_back(t.name);
  }
  all.push_back(std::move(whole));
  for (TaskResult& g : inner) all.push_back(std::move(g));
  for (TaskResult& t : parts) all.push_back(std::move(t));
}

}  // namespace

std::vector<PreparedTask> prepare(const std::vector<Task>& tasks, const RunOptions& o) {
  std::vector<PreparedTask> all;
  for (Task task : tasks) {
    const int64_t shots = task.kind == Kind::perplexity ? 0 : o.shots.value_or(task.shots);
    task.first_shots = task.first_shots || o.first_shots;
    const bool splits = !task.split_by.empty();
    for (auto& [part, rows] : split_task(task, read_task_rows(task, o.data, shots))) {
      PreparedTask& p = all.emplace_back();
      p.task = part, p.shots = shots, p.original = static_cast<int64_t>(rows.rows.size()), p.family = splits ? task.name : "";
      p.questions = make_questions(part, rows, shots, o.limit, o.seed);
      p.rows = std::move(rows.rows), p.rows.resize(p.questions.size());
    }
  }
  return all;
}

Results run(const std::vector<PreparedTask>& tasks, Scorer& scorer, const RunOptions& o, bool log) {
  const Asked asked = ask(tasks);
  Answers answers;
  Results all;
  const Stopwatch watch;
  if (!asked.continuations.empty()) answers.continuations = scorer.continuations(asked.continuations, asked.greedy || log);
  if (!asked.texts.empty()) answers.texts = scorer.texts(asked.texts);
  if (!asked.prompts.empty()) answers.generations = scorer.generations(asked.prompts);
  all.seconds = watch.seconds();
  Cursor cursor(asked, answers);
  for (size_t i = 0; i < tasks.size();) {
    const std::string family = tasks[i].family;
    std::vector<TaskResult> parts;
    do parts.push_back(cursor.result(tasks[i++], o.bootstrap_iters, log ? &all.samples : nullptr));
    while (!family.empty() && i < tasks.size() && tasks[i].family == family);
    if (family.empty()) {
      all.tasks.push_back(std::move(parts[0]));
    } else {
      Task named = parts[0].prepared->task;
      named.name = family, named.groups = tasks[i - 1].task.groups;
      add_groups(named, std::move(parts), all.tasks);
    }
  }
  return all;
}

}  // namespace halftone::eval
