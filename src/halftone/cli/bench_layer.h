#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "halftone/ops/linear.h"

// One linear layer during training: input X[M,K], weight W[N,K], gradient dY[M,N]; dW[N,K] accumulates in float32.
namespace halftone::bench {

struct LayerData {
  LayerData(int64_t m, int64_t n, int64_t k, c10::Device device);
  int64_t m, n, k;
  at::Tensor x, w, dy;  // bf16
  at::Tensor dw;        // fp32
};

// A recipe of kLinearRecipes with the options of a preset, or "aten_bf16": LibTorch's three GEMMs with dW in bf16. Error when it does not
// exist or has no master weight to quantize after an optimizer step.
std::vector<std::string> layer_recipes();
LinearRecipe bench_recipe(const std::string& name, const std::string& preset);

// Forward and backward as in a training step; the weights change between calls.
class BenchLayer {
 public:
  BenchLayer(const LinearRecipe& recipe, const LayerData& data);
  BenchLayer(const BenchLayer&) = delete;
  BenchLayer& operator=(const BenchLayer&) = delete;
  void forward();
  void backward();

 private:
  const LayerData& data_;
  Weight weight_;
  FusedLinears fused_;
  LinearCall call_;
};

// The parts of such a step in order: quantizers and GEMMs.
struct LayerPart {
  std::string name;
  std::function<void()> run;
  double bytes = 0;  // moved by a quantizer (bench_traffic.h), or operands and result of a GEMM
  double flop = 0;   // of GEMMs
};
std::vector<LayerPart> layer_parts(const LinearRecipe& recipe, const LayerData& data);

}  // namespace halftone::bench
