#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "halftone/ops/product_plan.h"
#include "halftone/train/engine.h"
#include "halftone/train/estimate.h"

// Sizes mirror the code that allocates: nn/parameter_store.cpp, nn/pass.cpp, ops/linear.cpp, ops/swiglu.cpp, ops/head_loss.cpp.
namespace halftone {
namespace {

constexpr double kProductWorkspace = 32.0 * (1 << 20);  // workspace of a GEMM (gemm/cuda/product_cuda.cpp), freed after it

class Memory {
 public:
  explicit Memory(const StepShape& s) : s_(s), t_(static_cast<double>(s.tokens)), share_(1 / static_cast<double>(s.part.sequence)) {}

  // Bytes that linears that read one tensor of `width` columns keep of it, per run of equal recipes (nn::Siblings); unquantised, it is kept
  // once. `free`: another op keeps or recomputes it. `entered`: it is all-gathered from shards.
  double kept_input(const std::vector<nn::Linear*>& readers, bool free = false, bool entered = false) const {
    double bytes = 0;
    bool plain = false;
    const nn::Linear* before = nullptr;
    // An input gathered as codes is gathered again, unquantised, for wgrad.
    if (entered && s_.codes_sent(readers) > 0 && !wgrad_reads_forward_codes(readers.front()->recipe()))
      return share_ * s_.c * static_cast<double>(readers.front()->in_features());
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
    std::vector<SavedTensor> all = {{"attention_norm", "residual + branch, 1 / rms", share_ * (s_.r * dim + 4)}};
    b.latent ? add_latent(b, all) : add_attention(b, all);
    all.push_back({"ffn_norm", "residual + branch, 1 / rms", share_ * (s_.r * dim + 4)});
    if (b.moe != nullptr) add_experts(b, all);
    if (b.feed_forward == nullptr) return all;
    nn::Linear& w2 = b.feed_forward->output();
    const auto ffn = static_cast<double>(w2.in_features());
    all.push_back({"w1, w3", "input", kept_input(b.feed_forward->readers(), b.moe != nullptr, b.moe == nullptr)});
    all.push_back({"SwiGLU", "gate and up", 2 * s_.c * ffn});
    all.push_back({"w2", "input", w2_input(w2)});
    return all;
  }

  // A recomputed block keeps its input residual and, with "op", some results.
  RecomputeCost cost(const StepShape::Block& b) const {
    const double residual = share_ * s_.r * static_cast<double>(s_.size.dim), attended = b.attended_width();
    // Two GEMMs, half of the scores.
    const double scored = static_cast<double>(s_.size.heads * (s_.size.qk_dim + s_.size.v_dim)) / 2;
    const double of_attention = scored * static_cast<double>(s_.config.training.seq_len);
    RecomputeCost c{{saved_bytes(b), residual + s_.c * attended + 4 * static_cast<double>(s_.size.heads), residual}, {0, 0, of_attention}};
    if (b.moe != nullptr) {
      const double work = b.expert_rows * b.expert_weights() / static_cast<double>(b.moe->experts().weights()[0]->shape[0]);
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
    const double saved_sum = kept();
    const StepShape::Block& first = s_.blocks.front();
    // Recomputing a block reuses its kept results.
    const auto again_bytes = [&](const StepShape::Block& b, nn::Recompute mode) {
      const std::array<double, 3>& kept = cost(b).bytes;
      return mode == nn::Recompute::none ? 0 : t_ * (saved_bytes(b) + kept[2] - kept[static_cast<size_t>(mode)]);
    };
    // The final norm keeps its sum, which is the joined output of a recomputed last block; the last branch is kept too.
    const double final_norm = s_.stream_tokens() * (s_.r * dim + 4), branch = last_recomputed ? 0 : s_.stream_tokens() * s_.c * dim;
    const bool cpu = is_cpu(s_.device.hardware);
    const double all = gradients();
    // On a GPU a unit's gradients are allocated from its first gradient of a step until the optimizer has run.
    const bool always = cpu || s_.micro_batches > 1;
    const double of_head = always || !s_.has_head ? all : gradients(s_.size.tied ? "tok_embeddings" : s_.head->weight.unit);
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
    const double d_stream = s_.stream_tokens() * (s_.r + (last_recomputed ? 0 : s_.c)) * dim;
    const double of_first = always || s_.size.tied ? all : all - gradients("tok_embeddings");
    const double first_saved = t_ * cost(first).bytes[static_cast<size_t>(s_.recompute.front())] + again_bytes(first, s_.recompute.front());
    std::vector<Phase> phases = {
        made("forward of the last block", always ? all : 0, saved_sum, prepared + at_work(last, true, false),
             {{"block at work", forward(last)}}),
        made("head and loss", of_head, saved_sum + final_norm + branch, prepared, {{"head: input, its gradient, logits", head()}}),
        made("backward of the last block", of_last, saved_sum + again_bytes(last, s_.recompute.back()),
             prepared + at_work(last, false, true), {{"block at work", d_stream + backward(last)}}),
        made("backward of the first block", of_first, first_saved, prepared_weights(true) + at_work(first, false, true),
             {{"block at work", d_stream + backward(first)}}),
        made("optimizer", all, 0, prepared_weights(true), {})};
    if (!s_.has_head) phases.erase(phases.begin() + 1);
    return phases;
  }

 private:
  static bool reads_codes(const LinearRecipe& r) { return wgrad_reads_forward_codes(r) || r.x_wgrad.quantized(); }
  void add_attention(const StepShape::Block& b, std::vector<SavedTensor>& all) const {
    const nn::Attention::Shape& a = b.attention->shape();
    const auto heads = static_cast<double>(s_.size.heads), kv_heads = static_cast<double>(s_.size.kv_heads);
    const auto d = static_cast<double>(a.head_dim);
    const double normalised = a.qk_norm_eps > 0 ? heads + kv_heads : 0;
    all.push_back({"wq, wk, wv", "input", kept_input(b.attention->readers(), false, true)});
    all.push_back(
        {"attention", normalised > 0 ? "q, k, v; q, k before their norms" : "q, k, v", s_.c * d * (heads + 2 * kv_heads + normalised)});
    all.push_back({"attention", "output, log-sum-exp", s_.c * d * heads + 4 * heads});
    all.push_back({"wo", "input", kept_input({&b.attention->output()}, true)});
  }
  void add_latent(const StepShape::Block& b, std::vector<SavedTensor>& all) const {
    const nn::LatentAttention::Shape& a = b.latent->shape();
    const auto heads = static_cast<double>(s_.size.heads), v = static_cast<double>(a.v_dim), rope = static_cast<double>(a.qk_rope_dim);
    const auto nope = static_cast<double>(a.qk_nope_dim);
    double inputs = 0;
    for (const nn::NormUse& use : b.latent->norm_uses()) inputs += kept_input(use.readers);
    all.push_back({"wq, wkv_a", "input", kept_input(b.latent->readers(), false, true)});
    all.push_back({"q_norm, kv_norm", "latents, 1 / rms", s_.c * (static_cast<double>(a.q_lora_rank + a.kv_lora_rank) + rope) + 8});
    all.push_back({"wq_b, wkv_b", "input", inputs});
    all.push_back({"attention", "q, k before the rotated part is copied, v", s_.c * (heads * (2 * nope + rope + v) + rope)});
    all.push_back({"attention", "output, log-sum-exp", s_.c * heads * v + 4 * heads});
    all.push_back({"wo", "input", kept_input({&b.latent->output()}, true)});
  }
  // Rows are copied to the experts; the gates' gradients need the experts' outputs.
  void add_experts(const StepShape::Block& b, std::vector<SavedTensor>& all) const {
    const auto dim = static_cast<double>(s_.size.dim), ffn = b.expert_width(), rows = b.expert_rows;
    const LinearRecipe& r = b.moe->experts().recipe();
    const double kept = reads_codes(r) ? codes(r) : s_.c, sharing = s_.part.cuts_experts ? 1 : share_;
    all.push_back({"router", "input, scores", sharing * (s_.c * dim + 4 * static_cast<double>(b.moe->shape().routing.experts))});
    if (s_.part.ep > 1) all.push_back({"experts", "rows as they come", b.sent_rows * s_.c * dim});
    all.push_back({"experts", "input rows", rows * kept * dim});
    all.push_back({"experts", "gate and up", rows * 2 * s_.c * ffn});
    all.push_back({"experts", "activation", rows * kept * ffn});
    all.push_back({"experts", "output rows", rows * s_.c * dim});
  }
  double w2_input(nn::Linear& w2) const {
    const bool apart = w2.has_norm() || w2.has_side();  // SwiGLU is a separate op
    return kept_input({&w2}, !apart) + (w2.has_norm() ? s_.c * static_cast<double>(w2.in_features()) : 0);
  }
  LinearPlan plan(const LinearRecipe& r, bool x_again = false) const {
    const DType compute = s_.compute == at::kFloat ? DType::f32 : DType::bf16;
    return plan_linear(r, {.hardware = s_.device.hardware, .x = compute, .w = compute, .dy = compute, .x_again = x_again});
  }
  double copy(const OperandPlan& operand) const { return copy_bytes(operand.copy, s_.device.hardware); }
  double codes(const LinearRecipe& r) const { return copy(wgrad_reads_forward_codes(r) ? plan(r).forward.left : plan(r).wgrad.right); }
  double saved_bytes(const StepShape::Block& b) const {
    double sum = 0;
    for (const SavedTensor& tensor : saved(b)) sum += tensor.bytes;
    return sum;
  }

  // Most activations of the blocks at once: a pipeline rank has several micro-batches in flight.
  double kept() const {
    const RankPart& part = s_.part;
    std::vector<double> of_stage(std::max<size_t>(1, part.stages.size()), 0.0);
    for (size_t i = 0; i < s_.blocks.size(); ++i)
      of_stage[static_cast<size_t>(part.stage_of(s_.blocks[i].index + 1))] +=
          t_ * cost(s_.blocks[i]).bytes[static_cast<size_t>(s_.recompute[i])];
    if (part.actions.empty()) return of_stage[0];
    const double message = s_.stream_tokens() * s_.r * static_cast<double>(s_.size.dim);
    double now = 0, most = 0;
    for (const parallel::Action& a : part.actions) {
      // A stage keeps what it sent until its gradient arrives.
      const auto own = std::find(part.stage_numbers.begin(), part.stage_numbers.end(), a.stage) - part.stage_numbers.begin();
      const double bytes = of_stage[static_cast<size_t>(own)] + (a.stage + 1 < part.all_stages ? message : 0);
      now += a.kind == parallel::Kind::forward ? bytes : a.kind == parallel::Kind::input ? 0 : -bytes;
      most = std::max(most, now);
    }
    return most;
  }

  // Gradients of a unit, or of all units.
  double gradients(std::string_view unit = "") const {
    double bytes = 0;
    s_.for_each_parameter([&](const nn::Parameter& p) {
      if (unit.empty() || p.unit == unit) bytes += 4 * s_.held(p);
    });
    return bytes;
  }

  // Buffers of gathered weights and full gradients (parallel/data_parallel.cpp): blocks alternate between two slots, embedding and head
  // share a third; or each unit has its own.
  std::pair<double, double> slots() const {
    std::map<std::pair<bool, int64_t>, std::pair<double, double>> units;  // by whether they are experts, and position
    s_.for_each_parameter([&](const nn::Parameter& p) {
      if (s_.part.shards_of(p) == 1) return;
      const auto n = static_cast<double>(p.numel()), moved = s_.part.moved(p), room = n + (moved == n ? 0 : moved);
      auto& [weights, gradients] = units[{p.expert, nn::place_of(p, s_.part.layers)}];
      weights += p.stored_as ? 0 : room, gradients += room;
    });
    std::map<std::pair<bool, int64_t>, std::pair<double, double>> slots;
    for (const auto& [unit, bytes] : units) {
      const bool block = unit.second > 0 && unit.second <= s_.part.layers;
      auto& [weights, gradients] = slots[{unit.first, !s_.part.reshard ? unit.second : block ? unit.second % 2 : -1}];
      weights = std::max(weights, bytes.first), gradients = std::max(gradients, bytes.second);
    }
    const double width = s_.config.training.mixed_precision_reduce == "float32" ? 4 : 6;  // with a rounded copy that travels
    std::pair<double, double> sum;
    for (const auto& [place, room] : slots) sum.first += s_.c * room.first, sum.second += width * room.second;
    return sum;
  }

  std::vector<MemoryShare> parameters() const {
    double elements = 0, masters = 0, copies = 0, stored = 0;
    s_.for_each_parameter([&](nn::Parameter& p) {
      const double n = s_.held(p);
      elements += n;
      if (p.stored_as) {
        stored += (n + s_.part.moved(p)) * (p.stored_as->element == Element::int8 ? 1 : 0.5 + 8.0 / p.stored_as->block);
      } else {
        masters += n * static_cast<double>(c10::elementSize(s_.storage));
        if (s_.has_compute_copy(p)) copies += n * s_.c;
      }
    });
    const auto [gathered, whole_gradients] = slots();
    const int64_t micro_batch = s_.tokens * 16, positions = std::max(s_.config.training.seq_len, int64_t{1});
    return {{fmt::format("weights in {}", s_.config.training.dtype), masters},
            {"weights stored as codes", stored},
            {fmt::format("weights' copy in {}", s_.compute == at::kFloat ? "float32" : "bfloat16"), copies},
            {s_.part.reshard ? "gathered weights: two blocks, embedding or head" : "gathered weights of all units", gathered},
            {"gradients before they are shared out", whole_gradients},
            {"optimizer states", s_.host_states ? 0 : elements * static_cast<double>(moment_bytes(s_.config.optimizer))},
            {"batch and rotary tables",
             static_cast<double>(micro_batch * s_.micro_batches) + 4 * static_cast<double>(positions * s_.size.qk_dim)}};
  }

  // Copies of a weight for the forward GEMM and for dgrad.
  double copies_of(const LinearRecipe& r, double elements, bool forward, bool dgrad) const {
    const LinearPlan p = plan(r);
    double sum = forward && r.dge ? 4 : 0;
    const double of_forward = right_operand_bytes(p.forward);
    if (forward && !(r.w_forward.stored && of_forward == 1)) sum += of_forward;  // otherwise the parameter itself is read
    if (dgrad) sum += r.w_dgrad.stored ? s_.c : right_operand_bytes(p.dgrad);
    return sum * elements;
  }
  double copies_of(const nn::Linear& l, bool forward, bool dgrad) const {
    return copies_of(l.recipe(), static_cast<double>(l.in_features() * l.out_features()), forward, dgrad);
  }
  // Whether they are freed after each use (StepContext::last_pass) in all passes of a step.
  bool passing(const LinearRecipe& r) const { return !is_cpu(s_.device.hardware) && s_.codes_pass() && !r.dge; }
  // Kept until the next step; a recomputed block makes those of dgrad when it is recomputed.
  double prepared_weights(bool dgrad_of_recomputed) const {
    double sum = s_.has_head ? copies_of(*s_.head, true, true) : 0;
    for (size_t i = 0; i < s_.blocks.size(); ++i) {
      const StepShape::Block& b = s_.blocks[i];
      const bool dgrad = dgrad_of_recomputed || !s_.recomputed(i);
      for (const nn::Linear* l : b.linears())
        if (!passing(l->recipe())) sum += copies_of(*l, true, dgrad);
      if (b.moe == nullptr || passing(b.moe->experts().recipe())) continue;
      sum += copies_of(b.moe->experts().recipe(), b.expert_weights(), true, dgrad);
    }
    return sum;
  }
  // Copies of the largest GEMM's weights, if they are not kept.
  double at_work(const StepShape::Block& b, bool forward, bool dgrad) const {
    double most = 0;
    for (const StepShape::Branch& branch : b.branches()) {
      if (!passing(*branch.up)) continue;
      const double both = branch.feed_forward ? 2 * branch.ffn * static_cast<double>(s_.size.dim) : b.expert_weights() * 2 / 3;
      most = std::max(most, copies_of(*branch.up, both, forward, dgrad));
    }
    return most;
  }

  // In addition to what is kept: the feed-forward's input, SwiGLU's output, its codes and w2's output.
  double forward(const StepShape::Block& b) const {
    const auto dim = static_cast<double>(s_.size.dim);
    const bool recomputed = s_.recomputed(static_cast<size_t>(&b - s_.blocks.data()));  // then sum, gate and up are not kept
    double most = whole_rows(b, false);
    for (const StepShape::Branch& branch : b.branches()) {
      const LinearRecipe& r = *branch.down;
      const bool input_kept = !reads_codes(*branch.up);
      const double live = recomputed ? 2 * s_.c * branch.ffn : 0;
      const double rows = branch.rows * (live + (input_kept && !recomputed ? 0 : s_.c * dim) + s_.c * branch.ffn +
                                         copy(plan(r).forward.left) * branch.ffn + s_.c * dim);
      most = std::max(most, rows);
    }
    return t_ * (most + (recomputed ? share_ * s_.r * dim : 0));
  }

  // Keys and values of full rows, which context-parallel ranks all-gather, with their gradients in float32; a ring holds those of two
  // ranks.
  double whole_rows(const StepShape::Block& b, bool gradients) const {
    if (s_.part.cp == 1) return 0;
    const bool ring = s_.config.parallelism.context_parallel_rotate_method == "alltoall";
    return static_cast<double>(ring ? 2 : s_.part.cp) * b.key_value_width() * (s_.c + (gradients ? 4 : 0));
  }

  double head() const {
    const bool cpu = is_cpu(s_.device.hardware);
    const bool gathered = s_.part.tp > 1 && s_.config.parallelism.disable_loss_parallel;
    const int64_t vocabulary = gathered ? s_.size.vocab : s_.head->out_features();
    const auto vocab = static_cast<double>(vocabulary), dim = static_cast<double>(s_.size.dim);
    const auto rows = static_cast<double>(std::min(logits_rows(s_.compute, cpu, vocabulary), s_.tokens));
    const LinearRecipe& r = s_.head->recipe();
    const at::ScalarType type = logits_type(s_.compute, cpu);
    double column = static_cast<double>(c10::elementSize(type)) + (type == s_.compute ? 0 : s_.c);  // logits and their gradient
    column += copy(plan(r).dgrad.left) + copy(plan(r).wgrad.left);
    return 2 * t_ * s_.c * dim + rows * (vocab * column + s_.c * dim);
  }

  // The larger of two points in time: w2's gradients; those of gate and up, once w2's input is freed.
  double backward(const StepShape::Block& b) const {
    const auto dim = static_cast<double>(s_.size.dim);
    const auto rows = [&](const LinearRecipe& r) { return copy(plan(r).dgrad.left); };
    const auto columns = [&](const LinearRecipe& r) { return copy(plan(r).wgrad.left); };
    // X of wgrad in the form that the GEMM reads, if it was kept in a smaller form or is quantised again.
    const auto decoded = [&](const LinearRecipe& r, bool again = false) {
      if (wgrad_reads_forward_codes(r)) return s_.c;
      if (!r.x_wgrad.quantized()) return 0.0;
      const ProductPlan p = plan(r, again).wgrad;
      const double read = right_operand_bytes(p), held = again ? copy(p.right) : codes(r);
      return (again ? held : 0) + (read > 1.5 * held ? read : 0.0);
    };
    double most = whole_rows(b, true);
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
  const double t_, share_;  // share_: fraction of the tokens between blocks
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
