#include "halftone/data/mixture.h"

#include <charconv>
#include <cmath>

#include "halftone/base/error.h"
#include "halftone/base/philox.h"
#include "halftone/data/epoch_plan.h"

namespace halftone {
namespace {

std::string_view trimmed(std::string_view s) {
  while (!s.empty() && s.front() == ' ') s.remove_prefix(1);
  while (!s.empty() && s.back() == ' ') s.remove_suffix(1);
  return s;
}

template <class T>
bool parse_all(std::string_view s, T& out) {
  s = trimmed(s);
  const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), out);
  return error == std::errc() && end == s.data() + s.size();
}

}  // namespace

WeightSchedule::WeightSchedule(const std::string& text, const std::string& field) : text_(text) {
  const auto wrong = [&] {
    fail("{} = \"{}\": expected a weight of at least 0, or weights from steps on: \"0.7, 10000: 0.3\"", field, text);
  };
  std::string_view rest = text;
  for (bool more = true; more;) {
    const size_t comma = rest.find(',');
    std::string_view part = rest.substr(0, comma);
    more = comma != std::string_view::npos;
    if (more) rest.remove_prefix(comma + 1);
    int64_t step = 0;
    double weight = 0;
    const size_t colon = part.find(':');
    if (colon != std::string_view::npos) {
      if (!parse_all(part.substr(0, colon), step)) wrong();
      part.remove_prefix(colon + 1);
    }
    if (!parse_all(part, weight) || !std::isfinite(weight) || weight < 0) wrong();
    if (changes_.empty() ? step != 0 : step <= changes_.back().first) wrong();
    changes_.emplace_back(step, weight);
  }
}

double WeightSchedule::at(int64_t step) const {
  double weight = 0;
  for (const auto& [from, value] : changes_) {
    if (from > step) break;
    weight = value;
  }
  return weight;
}

int draw_source(int64_t row, int64_t lanes, uint64_t seed, std::span<const double> weights) {
  double sum = 0;
  for (const double w : weights) sum += w;
  if (sum <= 0) return -1;
  const int64_t round = row / lanes;
  const auto random = philox({static_cast<uint32_t>(round), static_cast<uint32_t>(static_cast<uint64_t>(round) >> 32), 0, 0},
                             philox_key(seed, "data.mixture"));
  const double offset = static_cast<double>(random[0]) * 0x1p-32;
  const auto place = static_cast<double>(Shuffle(lanes, true, seed, round, "data.mixture_lanes")(row % lanes));
  double left = (place + offset) / static_cast<double>(lanes) * sum;
  int last = -1;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] <= 0) continue;
    last = static_cast<int>(i);
    if (left < weights[i]) return last;
    left -= weights[i];
  }
  return last;  // rounding
}

}  // namespace halftone
