#include "halftone/parallel/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <tuple>

#include "halftone/base/error.h"
#include "halftone/parallel/pipeline_actions.h"
#include "halftone/parallel/schedule_drawing.h"
#include "halftone/parallel/stages.h"

namespace halftone::parallel {
namespace {

constexpr const char* kNames[] = {"GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"};

StageTimes heavy_head(int64_t stages) {
  StageTimes times(static_cast<size_t>(stages), {12, 15, 9});
  times.back() = {4 + 24, 5, 3};
  return times;
}

std::string error_of(auto&& call) {
  try {
    call();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

TEST(Schedule, EveryOneIsCompleteAndRuns) {
  for (const char* name : kNames) {
    for (const int64_t ranks : {2, 3, 4, 8}) {
      for (const int64_t each : {1, 2, 3}) {
        if (each != (is_single_stage(name) ? 1 : 2) && (each != 3 || is_single_stage(name) || is_v_shaped(name))) continue;
        for (int64_t microbatches = 1; microbatches <= 17; ++microbatches) {
          const Schedule s = make_schedule(name, ranks, each * ranks, microbatches);
          const Timeline t = simulate(s);  // throws if the schedule is invalid
          EXPECT_EQ(s.microbatches, microbatches);
          EXPECT_LE(*std::max_element(t.most_alive.begin(), t.most_alive.end()), each * microbatches);
          // No schedule takes longer than running micro-batches one after another.
          EXPECT_LE(t.length, 3 * microbatches * each * ranks) << name;
        }
      }
    }
  }
}

// The papers' formulas for bubbles and for the passes held in memory.
TEST(Schedule, BubblesAndMemoryAreThoseOfTheFormulas) {
  for (const int64_t pp : {2, 3, 4, 8}) {
    for (const int64_t m : {pp, 2 * pp, 4 * pp}) {
      const auto run = [&](const char* name, int64_t each) { return simulate(make_schedule(name, pp, each * pp, m)); };
      const auto share = [&](int64_t idle, int64_t work) { return static_cast<double>(idle) / static_cast<double>(idle + work); };
      const Timeline gpipe = run("GPipe", 1), one = run("1F1B", 1), interleaved = run("Interleaved1F1B", 2), bfs = run("LoopedBFS", 3);
      EXPECT_NEAR(gpipe.bubble, share(pp - 1, m), 1e-12);
      EXPECT_NEAR(one.bubble, share(pp - 1, m), 1e-12);
      EXPECT_NEAR(interleaved.bubble, share(pp - 1, 2 * m), 1e-12);
      EXPECT_NEAR(bfs.bubble, share(pp - 1, 3 * m), 1e-12);
      for (int64_t r = 0; r < pp; ++r) {
        EXPECT_EQ(gpipe.most_alive[static_cast<size_t>(r)], m);
        EXPECT_EQ(one.most_alive[static_cast<size_t>(r)], pp - r);
      }
      const Timeline zero = run("InterleavedZeroBubble", 2), v = run("ZBVZeroBubble", 2), dual = run("DualPipeV", 2);
      EXPECT_LT(zero.bubble, interleaved.bubble);
      EXPECT_LE(v.bubble, zero.bubble);
      EXPECT_LE(dual.bubble, zero.bubble);
      EXPECT_LE(*std::max_element(v.most_alive.begin(), v.most_alive.end()), 2 * pp);
      EXPECT_LE(*std::max_element(dual.most_alive.begin(), dual.most_alive.end()), 2 * pp + 1);
      EXPECT_EQ(interleaved.most_alive[0], pp * 3 - 1 + (m == pp ? -(pp - 1) : 0));
    }
  }
}

// Ranks as GPUs run them with NCCL. A rank issues its work in order, and the work waits: computations for each other and for the message
// that they need; a message for what was computed before it was issued, for the previous one on its communicator and pair of ranks, and
// for its peer. With `one_queue`, work also waits until all work issued before it has begun, as GPU streams that share a hardware queue
// do. Returns the first item that never runs.
class Network {
 public:
  Network(const Schedule& s, bool one_queue) : schedule_(s), one_queue_(one_queue) {
    for (int64_t r = 0; r < static_cast<int64_t>(s.ranks.size()); ++r) {
      Issued& issued = ranks_.emplace_back();
      const std::vector<PipelineAction> plan = rank_actions(s, r);
      const auto receive_for = [&](size_t i) {
        if (i == plan.size()) return;
        for (const Message& m : plan[i].receives) issue(issued, r, m);
      };
      receive_for(0);
      for (size_t i = 0; i < plan.size(); ++i) {
        const auto& [action, needs, gives, receives, last] = plan[i];
        issued.work.push_back({.waits_for = needs, .text = "the wait of " + action_text(action)});
        receive_for(i + 1);
        issued.work.push_back({.text = action_text(action)});
        if (gives) issue(issued, r, *gives);
      }
    }
  }
  // Both sides of every pair and communicator must issue the same messages in the same order.
  bool ordered() const {
    return std::all_of(links_.begin(), links_.end(), [](const auto& link) { return link.second[0] == link.second[1]; });
  }
  std::string run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t r = 0; r < ranks_.size(); ++r) moved = advance(static_cast<int64_t>(r)) || moved;
    }
    for (const Issued& rank : ranks_) {
      for (const Work& w : rank.work)
        if (!w.ended) return w.text;
    }
    return "";
  }

 private:
  using Link = std::tuple<Flow, int64_t, int64_t>;  // from, to: a communicator has one direction of one flow
  struct Work {
    std::optional<Message> message{}, waits_for{};  // neither: a computation
    std::string text{};
    bool begun = false, ended = false;
  };
  struct Issued {
    std::vector<Work> work;
  };
  int64_t rank_of(int64_t stage) const { return schedule_.rank_of[static_cast<size_t>(stage)]; }
  void issue(Issued& issued, int64_t rank, const Message& m) {
    const int64_t from = rank_of(sender_of(m)), to = rank_of(m.stage);
    if (from == to) return arrived_.insert(m), void();
    links_[{m.flow, from, to}][rank == from ? 0 : 1].push_back(m);
    issued.work.push_back(
        {.message = m, .text = action_text({m.stage, m.flow == Flow::stream ? Kind::forward : Kind::full, m.microbatch}) + "'s message"});
  }
  bool advance(int64_t r) {
    bool moved = false, all_begun = true, all_computed = true;
    std::set<Link> busy;
    for (Work& w : ranks_[static_cast<size_t>(r)].work) {
      if (w.ended) continue;
      Link link;
      if (w.message) link = {w.message->flow, rank_of(sender_of(*w.message)), rank_of(w.message->stage)};
      const bool may = w.message ? all_computed && !busy.contains(link) : all_computed && (!w.waits_for || arrived_.contains(*w.waits_for));
      if (!w.begun && may && (!one_queue_ || all_begun)) {
        w.begun = moved = true;
        if (w.message) ++sides_[*w.message];
      }
      if (w.begun && (!w.message || sides_[*w.message] == 2)) {
        w.ended = moved = true;
        if (w.message) arrived_.insert(*w.message);
      }
      all_begun = all_begun && w.begun;
      if (!w.ended) w.message ? void(busy.insert(link)) : void(all_computed = false);
    }
    return moved;
  }

  const Schedule& schedule_;
  bool one_queue_;
  std::vector<Issued> ranks_;
  std::map<Link, std::array<std::vector<Message>, 2>> links_;  // of the sender and of the receiver
  std::map<Message, int> sides_;                               // number of sides that have begun it
  std::set<Message> arrived_;                                  // a rank's own results count as arrived from the start
};

TEST(Schedule, RanksExchangeMessagesInOneOrder) {
  const auto prove = [](const Schedule& s, const std::string& name, bool looped) {
    for (const bool one_queue : {false, true}) {
      if (one_queue && looped) continue;  // need a queue per stream: CUDA_DEVICE_MAX_CONNECTIONS (cli/early_environment.cpp)
      Network network(s, one_queue);
      EXPECT_TRUE(network.ordered()) << name;
      EXPECT_EQ(network.run(), "") << name << (one_queue ? " in one queue" : "");
    }
  };
  for (const char* name : kNames) {
    for (const int64_t ranks : {2, 3, 4, 8}) {
      for (const int64_t each : {1, 2, 3}) {
        if (each != (is_single_stage(name) ? 1 : 2) && (each != 3 || is_single_stage(name) || is_v_shaped(name))) continue;
        for (const int64_t microbatches : {int64_t{1}, ranks - 1, ranks, 2 * ranks, 2 * ranks + 3, 4 * ranks}) {
          const Schedule s = make_schedule(name, ranks, each * ranks, microbatches);
          const std::string what = fmt::format("{}, {} ranks of {} stages, {} micro-batches", name, ranks, each, microbatches);
          const bool looped = std::string_view(name).starts_with("Interleaved") || std::string_view(name) == "LoopedBFS";
          prove(s, what, looped), prove(forward_only(s), what + " forward", looped);
          prove(make_schedule(name, ranks, each * ranks, microbatches, heavy_head(each * ranks)), what + " of a heavy head", true);
        }
      }
    }
  }
  // One that waits for a message that is sent too late: shows that the check can fail.
  Schedule wrong = parse_schedule("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n", "f", 2, 2);
  std::swap(wrong.ranks[0][0], wrong.ranks[0][2]);
  EXPECT_NE(Network(wrong, false).run(), "");
}

// Like Llama 3.1 8B on an H100: the last stage has one layer instead of three, and a head that takes as long as the other two.
TEST(Schedule, WeightGradientsFillGapsWhereTheyAre) {
  for (const int64_t pp : {2, 4}) {
    for (const int64_t m : {2 * pp, 4 * pp, 8 * pp}) {
      const StageTimes times = heavy_head(2 * pp);
      const Schedule alike = make_schedule("ZBVZeroBubble", pp, 2 * pp, m), made = make_schedule("ZBVZeroBubble", pp, 2 * pp, m, times);
      const Timeline slow = simulate(alike, times), fast = simulate(made, made.expected);
      EXPECT_LT(fast.bubble, 0.6 * slow.bubble) << pp << " ranks, " << m;
      EXPECT_LE(*std::max_element(fast.most_alive.begin(), fast.most_alive.end()), 2 * pp);
      EXPECT_EQ(schedule_csv(make_schedule("ZBVZeroBubble", pp, 2 * pp, m, StageTimes(static_cast<size_t>(2 * pp), {7, 7, 7}))),
                schedule_csv(alike));
    }
  }
}

TEST(Schedule, OneForwardOneBackwardIsThatOfThePaper) {
  EXPECT_EQ(schedule_csv(make_schedule("1F1B", 3, 3, 4)),
            "0F0,0F1,0F2,0B0,0F3,0B1,0B2,0B3\n"
            "1F0,1F1,1B0,1F2,1B1,1F3,1B2,1B3\n"
            "2F0,2B0,2F1,2B1,2F2,2B2,2F3,2B3\n");
}

TEST(Schedule, FilesComeBack) {
  for (const char* name : kNames) {
    const int64_t stages = is_single_stage(name) ? 3 : 6;
    const std::string csv = schedule_csv(make_schedule(name, 3, stages, 7));
    EXPECT_EQ(schedule_csv(parse_schedule(csv, "f", 3, stages)), csv) << name;
  }
  const Schedule s = parse_schedule(" 0F0 ,,0F1, 0B0,0B1\r\n,1F0,1B0,1F1,1I1,1W1\n", "f", 2, 2);
  EXPECT_EQ(schedule_csv(s), "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1I1,1W1\n");
  EXPECT_EQ(schedule_csv(repeated(parse_schedule("0F0,0B0\n1F0,1B0\n", "f", 2, 2), 2)), "0F0,0B0,0F1,0B1\n1F0,1B0,1F1,1B1\n");
}

TEST(Schedule, ErrorsNameLineAndCell) {
  const auto error = [](const char* csv, int64_t stages = 2) { return error_of([&] { parse_schedule(csv, "f.csv", 2, stages); }); };
  EXPECT_EQ(error("0F0,0B0\n1F0,1X0\n"), "f.csv, line 2, cell 2: expected <stage><F|I|W|B><microbatch> such as 0F3, found '1X0'");
  EXPECT_EQ(error("0F0,0B0\n1F0,1B\n"), "f.csv, line 2, cell 2: expected <stage><F|I|W|B><microbatch> such as 0F3, found '1B'");
  EXPECT_EQ(error("0F0,0B0\n1F0,,2B0\n"), "f.csv, line 2, cell 3: stage 2 of 2; stages follow from [parallelism]");
  EXPECT_EQ(error("0F0,0B0\n"), "f.csv: expected 2 lines, one for each rank of the pipeline, found 1");
  EXPECT_EQ(error(",\n,\n"), "f.csv: expected cells such as 0F0, found none");
  EXPECT_EQ(error("0F0,0B0\n1F0,1B0\n0F1\n"), "f.csv: expected 2 lines, one for each rank of the pipeline, found more");
  EXPECT_EQ(error("0F0,0B0\n1F0,1B0,1F0\n"), "f.csv, line 2, cell 3: 1F0 appears twice");
  EXPECT_EQ(error("0F0,0B0,0W0\n1F0,1B0\n"), "f.csv, line 1, cell 3: 0W0 appears twice");
  EXPECT_EQ(error("0F0,0B0\n1F0,1I0\n"), "f.csv: 1W0 is missing: every stage needs every micro-batch's F, and B or I and W");
  EXPECT_EQ(error("0F0,0B0,0F1\n1F0,1B0,0B1,1F1,1B1\n"), "f.csv, line 2, cell 3: 0B1 belongs to a stage of line 1");
  EXPECT_EQ(error("0B0,0F0\n1F0,1B0\n"), "f.csv, line 1, cell 1: 0B0 can never run: it waits for a later cell");
  EXPECT_EQ(error("0F0,0F1,0B1,0B0\n1F0,1B0,1W1,1F1,1I1\n"), "f.csv, line 1, cell 3: 0B1 can never run: it waits for a later cell");
  EXPECT_EQ(error("0F999999\n1F0\n"), "f.csv: 2 stages and 1000000 micro-batches take 4000000 cells or more, found 2");
  EXPECT_EQ(error("0F99999999999999999999\n1F0\n"),
            "f.csv, line 1, cell 1: expected <stage><F|I|W|B><microbatch> such as 0F3, found '0F99999999999999999999'");
  EXPECT_NE(error_of([] { read_schedule("/nowhere.csv", 2, 2); }).find("/nowhere.csv: "), std::string::npos);
  EXPECT_NE(error_of([] { make_schedule("1F1B", 2, 4, 4); }).find("has one stage on each rank"), std::string::npos);
}

std::vector<std::pair<int64_t, int64_t>> units(const ParallelismConfig& c, int64_t layers) {
  std::vector<std::pair<int64_t, int64_t>> result;
  for (const StageUnits& s : split_stages(c, layers)) result.emplace_back(s.first, s.end);
  return result;
}

ParallelismConfig config_of(const char* schedule, int64_t ranks) {
  ParallelismConfig c;
  c.pipeline_parallel_degree = ranks, c.pipeline_parallel_schedule = schedule;
  return c;
}

// Llama 3 8B, 34 slots over 4 stages: 8, 9, 8, 7 layers.
TEST(Stages, LayersAreSharedOutWithEmbeddingAndHead) {
  using Units = std::vector<std::pair<int64_t, int64_t>>;
  EXPECT_EQ(units(config_of("Interleaved1F1B", 2), 32), (Units{{0, 9}, {9, 18}, {18, 26}, {26, 34}}));
  EXPECT_EQ(units(config_of("1F1B", 2), 6), (Units{{0, 4}, {4, 8}}));
  ParallelismConfig c = config_of("LoopedBFS", 2);
  c.pipeline_parallel_layers_per_stage = 1;
  EXPECT_EQ(units(c, 6).size(), 8U);
  c.pipeline_parallel_layers_per_stage = 3;
  EXPECT_NE(error_of([&] { units(c, 6); }).find("layers_per_stage = 3 makes 3 stages"), std::string::npos);
  c = config_of("1F1B", 4);
  EXPECT_NE(error_of([&] { units(c, 1); }).find("has 4 stages, more than the 3 layers"), std::string::npos);
  c.pipeline_parallel_first_stage_less_layers = 4;
  EXPECT_NE(error_of([&] { units(c, 6); }).find("first_stage_less_layers = 4, but a stage has 3"), std::string::npos);
  c = config_of("1F1B", 2), c.pipeline_parallel_first_stage_less_layers = 0, c.pipeline_parallel_last_stage_less_layers = 0;
  EXPECT_EQ(units(c, 5), (Units{{0, 4}, {4, 7}}));
}

TEST(Stages, ContentsMayBeNamed) {
  ParallelismConfig c = config_of("1F1B", 2);
  const auto error = [&](std::vector<StringList> parts) {
    c.module_fqns_per_model_part = std::move(parts);
    return error_of([&] { units(c, 2); });
  };
  EXPECT_EQ(error({{"tok_embeddings", "layers.0", "layers.1"}, {"output", "norm"}}), "no error");
  EXPECT_EQ(units(c, 2), (std::vector<std::pair<int64_t, int64_t>>{{0, 3}, {3, 4}}));
  EXPECT_NE(error({{"tok_embeddings", "layers.1"}, {"layers.0", "norm", "output"}}).find("stage 0 has layers.1 where layers.0"),
            std::string::npos);
  EXPECT_NE(error({{"tok_embeddings", "layers.0"}, {"layers.1", "norm"}}).find("norm or output is in no stage"), std::string::npos);
  EXPECT_NE(error({{"tok_embeddings", "layers.0", "layers.1", "norm"}, {"output"}}).find("stage 1 has output"), std::string::npos);
  EXPECT_NE(error({{"tok_embeddings", "layers.0", "layers.1", "norm", "output"}, {}}).find("stage 1 is empty"), std::string::npos);
  EXPECT_NE(error({{"tok_embeddings", "layers.7"}, {"layers.1"}}).find("names layers.7; expected"), std::string::npos);
}

TEST(Schedule, DrawsRanksAndTime) {
  const Schedule s = make_schedule("1F1B", 2, 2, 2);
  EXPECT_EQ(schedule_text(s, simulate(s)),
            "rank 0   F0 F1       B0---    B1---\n"
            "rank 1      F0 B0--- F1 B1---\n"
            "F forward, B backward, each with its micro-batch\n");
  const std::string svg = schedule_svg(s, simulate(s), "1F1B");
  EXPECT_EQ(std::count(svg.begin(), svg.end(), '\n'), 3 + 2 + 8 + 1);
}

}  // namespace
}  // namespace halftone::parallel
