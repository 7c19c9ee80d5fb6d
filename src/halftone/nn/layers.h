#pragma once
#include <initializer_list>
#include <utility>
#include <vector>

#include "halftone/nn/port.h"
#include "halftone/nn/quantizable.h"
#include "halftone/ops/attention.h"
#include "halftone/ops/head_loss.h"
#include "halftone/ops/linear.h"

namespace halftone::nn {

class RMSNorm;

// Y = X W^T + b, W[out, in]. The recipe, set by apply_recipe (nn/recipe.h), says how the operands of the three GEMMs are quantised; it
// may add parameters:
//   lora_rank r   Y += ((X v) o sigma) u, v[in, r] = 0, sigma[r] = 1, u[r, out] (numerics.md 7.3, DecomposedLinear); held as
//                 lora_v[r, in] and lora_u[out, r], the layout of every weight here
//   bitnet        norm: an RMSNorm of its own before the GEMM (numerics.md section 7)
class Linear : public QuantizableLayer {
 public:
  Linear(int64_t in, int64_t out, Init init, bool bias = false);
  std::vector<std::string_view> class_names() const override { return {"Linear", "Module"}; }
  // out: dtype of y; undefined: that of x.
  at::Tensor operator()(const Activation& x_tk, const StepContext& step, at::ScalarType out = at::ScalarType::Undefined);
  // The same through the port of the layer that it ends.
  at::Tensor leave(const Activation& x_tk, const StepContext& step, const Port& port);

  std::string_view kind() const override { return "Linear"; }
  int64_t in_features() const override { return read().shape[1]; }
  int64_t out_features() const override { return read().shape[0]; }
  const LinearRecipe& recipe() const override { return fused_.recipe; }
  void set_recipe(const LayerRecipe& recipe) override;
  std::vector<Parameter*> weights() override { return {&weight}; }
  // Another process adds the bias: this one's part of its gradient is zero.
  void drop_bias() { fused_.biases.clear(); }
  // Ties this layer to `owner`'s parameter (a tied head); its own parameter is then never materialised.
  void tie(Parameter& owner);
  FusedLinears& fused() { return fused_; }

  // Normalises the input from now on; a checkpoint without this norm loads its weight from the parameter `copy_of`.
  void add_norm(double eps, const std::string& copy_of);
  bool has_norm() const { return norm_ != nullptr; }
  RMSNorm* norm() { return norm_; }
  bool has_side() const { return sigma_ != nullptr; }
  at::Tensor side(const Activation& x_tk, const StepContext& step);  // ((X v) o sigma) u
  // The layer as a model's head: its GEMM and its side branch, in chunks of rows; the columns that its port says.
  Head head();

  Parameter& weight;
  Parameter* bias = nullptr;

 private:
  friend class Siblings;
  LinearCall call_with_side(const at::Tensor& x_tk, const LinearOptions& options);
  const Parameter& read() const { return owner_ == nullptr ? weight : *owner_; }
  FusedLinears fused_, side_v_, side_u_;
  Parameter* sigma_ = nullptr;
  RMSNorm* norm_ = nullptr;
  const Parameter* owner_ = nullptr;  // owner of a tied layer's weight
};

// Linears that read the same input, run as one op per run of equal recipes: X is quantised once, outputs are side by side in one tensor
// [T, sum out].
class Siblings {
 public:
  Siblings(std::initializer_list<Linear*> linears) : linears_(linears) {}
  at::Tensor operator()(const Activation& x_tk, const StepContext& step);
  at::Tensor enter(const Activation& x_td, const StepContext& step, const Port& port);  // through the port of the layer that they begin
  const std::vector<Linear*>& linears() const { return linears_; }
  // Where the op that reads all outputs puts the amax of their gradients; null if nothing reads it. Valid after the first call.
  std::shared_ptr<GradientAmax> gradient_amax() const;

 private:
  // Linears that form one GEMM; a linear with its own norm is alone.
  struct Part {
    FusedLinears fused;
    std::vector<Linear*> linears;
  };
  void regroup();
  std::vector<Linear*> linears_;
  std::vector<Part> parts_;
};

class RMSNorm : public Module {
 public:
  RMSNorm(int64_t dim, double eps);
  std::vector<std::string_view> class_names() const override { return {"RMSNorm", "Module"}; }
  // {x + branch in x's dtype, norm(x + branch) in the compute dtype}; branch may be undefined. With its amax if the readers' quantisers
  // want it.
  std::pair<at::Tensor, Activation> operator()(const at::Tensor& x_td, const at::Tensor& branch_td = {},
                                               const std::vector<Linear*>& readers = {});
  double eps() const { return eps_; }
  // bitnet: the linears that read its output have their own norms, so it only adds the branch.
  void retire();
  Parameter& weight;

 private:
  std::pair<at::Tensor, Activation> over_ports(const at::Tensor& x);
  double eps_;
  bool retired_ = false;
};

// A norm and the linears that read its output.
struct NormUse {
  RMSNorm* norm;
  std::vector<Linear*> readers;
};

class Embedding : public Module {
 public:
  Embedding(int64_t vocab, int64_t dim, Init init);
  std::vector<std::string_view> class_names() const override { return {"Embedding", "Module"}; }
  // [T, D] in `dtype`, at least as wide as the table's compute dtype. Other processes add the tokens whose rows they have.
  at::Tensor operator()(const at::Tensor& tokens_t, at::ScalarType dtype);
  Parameter& weight;
};

// Shared by all layers of one forward pass: step context, rotary tables, document layout; caches: one per layer when generating.
struct SequenceInfo {
  StepContext step;
  int64_t batch = 0, seq = 0;
  at::Tensor cos, sin;   // [positions, head_dim / 2] fp32
  at::Tensor positions;  // int32 [T] or undefined
  Documents documents;   // of packed rows that are kept apart
  at::Tensor padding;    // bool [T] or undefined, as in ModelInput; these rows of activations are zeros
  at::Tensor loss_factor;
  std::vector<KvCache>* caches = nullptr;
  bool counts = false;    // the first pass of a training step through a block: routers count their choices
  double grad_scale = 1;  // loss weight of one token
};

// Sets x's rows of padding to zero where biases or attention have made them non-zero. In place and outside of the graph: the gradients of
// these rows are zero anyway. x: all rows, or those between layers.
void clear_padding(const at::Tensor& x_td, const at::Tensor& padding_t, const Port& port);

// Grouped-query causal attention with rotary embeddings (Ainslie et al. 2023; Su et al. 2021).
class Attention : public Module {
 public:
  struct Shape {
    int64_t dim, heads, kv_heads, head_dim;
    bool rotate_halves = false;
    bool qkv_bias = false, out_bias = false;
    double qk_norm_eps = 0;  // above 0: RMSNorm of every head of q and k before the rotation
    int64_t window = 0;      // above 0: tokens that a token sees, itself included
    bool sinks = false;      // a learned logit [heads] beside the scores of the keys (AttentionArgs::sinks), initialised like `out`
  };
  Attention(const Shape& shape, int layer, Init in, Init out);
  std::vector<std::string_view> class_names() const override { return {"Attention", "Module"}; }
  at::Tensor operator()(const Activation& x_td, const SequenceInfo& info);
  const Shape& shape() const { return shape_; }
  const std::vector<Linear*>& readers() const { return qkv_.linears(); }  // of its input
  Linear& output() { return wo_; }
  std::pair<int64_t, int64_t> cache_widths() const {  // elements per position in KvCache::k and v
    return {wk_.out_features(), wv_.out_features()};
  }

 private:
  Shape shape_;
  int layer_;
  Linear &wq_, &wk_, &wv_, &wo_;
  RMSNorm *q_norm_ = nullptr, *k_norm_ = nullptr;
  Parameter* sinks_ = nullptr;
  Siblings qkv_;
};

// w2(silu(w1 x) * w3 x).
class FeedForward : public Module {
 public:
  FeedForward(int64_t dim, int64_t hidden, Init gate, Init up, Init down, bool bias = false);
  std::vector<std::string_view> class_names() const override { return {"FeedForward", "Module"}; }
  at::Tensor operator()(const Activation& x_td, const StepContext& step, const at::Tensor& padding_t = {});
  const std::vector<Linear*>& readers() const { return gate_up_.linears(); }  // of its input
  Linear& output() { return w2_; }

 private:
  Linear &w1_, &w3_, &w2_;  // w1 | w3 adjacent in memory: one GEMM if nothing is quantised
  Siblings gate_up_;
};

}  // namespace halftone::nn
