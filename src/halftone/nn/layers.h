#pragma once
#include <initializer_list>
#include <vector>

#include "halftone/nn/module.h"
#include "halftone/nn/recipe_options.h"
#include "halftone/ops/attention.h"
#include "halftone/ops/linear.h"

namespace halftone::nn {

// Y = X W^T, W[out, in]. The recipe is given by apply_recipe (nn/recipe.h) and says how the operands of the three products
// are quantised.
class Linear : public Module {
 public:
  Linear(int64_t in, int64_t out, Init init);
  std::vector<std::string_view> class_names() const override { return {"Linear", "Module"}; }
  at::Tensor operator()(const at::Tensor& x_tk);

  int64_t in_features() const { return weight.shape[1]; }
  int64_t out_features() const { return weight.shape[0]; }
  const LinearRecipe& recipe() const { return group_.recipe; }
  void set_recipe(const LayerRecipe& recipe) { group_.recipe = recipe.linear; }
  // Makes this layer read `owner`'s parameter (a tied head); its own is then never materialised.
  void tie(Parameter& owner);
  LinearGroup& group() { return group_; }

  Parameter& weight;

 private:
  LinearGroup group_;
};

// Linears that read the same input, run as one op per stretch of equal recipes: X is quantised once, outputs stand side
// by side in one tensor [T, sum out].
class Siblings {
 public:
  Siblings(std::initializer_list<Linear*> linears) : linears_(linears) {}
  at::Tensor operator()(const at::Tensor& x_tk);

 private:
  void regroup();
  std::vector<Linear*> linears_;
  std::vector<LinearGroup> groups_;
};

class RMSNorm : public Module {
 public:
  RMSNorm(int64_t dim, double eps);
  std::vector<std::string_view> class_names() const override { return {"RMSNorm", "Module"}; }
  // {x + branch in x's dtype, norm(x + branch) in the compute dtype}; branch may be undefined.
  std::pair<at::Tensor, at::Tensor> operator()(const at::Tensor& x_td, const at::Tensor& branch_td = {});
  Parameter& weight;

 private:
  double eps_;
};

class Embedding : public Module {
 public:
  Embedding(int64_t vocab, int64_t dim, Init init);
  std::vector<std::string_view> class_names() const override { return {"Embedding", "Module"}; }
  // [T, D] in `dtype`, at least as wide as the table's compute dtype.
  at::Tensor operator()(const at::Tensor& tokens_t, at::ScalarType dtype);
  Parameter& weight;
};

// Rotary tables and document layout shared by every layer of one forward pass; cache: one per layer when generating.
struct SequenceInfo {
  int64_t batch = 0, seq = 0;
  at::Tensor cos, sin;   // [positions, head_dim / 2] fp32
  at::Tensor positions;  // int32 [T] or undefined
  at::Tensor doc_start;  // int32 [T] or undefined
  std::vector<KvCache>* caches = nullptr;
};

// Grouped-query causal attention with rotary embeddings (Ainslie et al. 2023; Su et al. 2021).
class Attention : public Module {
 public:
  struct Shape {
    int64_t dim, heads, kv_heads, head_dim;
    bool rotate_halves = false;
  };
  Attention(const Shape& shape, int layer, Init in, Init out);
  std::vector<std::string_view> class_names() const override { return {"Attention", "Module"}; }
  at::Tensor operator()(const at::Tensor& x_td, const SequenceInfo& info);

 private:
  Shape shape_;
  int layer_;
  Linear &wq_, &wk_, &wv_, &wo_;
  Siblings qkv_;
};

// w2(silu(w1 x) * w3 x).
class FeedForward : public Module {
 public:
  FeedForward(int64_t dim, int64_t hidden, Init in, Init out);
  std::vector<std::string_view> class_names() const override { return {"FeedForward", "Module"}; }
  at::Tensor operator()(const at::Tensor& x_td);

 private:
  Linear &w1_, &w3_, &w2_;  // w1 | w3 adjacent in memory: one product where nothing is quantised
  Siblings gate_up_;
};

}  // namespace halftone::nn
