#pragma once
#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "halftone/ops/weight.h"

namespace halftone::nn {

// How a fresh parameter is filled (platform.md 4.6); draws are keyed by (seed, fqn) and the global element index.
struct Init {
  enum class Kind { ones, zeros, normal, truncated_normal } kind = Kind::ones;
  double std = 0;
  double cut = 0;  // truncated_normal: absolute values beyond it do not occur
};

// The rows of a parameter that a process holds when the processes of a group share it out.
struct RowShard {
  int64_t first = 0, rows = 0;  // the last processes may have none
  int64_t most = 0;             // of any process; collectives move as many
  int64_t pieces = 1;           // into which dim 1 of each row (dim 0), an expert, is cut: they are the rows then
};

// What this process's layers compute with of a dimension of the model's parameter (tensor and expert parallelism).
struct DimPart {
  int64_t dim = 0, first = 0, whole = 0;  // from `first` on, of `whole`
};

// A parameter knows its name, shape and initial distribution from the start and its storage only after
// ParameterStore::materialize: a model of any size can be described without memory.
struct Parameter {
  std::string name;  // inside its module
  std::string fqn;
  std::string unit;                    // "tok_embeddings", "layers.3", "norm" (Module::make_unit)
  int64_t block = -1;                  // Module::block
  std::vector<int64_t> shape;          // of what this process's layers compute with
  std::vector<DimPart> parts;          // of the model's parameter; none: all of it
  bool expert = false;                 // of routed experts that processes have parts of: shared out in a domain of its own
  bool shared_by_tensor_group = true;  // all of its processes hold the same
  bool summed = false;                 // by them, each of which computes with it and has a part of its gradient
  Init init;
  int64_t row_block = 1;          // a shard begins at a multiple: the rows of a quantiser's block; of experts inside of one
  std::optional<RowShard> shard;  // none: this process holds all of it
  int64_t offset = 0;             // of what it holds in its unit's flat buffers, in elements
  at::Tensor master;              // storage dtype, of the shard, view into its unit's flat buffer; undefined for a stored weight
  std::shared_ptr<StoredWeight> stored_shard;  // of a stored weight that is shared out: weight.stored has its rows and the others'
  Weight weight;                               // what ops see
  std::optional<OperandSpec> stored_as;        // int8_weight, int4_weight: codes are all that exists of it
  bool codes_alone = false;                    // products read quantised copies and nothing else of it
  bool buffer = false;                         // not trained, fp32, held whole by every process, in no unit
  bool added = false;                          // by a recipe: checkpoints of the plain model have none, it then takes
  std::string copy_of;                         // the values of this parameter of theirs, or fresh ones when empty

  int64_t numel() const {
    int64_t n = 1;
    for (const int64_t s : shape) n *= s;
    return n;
  }
  std::vector<int64_t> whole_shape() const {  // of the model's
    std::vector<int64_t> whole = shape;
    for (const DimPart& part : parts) whole[static_cast<size_t>(part.dim)] = part.whole;
    return whole;
  }
  int64_t whole_numel() const;
  // Of the elements that this process holds among those of the model's, by which draws are counted: their places, where they are whole
  // rows of it; else places that are no other process's.
  int64_t first_index() const;
  // `shape` by the rows that shards are cut from.
  std::vector<int64_t> row_shape() const {
    std::vector<int64_t> rows = shape;
    if (shard && shard->pieces > 1) rows[0] *= shard->pieces, rows[1] /= shard->pieces;
    return rows;
  }
  int64_t row_length() const { return numel() / row_shape()[0]; }
  // Of what this process holds.
  std::vector<int64_t> local_shape() const {
    std::vector<int64_t> local = row_shape();
    if (shard) local[0] = shard->rows;
    return local;
  }
  std::vector<int64_t> first() const;                                                        // its place in the model's
  int64_t held() const { return numel() > 0 ? local_shape()[0] * row_length() : 0; }         // elements of it
  StoredWeight* stored() const { return shard ? stored_shard.get() : weight.stored.get(); }  // null for other weights
  // Its numbers, of the shard: the master, or those that a stored weight's codes stand for, in fp32.
  at::Tensor values() const;
  // The tensors that make up what this process holds of it, as checkpoints name them: the master, or {fqn}, {fqn}_scale and {fqn}_zero of a
  // stored weight.
  std::vector<std::pair<std::string, at::Tensor>> tensors() const {
    const StoredWeight* s = stored();
    if (s == nullptr) return {{fqn, master}};
    std::vector<std::pair<std::string, at::Tensor>> all = {{fqn, s->codes}, {fqn + "_scale", s->scales}};
    if (s->zeros.defined()) all.emplace_back(fqn + "_zero", s->zeros);
    return all;
  }
};

// The place of its unit among those of a model with so many blocks: 0 is the embedding, then come the blocks, and last norm and head.
inline int64_t place_of(const Parameter& p, int64_t blocks) {
  return p.block >= 0 ? p.block + 1 : p.unit == "tok_embeddings" ? 0 : blocks + 1;
}

}  // namespace halftone::nn
