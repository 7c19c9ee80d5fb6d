#include "halftone/eval/metrics.h"

#include <algorithm>
#include <cmath>

#include "halftone/base/error.h"
#include "halftone/base/parallel.h"
#include "halftone/eval/python_random.h"
#include "halftone/eval/python_text.h"

namespace halftone::eval {
namespace {

double mean(const std::vector<double>& x) {
  double sum = 0;
  for (const double v : x) sum += v;
  return sum / static_cast<double>(x.size());
}

double sample_deviation(const std::vector<double>& x) {
  const double m = mean(x);
  double sum = 0;
  for (const double v : x) sum += (v - m) * (v - m);
  return std::sqrt(sum / static_cast<double>(x.size() - 1));
}

double bootstrapped_perplexity_error(const std::vector<double>& x, int64_t iters) {
  const int64_t chunk = std::min<int64_t>(1000, iters), chunks = iters / chunk;
  std::vector<double> drawn(static_cast<size_t>(chunk * chunks));
  parallel_for(chunks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) {
      python::Random random(static_cast<uint64_t>(c));
      for (int64_t i = 0; i < chunk; ++i) {
        double sum = 0;
        for (size_t k = 0; k < x.size(); ++k) sum += x[static_cast<size_t>(random.random() * static_cast<double>(x.size()))];
        drawn[static_cast<size_t>(c * chunk + i)] = std::exp(-sum / static_cast<double>(x.size()));
      }
    }
  });
  return sample_deviation(drawn);
}

}  // namespace

std::vector<Sample> choice_metrics(const Task& t, const Question& q, const std::vector<LogLikelihood>& answers) {
  const auto right = [&](auto&& length) {
    std::vector<double> scores;
    for (size_t i = 0; i < answers.size(); ++i) scores.push_back(answers[i].value / length(q.choices[i]));
    return std::max_element(scores.begin(), scores.end()) - scores.begin() == q.gold ? 1.0 : 0.0;
  };
  std::vector<Sample> all;
  for (const std::string& metric : t.metrics) {
    if (metric == "acc") all.push_back({right([](const std::string&) { return 1.0; })});
    if (metric == "acc_norm") all.push_back({right([](const std::string& c) { return static_cast<double>(python::code_points(c)); })});
    if (metric == "acc_bytes") all.push_back({right([](const std::string& c) { return static_cast<double>(c.size()); })});
  }
  return all;
}

std::vector<Sample> completion_metrics(const Task& t, const LogLikelihood& answer) {
  std::vector<Sample> all;
  for (const std::string& metric : t.metrics) all.push_back({metric == "acc" ? (answer.greedy ? 1.0 : 0.0) : answer.value});
  return all;
}

std::vector<Sample> text_metrics(const Task& t, const Question& q, double log_likelihood) {
  std::vector<Sample> all;
  for (const std::string& metric : t.metrics)
    all.push_back({log_likelihood, static_cast<double>(metric == "word_perplexity" ? q.words : q.bytes)});
  return all;
}

std::string filtered(const AnswerFilter& f, const std::string& text) {
  if (!f.regex) return text;
  const auto found = f.regex->find_all(text);
  const auto n = static_cast<int64_t>(found.size()), place = f.select < 0 ? n + f.select : f.select;
  if (place < 0 || place >= n) return "[invalid]";
  const std::vector<std::string>& groups = found[static_cast<size_t>(place)];
  const auto first =
      groups.size() == 1 ? groups.begin() : std::find_if(groups.begin(), groups.end(), [](const auto& g) { return !g.empty(); });
  return first == groups.end() ? "[invalid]" : std::string(python::strip(*first, python::Side::both));
}

double exact_match(const Task& t, std::string target, std::string answer) {
  constexpr std::string_view kPunctuation = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";
  for (std::string* s : {&target, &answer}) {
    for (const python::Regex& ignored : t.ignored) *s = ignored.substituted(*s, "");
    if (t.ignore_case) *s = python::lower(*s);
    if (t.ignore_punctuation) std::erase_if(*s, [&](char c) { return kPunctuation.find(c) != std::string_view::npos; });
  }
  return target == answer ? 1 : 0;
}

bool higher_is_better(const std::string& metric) { return !metric.ends_with("perplexity") && metric != "bits_per_byte"; }

Aggregate aggregate(const std::string& metric, const std::vector<Sample>& samples, int64_t bootstrap_iters) {
  check(!samples.empty(), "{}: expected at least one document, found none", metric);
  double sum = 0, weight = 0;
  std::vector<double> values;
  for (const Sample& s : samples) sum += s.value, weight += s.weight, values.push_back(s.value);
  const bool several = samples.size() > 1;
  if (metric == "word_perplexity" || metric == "byte_perplexity") return {std::exp(-sum / weight)};
  if (metric == "bits_per_byte") return {-sum / weight / std::log(2.0)};
  if (metric == "perplexity")
    return {std::exp(-mean(values)),
            several && bootstrap_iters > 0 ? std::optional(bootstrapped_perplexity_error(values, bootstrap_iters)) : std::nullopt};
  return {mean(values), several ? std::optional(sample_deviation(values) / std::sqrt(static_cast<double>(values.size()))) : std::nullopt};
}

Aggregate pooled(const std::vector<std::pair<Aggregate, int64_t>>& parts) {
  double sum = 0, size = 0, variance = 0;
  bool known = true;
  for (const auto& [part, documents] : parts) {
    const auto n = static_cast<double>(documents);
    sum += part.value * n, size += n;
    known = known && part.error;
    if (part.error) variance += (n - 1) * *part.error * *part.error * n;
  }
  Aggregate all{sum / size};
  if (const double freedom = size - static_cast<double>(parts.size()); known && freedom > 0)
    all.error = std::sqrt(variance / freedom / size);
  return all;
}

}  // namespace halftone::eval
