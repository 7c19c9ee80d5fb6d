#include <cuda_runtime.h>

#include <algorithm>

#include "halftone/device/error_text.h"
#include "halftone/device/launch.h"
#include "halftone/optim/step.cuh"

namespace halftone::device {
namespace {

template <class T>
struct Type {
  using type = T;
};

template <class F>
void with_float(DType t, F&& f) {
  t == DType::f32 ? f(Type<float>{}) : f(Type<bf16>{});
}

// Segments of one launch: either all consist of whole vectors, or all are processed element by element.
template <class P, class S, class G, class Rule, bool kStochastic>
void launch(const OptimizerWork<Rule>& work, int segments, int64_t longest, bool vectors, cudaStream_t stream) {
  const int count = vectors ? 4 : 1;
  // Enough blocks to fill any GPU if the segment is long; each thread then processes several vectors.
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(ceil_div(longest, int64_t{kOptimizerThreads} * count), 1024));
  const dim3 grid(blocks, static_cast<unsigned>(segments));
  if (vectors) {
    optimizer_kernel<P, S, G, Rule, kStochastic, 4><<<grid, kOptimizerThreads, 0, stream>>>(work);
  } else {
    optimizer_kernel<P, S, G, Rule, kStochastic, 1><<<grid, kOptimizerThreads, 0, stream>>>(work);
  }
}

template <class P, class S, class G>
bool in_vectors(const OptimizerStep& p, const OptimizerSegment& s) {
  return s.count % 4 == 0 && aligned<4>(static_cast<const P*>(p.param), s.offset) && aligned<4>(static_cast<const G*>(p.grad), s.offset) &&
         std::all_of(std::begin(p.states), std::end(p.states),
                     [&](const void* x) { return aligned<4>(static_cast<const S*>(x), s.offset); }) &&
         aligned<4>(p.compute_copy, s.offset);
}

template <class P, class S, class G, class Rule, bool kStochastic>
void launch_all(const OptimizerStep& p, cudaStream_t stream) {
  for (const bool vectors : {true, false}) {
    OptimizerWork<Rule> work{};
    work.param = p.param, work.grad = p.grad;
    std::copy_n(p.states, work.kStates, work.states);
    work.compute_copy = p.compute_copy, work.outcome = p.outcome;
    work.step = static_cast<uint32_t>(p.step), work.zero_grad = p.zero_grad;
    int filled = 0;
    int64_t longest = 0;
    for (const OptimizerSegment& s : p.segments) {
      if (s.count == 0 || in_vectors<P, S, G>(p, s) != vectors) continue;
      work.segments[filled++] = {s.offset, s.count, Rule::at(p.options, s.lr, s.weight_decay, static_cast<double>(p.step)), s.key,
                                 s.first_index};
      longest = std::max(longest, s.count);
      if (filled == kSegmentsPerLaunch) {
        launch<P, S, G, Rule, kStochastic>(work, filled, longest, vectors, stream);
        filled = 0, longest = 0;
      }
    }
    if (filled > 0) launch<P, S, G, Rule, kStochastic>(work, filled, longest, vectors, stream);
  }
}

bool is_float(DType t) { return t == DType::f32 || t == DType::bf16; }

const char* problem(const OptimizerStep& p) {
  if (!is_float(p.param_dtype) || !is_float(p.state_dtype) || !is_float(p.grad_dtype)) return "optimizer: expected f32 or bf16 buffers";
  if (p.step < 1) return "optimizer step: expected at least 1";
  size_t needed = 0;
  optim::Optimizers::with(p.optimizer, [&]<class Rule>(std::type_identity<Rule>) { needed = Rule::states(p.options); });
  if (!p.param || !p.grad || std::any_of(p.states, p.states + needed, [](const void* s) { return s == nullptr; })) {
    return "optimizer step: expected param, grad and the states that the rule needs";
  }
  for (const OptimizerSegment& s : p.segments) {
    if (s.offset < 0 || s.count < 0) return "optimizer segment: expected offset and count of at least 0";
  }
  return nullptr;
}

}  // namespace
}  // namespace halftone::device

// CUDA implementation of optim/step.h: bit-identical to the CPU. param, states, grad, outcome and compute_copy are device pointers;
// `segments` is a host pointer and is read before the function returns.
HALFTONE_CUDA_EXPORT const char* halftone_cuda_optimizer_step(const halftone::OptimizerStep* what, void* stream) {
  using namespace halftone;
  using namespace halftone::device;
  const OptimizerStep& p = *what;
  if (const char* message = problem(p)) return message;
  const auto queue = static_cast<cudaStream_t>(stream);
  with_float(p.param_dtype, [&](auto param) {
    with_float(p.state_dtype, [&](auto state) {
      with_float(p.grad_dtype, [&](auto grad) {
        optim::Optimizers::with(p.optimizer, [&]<class Rule>(std::type_identity<Rule>) {
          using P = typename decltype(param)::type;
          using S = typename decltype(state)::type;
          using G = typename decltype(grad)::type;
          if constexpr (std::is_same_v<P, bf16>) {
            if (p.stochastic_rounding) return launch_all<P, S, G, Rule, true>(p, queue);
          }
          launch_all<P, S, G, Rule, false>(p, queue);
        });
      });
    });
  });
  return device::error_text(cudaGetLastError());
}
