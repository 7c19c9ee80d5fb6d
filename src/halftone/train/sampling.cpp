#include "halftone/train/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "halftone/base/error.h"
#include "halftone/base/philox.h"

namespace halftone {
namespace {

double uniform(uint64_t seed, uint64_t position) {
  const auto words = philox(philox_key(seed, "sample"), position);
  return static_cast<double>((uint64_t{words[0]} << 32 | words[1]) >> 11) * 0x1p-53;
}

}  // namespace

void check_sampling(const SamplingOptions& o) {
  check(o.temperature >= 0 && std::isfinite(o.temperature), "temperature: expected at least 0, found {}", o.temperature);
  check(o.top_k >= 0, "top-k: expected at least 0 (0 keeps all), found {}", o.top_k);
  check(o.top_p > 0 && o.top_p <= 1, "top-p: expected above 0 and at most 1, found {}", o.top_p);
}

int64_t sample_token(std::span<const float> logits, const SamplingOptions& o, uint64_t position) {
  check(!logits.empty(), "sampling: expected at least one logit");
  check_sampling(o);
  for (size_t i = 0; i < logits.size(); ++i) check(!std::isnan(logits[i]), "sampling: the logit of token {} is not a number", i);
  const auto top = std::max_element(logits.begin(), logits.end());  // the first of equal ones
  check(std::isfinite(*top), "sampling: expected a finite largest logit, found {}", *top);
  if (o.temperature == 0 || o.top_k == 1) return top - logits.begin();

  const auto count = static_cast<int64_t>(logits.size());
  std::vector<int64_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  if (o.top_k > 0 || o.top_p < 1) {
    const int64_t keep = o.top_k > 0 ? std::min(o.top_k, count) : count;
    const auto before = [&](int64_t a, int64_t b) {
      const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
      return x != y ? x > y : a < b;
    };
    std::partial_sort(ids.begin(), ids.begin() + keep, ids.end(), before);
    ids.resize(static_cast<size_t>(keep));
  }
  std::vector<double> cumulative;
  cumulative.reserve(ids.size());
  double sum = 0;
  for (const int64_t id : ids)
    cumulative.push_back(sum += std::exp((static_cast<double>(logits[static_cast<size_t>(id)]) - *top) / o.temperature));
  // The smallest set that reaches top_p ends at the first prefix sum of at least top_p of the total; with top_p = 1 that is the last
  // token with nonzero probability.
  const auto last = std::lower_bound(cumulative.begin(), cumulative.end(), o.top_p * sum);
  const auto chosen = std::upper_bound(cumulative.begin(), last, uniform(o.seed, position) * *last);
  return ids[static_cast<size_t>(chosen - cumulative.begin())];
}

}  // namespace halftone
