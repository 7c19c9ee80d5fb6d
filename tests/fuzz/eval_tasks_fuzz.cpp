// links: eval data base
// seeds: tests/fuzz/seeds/eval_tasks
// dict: kind "multiple_choice" "completion" "perplexity" "generate" text choices answer labels contexts target filters regex select
// dict: ignore clean "hellaswag" "wikitext" split_by {a} {a.b[0]} |strip} |capitalize} |before_blank} |after_blank} |last_word} _ \x00
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "halftone/base/error.h"
#include "halftone/data/row_document.h"
#include "halftone/eval/metrics.h"
#include "halftone/eval/prompts.h"
#include "halftone/eval/task.h"

// The TOML of tasks, then after a NUL byte a row as JSON. Yields an Error, or questions whose answer is among the choices.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace halftone;
  using namespace halftone::eval;
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const size_t end = std::min(all.find('\0'), all.size());
  try {
    const std::vector<Task> tasks = parse_tasks(all.substr(0, end), "x.toml", "");
    const Row row{parse_row(all.substr(std::min(end + 1, all.size()))), "x.jsonl:1"};
    for (const Task& task : tasks) {
      for (auto& [part, rows] : split_task(task, {{row}, {row, row}})) {
        for (const Question& q : make_questions(part, rows, 1, 0, 1)) {
          if (part.kind == Kind::multiple_choice && (q.gold < 0 || q.gold >= static_cast<int64_t>(q.choices.size()))) std::abort();
          if (part.kind != Kind::generate) continue;
          for (const AnswerFilter& f : part.filters) exact_match(part, q.target, filtered(f, q.target));
        }
      }
    }
  } catch (const Error&) {}
  return 0;
}
