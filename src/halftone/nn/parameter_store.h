#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "halftone/nn/module.h"
#include "halftone/ops/optimizer.h"

namespace halftone::nn {

// The number of ranks that shard every parameter of a kind, and this rank's index.
struct Shards {
  int64_t count = 1, index = 0;
};

// Equal shares in multiples of row_block: the last ones may be smaller or empty. With more ranks than experts, experts are split.
RowShard share_of(const Parameter& p, const Shards& shards);

// Parameters start on a 64-byte boundary of every buffer, whatever its element size: sizes are rounded up to 32 elements.
constexpr int64_t padded(int64_t elements) { return (elements + 31) / 32 * 32; }

struct StorageOptions {
  at::Device device = at::kCPU;
  at::ScalarType storage = at::kFloat;     // training.dtype
  at::ScalarType compute = at::kBFloat16;  // training.mixed_precision_param
  bool trainable = true;                   // false: no gradients (generation, evaluation)
  Shards shards, expert_shards;            // for parameters without and with Parameter::expert

  const Shards& shards_of(const Parameter& p) const { return p.expert ? expert_shards : shards; }
  std::function<bool(const Parameter&)> wanted{};  // which parameters this rank holds; null: all
  bool wants(const Parameter& p) const { return p.numel() > 0 && (!wanted || wanted(p)); }
};

// Whether ops read the parameter from a copy in the compute dtype. Quantisers read the master and round it themselves.
bool has_compute_copy(const Parameter& p, at::ScalarType storage, at::ScalarType compute);

// Storage of a model's parameters: one flat buffer per unit (embedding, every block, final norm with head), parameters in registration
// order, for masters, gradients and compute copies alike; sharding, the optimizer and collectives work on units. Weights stored as codes
// form units of their own ("layers.3.stored") with gradients but without masters. Weights of which GEMMs read only quantised copies form
// others ("layers.3.quantized") without compute copies.
// With sharded parameters (Parameter::shard) the buffers hold this rank's shards, each padded to the size of the largest; the gatherer
// (parallel/data_parallel.h) points `weight` at the gathered tensors.
class ParameterStore {
 public:
  struct Unit {
    std::string name;  // "tok_embeddings", "layers.3", "norm"
    FlatParameters flat;
    std::unique_ptr<GradientBuffer> gradients;  // of flat.grad
    std::vector<Parameter*> parameters;
  };

  // Allocates the buffers and points every parameter's `master` and `weight` into them; contents are undefined until initialize() or a
  // checkpoint fills them.
  void materialize(Module& model, const StorageOptions& options);
  // Lower bound of its memory, from shapes alone.
  static int64_t least_bytes(Module& model, const StorageOptions& options);
  static int64_t least_numel(Module& model, const StorageOptions& options);
  // Counter-based initial values: identical on every device, mesh and thread count.
  void initialize(uint64_t seed);
  static void initialize(Parameter& p, uint64_t seed);  // a single one; call masters_changed() afterwards
  // After masters changed: refreshes the compute copies; packed weights are rebuilt on next use.
  void masters_changed();
  void bump_versions();
  // Marks gradients stale, as after an optimizer step that does not zero them; `release` frees their memory.
  void gradients_are_stale(bool release = true);
  void gradients_are_written();  // all of them, by a graph's replay
  void complete_gradients();     // zeroes the gradients that have not been written since

  std::function<void()> on_change;  // called when an optimizer or a checkpoint has changed weights

  std::vector<Unit>& units() { return units_; }
  const std::vector<Unit>& units() const { return units_; }
  const std::vector<Parameter*>& parameters() const { return parameters_; }
  int64_t numel() const;  // of the model, whatever this rank holds

 private:
  static void materialize(Unit& unit, const StorageOptions& options);
  std::vector<Unit> units_;
  std::vector<Parameter*> parameters_;
};

}  // namespace halftone::nn
