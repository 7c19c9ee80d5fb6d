#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "halftone/ops/draws.h"
#include "halftone/ops/product.h"
#include "halftone/train/engine.h"
#include "halftone/train/estimate.h"

// Sizes follow the code that allocates: nn/parameter_store.cpp, nn/pass.cpp, ops/linear.cpp, ops/swiglu.cpp, ops/head_loss.cpp.
namespace halftone {
namespace {

constexpr double kProductWorkspace = 32.0 * (1 << 20);  // a product's (gemm/cuda/product_cuda.cpp), freed after it

class Memory {
 public:
  explicit Memory(const StepShape& s) : s_(s), t_(static_cast<double>(s.tokens)) {}

  // What linears that read one tensor of `width` columns keep of it, stretch by stretch of equal recipes (nn::Siblings); as it is, it is
  // kept once. `free`: somebody else keeps it or makes it again.
  double kept_input(const std::vector<nn::Linear*>& readers, bool free = false) const {
    double bytes = 0;
    bool plain = false;
    const nn::Linear* before = nullptr;
    for (const nn::Linear* l : readers) {
      const auto width = static_cast<double>(l->in_features());
      const LinearRecipe& r = l->recipe();
      const bool joins = before != nullptr && before->recipe() == r && !l->has_norm() && !before->has_norm();
      const double of_codes = free && !l->has_norm() && !wgrad_reads_forward_codes(r) ? 0 : codes(r);
      before = l;
      if (l->has_norm()) {
        bytes += 4 + (reads_codes(r) ? codes(r) : s_.c) * width;
      } else if (!joins) {
        reads_codes(r) ? bytes += of_codes* width : plain = true;
      }
      if (l->has_side() && reads_codes(r)) bytes += of_codes * width;
    }
    return bytes + (plain && !free ? s_.c * static_cast<double>(readers.front()->in_features()) : 0);
  }

  std::vector<SavedTensor> saved(const StepShape::Block& b) const {
    const auto dim = static_cast<double>(s_.size.dim);
    std::vector<SavedTensor> all = {{"attention_norm", "residual + branch, 1 / rms", s_.r * dim + 4}};
    b.latent ? add_latent(b, all) : add_attention(b, all);
    all.push_back({"ffn_norm", "residual + branch, 1 / rms", s_.r * dim + 4});
    if (b.moe != nullptr) add_experts(b, all);
    if (b.feed_forward == nullptr) return all;
    nn::Linear& w2 = b.feed_forward->output();
    const auto ffn = static_cast<double>(w2.in_features());
    all.push_back({"w1, w3", "input", kept_input(b.feed_forward->readers(), b.moe != nullptr)});
    all.push_back({"SwiGLU", "gate and up", 2 * s_.c * ffn});
    all.push_back({"w2", "input", w2_input(w2)});
    return all;
  }

  // A recomputed block keeps the residual that it reads and, with "op", results.
  RecomputeCost cost(const StepShape::Block& b) const {
    const double residual = s_.r * static_cast<double>(s_.size.dim), attended = b.attended_width();
    // Two products, half of the scores.
    const double scored = static_cast<double>(s_.size.heads * (s_.size.qk_dim + s_.size.v_dim)) / 2;
    const double of_attention = scored * static_cast<double>(s_.config.training.seq_len);
    RecomputeCost c{{saved_bytes(b), residual + s_.c * attended + 4 * static_cast<double>(s_.size.heads), residual}, {0, 0, of_attention}};
    if (b.moe != nullptr) {
      const double work = b.expert_rows * b.expert_weights() / static_cast<double>(b.moe->shape().routing.experts);
      c.work[1] += work, c.work[2] += work;
    }
    const std::vector<nn::Linear*> linears = b.linears();
    for (size_t i = 0; i < linears.size(); ++i) {
      const auto out = static_cast<double>(linears[i]->out_features()), work = static_cast<double>(linears[i]->in_features()) * out;
      const bool kept = StepShape::keeps_product(nn::Recompute::op, i);
      c.work[2] += work, c.work[1] += kept ? 0 : work;
      if (kept && i + 1 < linears.size()) c.bytes[1] += s_.c * out;
    }
    return c;
  }

  std::vector<Phase> phases() const {
    std::vector<MemoryShare> fixed = parameters();
    const auto dim = static_cast<double>(s_.size.dim);
    const StepShape::Block& last = s_.blocks.back();
    const bool last_recomputed = s_.recompute.back() != nn::Recompute::none;
    double saved_sum = 0;
    for (size_t i = 0; i < s_.blocks.size(); ++i) saved_sum += t_ * cost(s_.blocks[i]).bytes[static_cast<size_t>(s_.recompute[i])];
    const StepShape::Block& first = s_.blocks.front();
    // A block that is computed again takes the results that it kept.
    const auto again_bytes = [&](const StepShape::Block& b, nn::Recompute mode) {
      const std::array<double, 3>& kept = cost(b).bytes;
      return mode == nn::Recompute::none ? 0 : t_ * (saved_bytes(b) + kept[2] - kept[static_cast<size_t>(mode)]);
    };
    // The final norm keeps its sum, which is the last block's joined output where that is recomputed; the last branch is held, too.
    const double final_norm = t_ * (s_.r * dim + 4), branch = last_recomputed ? 0 : t_ * s_.c * dim;
    const bool cpu = is_cpu(s_.device.hardware);
    const double all = gradients();
    // On a GPU a unit's gradients have memory from its first gradient of a step to the optimizer.
    const bool always = cpu || s_.micro_batches > 1;
    const double of_head = always ? all : gradients(s_.size.tied ? "tok_embeddings" : s_.head->weight.unit);
    const double of_last = always ? all : of_head + gradients(last.attention_output().weight.unit);
    const auto made = [&](std::string_view name, double gradients, double saved, double weights, std::vector<MemoryShare> own) {
      Phase p{name, fixed};
      p.shares.push_back({"gradients", gradients});
      p.shares.push_back({cpu ? "weights packed for products" : "weights' quantised copies", weights});
      p.shares.push_back({"activations kept for backward", saved});
      p.shares.insert(p.shares.end(), own.begin(), own.end());
      p.shares.push_back({"workspace of a product", cpu ? 0 : kProductWorkspace});
      std::erase_if(p.shares, [](const MemoryShare& share) { return share.bytes == 0; });
      return p;
    };
    const double prepared = prepared_weights(s_.micro_batches > 1);
    const double d_stream = t_ * (s_.r + (last_recomputed ? 0 : s_.c)) * dim;
    const double of_first = always || s_.size.tied ? all : all - gradients("tok_embeddings");
    const double first_saved = t_ * cost(first).bytes[static_cast<size_t>(s_.recompute.front())] + again_bytes(first, s_.recompute.front());
    return {made("forward of the last block", always ? all : 0, saved_sum, prepared + at_work(last, true, false),
                 {{"block at work", forward(last)}}),
            made("head and loss", of_head, saved_sum + final_norm + branch, prepared, {{"head: input, its gradient, logits", head()}}),
            made("backward of the last block", of_last, saved_sum + again_bytes(last, s_.recompute.back()),
                 prepared + at_work(last, false, true), {{"block at work", d_stream + backward(last)}}),
            made("backward of the first block", of_first, first_saved, prepared_weights(true) + at_work(first, false, true),
                 {{"block at work", d_stream + backward(first)}}),
            made("optimizer", all, 0, prepared_weights(true), {})};
  }

 private:
  static bool reads_codes(const LinearRecipe& r) { return wgrad_reads_forward_codes(r) || r.x_wgrad.quantized(); }
  void add_attention(const StepShape::Block& b, std::vector<SavedTensor>& all) const {
    const nn::Attention::Shape& a = b.attention->shape();
    const auto heads = static_cast<double>(a.heads), kv_heads = static_cast<double>(a.kv_heads), d = static_cast<double>(a.head_dim);
    const double normalised = a.qk_norm_eps > 0 ? heads + kv_heads : 0;
    all.push_back({"wq, wk, wv", "input", kept_input(b.attention->readers())});
    all.push_back(
        {"attention", normalised > 0 ? "q, k, v; q, k before their norms" : "q, k, v", s_.c * d * (heads + 2 * kv_heads + normalised)});
    all.push_back({"attention", "output, log-sum-exp", s_.c * d * heads + 4 * heads});
    all.push_back({"wo", "input", kept_input({&b.attention->output()}, true)});
  }
  void add_latent(const StepShape::Block& b, std::vector<SavedTensor>& all) const {
    const nn::LatentAttention::Shape& a = b.latent->shape();
    const auto heads = static_cast<double>(a.heads), v = static_cast<double>(a.v_dim), rope = static_cast<double>(a.qk_rope_dim);
    const auto nope = static_cast<double>(a.qk_nope_dim);
    double inputs = 0;
    for (const nn::NormUse& use : b.latent->norm_uses()) inputs += kept_input(use.readers);
    all.push_back({"wq, wkv_a", "input", kept_input(b.latent->readers())});
    all.push_back({"q_norm, kv_norm", "latents, 1 / rms", s_.c * (static_cast<double>(a.q_lora_rank + a.kv_lora_rank) + rope) + 8});
    all.push_back({"wq_b, wkv_b", "input", inputs});
    all.push_back({"attention", "q, k before the rotated part is copied, v", s_.c * (heads * (2 * nope + rope + v) + rope)});
    all.push_back({"attention", "output, log-sum-exp", s_.c * heads * v + 4 * heads});
    all.push_back({"wo", "input", kept_input({&b.latent->output()}, true)});
  }
  // Rows are copied to the experts, whose outputs the gates' gradients need.
  void add_experts(const StepShape::Block& b, std::vector<SavedTensor>& all) const {
    const auto dim = static_cast<double>(s_.size.dim), ffn = static_cast<double>(b.moe->shape().hidden), rows = b.expert_rows;
    const LinearRecipe& r = b.moe->experts().recipe();
    const double kept = reads_codes(r) ? codes(r) : s_.c;
    all.push_back({"router", "input, scores", s_.c * dim + 4 * static_cast<double>(b.moe->shape().routing.experts)});
    all.push_back({"experts", "input rows", rows * kept * dim});
    all.push_back({"experts", "gate and up", rows * 2 * s_.c * ffn});
    all.push_back({"experts", "activation", rows * kept * ffn});
    all.push_back({"experts", "output rows", rows * s_.c * dim});
  }
  double w2_input(nn::Linear& w2) const {
    const bool apart = w2.has_norm() || w2.has_side();  // SwiGLU's output is that of an op of its own
    return kept_input({&w2}, !apart) + (w2.has_norm() ? s_.c * static_cast<double>(w2.in_features()) : 0);
  }
  double copy(const OperandSpec& spec, const OperandSpec& other, CopyUse use, const LinearRecipe& r) const {
    return copy_bytes(spec, other, s_.compute, s_.device.hardware, use, r.emulate);
  }
  double codes(const LinearRecipe& r) const {
    return wgrad_reads_forward_codes(r) ? copy(r.x_forward, r.w_forward, CopyUse::rows, r) : copy(r.x_wgrad, r.dy_wgrad, CopyUse::kept, r);
  }
  double saved_bytes(const StepShape::Block& b) const {
    double sum = 0;
    for (const SavedTensor& tensor : saved(b)) sum += tensor.bytes;
    return sum;
  }

  // Of a unit, or of all.
  double gradients(std::string_view unit = "") const {
    double bytes = 0;
    s_.model.for_each_parameter([&](const nn::Parameter& p) {
      if (unit.empty() || p.unit == unit) bytes += 4 * static_cast<double>(p.numel());
    });
    return bytes;
  }

  std::vector<MemoryShare> parameters() const {
    double elements = 0, masters = 0, copies = 0, stored = 0;
    s_.model.for_each_parameter([&](nn::Parameter& p) {
      const auto n = static_cast<double>(p.numel());
      elements += n;
      if (p.stored_as) {
        stored += n * (p.stored_as->element == Element::int8 ? 1 : 0.5 + 8.0 / p.stored_as->block);
      } else {
        masters += n * static_cast<double>(c10::elementSize(s_.storage));
        if (nn::has_compute_copy(p, s_.storage, s_.compute)) copies += n * s_.c;
      }
    });
    const int64_t micro_batch = s_.tokens * 16, positions = std::max(s_.config.training.seq_len, int64_t{1});
    return {{fmt::format("weights in {}", s_.config.training.dtype), masters},
            {"weights stored as codes", stored},
            {fmt::format("weights' copy in {}", s_.compute == at::kFloat ? "float32" : "bfloat16"), copies},
            {"optimizer states", s_.host_states ? 0 : elements * static_cast<double>(moment_bytes(s_.config.optimizer))},
            {"batch and rotary tables",
             static_cast<double>(micro_batch * s_.micro_batches) + 4 * static_cast<double>(positions * s_.size.qk_dim)}};
  }

  // Copies of a weight for the forward product and for dgrad.
  double copies_of(const LinearRecipe& r, double elements, bool forward, bool dgrad) const {
    const auto bytes = [&](const OperandSpec& w, const OperandSpec& other) {
      return right_operand_bytes(w, other, s_.compute, s_.device.hardware, r.emulate);
    };
    double sum = forward && r.dge ? 4 : 0;
    const double of_forward = bytes(r.w_forward, r.x_forward);
    if (forward && !(r.w_forward.stored && of_forward == 1)) sum += of_forward;  // else the parameter itself is read
    if (dgrad) sum += r.w_dgrad.stored ? s_.c : bytes(r.w_dgrad, r.dy_dgrad);
    return sum * elements;
  }
  double copies_of(const nn::Linear& l, bool forward, bool dgrad) const {
    return copies_of(l.recipe(), static_cast<double>(l.in_features() * l.out_features()), forward, dgrad);
  }
  // Whether they go when the product has read them (StepContext::last_pass) in all passes of a step.
  bool passing(const LinearRecipe& r) const { return !is_cpu(s_.device.hardware) && s_.codes_pass() && !r.dge; }
  // Kept until the next step; a recomputed block makes those of dgrad when it is recomputed.
  double prepared_weights(bool dgrad_of_recomputed) const {
    double sum = copies_of(*s_.head, true, true);
    for (const nn::Linear* l : s_.linears) {
      const bool dgrad = dgrad_of_recomputed || !s_.recomputed(l->block());
      if (!passing(l->recipe())) sum += copies_of(*l, true, dgrad);
    }
    for (size_t i = 0; i < s_.blocks.size(); ++i) {
      const StepShape::Block& b = s_.blocks[i];
      if (b.moe == nullptr || passing(b.moe->experts().recipe())) continue;
      sum += copies_of(b.moe->experts().recipe(), b.expert_weights(), true, dgrad_of_recomputed || !s_.recomputed(static_cast<int64_t>(i)));
    }
    return sum;
  }
  // Of the largest product's weights, where they are not kept.
  double at_work(const StepShape::Block& b, bool forward, bool dgrad) const {
    double most = 0;
    for (const StepShape::Branch& branch : b.branches()) {
      if (!passing(*branch.up)) continue;
      const double both = branch.feed_forward ? 2 * branch.ffn * static_cast<double>(s_.size.dim) : b.expert_weights() * 2 / 3;
      most = std::max(most, copies_of(*branch.up, both, forward, dgrad));
    }
    return most;
  }

  // Beside what is kept: the feed-forward's input, SwiGLU's output, its codes and w2's product.
  double forward(const StepShape::Block& b) const {
    const auto dim = static_cast<double>(s_.size.dim);
    const bool recomputed = s_.recomputed(b.attention_output().block());  // then nothing of it is kept: sum, gate and up
    double most = 0;
    for (const StepShape::Branch& branch : b.branches()) {
      const LinearRecipe& r = *branch.down;
      const bool input_kept = !reads_codes(*branch.up);
      const double live = recomputed ? 2 * s_.c * branch.ffn : 0;
      const double rows = branch.rows * (live + (input_kept && !recomputed ? 0 : s_.c * dim) + s_.c * branch.ffn +
                                         copy(r.x_forward, r.w_forward, CopyUse::rows, r) * branch.ffn + s_.c * dim);
      most = std::max(most, rows);
    }
    return t_ * (most + (recomputed ? s_.r * dim : 0));
  }

  double head() const {
    const bool cpu = is_cpu(s_.device.hardware);
    const auto vocab = static_cast<double>(s_.size.vocab), dim = static_cast<double>(s_.size.dim);
    const auto rows = static_cast<double>(std::min(logits_rows(s_.compute, cpu, s_.size.vocab), s_.tokens));
    const LinearRecipe& r = s_.head->recipe();
    const at::ScalarType type = logits_type(s_.compute, cpu);
    double column = static_cast<double>(c10::elementSize(type)) + (type == s_.compute ? 0 : s_.c);  // of logits and their gradient
    column += copy(r.dy_dgrad, r.w_dgrad, CopyUse::rows, r) + copy(r.dy_wgrad, r.x_wgrad, CopyUse::columns, r);
    return 2 * t_ * s_.c * dim + rows * (vocab * column + s_.c * dim);
  }

  // The larger of two moments: w2's gradients, and those of gate and up, when w2's input has gone.
  double backward(const StepShape::Block& b) const {
    const auto dim = static_cast<double>(s_.size.dim);
    const auto rows = [&](const LinearRecipe& r) { return copy(r.dy_dgrad, r.w_dgrad, CopyUse::rows, r); };
    const auto columns = [&](const LinearRecipe& r) { return copy(r.dy_wgrad, r.x_wgrad, CopyUse::columns, r); };
    // X of wgrad in the form that the product reads, where it was kept in a smaller one or is quantised again.
    const auto decoded = [&](const LinearRecipe& r, bool again = false) {
      if (wgrad_reads_forward_codes(r)) return s_.c;
      if (!r.x_wgrad.quantized()) return 0.0;
      const double read = right_operand_bytes(r.x_wgrad, r.dy_wgrad, s_.compute, s_.device.hardware, r.emulate);
      const double held = again ? copy(r.x_wgrad, r.dy_wgrad, CopyUse::columns, r) : codes(r);
      return (again ? held : 0) + (read > 1.5 * held ? read : 0.0);
    };
    double most = 0;
    for (const StepShape::Branch& branch : b.branches()) {
      const LinearRecipe &down = *branch.down, &up = *branch.up;
      const double ffn = branch.ffn;
      const double first =
          s_.c * ffn + std::max(dim * (rows(down) + columns(down)), dim * columns(down) + ffn * decoded(down, !branch.apart));
      const double second = s_.c * dim + std::max(ffn * (rows(up) + 2 * columns(up)), ffn * 2 * columns(up) + dim * decoded(up));
      const double gone = branch.feed_forward ? w2_input(branch.feed_forward->output()) : (reads_codes(down) ? codes(down) : s_.c) * ffn;
      most = std::max(most, branch.rows * std::max(first, second - gone));
    }
    return t_ * most;
  }

  const StepShape& s_;
  const double t_;
};

}  // namespace

std::vector<Phase> memory_phases(const StepShape& shape) { return Memory(shape).phases(); }
std::vector<SavedTensor> saved_tensors(const StepShape& shape, const StepShape::Block& block) { return Memory(shape).saved(block); }
std::vector<RecomputeCost> recompute_costs(const StepShape& shape) {
  std::vector<RecomputeCost> costs;
  for (const StepShape::Block& block : shape.blocks) costs.push_back(Memory(shape).cost(block));
  return costs;
}

}  // namespace halftone
