#pragma once
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "halftone/nn/parameter.h"

namespace halftone::nn {

class Port;

// A node of the model tree: owns parameters and children, knows its fully qualified name once the root is named.
class Module {
 public:
  Module() = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;
  virtual ~Module() = default;

  // Exact class names that recipe targets may use, the module's own first, then its bases (numerics.md section 12).
  virtual std::vector<std::string_view> class_names() const { return {"Module"}; }
  const std::string& fqn() const { return fqn_; }

  // Names this subtree ("" for a model's root) and its parameters; called by the finished model, and again by a module that
  // a recipe has given more parameters.
  void assign_names(const std::string& fqn);
  // Marks what is stored, updated and run as one: the embedding, a block, the final norm with the head. A model calls it before
  // assign_names, which passes the unit on to everything inside.
  void make_unit(std::string name, int64_t block = -1) { unit_ = std::move(name), block_ = block; }
  int64_t block() const { return block_; }  // index of its block, -1 outside the blocks
  // Where its rows enter and leave; null: the port that does nothing.
  void set_port(std::shared_ptr<const Port> port) { port_ = std::move(port); }
  bool has_port() const { return port_ != nullptr; }
  const Port& port() const;
  void for_each_module(const std::function<void(Module&)>& f);
  void for_each_parameter(const std::function<void(Parameter&)>& f);  // in order of registration, which is checkpoint order

 protected:
  Parameter& add_parameter(std::string name, std::vector<int64_t> shape, Init init);
  template <class M, class... Args>
  M& add(std::string name, Args&&... args) {
    auto child = std::make_unique<M>(std::forward<Args>(args)...);
    M& reference = *child;
    children_.emplace_back(std::move(name), std::move(child));
    return reference;
  }

 private:
  std::string fqn_, unit_;
  int64_t block_ = -1;
  std::shared_ptr<const Port> port_;
  std::deque<Parameter> parameters_;  // stable addresses
  std::vector<std::pair<std::string, std::unique_ptr<Module>>> children_;
};

}  // namespace halftone::nn
