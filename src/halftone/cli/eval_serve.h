#pragma once
#include <istream>
#include <ostream>

#include "halftone/train/eval_model.h"

namespace halftone {

// Answers requests of lm-evaluation-harness's forms: a JSON object a line on `in`, {"id", "type", "requests"}, and one on `out`,
// {"id", "results"} or {"id", "error"}, until `in` ends.
//   loglikelihood          requests [[context, continuation], ...] -> [[log-likelihood, is greedy], ...]
//   loglikelihood_rolling  requests [text, ...] -> [log-likelihood, ...]
//   generate_until         requests [[context, {"until": [...], "max_gen_toks": n}], ...] -> [text, ...]
// The first line on `out` says "ready" and the model's max_length.
void serve(EvalModel& model, std::istream& in, std::ostream& out);

}  // namespace halftone
