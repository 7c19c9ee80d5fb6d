#include "halftone/eval/task.h"

namespace halftone::eval {

// By the tasks of the same name of lm-evaluation-harness 0.4.13, their versions included.
std::string_view builtin_tasks() {
  return R"TOML(
[hellaswag]
kind = "multiple_choice"
folder = ["hellaswag", "Rowan/hellaswag"]
split = "validation"
text = "{activity_label}: {ctx_a} {ctx_b|capitalize}"
choices = "{endings}"
answer = "{label}"
clean = "hellaswag"
shots_without_self = true

[arc_easy]
kind = "multiple_choice"
folder = ["arc_easy", "ai2_arc", "allenai/ai2_arc"]
subset = "ARC-Easy"
text = "Question: {question}\nAnswer:"
choices = "{choices.text}"
labels = "{choices.label}"
answer = "{answerKey}"

[arc_challenge]
kind = "multiple_choice"
folder = ["arc_challenge", "ai2_arc", "allenai/ai2_arc"]
subset = "ARC-Challenge"
text = "Question: {question}\nAnswer:"
choices = "{choices.text}"
labels = "{choices.label}"
answer = "{answerKey}"

[piqa]
kind = "multiple_choice"
folder = ["piqa", "baber/piqa"]
split = "validation"
text = "Question: {goal}\nAnswer:"
choices = ["{sol1}", "{sol2}"]
answer = "{label}"
shots_without_self = true

[winogrande]
kind = "multiple_choice"
folder = ["winogrande", "allenai/winogrande"]
subset = "winogrande_xl"
split = "validation"
contexts = ["{sentence|before_blank}{option1}", "{sentence|before_blank}{option2}"]
target = "{sentence|after_blank}"
labels = ["1", "2"]
answer = "{answer}"
metrics = ["acc"]
shots_without_self = true

[mmlu]
kind = "multiple_choice"
folder = ["mmlu", "cais/mmlu"]
subset = "all"
shots_split = "dev"
first_shots = true
split_by = "subject"
description = "The following are multiple choice questions (with answers) about {subject|spaces}.\n\n"
text = "{question|strip}\nA. {choices[0]}\nB. {choices[1]}\nC. {choices[2]}\nD. {choices[3]}\nAnswer:"
choices = ["A", "B", "C", "D"]
answer = "{answer}"
metrics = ["acc"]

[mmlu.groups]
stem = [
  "abstract_algebra", "anatomy", "astronomy", "college_biology", "college_chemistry", "college_computer_science",
  "college_mathematics", "college_physics", "computer_security", "conceptual_physics", "electrical_engineering",
  "elementary_mathematics", "high_school_biology", "high_school_chemistry", "high_school_computer_science", "high_school_mathematics",
  "high_school_physics", "high_school_statistics", "machine_learning",
]
other = [
  "business_ethics", "clinical_knowledge", "college_medicine", "global_facts", "human_aging", "management", "marketing",
  "medical_genetics", "miscellaneous", "nutrition", "professional_accounting", "professional_medicine", "virology",
]
social_sciences = [
  "econometrics", "high_school_geography", "high_school_government_and_politics", "high_school_macroeconomics",
  "high_school_microeconomics", "high_school_psychology", "human_sexuality", "professional_psychology", "public_relations",
  "security_studies", "sociology", "us_foreign_policy",
]
humanities = [
  "formal_logic", "high_school_european_history", "high_school_us_history", "high_school_world_history", "international_law",
  "jurisprudence", "logical_fallacies", "moral_disputes", "moral_scenarios", "philosophy", "prehistory", "professional_law",
  "world_religions",
]

[gsm8k]
kind = "generate"
version = 3
folder = ["gsm8k", "openai/gsm8k"]
subset = "main"
text = "Question: {question}\nAnswer:"
target = "{answer}"
shots = 5
until = ["Question:", "</s>", "<|im_end|>"]
ignore = [",", "\\$", "(?s).*#### ", "\\.$"]
ignore_case = true
filters = [
  {name = "strict-match", regex = "#### (\\-?[0-9\\.\\,]+)"},
  {name = "flexible-extract", regex = "(-?[$0-9.,]{2,})|(-?[0-9]+)", select = -1},
]

[lambada_openai]
kind = "completion"
folder = ["lambada_openai", "EleutherAI/lambada_openai"]
subset = "default"
text = "{text|first_words}"
target = " {text|last_word}"

[wikitext]
kind = "perplexity"
version = 2
folder = ["wikitext", "EleutherAI/wikitext_document_level"]
subset = "wikitext-2-raw-v1"
text = "{page}"
clean = "wikitext"
)TOML";
}

}  // namespace halftone::eval
