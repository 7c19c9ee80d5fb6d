#include "halftone/train/run_checkpoints.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "halftone/base/error.h"
#include "halftone/ops/device.h"
#include "halftone/train/tokenizer_setup.h"
#include "train/small_run.h"

namespace halftone {
namespace {

using testing::expect_error;
using testing::SmallRuns;

// The checkpointed parts of a run, stepped manually.
struct Parts {
  Parts(const SmallRuns& runs, const std::string& name, const std::vector<std::string>& more, c10::Device device = at::kCPU,
        const CheckpointRanks& ranks = {})
      : config(runs.config(name, more).config),
        tokenizer(prepare_tokenizer(config)),
        engine(config, {.device = device, .seed = 42, .vocab_size = tokenizer.vocab_size(), .positions = config.training.seq_len}),
        data(config, tokenizer, engine, Processes({}, {})),
        store(open_checkpoints(config, ranks)),
        checkpoints({config, tokenizer, engine, data, progress, ranks}, store.get()) {
    progress.seed = 42;
  }

  void step() {
    ++progress.step;
    rows.push_back(data.loader().next_step());
    if (store) store->before_update();
    engine.step(*data.next_step([] { return false; }), progress.step, 1);
    progress.recent_losses.push_back(static_cast<double>(progress.step));
  }
  std::vector<at::Tensor> state() {
    std::vector<at::Tensor> tensors;
    for (const nn::Parameter* p : engine.store().parameters()) tensors.push_back(p->master.clone());
    for (const Engine::NamedState& s : engine.optimizer_states()) tensors.push_back(s.tensors.at(0).second.clone());
    for (at::Tensor& t : tensors) t = t.cpu();
    return tensors;
  }

  JobConfig config;
  Tokenizer tokenizer;
  Engine engine;
  RunProgress progress;
  RunData data;
  std::unique_ptr<CheckpointStore> store;
  RunCheckpoints checkpoints;
  std::vector<RowCursor> rows;  // of every step
};

void expect_equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(at::equal(a[i], b[i])) << i;
}

TEST(RunCheckpoints, GoingBackRestoresEverythingButTheBadRows) {
  const SmallRuns runs;
  Parts p(runs, "run", {"--training.steps=50"});
  EXPECT_TRUE(p.checkpoints.load());
  p.step(), p.step(), p.checkpoints.save(false);
  const std::vector<at::Tensor> saved = p.state();
  EXPECT_EQ(p.checkpoints.last_saved(), 2);
  p.step(), p.step();
  EXPECT_EQ(p.checkpoints.go_back("bad"), 2);
  EXPECT_EQ(p.progress.step, 2);
  EXPECT_EQ(p.progress.recent_losses, (std::vector<double>{1, 2}));
  EXPECT_EQ(p.engine.updates(), 2);
  expect_equal(p.state(), saved);
  const std::vector<RowCursor> before = std::exchange(p.rows, {});
  p.step();
  EXPECT_EQ(p.rows[0], before[2]);
  EXPECT_EQ(p.data.loader().next_step(), before[3]);
  p.step();
  EXPECT_EQ(p.data.loader().next_step(), (RowCursor{0, 5})) << "the fourth step's rows are passed over";
}

// An asynchronous save captures a finished step, and later steps do not change it.
void expect_host_states_are_saved_and_loaded(c10::Device device) {
  const SmallRuns runs;
  const std::vector<std::string> offloaded = {"--training.steps=50", "--training.offload=optimizer", "--checkpoint.async_mode=async"};
  Parts p(runs, "run", offloaded, device);
  EXPECT_TRUE(p.checkpoints.load());
  p.step(), p.step(), p.checkpoints.save(false);
  const std::vector<at::Tensor> saved = p.state();
  p.step();
  p.store->wait();
  for (const auto& more : std::vector<std::vector<std::string>>{offloaded, {"--training.steps=50"}}) {
    Parts other(runs, "run", more, device);
    EXPECT_TRUE(other.checkpoints.load());
    EXPECT_EQ(other.progress.step, 2);
    expect_equal(other.state(), saved);
  }
  EXPECT_EQ(p.checkpoints.go_back("bad"), 2);
  expect_equal(p.state(), saved);
}
TEST(RunCheckpoints, HoldStatesThatLieInHostMemory) { expect_host_states_are_saved_and_loaded(at::kCPU); }
TEST(RunCheckpoints, HoldStatesThatLieInHostMemoryOnCuda) {
  std::optional<c10::Device> device;
  try {
    device = select_device("cuda", 0);
  } catch (const Error& reason) {
    GTEST_SKIP() << reason.what();
  }
  expect_host_states_are_saved_and_loaded(*device);
}

TEST(RunCheckpoints, StatesHaveTheirOptimizersNamesAndLoadUnderFormerOnes) {
  const SmallRuns runs;
  const std::vector<std::string> sgd = {"--training.steps=50", "--optimizer.name=SGD", "--optimizer.nesterov"};
  Parts p(runs, "run", sgd), other(runs, "other", sgd), adam(runs, "adam", {"--training.steps=50"});
  EXPECT_TRUE(p.checkpoints.load());
  p.step(), p.step();
  const auto saved = [&](bool renames) {
    StepState state = collect_state(p.engine, p.progress, nlohmann::json::object(), p.config, false);
    size_t buffers = 0;
    for (NamedTensor& t : state.optim) {
      EXPECT_EQ(t.name.find("exp_avg"), std::string::npos) << t.name;
      const size_t at = t.name.rfind(".momentum_buffer");
      if (at == std::string::npos) continue;
      ++buffers;
      if (renames) t.name.replace(at, std::string::npos, ".exp_avg");
    }
    EXPECT_EQ(buffers, p.engine.optimizer_states().size());
    p.store->save(state, true);
    return p.store->open(p.progress.step);
  };
  for (const bool renames : {false, true}) {
    p.step();
    const LoadedStep step = saved(renames);
    restore_model(other.engine, step), restore_optimizer(other.engine, step);
    expect_equal(other.state(), p.state());
    EXPECT_EQ(other.engine.updates(), p.engine.updates());
    expect_error([&] { restore_optimizer(adam.engine, step); }, "another optimizer wrote it; set optimizer.name and its options back");
  }
}

TEST(RunCheckpoints, AnotherVocabularyNamesItsOption) {
  const SmallRuns runs;
  Parts first(runs, "first", {"--training.steps=50"});
  EXPECT_TRUE(first.checkpoints.load());
  first.step(), first.checkpoints.save(false);
  const std::string wide = "--model.overrides.vocab_size=4096", from = "--checkpoint.initial_load_path=" + (runs / "first").string();
  Parts other(runs, "other", {wide, from}), resumed(runs, "first", {wide});
  expect_error([&] { other.checkpoints.load(); },
               "the vocabulary has 2048 entries there and 4096 here: set model.overrides.vocab_size = 2048");
  expect_error([&] { resumed.checkpoints.load(); }, "model.overrides.vocab_size is 4096, it was 2048; set that back");
}

TEST(RunCheckpoints, GoingBackNeedsAFullStepBefore) {
  const SmallRuns runs;
  Parts none(runs, "none", {"--checkpoint.enable=false"}), first(runs, "first", {"--training.steps=50"});
  EXPECT_EQ(none.store, nullptr);
  for (Parts* p : {&none, &first}) {
    EXPECT_TRUE(p->checkpoints.load());
    p->step(), p->checkpoints.save(false);
    EXPECT_THROW(p->checkpoints.go_back("bad"), NonFiniteError);
    expect_error([&] { p->checkpoints.go_back("bad loss"); }, "bad loss; rollback: there is no checkpoint");
  }
}

TEST(RunCheckpoints, ASeedIsTheStepThatRunsBeginFromAndGoBackTo) {
  const SmallRuns runs;
  Parts seed(runs, "run", {"--training.steps=50"});
  EXPECT_TRUE(seed.checkpoints.load());
  seed.checkpoints.save_seed();
  Parts run(runs, "run", {"--training.steps=50", "--debug.seed=43"});
  EXPECT_TRUE(run.checkpoints.load());
  EXPECT_EQ(run.checkpoints.started_from(), 0);
  expect_equal(run.state(), seed.state());
  run.step();
  EXPECT_EQ(run.checkpoints.go_back("bad"), 0);
  EXPECT_EQ(run.progress.step, 0);
  EXPECT_EQ(run.engine.updates(), 0);
  expect_equal(run.state(), seed.state());
}

TEST(RunCheckpoints, WhatIsExcludedIsThatOfAFreshRun) {
  const SmallRuns runs;
  Parts saved(runs, "run", {"--training.steps=50"});
  EXPECT_TRUE(saved.checkpoints.load());
  saved.step(), saved.step(), saved.step(), saved.progress.last_epoch = 3;
  saved.checkpoints.save(false);
  const auto loaded = [&](const std::string& parts) {
    auto p = std::make_unique<Parts>(
        runs, "run",
        std::vector<std::string>{"--training.steps=50", "--checkpoint.load_only=true", "--checkpoint.exclude_from_loading=" + parts});
    EXPECT_TRUE(p->checkpoints.load());
    return p;
  };
  const auto step_of = [](Parts& p) { return p.data.loader().next_step().row; };
  auto p = loaded("optimizer,lr_scheduler,dataloader");
  EXPECT_EQ(p->progress.step, 3);
  EXPECT_EQ(p->engine.updates(), 0);
  EXPECT_EQ(step_of(*p), 0);
  EXPECT_EQ(p->progress.last_epoch, 0);
  EXPECT_EQ(p->checkpoints.last_saved(), 3);
  p = loaded("train_state");
  EXPECT_EQ(p->progress.step, 0);
  EXPECT_EQ(p->progress.last_epoch, 3);
  EXPECT_EQ(p->engine.updates(), 3);
  EXPECT_EQ(step_of(*p), 3);
  EXPECT_EQ(p->checkpoints.last_saved(), std::nullopt) << "the folder's step 3 is of another count";
}

TEST(RunState, ShareOutIsBalanced) {
  EXPECT_EQ(share_out({5, 1, 9, 4}, 1), (std::vector<int64_t>{0, 0, 0, 0}));
  EXPECT_EQ(share_out({5, 1, 9, 4, 1}, 2), (std::vector<int64_t>{1, 0, 0, 1, 1}));
  EXPECT_EQ(share_out({2, 2}, 4), (std::vector<int64_t>{0, 1}));
  EXPECT_TRUE(share_out({}, 3).empty());
}

void save_on_all(const std::vector<std::unique_ptr<Parts>>& ranks, bool last) {
  std::vector<std::thread> others;
  for (size_t rank = 1; rank < ranks.size(); ++rank) others.emplace_back([&, rank] { ranks[rank]->checkpoints.save(last); });
  ranks[0]->checkpoints.save(last);
  for (std::thread& thread : others) thread.join();
}

TEST(RunCheckpoints, ReplicasShareTheWriting) {
  const SmallRuns runs;
  const std::vector<std::string> options = {"--training.steps=50", "--checkpoint.last_save_model_only=true",
                                            "--checkpoint.last_save_in_hf"};
  std::vector<std::unique_ptr<Parts>> ranks;
  for (const int64_t rank : {0, 1, 2})
    ranks.push_back(std::make_unique<Parts>(
        runs, "run", options, at::kCPU,
        CheckpointRanks{.rank = rank, .world = 3, .place = [rank](std::string_view) { return std::pair<int64_t, int64_t>(rank, 3); }}));
  for (const auto& p : ranks) {
    EXPECT_TRUE(p->checkpoints.load());
    p->step(), p->step();
  }
  save_on_all(ranks, false);
  const std::filesystem::path folder = ranks[0]->store->step_folder(2);
  std::vector<std::uintmax_t> bytes;
  for (const char* rank : {"0", "1", "2"})
    bytes.push_back(std::filesystem::file_size(folder / fmt::format("optim-{}-0.safetensors", rank)));
  EXPECT_GT(*std::min_element(bytes.begin(), bytes.end()) * 8, *std::max_element(bytes.begin(), bytes.end()));
  Parts one(runs, "run", options);
  EXPECT_TRUE(one.checkpoints.load());
  EXPECT_EQ(one.progress.step, 2);
  EXPECT_EQ(one.engine.updates(), 2);
  expect_equal(one.state(), ranks[2]->state());
  for (const auto& p : ranks) p->step();
  save_on_all(ranks, true);
  EXPECT_TRUE(std::filesystem::exists(ranks[0]->store->step_folder(3) / "model.safetensors"));
  const LoadedStep last = ranks[0]->store->open(3);
  for (const nn::Parameter* p : ranks[0]->engine.store().parameters()) EXPECT_TRUE(at::equal(last.read(p->fqn), p->master)) << p->fqn;
}

// Simulates parameters sharded over `count` ranks, of which this process holds one shard.
void cut(Engine& engine, int64_t index, int64_t count) {
  for (nn::Parameter* p : engine.store().parameters()) {
    p->shard = nn::share_of(*p, {count, index});
    p->master = p->master.view(p->row_shape()).narrow(0, p->shard->first, p->shard->rows);
  }
}

void save_and_restore_shards(std::vector<std::string> options) {
  const SmallRuns runs;
  options.emplace_back("--training.steps=50");
  constexpr int64_t kShards = 5;
  Parts whole(runs, "whole", options);
  whole.engine.initialize(), whole.checkpoints.save(false);
  std::vector<std::unique_ptr<Parts>> ranks;
  std::vector<std::thread> saves;
  for (int64_t rank = 0; rank < kShards; ++rank) {
    const CheckpointRanks place{.rank = rank, .world = kShards};
    ranks.push_back(std::make_unique<Parts>(runs, "shards", options, at::kCPU, place));
    Parts& p = *ranks.back();
    cut(p.engine, rank, kShards);
    restore_model(p.engine, whole.store->open(0));
    for (size_t i = 0; const nn::Parameter* w : whole.engine.store().parameters()) {
      const nn::Parameter& shard = *p.engine.store().parameters()[i++];
      EXPECT_TRUE(at::equal(shard.master, w->master.view(shard.row_shape()).narrow(0, shard.shard->first, shard.shard->rows))) << w->fqn;
    }
    saves.emplace_back(
        [&p, place] { p.store->save(collect_state(p.engine, p.progress, nlohmann::json::object(), p.config, true, place)); });
  }
  for (std::thread& save : saves) save.join();
  const LoadedStep saved = ranks[0]->store->open(0);
  for (const nn::Parameter* w : whole.engine.store().parameters()) EXPECT_TRUE(at::equal(saved.read(w->fqn), w->master)) << w->fqn;
  ranks[1]->engine.store().parameters()[0]->shape[0] += 1;
  expect_error([&] { restore_model(ranks[1]->engine, saved); }, "has shape [2048, 32], expected [2049, 32]");
}

TEST(RunState, ShardsAreSavedAndRestored) { save_and_restore_shards({}); }
// Halves of two experts, and a rank without any.
TEST(RunState, PartsOfExpertsAreSavedAndRestored) {
  save_and_restore_shards({"--model.name=qwen3_moe", "--model.overrides.num_experts=2", "--model.overrides.experts_per_token=1",
                           "--model.overrides.expert_ffn_dim=64"});
}

TEST(RunCheckpoints, AModelAloneIsNoStepToGoOnFrom) {
  const SmallRuns runs;
  Parts saved(runs, "run", {"--training.steps=2", "--checkpoint.last_save_model_only=true"});
  EXPECT_TRUE(saved.checkpoints.load());
  saved.step(), saved.step(), saved.checkpoints.save(true);
  Parts complete(runs, "run", {"--training.steps=2"}), more(runs, "run", {"--training.steps=3"});
  EXPECT_FALSE(complete.checkpoints.load());
  EXPECT_EQ(complete.progress.step, 2);
  expect_error([&] { more.checkpoints.load(); }, "holds the model only");
  Parts other(runs, "other", {"--training.steps=3", "--checkpoint.initial_load_path=" + (runs / "run").string()});
  EXPECT_TRUE(other.checkpoints.load());
  EXPECT_EQ(other.progress.step, 0);
  for (size_t i = 0; i < saved.engine.store().parameters().size(); ++i)
    EXPECT_TRUE(at::equal(other.engine.store().parameters()[i]->master, saved.engine.store().parameters()[i]->master)) << i;
}

}  // namespace
}  // namespace halftone
