#pragma once
#include <string>
#include <vector>

#include "halftone/cli/bench_runner.h"
#include "halftone/ops/linear.h"
#include "halftone/ops/product_plan.h"

// One linear layer during training: input X[M,K], weight W[N,K], gradient dY[M,N]; dW[N,K] accumulates in float32.
namespace halftone::bench {

struct LayerData {
  LayerData(int64_t m, int64_t n, int64_t k, c10::Device device);
  int64_t m, n, k;
  at::Tensor x, w, dy;  // bf16
  at::Tensor dw;        // fp32
};

// Recipes of kLinearRecipes that quantize a master weight after an optimizer step, and "aten_bf16": LibTorch's three GEMMs with dW in bf16.
Words layer_recipes();
// One of these or "none", with the options of a preset.
LinearRecipe bench_recipe(const std::string& name, const std::string& preset);
// "none", the reference, and the named ones.
std::vector<LinearRecipe> bench_recipes(const Words& names, const std::string& preset);

// Forward and backward as in a training step; the weights change between calls. The data must outlive it.
Parts layer_work(const LinearRecipe& recipe, const LayerData& data);

// The parts of such a step in order: quantizers and GEMMs. Recipe and data must outlive it.
struct LayerPart {
  std::string name;
  Part run;
  double bytes = 0;  // moved by a quantizer, or operands and result of a GEMM
  double flop = 0;   // of GEMMs
};
std::vector<LayerPart> layer_parts(const LinearRecipe& recipe, const LayerData& data);
// Seconds of each part of each recipe.
std::vector<std::vector<double>> time_layer_parts(const Bench& bench, const std::vector<LinearRecipe>& recipes, const LayerData& data,
                                                  double turn);

// Bytes that a quantizer reads and writes for the requested copies of a matrix [rows, cols]; null: none. One read of the matrix, a second
// one if it must be known before the first code (needs_statistics_pass), and all writes. Scales that are part of `values` (folded codes, bf16
// values) do not count.
double quantiser_bytes(int64_t rows, int64_t cols, double element_size, const CopyRequest* row, const CopyRequest* transposed);

}  // namespace halftone::bench
