#include "halftone/nn/module.h"

#include "halftone/nn/port.h"

namespace halftone::nn {

const Port& Module::port() const {
  static const Port kNone;
  return port_ != nullptr ? *port_ : kNone;
}

void Module::assign_names(const std::string& fqn) {
  fqn_ = fqn;
  const std::string prefix = fqn.empty() ? "" : fqn + ".";
  for (Parameter& p : parameters_) {
    p.fqn = p.weight.name = prefix + p.name, p.unit = unit_, p.block = block_;
  }
  for (auto& [name, child] : children_) {
    if (child->unit_.empty()) child->make_unit(unit_, block_);
    child->assign_names(prefix + name);
  }
}

void Module::for_each_module(const std::function<void(Module&)>& f) {
  f(*this);
  for (auto& [name, child] : children_) child->for_each_module(f);
}

void Module::for_each_parameter(const std::function<void(Parameter&)>& f) {
  for (Parameter& p : parameters_) f(p);
  for (auto& [name, child] : children_) child->for_each_parameter(f);
}

Parameter& Module::add_parameter(std::string name, std::vector<int64_t> shape, Init init) {
  Parameter& p = parameters_.emplace_back();
  p.name = p.fqn = std::move(name), p.shape = std::move(shape), p.init = init;
  return p;
}

}  // namespace halftone::nn
