#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "halftone/base/error.h"

namespace halftone {

using torch::autograd::variable_list;

// Backward of one op: `backward` owns what the op saved (plain tensors without autograd history) and maps the gradients of the outputs to
// those of the inputs passed to `connect`, undefined for inputs without one.
class AutogradNode final : public torch::autograd::Node {
 public:
  using Backward = std::function<variable_list(const variable_list&)>;
  AutogradNode(std::string name, Backward backward) : name_(std::move(name)), backward_(std::move(backward)) {}
  std::string name() const override { return name_; }
  variable_list apply(variable_list&& grads) override {
    at::NoGradGuard no_grad;
    check(backward_ != nullptr, "{}: the backward pass ran twice; keep the graph in the first one (retain_graph) to run it again", name_);
    return backward_(grads);
  }
  void release_variables() override { backward_ = nullptr; }

 private:
  std::string name_;
  Backward backward_;
};

// Whether autograd records an op on any of the inputs.
template <class... T>
bool records(const T&... inputs) {
  return at::GradMode::is_enabled() && (... || (inputs.defined() && inputs.requires_grad()));
}

inline bool records(const std::vector<at::Tensor>& inputs) {
  return at::GradMode::is_enabled() && std::any_of(inputs.begin(), inputs.end(), [](const at::Tensor& t) { return t.requires_grad(); });
}

// Makes `outputs` the results of a node with the given inputs. Outputs must be fresh tensors, not views of an input.
inline void connect(std::string name, const std::vector<at::Tensor>& inputs, std::vector<at::Tensor*> outputs,
                    AutogradNode::Backward backward) {
  auto node = std::shared_ptr<AutogradNode>(new AutogradNode(std::move(name), std::move(backward)), torch::autograd::deleteNode);
  torch::autograd::edge_list edges;
  edges.reserve(inputs.size());
  for (const at::Tensor& t : inputs) {
    edges.push_back(t.defined() ? torch::autograd::impl::gradient_edge(t) : torch::autograd::Edge{});
  }
  node->set_next_edges(std::move(edges));
  for (at::Tensor* out : outputs) torch::autograd::create_gradient_edge(*out, node);
}

// forward(x) of an op whose gradient does not depend on the values of x: backward(dy) is the gradient of x.
template <class Forward, class Backward>
at::Tensor linear_op(const char* name, const at::Tensor& x, Forward&& forward, Backward backward) {
  at::Tensor out;
  {
    at::NoGradGuard no_grad;
    out = forward(x.detach());
  }
  if (records(x))
    connect(name, {x}, {&out}, [backward = std::move(backward)](const variable_list& g) -> variable_list { return {backward(g[0])}; });
  return out;
}

}  // namespace halftone
