#include "halftone/parallel/data_parallel.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "halftone/base/error.h"
#include "halftone/ops/range.h"
#include "halftone/ops/stored_weight.h"

namespace halftone::parallel {
namespace {

using nn::padded;  // parameters adjacent in the store are adjacent here

// Elements of a parameter with every shard padded to the size of the largest.
int64_t room(const nn::Parameter& p, int64_t shards) { return shards * p.shard->most * p.row_length(); }

bool is_even(const nn::Parameter& p, int64_t shards) { return shards * p.shard->most == p.row_shape()[0]; }

}  // namespace

std::unique_ptr<comm::Communicator> communicator(comm::Watch& watch, const char* name, std::vector<int64_t> ranks, at::Device device) {
  if (ranks.size() == 1) return nullptr;
  return std::make_unique<comm::Communicator>(watch, name, std::move(ranks), device);
}

bool reshards(const ParallelismConfig& p) {
  return p.fsdp_reshard_after_forward == "always" || (p.fsdp_reshard_after_forward == "default" && p.pipeline_parallel_degree == 1);
}

DataParallel::DataParallel(comm::Watch& watch, const Mesh& mesh, const DataParallelOptions& options) : options_(options) {
  const int64_t rank = watch.rank();
  const auto domain = [&](const char* axis) {
    const auto open = [&](const char* use) {
      return communicator(watch, fmt::format("{} {}", axis, use).c_str(), mesh.ranks(rank, axis), options.device);
    };
    return Domain{open("gathers"), open("reductions")};
  };
  dense_ = domain("fsdp");
  if (mesh.size("ep") > 1) experts_ = domain("efsdp");
  replicas_ = communicator(watch, "dp_replicate", mesh.ranks(rank, "dp_replicate"), options.device);
  world_ = communicator(watch, "world", mesh.ranks(rank, "world"), options.device);
  first_replica_ = mesh.coordinate(rank, "dp_replicate") == 0;
}

void DataParallel::attach(nn::Model& model, nn::ParameterStore& store, const nn::StorageOptions& storage) {
  head_ = model.blocks() + 1;
  groups_.clear(), places_.assign(static_cast<size_t>(head_ + 1), {});
  tied_ = model.size().tied;
  for (nn::ParameterStore::Unit& unit : store.units()) {
    const int64_t of_model = nn::place_of(*unit.parameters.front(), model.blocks());
    std::vector<Group*>& place = places_[static_cast<size_t>(tied_ && of_model == head_ ? 0 : of_model)];
    const Domain* domain = unit.parameters.front()->expert ? &experts_ : &dense_;
    auto group = std::ranges::find(place, domain, &Group::domain);
    if (group == place.end()) {
      groups_.emplace_back().domain = domain;
      group = place.insert(place.end(), &groups_.back());
    }
    (*group)->units.push_back(&unit);
    for (nn::Parameter* p : unit.parameters) (*group)->parameters.push_back(p);
  }
  if (!sharded()) return;
  assign_slots(storage);
  for (Group& group : groups_) {
    if (group.domain->sharded()) bind(group, storage);
  }
  store.on_change = [this] { weights_changed(); };
}

void DataParallel::assign_slots(const nn::StorageOptions& storage) {
  const size_t blocks = 2;
  for (size_t i = 0; i < places_.size(); ++i) {
    const bool block = i > 0 && static_cast<int64_t>(i) < head_;
    for (Group* group : places_[i]) {
      if (!group->domain->sharded()) continue;
      const size_t number = 2 * (!options_.reshard ? i : block ? i % blocks : blocks) + (group->domain == &experts_ ? 1 : 0);
      while (slots_.size() <= number) slots_.push_back(std::make_unique<Slot>());
      group->slot = slots_[number].get();
    }
  }
  for (const auto& slot : slots_) {
    int64_t weights = 0, gradients = 0;
    for (const Group& group : groups_) {
      if (group.slot != slot.get()) continue;
      int64_t all = 0, gathered = 0;
      for (const nn::Parameter* p : group.parameters) {
        const int64_t shards = group.domain->shards().count;
        const int64_t place = padded(p->numel()) + (is_even(*p, shards) ? 0 : padded(room(*p, shards)));
        all += place;
        if (!p->stored_as) gathered += place;
      }
      weights = std::max(weights, gathered), gradients = std::max(gradients, all);
    }
    const at::TensorOptions where = at::TensorOptions().device(options_.device);
    {
      const Owner owner("gathered weights");
      slot->weights = at::zeros({weights}, where.dtype(storage.compute));
    }
    if (!storage.trainable) continue;
    const Owner owner("gradients before they are shared out");
    slot->gradients = at::zeros({gradients}, where.dtype(at::kFloat));
    if (options_.reduce != at::kFloat) slot->rounded = at::zeros({gradients}, where.dtype(options_.reduce));
  }
}

void DataParallel::bind(Group& group, const nn::StorageOptions& storage) {
  const auto [shards, shard] = group.domain->shards();
  int64_t weights = 0, gradients = 0;
  for (const nn::Parameter* p : group.parameters) {
    gradients += padded(p->numel());
    if (!p->stored_as) weights += padded(p->numel());
  }
  // Offsets at which all shards' rows are gathered or reduced; `uneven`: in the area where the rows of a parameter are padded per shard.
  struct Places {
    int64_t next = 0, uneven = 0;
  } weight_at{0, weights}, gradient_at{0, gradients};
  for (nn::ParameterStore::Unit* unit : group.units) {
    const at::Tensor& held = unit->flat.compute.defined() ? unit->flat.compute : unit->flat.param;
    for (nn::Parameter* p : unit->parameters) {
      const int64_t all = room(*p, shards), own = all / shards;
      // {tensor that a collective moves, its valid rows}
      const auto place = [&, shards = shards](const at::Tensor& flat, Places& at) {
        std::vector<int64_t> shape = p->row_shape();
        const at::Tensor rows = flat.narrow(0, at.next, p->numel()).view(shape);
        shape[0] = shards * p->shard->most;
        at.next += padded(p->numel());
        if (is_even(*p, shards)) return std::pair(rows, rows);
        const at::Tensor moved = flat.narrow(0, at.uneven, all).view(shape);
        at.uneven += padded(all);
        return std::pair(moved, rows);
      };
      if (p->stored_as) {
        StoredWeight full = allocate_stored(*p->stored_as, shards * p->shard->most, p->shape[1], options_.device);
        p->weight.stored = std::make_shared<StoredWeight>(full);
        for (at::Tensor StoredWeight::*part : {&StoredWeight::codes, &StoredWeight::scales, &StoredWeight::zeros}) {
          const at::Tensor rows = full.*part;
          if (!rows.defined()) continue;
          group.codes.push_back(rows);
          group.own_codes.push_back(rows.narrow(0, shard * p->shard->most, p->shard->most));
          (*p->stored_shard).*part = group.own_codes.back().narrow(0, 0, p->shard->rows);
          (*p->weight.stored).*part = rows.narrow(0, 0, p->shape[0]);
        }
      } else {
        const auto [moved, rows] = place(group.slot->weights, weight_at);
        group.whole.push_back(moved);
        group.parts.push_back(held.narrow(0, p->offset, own));
        if (!moved.is_same(rows)) group.uneven_weights.emplace_back(moved.narrow(0, 0, rows.size(0)), rows);
        p->weight.value = rows.view(p->shape).detach();
      }
      if (!storage.trainable) continue;
      const auto [moved, rows] = place(group.slot->gradients, gradient_at);
      group.full_gradients.push_back(moved);
      group.gradients.push_back(unit->flat.grad.narrow(0, p->offset, own));
      if (!moved.is_same(rows)) group.uneven_gradients.emplace_back(moved, rows);
      p->weight.grad = rows.view(p->shape);
      p->weight.value.set_requires_grad(true);
    }
  }
}

void DataParallel::gather(Group& group) {
  if (group.slot == nullptr || group.slot->holds == &group) return;
  if (group.slot->holds != nullptr) await(*group.slot->holds);
  group.slot->holds = &group;
  std::vector<at::Tensor> whole = group.whole, parts = group.parts;
  if (group.codes_are_old) {
    whole.insert(whole.end(), group.codes.begin(), group.codes.end());
    parts.insert(parts.end(), group.own_codes.begin(), group.own_codes.end());
  }
  group.codes_are_old = false;
  if (!whole.empty()) group.gather.emplace(group.domain->gathers->all_gather(whole, parts));
}

void DataParallel::await(Group& group) {
  if (!group.gather) return;
  group.gather->wait();
  group.gather.reset();
  for (auto& [moved, rows] : group.uneven_weights) rows.copy_(moved);
}

void DataParallel::gather_unit(int64_t unit, int64_t next) {
  const std::vector<Group*>& groups = groups_of(unit);
  for (Group* group : groups) gather(*group);
  for (Group* group : groups) await(*group);
  // Prefetches the next unit while this one computes.
  if (next < 0 || next > head_) return;
  for (Group* group : groups_of(next)) {
    if (std::ranges::find(groups, group->slot, &Group::slot) == groups.end()) gather(*group);
  }
}

void DataParallel::before_forward(int64_t unit) {
  if (sharded()) gather_unit(unit, unit + 1);
}

void DataParallel::before_backward(int64_t unit) {
  if (!sharded()) return;
  if (unit > 0) gather_unit(unit, unit > 1 ? unit - 1 : -1);  // the embedding's backward does not read its table
  if (unit == 0 && tied_) return;
  for (Group* group : groups_of(unit)) begin_gradients(*group);
}

void DataParallel::begin_gradients(Group& group) {
  if (group.slot == nullptr) return;
  Slot& slot = *group.slot;
  if (slot.gradients_of != nullptr && slot.gradients_of != &group) settle(*slot.gradients_of);
  slot.gradients_of = &group;
  if (!options_.reshard && std::exchange(group.begun, true)) return;
  settle(group);
  for (nn::Parameter* p : group.parameters) p->weight.grad_is_stale = true;
}

void DataParallel::after_backward(int64_t unit) {
  if (tied_ && unit == head_) return;  // the embedding accumulates into them
  for (Group* group : groups_of(unit)) {
    if (last_pass_ || (group->domain->sharded() && options_.reshard)) reduce(*group);
  }
}

void DataParallel::reduce(Group& group) {
  for (nn::Parameter* p : group.parameters) p->weight.grad_to_add();
  if (group.slot == nullptr) return add_over_replicas(group);
  for (nn::ParameterStore::Unit* unit : group.units) unit->gradients->hold();
  for (auto& [moved, rows] : group.uneven_gradients) {
    moved.narrow(0, 0, rows.size(0)).copy_(rows);
    moved.narrow(0, rows.size(0), moved.size(0) - rows.size(0)).zero_();
  }
  std::vector<at::Tensor> from = group.full_gradients, to = group.gradients;
  at::Tensor part;
  if (group.reduced || options_.reduce != at::kFloat) {
    // One buffer for all: the host runs far ahead of the device and would allocate one per block.
    if (!group.slot->part.defined()) {
      const Owner owner("gradients before they are shared out");
      group.slot->part = at::empty({group.slot->gradients.numel() / group.domain->shards().count}, to[0].options().dtype(options_.reduce));
    }
    part = group.slot->part;
    int64_t at = 0;
    for (at::Tensor& t : to) {
      const int64_t n = t.numel();
      t = part.narrow(0, at, n), at += n;
    }
  }
  if (options_.reduce != at::kFloat) {
    for (at::Tensor& t : from) {
      const at::Tensor rounded = group.slot->rounded.narrow(0, t.storage_offset(), t.numel()).view(t.sizes());
      rounded.copy_(t);
      t = rounded;
    }
  }
  group.last = last_pass_;
  group.reductions.push_back({group.domain->reductions->reduce_scatter(to, from), part});
}

// All-reduces the units' gradients over replicas; nothing else to do with a single shard.
void DataParallel::add_over_replicas(Group& group) {
  if (!replicas_) return;
  for (nn::ParameterStore::Unit* unit : group.units) {
    at::Tensor sum = unit->flat.grad.to(options_.reduce);  // no copy in float32
    group.sums.push_back({replicas_->all_reduce(sum), options_.reduce == at::kFloat ? at::Tensor() : sum});
  }
}

// Completes the group's reductions into the store's gradients.
void DataParallel::settle(Group& group) {
  if (group.reductions.empty()) return;
  for (Reduction& r : group.reductions) {
    r.pending.wait();
    int64_t at = 0;
    for (at::Tensor& gradient : group.gradients) {
      if (!r.part.defined()) break;
      const at::Tensor part = r.part.narrow(0, at, gradient.numel());
      group.reduced ? gradient.add_(part) : gradient.copy_(part);
      at += gradient.numel();
    }
    group.reduced = true;
  }
  group.reductions.clear();
  if (group.last) add_over_replicas(group);
}

void DataParallel::begin_step() {
  for (Group& group : groups_) group.begun = group.reduced = false;
}

void DataParallel::finish_gradients() {
  for (Group& group : groups_) settle(group);
  for (Group& group : groups_) {
    for (size_t i = 0; i < group.sums.size(); ++i) {
      group.sums[i].pending.wait();
      if (group.sums[i].part.defined()) group.units[i]->flat.grad.copy_(group.sums[i].part);
    }
    group.sums.clear();
  }
}

void DataParallel::add_up(at::Tensor& numbers, int64_t labels) {
  if (!world_) return;
  if (!first_replica_) numbers[1].zero_();  // replicas hold the same shards as the first one
  at::Tensor all = at::zeros({2 + world_->size()}, numbers.options());
  all.narrow(0, 0, 2).copy_(numbers);
  if (labels > 0) all[2 + world_->index()].copy_(numbers[0]).div_(static_cast<double>(labels));
  world_->all_reduce(all).wait();
  numbers.copy_(all.narrow(0, 0, 2));
  rank_losses_ = all.narrow(0, 2, world_->size());
}

void DataParallel::sum(at::Tensor& numbers) {
  if (world_) world_->all_reduce(numbers).wait();
}

void DataParallel::largest(at::Tensor& numbers) {
  if (dense_.sharded()) dense_.reductions->all_reduce(numbers, comm::Reduce::max).wait();
}

void DataParallel::weights_changed() {
  for (const auto& slot : slots_) {
    if (slot->holds != nullptr) await(*slot->holds);
    slot->holds = nullptr;
  }
  for (Group& group : groups_) group.codes_are_old = true;
}

std::string DataParallel::text() const {
  const int64_t replicas = replicas_ ? replicas_->size() : 1;
  const char* reduce = options_.reduce == at::kFloat ? "float32" : "bfloat16";
  if (!sharded() && replicas == 1) return "no data parallelism";
  if (!sharded()) return fmt::format("DDP: {} replicas, all-reduce in {}", replicas, reduce);
  const std::string experts = experts_.sharded() ? fmt::format(", {} of experts", experts_.shards().count) : "";
  return fmt::format("{}: {} shards{}{}, weights {}, reduce-scatter in {}", replicas > 1 ? "HSDP" : "FSDP", shards().count, experts,
                     replicas > 1 ? fmt::format(" in each of {} replicas", replicas) : "",
                     options_.reshard ? "gathered per pass (ZeRO-3)" : "gathered once per step (ZeRO-2)", reduce);
}

}  // namespace halftone::parallel
