#pragma once
#include <cstdint>
#include <vector>

#include "halftone/nn/layers.h"
#include "halftone/nn/quantizable.h"
#include "halftone/ops/grouped_linear.h"

namespace halftone::nn {

// The weights of a layer's experts, and what they do with the rows that are sent to them: w2(silu(w1 x) * w3 x), or GPT-OSS's
// mlp2(act(mlp1 x + b1)) + b2 with the activation of fused/expert_rows.h (ClampedSwiglu). One recipe for all of them.
class GroupedExperts : public QuantizableLayer {
 public:
  struct Shape {
    int64_t dim, hidden, experts;
    bool clamped = false;  // GPT-OSS: gate and up interleaved in one weight, biases, the clamped activation
  };
  GroupedExperts(const Shape& shape, Init gate, Init up, Init down);
  std::vector<std::string_view> class_names() const override;
  // [T, D] -> [T, D]: the sum of each token's rows, times their gates [T, k] where there are any.
  at::Tensor operator()(const at::Tensor& x_td, const ExpertRows& rows, const at::Tensor& gates_tk, const StepContext& step);

  int64_t in_features() const override { return shape_.dim; }
  int64_t out_features() const override { return shape_.hidden; }
  void set_recipe(const LayerRecipe& recipe) override;
  // Another process adds the last one (nn/split.h).
  void drop_bias() { adds_bias_ = false; }
  // Keeps the experts of one of so many processes; before there is memory of them.
  void split(int64_t index, int64_t processes);
  std::vector<Parameter*> weights() override { return weights_; }
  const LinearRecipe& recipe() const override { return gate_up_.recipe; }
  const Shape& shape() const { return shape_; }
  std::string_view kind() const override { return "GroupedExperts"; }

 private:
  Shape shape_;
  std::vector<Parameter*> weights_;
  GroupedLinears gate_up_, down_;
  Parameter *gate_up_bias_ = nullptr, *down_bias_ = nullptr;
  bool adds_bias_ = true;
};

// How tokens choose their experts (platform.md 4.7).
struct Routing {
  enum class Score { softmax, sigmoid };
  int64_t experts = 0, top_k = 0;
  Score score = Score::softmax;
  bool normalize = false;  // gates of a token add up to 1
  double scale = 1;
  int64_t groups = 0, kept_groups = 0;  // above 0: choices lie in the groups with the largest sums of two scores
};

// Stays in the compute dtype unless a target names it: Linear does not mean it (numerics.md section 12).
class RouterGate : public Linear {
 public:
  using Linear::Linear;
  std::vector<std::string_view> class_names() const override { return {"RouterGate", "Module"}; }
  std::string_view kind() const override { return "RouterGate"; }
};

class Router : public Module {
 public:
  Router(int64_t dim, int64_t experts, Init init, bool bias);
  std::vector<std::string_view> class_names() const override { return {"Router", "Module"}; }
  RouterGate& gate;
};

// Mixture of experts: every token goes to top_k of the experts, and through the shared ones.
class MoE : public Module {
 public:
  struct Shape {
    int64_t dim = 0, hidden = 0;
    Routing routing;
    int64_t shared_hidden = 0;  // width of the shared experts, which are one FFN; 0: none
    bool clamped = false;       // GPT-OSS: biases of gate and experts, too
    double balance = 0;         // step of the auxiliary-loss-free balancing, in the optimizer's step (Wang et al. 2024); 0: off
    bool expert_bias = false;   // there is a bias for the choice: balanced, or as a checkpoint has it
    double aux_loss = 0,
           z_loss = 0;  // coefficients of Switch's balancing loss and the router's z-loss (Fedus et al. 2021, Zoph et al. 2022)
  };
  MoE(const Shape& shape, Init in, Init up, Init out);
  std::vector<std::string_view> class_names() const override { return {"MoE", "Module"}; }
  at::Tensor operator()(const Activation& x_td, const SequenceInfo& info);
  const Shape& shape() const { return shape_; }
  GroupedExperts& experts() { return experts_; }
  FeedForward* shared() { return shared_; }

  // Counts from here on.
  void prepare(at::Device device);
  // Of the tokens since the last call of balance(): how many went to each expert, fp64 [experts], and behind them the sum of the entropies
  // of the scores, in nats, the tokens, and the choices that found no room (Groups::expert_capacity). On the device of the weights.
  at::Tensor& load() { return load_; }
  // Moves the bias against the load, of which the sums over all processes are in load(), where `updated`, a boolean on the device, is true
  // or undefined; forgets the load.
  void balance(const at::Tensor& updated);
  Parameter* expert_bias() { return expert_bias_; }
  // Tokens go to the experts in turn, whatever the scores (debug.moe_force_load_balance).
  void force_balance() { force_balance_ = true; }

 private:
  Shape shape_;
  Router& router_;
  GroupedExperts& experts_;
  FeedForward* shared_ = nullptr;
  Parameter* expert_bias_ = nullptr;
  at::Tensor routed(const Activation& x_td, const SequenceInfo& info);  // what the experts make of them, without the shared ones
  void count(const at::Tensor& scores, const ExpertRows& rows, const at::Tensor& real, const at::Tensor& dropped);
  at::Tensor load_;
  bool force_balance_ = false;
};

// Leaves to this process the experts that are its part of all layers'. Error naming the fields where they do not divide.
void split_experts(Module& model, int64_t index, int64_t ranks);

}  // namespace halftone::nn
