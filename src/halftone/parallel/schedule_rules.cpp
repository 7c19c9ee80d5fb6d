#include <algorithm>
#include <array>
#include <deque>
#include <limits>

#include "halftone/base/error.h"
#include "halftone/parallel/schedule.h"

// Schedules by name. A rank runs forward while it holds fewer passes than its limit, and otherwise backward. With split backward passes
// it takes the first that can begin of: a backward pass; a forward pass, if under the limit; weight gradients. Schedules differ in the
// order of a rank's passes and in the limit.
namespace halftone::parallel {
namespace {

using Passes = std::vector<std::pair<int64_t, int64_t>>;  // stage, micro-batch

// Passes, taken in order.
struct Sequence {
  Passes passes;
  size_t next = 0;
  bool ended() const { return next == passes.size(); }
};

struct Rank {
  std::vector<Sequence> forward, backward;  // the first one that can continue does
  std::deque<std::pair<int64_t, int64_t>> weights;
  int64_t limit = 0;  // most passes held at once
  int64_t alive = 0, free = 0;
  std::vector<Action> actions;
  bool ended() const {
    const auto all = [](const auto& s) { return std::all_of(s.begin(), s.end(), [](const Sequence& q) { return q.ended(); }); };
    return all(forward) && all(backward) && weights.empty();
  }
};

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

class Planner {
 public:
  // split: I and W instead of B.
  Planner(bool split, std::vector<Rank> ranks, int64_t stages, int64_t microbatches, const StageTimes& times)
      : split_(split),
        ranks_(std::move(ranks)),
        stages_(stages),
        times_(times),
        forward_(static_cast<size_t>(stages), std::vector<int64_t>(static_cast<size_t>(microbatches), kNever)),
        backward_(forward_) {}

  std::vector<std::vector<Action>> run() {
    for (int64_t now = 0; !std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& r) { return r.ended(); });) {
      int64_t next = kNever;  // end of the next pass
      for (Rank& r : ranks_) {
        if (r.free <= now && !r.ended()) act(r, now);
        if (r.free > now) next = std::min(next, r.free);
      }
      check(next != kNever, "pipeline: no rank can proceed");
      now = next;
    }
    std::vector<std::vector<Action>> all;
    for (Rank& r : ranks_) all.push_back(std::move(r.actions));
    return all;
  }

 private:
  int64_t& at(std::vector<std::vector<int64_t>>& table, int64_t stage, int64_t m) {
    return table[static_cast<size_t>(stage)][static_cast<size_t>(m)];
  }
  // The first sequence whose next pass can begin.
  template <class Ready>
  static Sequence* first(std::vector<Sequence>& sequences, Ready&& ready) {
    for (Sequence& s : sequences)
      if (!s.ended() && ready(s.passes[s.next].first, s.passes[s.next].second)) return &s;
    return nullptr;
  }
  void add(Rank& r, Kind kind, std::pair<int64_t, int64_t> pass, int64_t now) {
    r.actions.push_back({pass.first, kind, pass.second, static_cast<int64_t>(r.actions.size()) + 1});
    r.free = now + time_of(r.actions.back(), times_);
    r.alive += kind == Kind::forward ? 1 : kind == Kind::input ? 0 : -1;
    if (kind == Kind::forward) at(forward_, pass.first, pass.second) = r.free;
    if (kind == Kind::input || kind == Kind::full) at(backward_, pass.first, pass.second) = r.free;
  }

  bool act(Rank& r, int64_t now) {
    const bool forward_left = std::any_of(r.forward.begin(), r.forward.end(), [](const Sequence& s) { return !s.ended(); });
    if (split_ || !forward_left || r.alive >= r.limit) {
      Sequence* back = first(r.backward, [&](int64_t stage, int64_t m) {
        return at(forward_, stage, m) <= now && (stage + 1 == stages_ || at(backward_, stage + 1, m) <= now);
      });
      if (back != nullptr) {
        const auto pass = back->passes[back->next++];
        add(r, split_ ? Kind::input : Kind::full, pass, now);
        if (split_) r.weights.push_back(pass);
        return true;
      }
    }
    // At the limit no forward pass could ever run: one of a later stage may.
    const auto room = [&](int64_t stage) {
      return r.alive < r.limit || (r.weights.empty() && r.forward.size() > 1 && stage >= stages_ / 2);
    };
    Sequence* go =
        first(r.forward, [&](int64_t stage, int64_t m) { return room(stage) && (stage == 0 || at(forward_, stage - 1, m) <= now); });
    if (go != nullptr) return add(r, Kind::forward, go->passes[go->next++], now), true;
    if (r.weights.empty()) return false;
    add(r, Kind::weight, r.weights.front(), now);
    r.weights.pop_front();
    return true;
  }

  bool split_;
  std::vector<Rank> ranks_;
  int64_t stages_;
  const StageTimes& times_;
  std::vector<std::vector<int64_t>> forward_, backward_;  // end times
};

Passes in_order(int64_t stage, int64_t microbatches) {
  Passes passes;
  for (int64_t m = 0; m < microbatches; ++m) passes.emplace_back(stage, m);
  return passes;
}

// Splits micro-batches into `groups` groups of nearly equal size, each of which passes through the rank's stages one after the other; the
// order of stages is reversed in backward.
Passes in_groups(int64_t rank, int64_t ranks, int64_t stages, int64_t microbatches, int64_t groups, bool back) {
  Passes passes;
  for (int64_t g = 0, first = 0; g < groups; ++g) {
    const int64_t count = microbatches / groups + (g < microbatches % groups ? 1 : 0);
    const int64_t each = stages / ranks;
    for (int64_t i = 0; i < each; ++i) {
      for (int64_t m = first; m < first + count; ++m) passes.emplace_back((back ? each - 1 - i : i) * ranks + rank, m);
    }
    first += count;
  }
  return passes;
}

// DualPipeV: overlaps the forward pass of one of the rank's stages with the backward pass of the other. Rows: repetitions, and passes; 0
// and 1 are its first and second stage, W is the oldest deferred weight gradient.
std::vector<Action> dual_pipe(int64_t r, int64_t ranks, int64_t microbatches) {
  const int64_t half = (r + 1) / 2;
  const std::pair<int64_t, const char*> rows[] = {
      {2 * (ranks - r - 1), "F0"}, {r + 1, "F0F1"},          {ranks - r - 1, "I1W.F1"}, {microbatches - 2 * ranks + r + 1, "F0B1F1B0"},
      {ranks - r - 1, "B1F1B0"},   {half, "B1B0"},           {(r + 1) % 2, "B1I0"},     {half, "I1I0"},
      {ranks - r - 1, "W.I0"},     {2 * microbatches, "W."},
  };
  std::vector<Action> actions;
  std::deque<std::pair<int64_t, int64_t>> weights;
  std::array<std::array<int64_t, 2>, 2> next = {};  // backward?, stage
  for (const auto& [times, what] : rows) {
    for (int64_t i = 0; i < times; ++i) {
      for (const char* c = what; *c != 0; c += 2) {
        const auto kind = static_cast<Kind>(*c);
        std::pair<int64_t, int64_t> pass;
        if (kind == Kind::weight) {
          if (weights.empty()) continue;
          pass = weights.front(), weights.pop_front();
        } else {
          const auto which = static_cast<size_t>(c[1] - '0');
          pass = {which == 0 ? r : 2 * ranks - 1 - r, next[kind == Kind::forward ? 0 : 1][which]++};
        }
        if (kind == Kind::input) weights.push_back(pass);
        actions.push_back({pass.first, kind, pass.second, static_cast<int64_t>(actions.size()) + 1});
      }
    }
  }
  return actions;
}

}  // namespace

bool is_single_stage(std::string_view name) { return name == "1F1B" || name == "GPipe" || name == "PipelineScheduleSingle"; }
bool is_v_shaped(std::string_view name) { return name == "ZBVZeroBubble" || name == "DualPipeV"; }

Schedule make_schedule(std::string_view name, int64_t ranks, int64_t stages, int64_t microbatches, StageTimes expected) {
  check(ranks >= 1 && microbatches >= 1 && stages >= ranks && stages % ranks == 0, "pipeline: {} stages on {} ranks, {} micro-batches",
        stages, ranks, microbatches);
  const int64_t each = stages / ranks;
  const bool v = is_v_shaped(name);
  check(is_single_stage(name) ? each == 1
        : v                   ? each == 2
                              : each >= 2,
        "parallelism.pipeline_parallel_schedule = {} has {} on each rank, found {} on parallelism.pipeline_parallel_degree = {}", name,
        is_single_stage(name) ? "one stage"
        : v                   ? "two stages"
                              : "two stages or more",
        stages, ranks);
  Schedule s;
  s.stages = stages, s.microbatches = microbatches, s.expected = std::move(expected);
  for (int64_t i = 0; i < stages; ++i) s.rank_of.push_back(v && i >= ranks ? stages - 1 - i : i % ranks);
  if (name == "DualPipeV" && microbatches >= 2 * ranks) {
    for (int64_t r = 0; r < ranks; ++r) s.ranks.push_back(dual_pipe(r, ranks, microbatches));
    return s;
  }
  const bool all = name == "GPipe" || name == "LoopedBFS";
  const int64_t groups = all ? 1 : std::max<int64_t>(1, microbatches / ranks), group = (microbatches + groups - 1) / groups;
  std::vector<Rank> plan(static_cast<size_t>(ranks));
  for (int64_t r = 0; r < ranks; ++r) {
    Rank& rank = plan[static_cast<size_t>(r)];
    if (v) {
      for (const int64_t stage : {stages - 1 - r, r}) {
        rank.forward.push_back({in_order(stage, microbatches)}), rank.backward.push_back({in_order(stage, microbatches)});
      }
      rank.limit = 2 * ranks;
    } else {
      rank.forward = {{in_groups(r, ranks, stages, microbatches, groups, false)}};
      rank.backward = {{in_groups(r, ranks, stages, microbatches, groups, true)}};
      rank.limit = all ? kNever : each == 1 ? ranks - r : (each - 1) * group + 2 * (ranks - 1 - r) + 1;
    }
  }
  s.ranks = Planner(v || name == "InterleavedZeroBubble", std::move(plan), stages, microbatches, s.expected).run();
  return s;
}

}  // namespace halftone::parallel
