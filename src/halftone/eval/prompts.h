#pragma once
#include <optional>
#include <string>
#include <vector>

#include "halftone/eval/task.h"

namespace halftone::eval {

// A row as its task poses it.
struct Question {
  std::vector<std::string> contexts;  // behind the examples; one, or one for each choice
  std::vector<std::string> choices;   // multiple_choice: the answers, or with several contexts the contexts' own texts
  std::string target;                 // what follows where it is the same for all: completion, generate, several contexts
  std::string text;                   // perplexity: the text as it is judged
  int64_t words = 0, bytes = 0;       // perplexity: of the text before cleaning
  int64_t gold = 0;                   // multiple_choice
};

// The questions of the first `limit` rows (0: all) with `shots` examples each, drawn as lm-evaluation-harness draws them with this seed
// (Random(seed).sample, once for each question, in order), or the first ones. Error naming the row that lacks a field or whose answer is
// none of the choices, and one for fewer rows than examples.
std::vector<Question> make_questions(const Task& task, const TaskRows& rows, int64_t shots, int64_t limit, uint64_t seed);

}  // namespace halftone::eval
