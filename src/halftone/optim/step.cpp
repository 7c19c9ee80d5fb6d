#include "halftone/optim/step.h"

#include <algorithm>
#include <vector>

#include "halftone/base/parallel.h"
#include "halftone/fused/arguments.h"
#include "halftone/fused/grad_norm.h"
#include "halftone/fused/kernels.h"
#include "halftone/fused/philox_groups.h"
#include "halftone/optim/optimizer.h"
#include "halftone/optim/rows.h"

namespace halftone {
namespace avx512 {
void optimizer_block(const OptimizerStep&, const OptimizerBlock&);  // optim/step_avx512.cpp
}
namespace {

constexpr int64_t kBlock = 16384;  // elements

std::vector<OptimizerBlock> cut(std::span<const OptimizerSegment> segments) {
  std::vector<OptimizerBlock> blocks;
  for (const auto& s : segments) {
    check(s.offset >= 0 && s.count >= 0, "optimizer segment: expected offset and count of at least 0, found {} and {}", s.offset, s.count);
    for (int64_t i = 0; i < s.count; i += kBlock) blocks.push_back({&s, i, std::min(s.count - i, kBlock)});
  }
  return blocks;
}

// 16 random bits per element (numerics.md section 4, L = 16): group i >> 3, word (i & 7) >> 1, low half for even i. On a little-endian
// machine the words of consecutive groups are these numbers in order. Returns the address of `begin`'s number.
const uint16_t* draw_noise(const OptimizerSegment& s, int64_t begin, int64_t count, uint32_t step, std::vector<uint32_t>& words) {
  const uint64_t first = s.first_index + static_cast<uint64_t>(begin);
  const auto skipped = static_cast<int64_t>(first & 7);
  philox_groups(s.key, first >> 3, step, (skipped + count + 31) / 32 * 4, words.data());
  return reinterpret_cast<const uint16_t*>(words.data()) + skipped;
}

void check_step(const OptimizerStep& p) {
  check_float("optimizer parameters", p.param_dtype);
  check_float("optimizer state", p.state_dtype);
  check_float("optimizer gradient", p.grad_dtype);
  check(p.step >= 1, "optimizer step: expected at least 1, found {}", p.step);
  const optim::Optimizer& optimizer = optim::optimizers().at(p.optimizer);
  optimizer.check(p.options, [&](bool ok, std::string_view option, double value, std::string_view must, std::string_view why) {
    check(ok, "optimizer step: {} must be {}, found {}{}", option, must, value, why);
  });
  const size_t needed = optimizer.states(p.options).size();
  check(p.param && p.grad && std::all_of(p.states, p.states + needed, [](const void* s) { return s != nullptr; }),
        "optimizer step: expected param, grad and the {} states of {}", needed, optimizer.name);
}

}  // namespace

void optimizer_step(const OptimizerStep& p) {
  const std::vector<OptimizerBlock> blocks = cut(p.segments);
  if (blocks.empty()) return;
  check_step(p);
  if (p.outcome && !p.outcome->updated) {
    const auto width = static_cast<int64_t>(size_of(p.grad_dtype));
    for (const OptimizerSegment& s : p.segments) {
      if (p.zero_grad) fill_zero(static_cast<char*>(p.grad) + s.offset * width, s.count * width);
    }
    return;
  }
  const auto step = &fused_kernels() == &v3::fused_kernels() ? v3::optimizer_block : avx512::optimizer_block;
  const bool stochastic = p.stochastic_rounding && p.param_dtype == DType::bf16;
  parallel_for(static_cast<int64_t>(blocks.size()), 1, [&](int64_t begin, int64_t end) {
    std::vector<uint32_t> noise(stochastic ? kBlock / 2 + 32 : 0);
    for (int64_t i = begin; i < end; ++i) {
      OptimizerBlock b = blocks[static_cast<size_t>(i)];
      if (p.outcome) b.grad_factor = p.outcome->grad_factor;
      if (stochastic) b.noise = draw_noise(*b.segment, b.begin, b.count, static_cast<uint32_t>(p.step), noise);
      step(p, b);
    }
  });
}

}  // namespace halftone
