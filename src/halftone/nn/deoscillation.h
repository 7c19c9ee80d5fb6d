#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "halftone/nn/quantizable.h"

namespace halftone::nn {

// Weight de-oscillation (numerics.md 10.1): a weight whose quantised value Q(w) travels much farther than itself within a
// window of steps hops between two grid points; at the window's end it is set on its grid point. Q is the forward weight
// quantiser of the layer, applied to what the layer reads. Windows end at steps deosc_step + n * period.
class Deoscillator {
 public:
  explicit Deoscillator(Module& model);  // its layers with deosc.step > 0

  bool active() const { return !layers_.empty(); }
  // Where processes share weights out by rows: makes a largest magnitude, fp32 [1], that of all of them, for scales of whole weights.
  void share(std::function<void(at::Tensor&)> largest) { largest_ = std::move(largest); }
  // After optimizer step `step`; true when masters changed.
  bool step(int64_t step);
  // The states that step `step` has, as if the windows began with the present weights; none before deosc_step.
  void prepare(int64_t step);
  // w_prev, dist_w and dist_q of a parameter, in its dtype; none before deosc_step and for other parameters.
  std::vector<std::pair<std::string, at::Tensor>> state(const Parameter& parameter) const;

 private:
  struct Layer {
    Parameter* weight;
    OperandSpec read_as;  // in the forward product
    Deoscillation options;
    at::Tensor w_prev, dist_w, dist_q;
  };
  static void start(Layer& layer);
  // Q(w) in fp32, of w as the layer reads it.
  at::Tensor quantized(const Layer& layer, const at::Tensor& w) const;
  // Elements set back in the window.
  int64_t reset(Layer& layer) const;
  std::vector<Layer> layers_;
  std::function<void(at::Tensor&)> largest_;
};

}  // namespace halftone::nn
