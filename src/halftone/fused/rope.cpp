#include "halftone/fused/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "halftone/base/parallel.h"
#include "halftone/fused/arguments.h"
#include "halftone/fused/kernels.h"

namespace halftone {

namespace {

// Index (not rounded) of the frequency with this many turns over the original context.
double index_of_turns(double turns, double theta, int64_t head_dim, const RopeScaling& s) {
  return static_cast<double>(head_dim) * std::log(static_cast<double>(s.original_context) / (turns * 2 * std::numbers::pi)) /
         (2 * std::log(theta));
}

void check_scaling(const RopeScaling& s) {
  using enum RopeScaling::Type;
  check(s.factor > 0 && s.attention_factor > 0 && s.original_context > 0,
        "rope scaling: expected factor, attention_factor and original_context above 0, found {}, {} and {}", s.factor, s.attention_factor,
        s.original_context);
  check(s.type != llama3 || (s.low_freq_factor > 0 && s.high_freq_factor > s.low_freq_factor),
        "rope scaling: expected 0 < low_freq_factor < high_freq_factor, found {} and {}", s.low_freq_factor, s.high_freq_factor);
  check(s.type != yarn || (s.beta_slow > 0 && s.beta_fast > s.beta_slow),
        "rope scaling: expected 0 < beta_slow < beta_fast, found {} and {}", s.beta_slow, s.beta_fast);
}

}  // namespace

std::vector<double> rope_frequencies(int64_t head_dim, double theta, const RopeScaling& s, int64_t length) {
  using enum RopeScaling::Type;
  check(head_dim > 0 && head_dim % 2 == 0, "rope: expected an even head dimension, found {}", head_dim);
  check(theta > 0, "rope: expected theta above 0, found {}", theta);
  if (s.type != none) check_scaling(s);
  const double last = static_cast<double>(head_dim - 1);
  double from = 0, to = 0;  // yarn: unscaled up to `from`, fully scaled from `to` on
  if (s.type == yarn) {
    from = index_of_turns(s.beta_fast, theta, head_dim, s), to = index_of_turns(s.beta_slow, theta, head_dim, s);
    if (s.truncate) from = std::floor(from), to = std::ceil(to);
    from = std::max(from, 0.0), to = std::min(to, last);
    if (from == to) to += 0.001;
  }
  if (s.type == dynamic && length > s.original_context && head_dim > 2) {
    const double d = static_cast<double>(head_dim), longer = static_cast<double>(length) / static_cast<double>(s.original_context);
    theta *= std::pow(s.factor * longer - (s.factor - 1), d / (d - 2));
  }
  std::vector<double> frequencies(static_cast<size_t>(head_dim / 2));
  for (int64_t j = 0; j < head_dim / 2; ++j) {
    double f = std::pow(theta, -2.0 * static_cast<double>(j) / static_cast<double>(head_dim));
    double kept = 1;  // unscaled share
    if (s.type == linear) kept = 0;
    if (s.type == llama3) {
      const double turns = static_cast<double>(s.original_context) * f / (2 * std::numbers::pi);
      kept = std::clamp((turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor), 0.0, 1.0);
    }
    if (s.type == yarn) kept = 1 - std::clamp((static_cast<double>(j) - from) / (to - from), 0.0, 1.0);
    f = f * (1 - kept) / s.factor + f * kept;
    frequencies[static_cast<size_t>(j)] = f;
  }
  return frequencies;
}

RopeTable rope_table(int64_t positions, int64_t head_dim, double theta, const RopeScaling& scaling) {
  check(positions >= 0, "rope: expected at least 0 positions, found {}", positions);
  const std::vector<double> frequencies = rope_frequencies(head_dim, theta, scaling, positions);
  const double by = scaling.type == RopeScaling::Type::yarn ? scaling.attention_factor : 1;
  RopeTable table{positions, head_dim / 2, {}, {}};
  table.cos.resize(static_cast<size_t>(positions * table.half_dim));
  table.sin.resize(table.cos.size());
  parallel_for(positions, 256, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin * table.half_dim; i < end * table.half_dim; ++i) {
      const float angle = static_cast<float>(i / table.half_dim) * static_cast<float>(frequencies[static_cast<size_t>(i % table.half_dim)]);
      table.cos[static_cast<size_t>(i)] = static_cast<float>(std::cos(static_cast<double>(angle)) * by);
      table.sin[static_cast<size_t>(i)] = static_cast<float>(std::sin(static_cast<double>(angle)) * by);
    }
  });
  return table;
}

void check_rope(const Rope& p) {
  check_shape("rope", p.tokens, p.heads);
  check_float("rope", p.dtype);
  if (p.tokens == 0 || p.heads == 0) return;
  check(p.head_dim > 0 && p.head_dim % 2 == 0, "rope: expected an even head dimension, found {}", p.head_dim);
  check(p.rotated >= 0 && p.rotated <= p.head_dim && p.rotated % 2 == 0,
        "rope: expected an even number of rotated elements up to the {} of a head, found {}", p.head_dim, p.rotated);
  check(p.x && p.out && p.cos && p.sin, "rope: expected x, out, cos and sin");
  if (p.positions) {
    const auto [low, high] = std::minmax_element(p.positions, p.positions + p.tokens);
    check(*low >= 0 && *high < p.max_positions, "rope: expected positions from 0 to below {}, found {} to {}", p.max_positions, *low,
          *high);
  } else {
    const int64_t last = std::min(p.seq_len, p.tokens) - 1 + p.offset;
    check(p.seq_len > 0 && p.offset >= 0 && last < p.max_positions, "rope: expected positions below {}, found {} (sequence {}, offset {})",
          p.max_positions, last, p.seq_len, p.offset);
  }
}

void rope(const Rope& p) {
  check_rope(p);
  if (p.heads == 0) return;
  parallel_for(p.tokens, row_grain(p.heads * p.head_dim), [&](int64_t begin, int64_t end) { fused_kernels().rope(p, begin, end); });
}

}  // namespace halftone
