#include <algorithm>
#include <map>

#include "halftone/ops/product_plan.h"
#include "halftone/train/estimate.h"

// Collectives mirror the code that starts them: parallel/data_parallel.cpp, parallel/pipeline.cpp, nn/groups.cpp, models/decoder.cpp.
namespace halftone {
namespace {

// Collectives occupy SMs that GEMMs would use, and delay their tiles: factor by which work slows for each second of hidden communication.
// From FSDP steps of 6 and 16 layers on two H100s (docs/benchmarks/parallel.md); slower networks occupy fewer SMs.
constexpr double kSlower = 0.5;
// The GPU idles while the host reads the received row counts and launches the next kernels.
constexpr double kCountsMs = 0.8;

// Data parallelism per unit: seconds of its all-gather, its reduce-scatter, its all-reduce over replicas, and its passes.
struct UnitTimes {
  double gather = 0, reduce = 0, replicas = 0, forward = 0, backward = 0;
};

class Collectives {
 public:
  Collectives(const StepShape& s, const parallel::Mesh& mesh, std::vector<WorkTime>& work)
      : s_(s), part_(s.part), mesh_(mesh), work_(work), t_(static_cast<double>(s.tokens)), micro_(static_cast<double>(s.micro_batches)) {}

  std::vector<Traffic> all() {
    tensor();
    context();
    experts();
    const double inner = 1e-3 * exposed_;  // seconds within passes, which also overlap with gathers
    data(inner);
    messages();
    settle();
    std::erase_if(traffic_, [](const Traffic& t) { return t.bytes == 0; });
    return std::move(traffic_);
  }

 private:
  double width(std::string_view axis) const { return static_cast<double>(mesh_.size(axis)); }
  // Bytes that each of n ranks receives in an all-gather to, or a reduce-scatter of, `whole` bytes.
  double of_others(std::string_view axis, double whole) const { return whole * (width(axis) - 1) / width(axis); }
  double seconds(std::string_view axis, std::string_view collective, double bytes, double calls = 1) const {
    return bytes > 0 ? transfer_seconds(mesh_.ranks(part_.rank, axis), collective, bytes, calls) : 0;
  }
  double work_of(std::string_view name) const {
    const auto found = std::find_if(work_.begin(), work_.end(), [&](const WorkTime& w) { return w.work == name; });
    return found == work_.end() ? 0 : found->ms;
  }
  // Bytes and calls per micro-batch. hidden: milliseconds of a step's work that overlap; at least a share `least` of the traffic is
  // exposed.
  void add(std::string_view axis, std::string_view collective, std::string_view what, double bytes, double calls, double hidden = 0,
           double least = 0) {
    const double ms = 1e3 * seconds(axis, collective, bytes * micro_, calls * micro_), exposed = std::max(least * ms, ms - hidden);
    traffic_.push_back({axis, collective, what, bytes * micro_, ms, exposed});
    exposed_ += exposed;
  }

  // In and out of attention and feed-forward, forward and backward, and forward again for recomputed blocks.
  void tensor() {
    if (part_.tp == 1) return;
    const double row = s_.c * static_cast<double>(s_.size.dim);
    double calls = 0, spared = 0;         // in each direction; bytes saved by sending codes
    double again = 0, gathers_again = 0;  // rows gathered again for wgrad
    for (size_t i = 0; i < s_.blocks.size(); ++i) {
      const StepShape::Block& b = s_.blocks[i];
      // Experts sharded whole take their rows from the rank itself; the shared ones beside them are split.
      const double parts = b.moe == nullptr || part_.cuts_experts || b.feed_forward != nullptr ? 2 : 1;
      const double forward = s_.recomputed(i) ? 2 : 1;
      calls += parts * (forward + 1);
      std::vector<std::vector<nn::Linear*>> entered = {b.attention_readers()};
      if (b.feed_forward != nullptr && (b.moe == nullptr || !part_.cuts_experts)) entered.push_back(b.feed_forward->readers());
      for (const std::vector<nn::Linear*>& readers : entered) {
        const double sent = s_.codes_sent(readers);
        if (sent == 0) continue;
        spared += static_cast<double>(s_.size.dim) * forward * (s_.c - sent);
        if (!wgrad_reads_forward_codes(readers.front()->recipe())) again += row, ++gathers_again;
      }
    }
    // The embedding's output and gradient are in the stream's dtype; the head has one input.
    const double embedded = s_.has_embedding ? s_.r * static_cast<double>(s_.size.dim) : 0, head = s_.has_head ? row : 0;
    const double bytes = of_others("tp", t_ * (calls * row + embedded + head));
    calls += (s_.has_embedding ? 1 : 0) + (s_.has_head ? 1 : 0);
    if (part_.sequence > 1) {
      // In parts: all but one overlap with a third of the GEMMs, those next to a gather or scatter.
      const bool in_parts = s_.config.parallelism.enable_async_tensor_parallel;
      const double hidden = in_parts ? work_of("products") / 3 : 0, least = in_parts ? 1 / width("tp") : 0;
      add("tp", "all-gather", "rows of all tokens", bytes - of_others("tp", t_ * spared), calls, hidden, least);
      add("tp", "all-gather", "rows for weight gradients", of_others("tp", t_ * again), gathers_again, work_of("products") / 6);
      add("tp", "reduce-scatter", "partial sums", bytes, calls, hidden, least);
    } else {
      add("tp", "all-reduce", "partial sums, full rows", 2 * bytes, calls);
    }
    // Per rank log-sum-exp and label logit, in float32; or all logits.
    if (s_.has_head && s_.config.parallelism.disable_loss_parallel) {
      add("tp", "all-gather", "logits", of_others("tp", t_ * s_.c * static_cast<double>(s_.size.vocab)), 1);
    } else if (s_.has_head) {
      add("tp", "all-gather", "loss", of_others("tp", width("tp") * t_ * 4 * 2), 1);
    }
    double summed = 0;
    s_.for_each_parameter([&](const nn::Parameter& p) { summed += p.summed ? 4 * s_.held(p) : 0; });
    add("tp", "all-reduce", "norm gradients", of_others("tp", 2 * summed) / micro_, 1 / micro_);
  }

  void context() {
    if (part_.cp == 1) return;
    double forward = 0, backward = 0, calls = 0;  // elements of keys and values of full rows
    for (size_t i = 0; i < s_.blocks.size(); ++i) {
      const double elements = t_ * static_cast<double>(part_.cp) * s_.blocks[i].key_value_width();
      const double times = s_.recompute[i] == nn::Recompute::full ? 2 : 1;
      forward += times * elements, backward += elements, calls += times + 1;
    }
    const bool ring = s_.config.parallelism.context_parallel_rotate_method == "alltoall";
    const double hidden = ring ? work_of("attention") / 2 : 0;
    add("cp", ring ? "send" : "all-gather", "keys and values", of_others("cp", s_.c * (forward + backward)), calls, hidden);
    add("cp", ring ? "send" : "reduce-scatter", "gradients of keys and values", of_others("cp", 4 * backward),
        static_cast<double>(s_.blocks.size()), hidden);
  }

  // Tokens to their experts and back, forward and backward.
  void experts() {
    if (part_.ep == 1) return;
    const ParallelismConfig& p = s_.config.parallelism;
    const double sent = p.expert_parallel_dispatch_dtype.empty() ? s_.c : 1, dim = static_cast<double>(s_.size.dim);
    double bytes = 0, calls = 0, exchanges = 0, counts = 0;  // bytes per token; row counts are exchanged before
    for (size_t i = 0; i < s_.blocks.size(); ++i) {
      if (s_.blocks[i].moe == nullptr) continue;
      const double forward = s_.recomputed(i) ? 2 : 1;
      bytes += s_.blocks[i].sent_rows * dim * (forward * (sent + s_.c) + 2 * s_.c), calls += 2 * forward + 2, exchanges += forward;
      counts += forward * 8 * static_cast<double>(s_.blocks[i].moe->shape().routing.experts);
    }
    add("ep", "all-to-all", "tokens and results", of_others("ep", t_ * bytes), calls);
    if (p.expert_parallel_capacity > 0) return;
    const double ms = kCountsMs * micro_ * exchanges;
    traffic_.push_back({"ep", "all-to-all", "row counts, for the host", of_others("ep", counts) * micro_, ms, ms});
    exposed_ += ms;
  }

  // inner: seconds that passes wait within blocks.
  void data(double inner) {
    const auto head = static_cast<size_t>(part_.layers + 1);
    std::vector<UnitTimes> units(head + 1);
    const bool half = s_.config.training.mixed_precision_reduce != "float32";
    struct Bytes {
      double gather = 0, reduce = 0, replicas = 0;
    };
    std::vector<std::map<std::string_view, Bytes>> bytes(units.size());
    s_.for_each_parameter([&](const nn::Parameter& p) {
      if (p.buffer || p.numel() == 0) return;
      const auto place = static_cast<size_t>(nn::place_of(p, part_.layers));
      const std::string_view axis = p.expert ? "efsdp" : "fsdp";
      Bytes& b = bytes[s_.size.tied && place == head ? 0 : place][axis];
      const double moved = s_.part.moved(p), reduced = half ? 2 : 4;
      b.gather += p.stored_as ? 0 : of_others(axis, s_.c * moved);
      b.reduce += of_others(axis, reduced * moved);
      b.replicas += of_others("dp_replicate", 2 * reduced * s_.held(p));
    });
    for (size_t u = 0; u < units.size(); ++u) {
      for (const auto& [axis, b] : bytes[u]) {
        units[u].gather += seconds(axis, "all-gather", b.gather), units[u].reduce += seconds(axis, "reduce-scatter", b.reduce);
        units[u].replicas += seconds("dp_replicate", "all-reduce", b.replicas);
      }
    }
    // Time of a micro-batch in each block.
    double again = 0;
    for (size_t i = 0; i < s_.blocks.size(); ++i) again += s_.recomputed(i) ? 1 : 0;
    const auto blocks = static_cast<double>(s_.blocks.size());
    const double passes = 3 + again / blocks;
    double in_blocks = inner;
    for (const char* name : {"products", "attention", "norm, activation, RoPE", "quantisers"}) in_blocks += 1e-3 * work_of(name);
    for (const StepShape::Block& b : s_.blocks) {
      UnitTimes& u = units[static_cast<size_t>(b.index + 1)];
      u.forward = in_blocks / blocks / micro_ / passes, u.backward = u.forward * (passes - 1);
    }
    units[head].forward = 1e-3 * work_of("head + loss") / micro_;
    walk(units, bytes);
  }

  // Simulates a step as parallel::DataParallel runs it: while a unit computes, the next weights and the last gradients are in flight.
  template <class Bytes>
  void walk(const std::vector<UnitTimes>& all, const std::vector<std::map<std::string_view, Bytes>>& bytes) {
    std::vector<size_t> own;
    for (size_t u = 0; u < all.size(); ++u)
      if (part_.has(static_cast<int64_t>(u)) && !bytes[u].empty()) own.push_back(u);
    const size_t n = own.size(), head = all.size() - 1;
    const int64_t passes = s_.micro_batches;
    std::vector<double> gathers(all.size(), 0.0), reductions(all.size(), 0.0);  // number of calls
    double forward = 0, backward = 0;
    std::map<int64_t, size_t> slots;  // current owner of each slot
    const auto slot = [&](size_t u) {
      return !part_.reshard ? static_cast<int64_t>(u) : u == 0 || u == head ? int64_t{-1} : static_cast<int64_t>(u % 2);
    };
    // Seconds of the unit's all-gather, 0 if its weights are already gathered.
    const auto gather = [&](size_t u) {
      const auto held = slots.find(slot(u));
      if (held != slots.end() && held->second == u) return 0.0;
      slots[slot(u)] = u;
      ++gathers[u];
      return all[u].gather;
    };
    for (int64_t m = 0; m < passes; ++m) {
      if (n > 0) forward += gather(own[0]);
      for (size_t i = 0; i + 1 < n; ++i) forward += std::max(0.0, gather(own[i + 1]) - all[own[i]].forward);
      const bool reduces = part_.reshard || m + 1 == passes;
      double going = 0;  // reduce-scatter in flight
      for (size_t i = n; i-- > 0;) {
        const size_t u = own[i];
        const double coming = i > 0 && own[i - 1] > 0 ? gather(own[i - 1]) : 0;
        backward += std::max(0.0, coming + going - all[u].backward);
        if (!reduces) continue;
        ++reductions[u];
        going = all[u].reduce + (m + 1 == passes ? all[u].replicas : 0);
      }
      if (reduces) backward += going;
    }
    for (const char* axis : {"fsdp", "efsdp"}) {
      double gathered = 0, gather_calls = 0, reduced = 0, reduce_calls = 0;
      for (size_t u = 0; u < all.size(); ++u) {
        const auto found = bytes[u].find(axis);
        if (found == bytes[u].end()) continue;
        gathered += gathers[u] * found->second.gather, gather_calls += gathers[u];
        reduced += reductions[u] * found->second.reduce, reduce_calls += reductions[u];
      }
      const double gather_ms = 1e3 * seconds(axis, "all-gather", gathered, gather_calls);
      traffic_.push_back({axis, "all-gather", "weights", gathered, gather_ms, 0});
      traffic_.push_back({axis, "reduce-scatter", "gradients", reduced, 1e3 * seconds(axis, "reduce-scatter", reduced, reduce_calls), 0});
    }
    double replicas = 0, calls = 0;
    for (const auto& unit : bytes)
      for (const auto& [axis, b] : unit) replicas += b.replicas, ++calls;
    const double replicas_ms = 1e3 * seconds("dp_replicate", "all-reduce", replicas, calls);
    traffic_.push_back({"dp_replicate", "all-reduce", "gradients", replicas, replicas_ms, 0});
    // Exposed time of forward passes counts as gathers, that of backward passes as reductions.
    const auto tell = [&](std::string_view what, double seconds) {
      const auto t = std::find_if(traffic_.begin(), traffic_.end(), [&](const Traffic& t) { return t.what == what && t.bytes > 0; });
      if (t != traffic_.end()) t->exposed_ms = 1e3 * seconds;
    };
    tell("weights", forward), tell("gradients", backward);
  }

  // Pipeline: the stream to the next stage, its gradient to the previous one. Schedules hide everything except the first micro-batch's
  // trip there and back.
  void messages() {
    if (part_.pp == 1) return;
    const double message = s_.stream_tokens() * s_.r * static_cast<double>(s_.size.dim);
    double came = 0;
    const auto elsewhere = [&](int64_t stage) {
      const auto& own = part_.stage_numbers;
      return stage >= 0 && stage < part_.all_stages && std::find(own.begin(), own.end(), stage) == own.end();
    };
    for (const int64_t stage : part_.stage_numbers) came += (elsewhere(stage - 1) ? 1 : 0) + (elsewhere(stage + 1) ? 1 : 0);
    const double ms = 1e3 * seconds("pp", "send", message);
    traffic_.push_back(
        {"pp", "send", "residual stream and its gradient", micro_ * came * message, micro_ * came * ms, 2 * (width("pp") - 1) * ms});
  }

  // Adds exposed communication to the step's work; waits within passes count for the bubble too.
  void settle() {
    if (work_.empty()) return;
    double passes = 0;
    for (const WorkTime& w : work_) passes += w.work == "optimizer" || w.work == "gradient norm" ? 0 : w.ms;
    std::vector<WorkTime> waits;
    constexpr std::pair<std::string_view, std::string_view> kWaits[] = {
        {"tp", "waits for tp"},       {"cp", "waits for cp"},       {"ep", "waits for ep"},
        {"fsdp", "waits for fsdp"},   {"efsdp", "waits for efsdp"}, {"dp_replicate", "waits for dp_replicate"},
        {"pp", "waits for messages"},
    };
    for (const auto& [axis, wait] : kWaits) {
      double ms = 0;
      for (const Traffic& t : traffic_) ms += t.axis == axis ? t.exposed_ms : 0;
      if (ms > 0) waits.push_back({wait, ms});
      passes += axis == "pp" ? 0 : ms;
    }
    double slower = 0;
    for (const Traffic& t : traffic_) {
      if (t.ms <= t.exposed_ms) continue;
      const double held = link_of(mesh_.ranks(part_.rank, t.axis)).rate / link_of({0, 1}).rate;
      slower += kSlower * held * (t.ms - t.exposed_ms);
    }
    if (slower > 0) waits.push_back({"work beside communication takes longer", slower}), passes += slower;
    if (part_.bubble > 0) waits.push_back({"bubble of the pipeline", passes * part_.bubble / (1 - part_.bubble)});
    const auto at = std::find_if(work_.begin(), work_.end(), [](const WorkTime& w) { return w.work == "optimizer"; });
    work_.insert(at, waits.begin(), waits.end());
  }

  const StepShape& s_;
  const RankPart& part_;
  const parallel::Mesh& mesh_;
  std::vector<WorkTime>& work_;
  const double t_, micro_;
  std::vector<Traffic> traffic_;
  double exposed_ = 0;  // milliseconds per step within passes
};

}  // namespace

std::vector<Traffic> step_traffic(const StepShape& shape, const parallel::Mesh& mesh, std::vector<WorkTime>& work) {
  return Collectives(shape, mesh, work).all();
}

}  // namespace halftone
