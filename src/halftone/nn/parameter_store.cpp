#include "halftone/nn/parameter_store.h"

#include <ATen/Functions.h>

#include <algorithm>

#include "halftone/base/error.h"
#include "halftone/base/philox.h"
#include "halftone/ops/init.h"
#include "halftone/ops/range.h"
#include "halftone/ops/stored_weight.h"

namespace halftone::nn {
namespace {

// Draws the elements of `values`, a part of the model's parameter.
void fill_part(const Parameter& p, at::Tensor& values, const PhiloxKey& key) {
  const double cut = p.init.kind == Init::Kind::normal ? 0 : p.init.cut;
  const std::vector<int64_t> whole = p.whole_shape(), local = p.local_shape(), first = p.first();
  const int64_t row = p.whole_numel() / whole[0];
  if (std::equal(whole.begin() + 1, whole.end(), local.begin() + 1)) return fill_normal(values, key, p.init.std, cut, first[0] * row);
  // Full rows, a few MiB at a time.
  constexpr int64_t kElements = 1 << 20;
  const int64_t rows = values.size(0), step = std::max<int64_t>(1, kElements / row);
  for (int64_t r = 0; r < rows; r += step) {
    std::vector<int64_t> shape = whole;
    shape[0] = std::min(step, rows - r);
    at::Tensor drawn = at::empty(shape, values.options());
    fill_normal(drawn, key, p.init.std, cut, (first[0] + r) * row);
    for (size_t d = 1; d < whole.size(); ++d) drawn = drawn.narrow(static_cast<int64_t>(d), first[d], local[d]);
    values.narrow(0, r, shape[0]).copy_(drawn);
  }
}

bool reads_copy(const Parameter& p, const StorageOptions& o) {
  if (o.shards_of(p).count > 1) return !p.stored_as && o.compute != o.storage;  // the copy is what is all-gathered
  return has_compute_copy(p, o.storage, o.compute);
}

}  // namespace

RowShard share_of(const Parameter& p, const Shards& shards) {
  RowShard s;
  const bool experts = p.shape.size() == 3;
  if (experts && p.shape[0] < shards.count) {
    s.pieces = shards.count / p.shape[0];
    while (s.pieces > 1 && p.shape[1] % (s.pieces * p.row_block) != 0) --s.pieces;
  }
  const int64_t rows = p.shape[0] * s.pieces, block = experts ? 1 : p.row_block, blocks = (rows + block - 1) / block;
  s.most = (blocks + shards.count - 1) / shards.count * block;
  s.first = std::min(rows, shards.index * s.most), s.rows = std::min(rows - s.first, s.most);
  return s;
}

bool has_compute_copy(const Parameter& p, at::ScalarType storage, at::ScalarType compute) {
  if (p.stored_as || compute == storage) return false;
  return !p.codes_alone || storage != at::kFloat || compute != at::kBFloat16;
}

int64_t Parameter::whole_numel() const {
  int64_t n = 1;
  for (const int64_t s : whole_shape()) n *= s;
  return n;
}

int64_t Parameter::first_index() const {
  const int64_t row = whole_numel() / whole_shape()[0], of_shard = row / (shard ? shard->pieces : 1), rows = local_shape()[0];
  int64_t index = shard ? shard->first * of_shard : 0;
  for (const DimPart& part : parts) index += part.dim == 0 ? part.first * row : rows * of_shard * part.first / part.whole;
  return index;
}

std::vector<int64_t> Parameter::first() const {
  std::vector<int64_t> place(shape.size(), 0);
  for (const DimPart& part : parts) place[static_cast<size_t>(part.dim)] += part.first;
  if (!shard) return place;
  place[0] += shard->first / shard->pieces;
  if (shard->pieces > 1) place[1] += shard->first % shard->pieces * row_shape()[1];
  return place;
}

at::Tensor Parameter::values() const {
  const StoredWeight* s = stored();
  if (s == nullptr) return master;
  return local_shape()[0] > 0 ? dequantize(*s) : at::empty(local_shape(), s->scales.options());
}

void ParameterStore::materialize(Module& model, const StorageOptions& options) {
  check(units_.empty(), "parameters are already materialised");
  model.for_each_parameter([&](Parameter& p) {
    if (!options.wants(p)) return;
    if (p.buffer) {
      p.master = p.weight.value = at::zeros(p.shape, at::TensorOptions().device(options.device).dtype(at::kFloat));
      parameters_.push_back(&p);
      return;
    }
    if (options.shards_of(p).count > 1) p.shard = share_of(p, options.shards_of(p));
    // Stored weights have no masters and quantised ones no compute copies: each kind forms units of its own.
    const bool plain = options.compute == options.storage || reads_copy(p, options);
    const std::string name = p.unit + (p.stored_as ? ".stored" : plain ? "" : ".quantized");
    auto unit = std::find_if(units_.rbegin(), units_.rend(), [&](const Unit& u) { return u.name == name; });
    if (unit == units_.rend()) {
      units_.emplace_back().name = name;
      unit = units_.rbegin();
    }
    unit->parameters.push_back(&p);
    parameters_.push_back(&p);
  });
  for (Unit& unit : units_) materialize(unit, options);
}

void ParameterStore::materialize(Unit& unit, const StorageOptions& options) {
  const auto room = [](const Parameter& p) { return p.shard ? p.shard->most * p.row_length() : p.numel(); };
  const auto buffer = [&](int64_t n, at::ScalarType type) {
    return at::zeros({n}, at::TensorOptions().device(options.device).dtype(type));
  };
  int64_t total = 0;
  for (const Parameter* p : unit.parameters) total += padded(room(*p));
  const bool stored = unit.parameters.front()->stored_as.has_value(), copy = reads_copy(*unit.parameters.front(), options),
             empty = stored || (!copy && options.compute != options.storage);
  if (!stored) {
    const Owner owner("weights");
    unit.flat.param = buffer(total, options.storage);
  }
  if (copy) {
    const Owner owner("weights' copy");
    unit.flat.compute = buffer(total, options.compute);
  }
  if (options.trainable) {
    const Owner owner("gradients");
    unit.flat.grad = buffer(total, at::kFloat);
    unit.gradients = std::make_unique<GradientBuffer>(unit.flat.grad);
  }
  int64_t offset = 0;
  for (Parameter* p : unit.parameters) {
    p->offset = offset;
    const std::vector<int64_t> shape = p->local_shape();
    const int64_t held = p->held();
    const auto cut = [&](const at::Tensor& t) { return t.narrow(0, offset, held).view(shape); };
    if (empty) p->weight.value = buffer(1, options.compute).expand(p->shape).detach();
    if (stored) {
      const Owner owner("weights stored as codes");
      std::shared_ptr<StoredWeight>& codes = p->shard ? p->stored_shard : p->weight.stored;
      codes = std::make_shared<StoredWeight>(allocate_stored(*p->stored_as, shape[0], shape[1], options.device));
      unit.flat.stored.push_back(codes.get());
    } else {
      p->master = cut(unit.flat.param);
      if (!p->shard && empty) p->weight.master = p->master;
      if (!p->shard && !empty) p->weight.value = copy ? cut(unit.flat.compute) : p->master.detach();
    }
    if (options.trainable) {
      if (!p->shard) p->weight.grad = cut(unit.flat.grad), p->weight.grad_buffer = unit.gradients.get();
      if (padded(room(*p)) > held) unit.gradients->add_gap(offset + held, padded(room(*p)) - held);
      if (!p->shard) p->weight.value.set_requires_grad(true);
    }
    offset += padded(room(*p));
  }
}

int64_t ParameterStore::least_bytes(Module& model, const StorageOptions& options) {
  int64_t bytes = 0;
  const auto width = [](at::ScalarType type) { return static_cast<int64_t>(c10::elementSize(type)); };
  model.for_each_parameter([&](Parameter& p) {
    if (!options.wants(p)) return;
    const int64_t held = p.numel() / options.shards_of(p).count;
    // Stored weights have at least four bits per element.
    bytes += p.stored_as ? held / 2 : held * width(options.storage);
    if (reads_copy(p, options)) bytes += held * width(options.compute);
    if (options.trainable) bytes += held * width(at::kFloat);
  });
  return bytes;
}

int64_t ParameterStore::least_numel(Module& model, const StorageOptions& options) {
  int64_t n = 0;
  model.for_each_parameter([&](Parameter& p) { n += p.buffer || !options.wants(p) ? 0 : p.numel() / options.shards_of(p).count; });
  return n;
}

void ParameterStore::initialize(Parameter& p, uint64_t seed) {
  StoredWeight* stored = p.stored();
  if (p.local_shape()[0] == 0) return;
  at::Tensor values = stored != nullptr ? at::empty(p.local_shape(), p.weight.value.options().dtype(at::kFloat)) : p.master;
  switch (p.init.kind) {
    case Init::Kind::ones:
      values.fill_(1);
      break;
    case Init::Kind::zeros:
      values.zero_();
      break;
    case Init::Kind::normal:
    case Init::Kind::truncated_normal:
      fill_part(p, values, philox_key(seed, p.fqn + "#init"));
      break;
  }
  if (stored != nullptr) halftone::store(values, {}, *stored);
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
  if (on_change) on_change();
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
  for (const Parameter* p : parameters_) n += p->whole_numel();
  return n;
}

}  // namespace halftone::nn
