#include "halftone/nn/parameter_store.h"

#include <ATen/Functions.h>

#include "halftone/base/error.h"
#include "halftone/base/philox.h"
#include "halftone/ops/init.h"

namespace halftone::nn {
namespace {

std::string unit_name(const std::string& fqn) {
  const size_t dot = fqn.find('.');
  const std::string first = fqn.substr(0, dot);
  if (first == "output") return "norm";  // final norm and head travel together
  return first == "layers" ? fqn.substr(0, fqn.find('.', dot + 1)) : first;
}

// Parameters start on a 64-byte boundary of every buffer, whatever its element size.
constexpr int64_t kAlign = 32;
int64_t padded(int64_t n) { return (n + kAlign - 1) / kAlign * kAlign; }

}  // namespace

void ParameterStore::materialize(Module& model, const StorageOptions& options) {
  check(units_.empty(), "parameters are already materialised");
  model.for_each_parameter([&](Parameter& p) {
    if (p.numel() == 0) return;
    const std::string name = unit_name(p.fqn);
    if (units_.empty() || units_.back().name != name) units_.push_back({name, {}, {}});
    units_.back().parameters.push_back(&p);
    parameters_.push_back(&p);
  });
  const auto buffer = [&](int64_t n, at::ScalarType type) {
    return at::zeros({n}, at::TensorOptions().device(options.device).dtype(type));
  };
  for (Unit& unit : units_) {
    int64_t total = 0;
    for (const Parameter* p : unit.parameters) total += padded(p->numel());
    unit.flat.param = buffer(total, options.storage);
    const bool copy = options.compute != options.storage;
    if (copy) unit.flat.compute = buffer(total, options.compute);
    if (options.trainable) unit.flat.grad = buffer(total, at::kFloat);
    int64_t offset = 0;
    for (Parameter* p : unit.parameters) {
      const auto cut = [&](const at::Tensor& t) { return t.narrow(0, offset, p->numel()).view(p->shape); };
      p->master = cut(unit.flat.param);
      p->weight.value = copy ? cut(unit.flat.compute) : p->master.detach();
      if (options.trainable) {
        p->weight.grad = cut(unit.flat.grad);
        p->weight.value.set_requires_grad(true);
      }
      offset += padded(p->numel());
    }
  }
}

void ParameterStore::initialize(uint64_t seed) {
  for (Parameter* p : parameters_) {
    const Init& init = p->init;
    switch (init.kind) {
      case Init::Kind::ones:
        p->master.fill_(1);
        break;
      case Init::Kind::zeros:
        p->master.zero_();
        break;
      case Init::Kind::normal:
      case Init::Kind::truncated_normal:
        fill_normal(p->master, philox_key(seed, p->fqn + "#init"), init.std, init.kind == Init::Kind::normal ? 0 : init.cut);
        break;
    }
  }
  masters_changed();
}

void ParameterStore::masters_changed() {
  for (Unit& unit : units_) refresh_compute_copy(unit.flat);
  bump_versions();
}

void ParameterStore::bump_versions() {
  for (Parameter* p : parameters_) ++p->weight.version;
}

int64_t ParameterStore::numel() const {
  int64_t n = 0;
  for (const Parameter* p : parameters_) n += p->numel();
  return n;
}

}  // namespace halftone::nn
