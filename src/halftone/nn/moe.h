#pragma once
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "halftone/nn/layers.h"
#include "halftone/nn/quantizable.h"
#include "halftone/ops/grouped_linear.h"

namespace halftone::nn {

// The weights of a layer's experts and their computation on the rows routed to them: w2(silu(w1 x) * w3 x), or GPT-OSS's mlp2(act(mlp1 x
// + b1)) + b2 with the activation of fused/expert_rows.h (ClampedSwiglu). All experts share one recipe.
class GroupedExperts : public QuantizableLayer {
 public:
  struct Shape {
    int64_t dim, hidden, experts;
    bool clamped = false;  // GPT-OSS: gate and up interleaved in one weight, biases, the clamped activation
  };
  GroupedExperts(const Shape& shape, Init gate, Init up, Init down);
  std::vector<std::string_view> class_names() const override;
  // [T, D] -> [T, D]: the sum of each token's expert outputs, times their gates [T, k] if given.
  at::Tensor operator()(const at::Tensor& x_td, const ExpertRows& rows, const at::Tensor& gates_tk, const StepContext& step);

  int64_t in_features() const override { return shape_.dim; }
  int64_t out_features() const override { return shape_.hidden; }
  void set_recipe(const LayerRecipe& recipe) override;
  // Another process adds the last bias.
  void drop_bias() { adds_bias_ = false; }
  // Keeps the experts of process `index` of `processes`; call before materialisation.
  void split(int64_t index, int64_t processes);
  std::vector<Parameter*> weights() override { return weights_; }
  const LinearRecipe& recipe() const override { return gate_up_.recipe; }
  const Shape& shape() const { return shape_; }
  std::string_view kind() const override { return "GroupedExperts"; }

 private:
  Shape shape_;
  std::vector<Parameter*> weights_;
  FusedLinears gate_up_, down_;
  Parameter *gate_up_bias_ = nullptr, *down_bias_ = nullptr;
  bool adds_bias_ = true;
};

// How tokens choose their experts (platform.md 4.7).
struct Routing {
  enum class Score { softmax, sigmoid };
  int64_t experts = 0, top_k = 0;
  Score score = Score::softmax;
  bool normalize = false;  // gates of a token sum to 1
  double scale = 1;
  int64_t groups = 0, kept_groups = 0;  // above 0: selects only from the groups with the largest sum of their two best scores
};

// Stays in the compute dtype unless a target names it: targets for Linear skip it (numerics.md section 12).
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

// Tokens on their way to experts of other processes, and back.
struct Dispatch {
  ExpertRows received;  // the rows that came here, one per token, and their placement among this process's experts
  at::Tensor kept;      // fp32 [T, k]: 0 for choices dropped over capacity, else 1; undefined: none dropped
  at::Tensor dropped;   // number of dropped choices: a scalar on the device
  std::function<at::Tensor(const at::Tensor& x_td)> send;                                 // -> [received.tokens, D]
  std::function<at::Tensor(const at::Tensor& y_td, const at::Tensor& gates_tk)> combine;  // outputs of `received` -> [T, D]
};
// placed: the choices `expert`, int32 [T, k], among all experts.
using ExpertPort = std::function<Dispatch(const ExpertRows& placed, const at::Tensor& expert_tk)>;

// Mixture of experts: every token goes to top_k experts, and through the shared ones. Shared experts without a port of their own compute
// with the rows of this layer's.
class MoE : public Module {
 public:
  struct Shape {
    int64_t dim = 0, hidden = 0;
    Routing routing;
    int64_t shared_hidden = 0;  // total width of the shared experts, which run as one FFN; 0: none
    bool clamped = false;       // GPT-OSS: the gate and the experts have biases too
    double balance = 0;         // step of the auxiliary-loss-free balancing, in the optimizer's step (Wang et al. 2024); 0: off
    bool expert_bias = false;   // there is a selection bias: for balancing, or from a checkpoint
    double aux_loss = 0,
           z_loss = 0;  // coefficients of Switch's balancing loss and the router's z-loss (Fedus et al. 2021, Zoph et al. 2022)
  };
  MoE(const Shape& shape, Init in, Init up, Init out);
  std::vector<std::string_view> class_names() const override { return {"MoE", "Module"}; }
  at::Tensor operator()(const Activation& x_td, const SequenceInfo& info);
  const Shape& shape() const { return shape_; }
  GroupedExperts& experts() { return experts_; }
  FeedForward* shared() { return shared_; }

  // Empty: this process has all experts.
  void set_dispatch(ExpertPort port) { dispatch_ = std::move(port); }
  // Starts counting.
  void prepare(at::Device device);
  // Statistics of the tokens since the last balance(): tokens per expert, fp64 [experts]; then the sum of the scores' entropies in nats,
  // the token count, and the choices dropped over capacity (Dispatch::dropped). On the weights' device.
  at::Tensor& load() { return load_; }
  // Moves the bias against the load, then clears the load. load() must hold the sums over all ranks. Applies only if `updated`, a boolean
  // on the device, is true or undefined.
  void balance(const at::Tensor& updated);
  Parameter* expert_bias() { return expert_bias_; }
  // Assigns tokens to experts round-robin, whatever the scores (debug.moe_force_load_balance).
  void force_balance() { force_balance_ = true; }

 private:
  Shape shape_;
  Router& router_;
  GroupedExperts& experts_;
  FeedForward* shared_ = nullptr;
  Parameter* expert_bias_ = nullptr;
  ExpertPort dispatch_;
  at::Tensor routed(const Activation& x_td, const SequenceInfo& info);  // what the experts make of them, without the shared ones
  void count(const at::Tensor& scores, const ExpertRows& rows, const at::Tensor& real, const at::Tensor& dropped);
  at::Tensor load_;
  bool force_balance_ = false;
};

}  // namespace halftone::nn
