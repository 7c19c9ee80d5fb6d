#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "halftone/ops/linear.h"

// One linear layer in the middle of training: tokens X[M,K], weight W[N,K], gradient dY[M,N]; dW[N,K] is added to in float32.
namespace halftone::bench {

struct LayerData {
  LayerData(int64_t m, int64_t n, int64_t k, c10::Device device);
  int64_t m, n, k;
  at::Tensor x, w, dy;  // bf16
  at::Tensor dw;        // fp32
};

// A recipe of kLinearRecipes with the options of a preset, or "aten_bf16": LibTorch's three products, dW in bf16. Error: there
// is none, or it keeps no master weight, so that nothing is quantised after an optimizer step.
std::vector<std::string> layer_recipes();
LinearRecipe bench_recipe(const std::string& name, const std::string& preset);

// Forward and backward as a training step calls them, weights changed since the last call.
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

// What such a step consists of, one after the other: the quantisers and the products.
struct LayerPart {
  std::string name;
  std::function<void()> run;
  double bytes = 0;  // that a quantiser has to move (bench_traffic.h); products: operands and result
  double flop = 0;   // of products
};
std::vector<LayerPart> layer_parts(const LinearRecipe& recipe, const LayerData& data);

}  // namespace halftone::bench
