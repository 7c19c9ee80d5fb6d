#pragma once
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "halftone/nn/layers.h"
#include "halftone/ops/head_loss.h"

namespace halftone::nn {

struct ModelInput {
  at::Tensor tokens;     // int64 [B, S]
  at::Tensor positions;  // int32 [B, S] or undefined: 0 .. S-1
  Documents documents;   // without: causal over the whole row
  at::Tensor padding;    // bool [B, S]: no token, at the end of a row; undefined: none
  StepContext step;
  at::Tensor loss_factor;  // fp64 scalar on the device: multiplies the loss and its gradients, beside the host's factor; undefined: 1
};

struct MicroBatch {
  ModelInput input;    // on the model's device
  at::Tensor labels;   // int64 [B, S], -100 ignored
  at::Tensor sources;  // int64 [B, S], of a mixture; undefined: a single data set
  int64_t valid_labels = 0;
  int64_t first_row = 0;  // index of its first token in the step's global batch
  int64_t padding = 0;    // places of input.padding
  int64_t tokens() const { return input.tokens.numel() - padding; }
};

// Recomputation of a block in backward: nothing, everything except the results in its ops/recompute_results.h, everything.
enum class Recompute { none, op, full };
using RecomputePlan = std::vector<Recompute>;  // per block

// Sizes of any model that the trainer, FLOP counters and checkpoints need.
struct ModelSize {
  int64_t layers = 0, dim = 0, heads = 0, kv_heads = 0, vocab = 0, max_seq_len = 0;
  int64_t qk_dim = 0, v_dim = 0;            // per head
  int64_t window = 0, windowed_layers = 0;  // tokens that a token sees, in this many layers
  int64_t parameters = 0;                   // each tensor counted once
  int64_t active_parameters = 0;            // those used per token: without the experts that it is not routed to
  int64_t embedding_parameters = 0;         // the embedding table
  bool tied = false;                        // the head reads the embedding table
};

// How tensor parallelism splits a parameter (Shoeybi et al. 2019). A parameter that no rule names is used by all ranks, and each computes
// part of its gradient.
struct SplitRule {
  std::string_view name;  // of a Linear or a parameter: matches at the end of the fqn, after a dot
  int64_t dim;            // dimension that is split; for a Linear 0: its outputs, 1: its inputs, and then its output is a partial sum
  bool uneven = false;    // the last ranks may have less
};
// `dim` for norms between blocks: every rank has their full gradient if it has all tokens.
inline constexpr int64_t kOfStream = -1;

// Output of one unit of a model: the residual stream is x + branch, added by the norm that reads both; branch may be undefined.
struct Stream {
  at::Tensor x, branch;  // [T, D]
};

class UnitAccess;  // nn/pass.h

// A language model: the forward pass of its units (embedding, blocks, norm and head), built from ops on one device. Its driver
// (nn/pass.h) decides what is kept, recomputed or moved between units.
class Model : public Module {
 public:
  std::vector<std::string_view> class_names() const override { return {"Model", "Module"}; }
  // Data that all units share for a micro-batch.
  virtual SequenceInfo sequence_info(const ModelInput& input) const = 0;
  virtual Stream embed(const at::Tensor& tokens, const SequenceInfo& info) = 0;
  virtual int64_t blocks() const = 0;
  virtual Stream block(int64_t i, const Stream& in, const SequenceInfo& info) = 0;
  // Loss of the rows (ops/head_loss.h); labels int64 [B, S], -100 ignored.
  virtual HeadLoss head(const Stream& in, const at::Tensor& labels, double grad_scale, const SequenceInfo& info) = 0;
  // Logits fp32 [T, V] of rows of the stream after the last block, as head() computes them; every process gets all columns.
  virtual at::Tensor logits(const Stream& in, const SequenceInfo& info) = 0;
  // The logits of the last position of each row [B, V], after appending the rows to the caches (one per layer). access: as of a Pass.
  virtual at::Tensor next_token_logits(const at::Tensor& tokens, std::vector<KvCache>& caches, UnitAccess* access = nullptr) = 0;
  virtual std::vector<KvCache> make_caches(int64_t batch, int64_t capacity) const = 0;
  virtual ModelSize size() const = 0;
  void set_recompute(RecomputePlan plan) { recompute_ = std::move(plan); }
  Recompute recompute(int64_t block) const {
    return block < static_cast<int64_t>(recompute_.size()) ? recompute_[static_cast<size_t>(block)] : Recompute::none;
  }
  // dtype of the residual stream. In bf16 each addition rounds what later layers build on to 8 bits.
  void set_residual_dtype(at::ScalarType dtype) { residual_dtype_ = dtype; }
  // For the loss that is differentiated (ops/head_loss.h).
  void set_z_loss(double z_loss) { z_loss_ = z_loss; }
  // How tensor parallelism splits its parameters.
  virtual std::span<const SplitRule> splits() const = 0;
  // Every norm that only linears read; recipes that move norms into the linears need it.
  virtual std::vector<NormUse> norm_uses() { return {}; }
  // Moves tables to the device of the parameters; after ParameterStore::materialize.
  virtual void prepare(at::Device device, int64_t positions) = 0;

 protected:
  RecomputePlan recompute_;
  at::ScalarType residual_dtype_ = at::kFloat;
  double z_loss_ = 0;
};

}  // namespace halftone::nn
