#pragma once
#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "halftone/ops/weight.h"

namespace halftone::nn {

// Initial values of a parameter (platform.md 4.6); draws are keyed by (seed, fqn) and the global element index.
struct Init {
  enum class Kind { ones, zeros, normal, truncated_normal } kind = Kind::ones;
  double std = 0;
  double cut = 0;  // truncated_normal: bound on the absolute values
};

// The rows of a parameter that a rank holds when a group of ranks shards it.
struct RowShard {
  int64_t first = 0, rows = 0;  // the last ranks may have none
  int64_t most = 0;             // largest over all ranks; collectives move this many per rank
  int64_t pieces = 1;           // pieces into which dim 1 of each dim-0 row (an expert) is split; each piece then counts as a row
};

// This rank's slice of one dimension of the model's parameter (tensor and expert parallelism).
struct DimPart {
  int64_t dim = 0, first = 0, whole = 0;  // starts at `first`, of `whole`
};

// A parameter has a name, shape and initial distribution from the start, and storage only after ParameterStore::materialize: a model of
// any size can be described without memory.
struct Parameter {
  std::string name;  // inside its module
  std::string fqn;
  std::string unit;            // "tok_embeddings", "layers.3", "norm" (Module::make_unit)
  int64_t block = -1;          // Module::block
  std::vector<int64_t> shape;  // on this rank
  std::vector<DimPart> parts;  // slices of the model's parameter; none: all of it
  bool expert = false;         // of expert-parallel routed experts: sharded in a domain of its own
  bool replicated = true;      // not split over the ranks that compute layers together (SplitRule)
  bool summed = false;         // its gradient is a partial sum on each of those ranks, which are all-reduced
  Init init;
  int64_t row_block = 1;          // shards begin at multiples of it: the rows of a quantiser's block; for experts, within an expert
  std::optional<RowShard> shard;  // none: this rank holds all of it
  int64_t offset = 0;             // of this rank's part in its unit's flat buffers, in elements
  at::Tensor master;              // storage dtype; this rank's shard, a view into its unit's flat buffer; undefined for a stored weight
  std::shared_ptr<StoredWeight> stored_shard;  // shard of a stored weight; weight.stored has the gathered rows of all ranks
  Weight weight;                               // as the ops see it
  std::optional<OperandSpec> stored_as;        // int8_weight, int4_weight: exists as codes only
  bool codes_alone = false;                    // GEMMs read only its quantised copies
  bool buffer = false;                         // not trained, fp32, replicated on every rank, in no unit
  bool added = false;                          // by a recipe: not in checkpoints of the plain model; loading one takes
  std::string copy_of;                         // the values of this parameter there, or initial values if empty

  int64_t numel() const {
    int64_t n = 1;
    for (const int64_t s : shape) n *= s;
    return n;
  }
  std::vector<int64_t> whole_shape() const {  // the model's, before tensor and expert parallelism
    std::vector<int64_t> whole = shape;
    for (const DimPart& part : parts) whole[static_cast<size_t>(part.dim)] = part.whole;
    return whole;
  }
  int64_t whole_numel() const;
  // Index of this rank's first element in the model's parameter, for random draws: its position if this rank holds full rows, otherwise a
  // range that no other rank uses.
  int64_t first_index() const;
  // `shape` in units of the rows that are sharded.
  std::vector<int64_t> row_shape() const {
    std::vector<int64_t> rows = shape;
    if (shard && shard->pieces > 1) rows[0] *= shard->pieces, rows[1] /= shard->pieces;
    return rows;
  }
  int64_t row_length() const { return numel() / row_shape()[0]; }
  // Shape of this rank's part.
  std::vector<int64_t> local_shape() const {
    std::vector<int64_t> local = row_shape();
    if (shard) local[0] = shard->rows;
    return local;
  }
  std::vector<int64_t> first() const;                                                        // its offset in the model's parameter
  int64_t held() const { return numel() > 0 ? local_shape()[0] * row_length() : 0; }         // elements of this rank's part
  StoredWeight* stored() const { return shard ? stored_shard.get() : weight.stored.get(); }  // null for other weights
  // Values of the shard: the master, or a stored weight dequantised to fp32.
  at::Tensor values() const;
  // The tensors of this rank's part, by their checkpoint names: the master, or {fqn}, {fqn}_scale and {fqn}_zero of a stored weight.
  std::vector<std::pair<std::string, at::Tensor>> tensors() const {
    const StoredWeight* s = stored();
    if (s == nullptr) return {{fqn, master}};
    std::vector<std::pair<std::string, at::Tensor>> all = {{fqn, s->codes}, {fqn + "_scale", s->scales}};
    if (s->zeros.defined()) all.emplace_back(fqn + "_zero", s->zeros);
    return all;
  }
};

// Position of its unit in a model of this many blocks: 0 is the embedding, then the blocks, last the norm with the head.
inline int64_t place_of(const Parameter& p, int64_t blocks) {
  return p.block >= 0 ? p.block + 1 : p.unit == "tok_embeddings" ? 0 : blocks + 1;
}

}  // namespace halftone::nn
