#include "halftone/eval/prompts.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "halftone/base/error.h"
#include "halftone/eval/python_random.h"

namespace halftone::eval {
namespace {

std::string cleaned(const Task& t, const std::string& text) { return t.clean != nullptr ? t.clean(text) : text; }

std::vector<std::string> render_all(const std::vector<Template>& templates, const Row& row) {
  if (templates.size() == 1 && templates[0].is_field()) return templates[0].render_list(row);
  std::vector<std::string> all;
  for (const Template& t : templates) all.push_back(t.render(row));
  return all;
}

int64_t gold_of(const Task& t, const Row& row, const std::vector<std::string>& choices) {
  const std::string answer = t.answer.render(row);
  const std::vector<std::string> labels = t.labels.empty() ? std::vector<std::string>() : render_all(t.labels, row);
  auto index = static_cast<int64_t>(choices.size());
  if (!labels.empty()) {
    index = std::find(labels.begin(), labels.end(), answer) - labels.begin();
  } else if (!answer.empty() && answer.size() < 10 && answer.find_first_not_of("0123456789") == std::string::npos) {
    index = std::stoll(answer);
  } else {
    index = std::find(choices.begin(), choices.end(), answer) - choices.begin();
  }
  check(
      index < static_cast<int64_t>(choices.size()), "{}: task {}: expected the answer to be one of {}, found '{}'", row.place, t.name,
      labels.empty() ? fmt::format("{} choices, by number from 0 or by text", choices.size()) : fmt::format("{}", fmt::join(labels, ", ")),
      answer);
  return index;
}

Question question_of(const Task& t, const Row& row) {
  Question q;
  if (t.kind == Kind::perplexity) {
    const std::string text = t.text.render(row);
    static const python::Regex kBlanks(R"(\s+)");
    q.text = cleaned(t, text), q.words = kBlanks.count(text) + 1, q.bytes = static_cast<int64_t>(text.size());
    return q;
  }
  if (t.contexts.empty()) q.contexts = {cleaned(t, t.text.render(row))};
  if (!t.target.empty()) q.target = t.target.render(row);
  if (t.kind != Kind::multiple_choice) return q;
  for (const std::string& text : render_all(t.contexts.empty() ? t.choices : t.contexts, row)) q.choices.push_back(cleaned(t, text));
  if (!t.contexts.empty()) q.contexts = q.choices;
  check(!q.choices.empty(), "{}: task {}: expected choices, found none", row.place, t.name);
  q.gold = gold_of(t, row, q.choices);
  return q;
}

// The question with its answer, as an example in front of another.
std::string example_of(const Task& t, const Row& row) {
  const Question q = question_of(t, row);
  const bool several = q.contexts.size() > 1;
  const auto gold = static_cast<size_t>(q.gold);
  const std::string& answer = t.kind == Kind::multiple_choice && !several ? q.choices[gold] : q.target;
  return q.contexts[several ? gold : 0] + t.delimiter + answer + t.shots_delimiter;
}

}  // namespace

std::vector<Question> make_questions(const Task& t, const TaskRows& rows, int64_t shots, int64_t limit, uint64_t seed) {
  std::vector<Question> all;
  python::Random random(seed);
  const size_t count = limit > 0 ? std::min(static_cast<size_t>(limit), rows.rows.size()) : rows.rows.size();
  const auto wanted = static_cast<size_t>(t.kind == Kind::perplexity ? 0 : shots);
  const size_t drawn = wanted + (t.shots_without_self && !t.first_shots && wanted > 0 ? 1 : 0);
  check(drawn <= rows.shots.size(), "task {}: expected at least {} rows to draw {} examples from, found {}; lower --shots", t.name, drawn,
        wanted, rows.shots.size());
  for (size_t i = 0; i < count; ++i) {
    const Row& row = rows.rows[i];
    Question q = question_of(t, row);
    std::string front = t.description.empty() ? "" : t.description.render(row);
    std::vector<size_t> places;
    if (t.first_shots) {
      for (size_t k = 0; k < wanted; ++k) places.push_back(k);
    } else if (wanted > 0) {
      places = random.sample(rows.shots.size(), drawn);
      if (t.shots_without_self) {
        std::erase_if(places, [&](size_t p) { return rows.shots[p].fields == row.fields; });
        if (places.size() < wanted) {
          std::vector<size_t> others;
          for (size_t p = 0; p < rows.shots.size(); ++p)
            if (rows.shots[p].fields != row.fields) others.push_back(p);
          check(others.size() >= wanted, "task {}: expected {} examples besides the question itself, found {}", t.name, wanted,
                others.size());
          places = random.sample(others.size(), wanted);
          for (size_t& p : places) p = others[p];
        }
        places.resize(wanted);
      }
    }
    for (const size_t place : places) front += example_of(t, rows.shots[place]);
    for (std::string& context : q.contexts) context = front + context;
    all.push_back(std::move(q));
  }
  return all;
}

}  // namespace halftone::eval
