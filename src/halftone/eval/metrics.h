#pragma once
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "halftone/eval/prompts.h"
#include "halftone/eval/scorer.h"

namespace halftone::eval {

// A metric of one document: a number, or for the perplexities of whole texts a log-likelihood and the words or bytes that it is for.
struct Sample {
  double value = 0, weight = 1;
};

// The metrics of a multiple-choice question, in the order of task.metrics: the largest log-likelihood; for acc_norm, of those divided by
// the choices' characters, for acc_bytes by their bytes; the first of equal ones.
std::vector<Sample> choice_metrics(const Task& task, const Question& question, const std::vector<LogLikelihood>& answers);
std::vector<Sample> completion_metrics(const Task& task, const LogLikelihood& answer);
std::vector<Sample> text_metrics(const Task& task, const Question& question, double log_likelihood);
// The answer that a filter finds in a generated text: "[invalid]" without a match.
std::string filtered(const AnswerFilter& filter, const std::string& text);
// 1 if both texts are equal but for what the task ignores.
double exact_match(const Task& task, std::string target, std::string answer);

struct Aggregate {
  double value = 0;
  std::optional<double> error{};  // standard error, where lm-evaluation-harness has one
};
bool higher_is_better(const std::string& metric);
// Over the documents: mean and s/sqrt(n); perplexity by 100 blocks of bootstrap_iters / 100 resamples (0: no error), drawn as there.
Aggregate aggregate(const std::string& metric, const std::vector<Sample>& samples, int64_t bootstrap_iters);
// Means weighted by the number of documents, and the pooled error.
Aggregate pooled(const std::vector<std::pair<Aggregate, int64_t>>& parts);

}  // namespace halftone::eval
