#include "halftone/nn/parameter_store.h"

#include <ATen/Functions.h>

#include <algorithm>

#include "halftone/base/error.h"
#include "halftone/base/philox.h"
#include "halftone/ops/init.h"
#include "halftone/ops/stored_weight.h"

namespace halftone::nn {
namespace {

// Parameters start on a 64-byte boundary of every buffer, whatever its element size.
constexpr int64_t kAlign = 32;
int64_t padded(int64_t n) { return (n + kAlign - 1) / kAlign * kAlign; }

}  // namespace

bool has_compute_copy(const Parameter& p, at::ScalarType storage, at::ScalarType compute) {
  if (p.stored_as || compute == storage) return false;
  return !p.codes_alone || storage != at::kFloat || compute != at::kBFloat16;
}

at::Tensor Parameter::values() const { return weight.stored ? dequantize(*weight.stored) : master; }

void ParameterStore::materialize(Module& model, const StorageOptions& options) {
  check(units_.empty(), "parameters are already materialised");
  model.for_each_parameter([&](Parameter& p) {
    if (p.numel() == 0) return;
    // Stored weights have no place in a buffer of masters, quantised ones none in one of copies: they make units of their own.
    const bool plain = options.compute == options.storage || has_compute_copy(p, options.storage, options.compute);
    const std::string name = p.unit + (p.stored_as ? ".stored" : plain ? "" : ".quantized");
    auto unit = std::find_if(units_.rbegin(), units_.rend(), [&](const Unit& u) { return u.name == name; });
    if (unit == units_.rend()) {
      units_.emplace_back().name = name;
      unit = units_.rbegin();
    }
    unit->parameters.push_back(&p);
    parameters_.push_back(&p);
  });
  const auto buffer = [&](int64_t n, at::ScalarType type) {
    return at::zeros({n}, at::TensorOptions().device(options.device).dtype(type));
  };
  for (Unit& unit : units_) {
    int64_t total = 0;
    for (const Parameter* p : unit.parameters) total += padded(p->numel());
    const bool stored = unit.parameters.front()->stored_as.has_value(),
               copy = has_compute_copy(*unit.parameters.front(), options.storage, options.compute),
               empty = stored || (!copy && options.compute != options.storage);
    if (!stored) unit.flat.param = buffer(total, options.storage);
    if (copy) unit.flat.compute = buffer(total, options.compute);
    if (options.trainable) {
      unit.flat.grad = buffer(total, at::kFloat);
      unit.gradients = std::make_unique<GradientBuffer>(unit.flat.grad);
    }
    int64_t offset = 0;
    for (Parameter* p : unit.parameters) {
      const auto cut = [&](const at::Tensor& t) { return t.narrow(0, offset, p->numel()).view(p->shape); };
      if (empty) p->weight.value = buffer(1, options.compute).expand(p->shape).detach();
      if (stored) {
        p->weight.stored = std::make_shared<StoredWeight>(allocate_stored(*p->stored_as, p->shape[0], p->shape[1], options.device));
        unit.flat.stored.push_back(p->weight.stored.get());
      } else {
        p->master = cut(unit.flat.param);
        if (empty) {
          p->weight.master = p->master;
        } else {
          p->weight.value = copy ? cut(unit.flat.compute) : p->master.detach();
        }
      }
      if (options.trainable) {
        p->weight.grad = cut(unit.flat.grad), p->weight.grad_buffer = unit.gradients.get();
        if (padded(p->numel()) > p->numel()) unit.gradients->add_gap(offset + p->numel(), padded(p->numel()) - p->numel());
        p->weight.value.set_requires_grad(true);
      }
      offset += padded(p->numel());
    }
  }
}

int64_t ParameterStore::least_bytes(Module& model, const StorageOptions& options) {
  int64_t bytes = 0;
  const auto width = [](at::ScalarType type) { return static_cast<int64_t>(c10::elementSize(type)); };
  model.for_each_parameter([&](Parameter& p) {
    // Stored weights have four bits an element or more.
    bytes += p.stored_as ? p.numel() / 2 : p.numel() * width(options.storage);
    if (has_compute_copy(p, options.storage, options.compute)) bytes += p.numel() * width(options.compute);
    if (options.trainable) bytes += p.numel() * width(at::kFloat);
  });
  return bytes;
}

void ParameterStore::initialize(Parameter& p, uint64_t seed) {
  at::Tensor values = p.weight.stored ? at::empty(p.shape, p.weight.value.options().dtype(at::kFloat)) : p.master;
  switch (p.init.kind) {
    case Init::Kind::ones:
      values.fill_(1);
      break;
    case Init::Kind::zeros:
      values.zero_();
      break;
    case Init::Kind::normal:
    case Init::Kind::truncated_normal:
      fill_normal(values, philox_key(seed, p.fqn + "#init"), p.init.std, p.init.kind == Init::Kind::normal ? 0 : p.init.cut);
      break;
  }
  if (p.weight.stored) store(values, {}, *p.weight.stored);
}

void ParameterStore::initialize(uint64_t seed) {
  for (Parameter* p : parameters_) initialize(*p, seed);
  masters_changed();
}

void ParameterStore::masters_changed() {
  for (Unit& unit : units_) refresh_compute_copy(unit.flat);
  bump_versions();
}

void ParameterStore::bump_versions() {
  for (Parameter* p : parameters_) ++p->weight.version;
}

void ParameterStore::gradients_are_stale(bool release) {
  for (Unit& unit : units_) {
    if (release && unit.gradients) unit.gradients->release();
  }
  for (Parameter* p : parameters_) p->weight.grad_is_stale = p->weight.trainable();
}

void ParameterStore::gradients_are_written() {
  for (Parameter* p : parameters_) p->weight.grad_is_stale = false;
}

void ParameterStore::complete_gradients() {
  for (Parameter* p : parameters_) p->weight.grad_to_add();
}

int64_t ParameterStore::numel() const {
  int64_t n = 0;
  for (const Parameter* p : parameters_) n += p->numel();
  return n;
}

}  // namespace halftone::nn
