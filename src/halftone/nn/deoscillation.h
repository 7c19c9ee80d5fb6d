#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "halftone/nn/quantizable.h"

namespace halftone::nn {

// Weight de-oscillation (numerics.md 10.1): a weight whose quantised value Q(w) moves much farther than w itself within a window of steps
// oscillates between two grid points; at the window's end it is set to its grid point. Q is the layer's forward weight quantiser, applied
// to the weight as the layer reads it. Windows end at steps deosc_step + n * period.
class Deoscillator {
 public:
  explicit Deoscillator(Module& model);  // the model's layers with deosc.step > 0

  bool active() const { return !layers_.empty(); }
  // With row-sharded weights: turns an amax, fp32 [1], into that of all ranks, for per-tensor scales.
  void share(std::function<void(at::Tensor&)> largest) { largest_ = std::move(largest); }
  // After optimizer step `step`; true if masters changed.
  bool step(int64_t step);
  // Resets the state to that of step `step`, as if the windows began with the current weights; no state before deosc_step.
  void prepare(int64_t step);
  // w_prev, dist_w and dist_q of a parameter, in its dtype; empty before deosc_step and for other parameters.
  std::vector<std::pair<std::string, at::Tensor>> state(const Parameter& parameter) const;

 private:
  struct Layer {
    Parameter* weight;
    OperandSpec read_as;  // in the forward GEMM
    Deoscillation options;
    at::Tensor w_prev, dist_w, dist_q;
  };
  static void start(Layer& layer);
  // Q(w) in fp32, for w as the layer reads it.
  at::Tensor quantized(const Layer& layer, const at::Tensor& w) const;
  // Number of elements set to the grid in this window.
  int64_t reset(Layer& layer) const;
  std::vector<Layer> layers_;
  std::function<void(at::Tensor&)> largest_;
};

}  // namespace halftone::nn
