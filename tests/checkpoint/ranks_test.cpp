#include "checkpoint/ranks.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <limits>
#include <random>

#include "checkpoint/support.h"
#include "halftone/base/json_reader.h"
#include "halftone/base/log.h"
#include "halftone/checkpoint/discard.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;
using testing::expect_error;
using testing::Job;
using testing::shard_of;
using testing::TemporaryFolder;

at::Tensor ramp(at::IntArrayRef shape, double start, at::ScalarType type = at::kFloat) {
  int64_t n = 1;
  for (const int64_t extent : shape) n *= extent;
  return (at::arange(n, at::kFloat) * 0.25 + start).reshape(shape).to(type);
}

// The contents of a step in a single process.
std::vector<NamedTensor> whole_of(int64_t step) {
  const auto at = static_cast<double>(step);
  return {{"w", ramp({7, 3}, at)},
          {"norm", ramp({5}, at, at::kBFloat16)},
          {"two", ramp({2, 2, 2}, at)},
          {"none", ramp({0, 4}, 0)},
          {"optim.state.w.exp_avg", ramp({7, 3}, at + 100)},
          {"optim.state.two.exp_avg", ramp({2, 2, 2}, at + 200)}};
}

// A rank's part of it when `replicas` ranks hold each shard.
StepState part_of(int64_t step, const CheckpointRanks& ranks, int64_t replicas = 1) {
  StepState state;
  state.step = step;
  const int64_t shards = ranks.world / replicas;
  for (int64_t i = 0; const NamedTensor& t : whole_of(step)) {
    if (i++ % replicas != ranks.rank / shards) continue;
    (t.name.starts_with("optim.") ? state.optim : state.model).push_back(shard_of(t.name, t.tensor, ranks.rank % shards, shards));
  }
  if (ranks.rank == 0) {
    state.optim.push_back({"optim.state.w.step", at::full({}, step, at::kLong)});
    state.state_json = R"({"step": )" + std::to_string(step) + "}";
  } else {
    state.state_json = "of rank 0";
  }
  return state;
}

CheckpointOptions options_in(const TemporaryFolder& folder, const CheckpointRanks& ranks) {
  return {.folder = folder.path(), .keep_latest_k = 2, .ranks = ranks};
}

void save(const TemporaryFolder& folder, Job& job, int64_t step) {
  job.run([&](const CheckpointRanks& ranks) { CheckpointStore(options_in(folder, ranks)).save(part_of(step, ranks)); });
}

// Every rank of a world of that size finds its rows.
void expect_holds(const LoadedStep& loaded, int64_t step, int64_t world) {
  SCOPED_TRACE("read by " + std::to_string(world));
  EXPECT_EQ(loaded.step(), step);
  EXPECT_EQ(loaded.state_json(), R"({"step": )" + std::to_string(step) + "}");
  EXPECT_EQ(loaded.read("optim.state.w.step").item<int64_t>(), step);
  for (const NamedTensor& t : whole_of(step)) {
    EXPECT_TRUE(at::equal(loaded.read(t.name), t.tensor)) << t.name;
    for (int64_t rank = 0; rank < world; ++rank) {
      const NamedTensor wanted = shard_of(t.name, t.tensor, rank, world);
      at::Tensor found = at::full(wanted.tensor.sizes(), -1, wanted.tensor.options());
      loaded.read_rows(t.name, wanted.offset[0], found);
      EXPECT_TRUE(at::equal(found, wanted.tensor)) << t.name << " of rank " << rank;
    }
  }
}

TEST(CheckpointRanks, WhatManyWriteAnyNumberReads) {
  for (const auto& [world, replicas] : std::vector<std::pair<int64_t, int64_t>>{{4, 1}, {4, 2}, {4, 4}, {3, 1}, {9, 1}, {1, 1}}) {
    SCOPED_TRACE(fmt::format("{} ranks, {} replicas", world, replicas));
    const TemporaryFolder folder;
    Job(world).run([&](const CheckpointRanks& ranks) {
      CheckpointStore store(options_in(folder, ranks));
      store.prepare();
      store.save(part_of(5, ranks, replicas));
      EXPECT_EQ(store.latest_valid(true), 5);
    });
    EXPECT_EQ(fs::exists(folder / "step-5/model-0-0.safetensors"), world > 1);
    for (const auto& entry : fs::directory_iterator(folder / "step-5")) {
      const std::string name = entry.path().filename();
      EXPECT_FALSE(name.starts_with("part-") || name.ends_with(".tmp")) << name;
    }
    const Json index = Json::parse(testing::read_file(folder / "step-5/index.json"));
    EXPECT_EQ(index["world"], world);
    EXPECT_EQ(index["finite"], true);
    const LoadedStep loaded = LoadedStep::open(folder / "step-5", true);
    for (const int64_t readers : {1, 2, 3, 8}) expect_holds(loaded, 5, readers);
  }
}

TEST(CheckpointRanks, ReadRowsTakesNoOtherBytes) {
  const TemporaryFolder folder;
  CheckpointStore store({.folder = folder.path()});
  const at::Tensor whole = ramp({2000, 256}, 0);
  store.save({.step = 1, .model = {{"w", whole}}});
  const LoadedStep loaded = store.open(1);
  const auto bytes_read = [] {
    std::ifstream file("/proc/self/io");
    std::string key;
    int64_t value = 0;
    file >> key >> value;  // rchar
    return value;
  };
  at::Tensor rows = at::empty({3, 256}, at::kFloat);
  const int64_t before = bytes_read();
  loaded.read_rows("w", 1234, rows);
  EXPECT_LT(bytes_read() - before, static_cast<int64_t>(rows.nbytes()) + 4096);
  EXPECT_TRUE(at::equal(rows, whole.narrow(0, 1234, 3)));
  at::Tensor half = at::empty({3, 256}, at::kBFloat16);
  loaded.read_rows("w", 7, half, true);
  EXPECT_TRUE(at::equal(half, whole.narrow(0, 7, 3).to(at::kBFloat16)));
  expect_error([&] { loaded.read_rows("w", 1998, rows); }, "has shape [2000, 256], expected one that holds [3, 256] from row 1998 on");
  expect_error([&] { loaded.read_rows("w", -1, rows); }, "from row -1 on");
  at::Tensor narrow = at::empty({3, 255}, at::kFloat);
  expect_error([&] { loaded.read_rows("w", 0, narrow); }, "expected one that holds [3, 255]");
}

TEST(CheckpointRanks, ReadsRowsOfBlocks) {
  const TemporaryFolder folder;
  fs::create_directory(folder / "step-2");
  const at::Tensor whole = ramp({5, 6}, 0);
  CheckpointIndex index{.step = 2, .world = 3};
  IndexedTensor row{.dtype = FileDType::f32, .shape = {5, 6}};
  row.chunks = {{"a.safetensors", {0, 0}, {5, 2}}, {"b.safetensors", {0, 2}, {2, 4}}, {"c.safetensors", {2, 2}, {3, 4}}};
  for (const TensorChunk& c : row.chunks) {
    const at::Tensor part = whole.narrow(0, c.offset[0], c.shape[0]).narrow(1, c.offset[1], c.shape[1]);
    const WrittenFile written = write_tensors(folder / "step-2" / c.file, {{chunk_name("w", row, c), part}}, {});
    index.files[c.file] = {written.bytes, written.checksum};
  }
  index.tensors["w"] = row;
  testing::write_file(folder / "step-2/index.json", write_index(index));
  const LoadedStep loaded = LoadedStep::open(folder / "step-2", true);
  for (int64_t first = 0; first < 5; ++first)
    for (int64_t rows = 0; first + rows <= 5; ++rows) {
      at::Tensor out = at::full({rows, 6}, -1, at::kFloat);
      loaded.read_rows("w", first, out);
      EXPECT_TRUE(at::equal(out, whole.narrow(0, first, rows))) << first << " " << rows;
    }
}

TEST(CheckpointRanks, MissingPartsAreNamedAndTheStepBeforeStays) {
  const TemporaryFolder folder;
  Job job(8);
  save(folder, job, 1);
  const auto failures = job.failures(
      [&](const CheckpointRanks& ranks) {
        CheckpointOptions options = options_in(folder, ranks);
        options.timeout = std::chrono::milliseconds(200);
        if (ranks.rank != 3 && ranks.rank < 5) CheckpointStore(options).save(part_of(2, ranks));
      },
      false);
  EXPECT_NE(failures[0].find("after 0.2 s the parts of ranks 3, 5-7 are missing; if they need more time"), std::string::npos)
      << failures[0];
  EXPECT_NE(failures[4].find("after 0.4 s rank 0 has not completed it"), std::string::npos) << failures[4];
  CheckpointStore store({.folder = folder.path()});
  EXPECT_EQ(store.valid_steps(), std::vector<int64_t>{1});
  EXPECT_EQ(store.latest_valid(true), 1);
  expect_holds(store.open(1), 1, 8);
  store.prepare();
  EXPECT_FALSE(fs::exists(folder / "step-2.tmp"));
}

TEST(CheckpointRanks, AnEndingJobWaitsForNobody) {
  const TemporaryFolder folder;
  Job job(3);
  const auto failures = job.failures([&](const CheckpointRanks& ranks) {
    check(ranks.rank != 1, "lost");
    CheckpointStore(options_in(folder, ranks)).save(part_of(1, ranks));
  });
  for (const size_t rank : {0, 2}) EXPECT_NE(failures[rank].find("the job is ending"), std::string::npos) << failures[rank];
}

// A rank without heartbeats may be paused: it is waited for up to the limit, which then says so.
TEST(CheckpointRanks, ASilentRankHasTheTimeOut) {
  for (const bool comes : {true, false}) {
    const TemporaryFolder folder;
    Job job(3);
    const auto failures = job.failures([&](const CheckpointRanks& ranks) {
      CheckpointOptions options = options_in(folder, ranks);
      options.timeout = comes ? std::chrono::seconds(60) : std::chrono::milliseconds(1200);
      options.ranks.silent = [](const std::vector<int64_t>& whom) {
        return std::string(std::ranges::find(whom, 2) != whom.end() ? "rank 2 has sent no heartbeat for 7 s" : "");
      };
      if (ranks.rank == 2) ::usleep(1500000);  // the others have asked once
      if (ranks.rank != 2 || comes) CheckpointStore(options).save(part_of(1, ranks));
    });
    if (comes) {
      EXPECT_EQ(failures, std::vector<std::string>(3));
      expect_holds(CheckpointStore({.folder = folder.path()}).open(1), 1, 2);
      continue;
    }
    EXPECT_NE(failures[0].find("failed: after 1.2 s the parts of rank 2 are missing (rank 2 has sent no heartbeat for 7 s); "),
              std::string::npos)
        << failures[0];
    EXPECT_NE(failures[1].find("the job is ending"), std::string::npos) << failures[1];
  }
}

// An error of a rank ends its background write, which waits for others: they learn of the error only then.
TEST(CheckpointRanks, AnErrorAbandonsTheWriteInTheBackground) {
  const TemporaryFolder folder;
  const auto failures = Job(2).failures(
      [&](const CheckpointRanks& ranks) {
        if (ranks.rank == 1) return;
        CheckpointOptions options = options_in(folder, ranks);
        options.async = true;
        CheckpointStore store(options);
        store.save(part_of(1, ranks));
        fail("the data are gone");
      },
      false);
  EXPECT_EQ(failures[0], "the data are gone");
  EXPECT_FALSE(fs::exists(folder / "step-1"));
}

TEST(CheckpointRanks, AFailedWriteOfOneRankLeavesTheStepBefore) {
  ::signal(SIGXFSZ, SIG_IGN);
  for (const bool async : {false, true})
    for (const int64_t failing : {0, 2})
      for (const int64_t step : {2, 1}) {  // a new step, and a replacement of the valid one
        SCOPED_TRACE(fmt::format("async {}, rank {}, step {}", async, failing, step));
        const TemporaryFolder folder;
        Job job(4);
        save(folder, job, 1);
        rlimit old{};
        ::getrlimit(RLIMIT_FSIZE, &old);
        const rlimit limit{100000, old.rlim_max};  // simulates a full disk
        ::setrlimit(RLIMIT_FSIZE, &limit);
        const auto failures = job.failures([&](const CheckpointRanks& ranks) {
          CheckpointOptions options = options_in(folder, ranks);
          options.async = async;
          CheckpointStore store(options);
          StepState state = part_of(step, ranks);
          if (ranks.rank == failing) state.model.push_back({"large", ramp({100000}, 0)});
          store.save(state);
          store.wait();
        });
        ::setrlimit(RLIMIT_FSIZE, &old);
        for (int64_t rank = 0; rank < 4; ++rank) {
          const std::string& text = failures[static_cast<size_t>(rank)];
          EXPECT_NE(text.find(rank == failing ? "File too large" : "the job is ending"), std::string::npos) << text;
        }
        CheckpointStore store({.folder = folder.path()});
        store.prepare();
        EXPECT_EQ(store.valid_steps(), std::vector<int64_t>{1});
        expect_holds(store.open(1), 1, 3);
        save(folder, job, 3);
        EXPECT_EQ(CheckpointStore({.folder = folder.path()}).latest_valid(true), 3);
      }
  ::signal(SIGXFSZ, SIG_DFL);
}

TEST(CheckpointRanks, AsyncSavesFollowEachOther) {
  const TemporaryFolder folder;
  Job(4).run([&](const CheckpointRanks& ranks) {
    CheckpointOptions options = options_in(folder, ranks);
    options.async = true;
    CheckpointStore store(options);
    store.prepare();
    store.reserve(part_of(1, ranks));
    for (const int64_t step : {1, 2, 2, 3}) {
      store.before_update();
      StepState state = part_of(step, ranks);
      store.save(state);
      for (NamedTensor& t : state.model) t.tensor.fill_(-1);  // training continues
    }
    store.wait();
    EXPECT_EQ(store.latest_valid(true), 3);
  });
  const CheckpointStore store({.folder = folder.path()});
  EXPECT_EQ(store.valid_steps(), (std::vector<int64_t>{2, 3}));
  for (const int64_t step : {2, 3}) expect_holds(store.open(step), step, 2);
}

TEST(CheckpointRanks, KilledAtAnyMomentTheyLeaveACompleteStep) {
  const TemporaryFolder folder;
  Job job(4);
  save(folder, job, 1);
  int64_t last = 1;
  std::mt19937 random(7);
  for (int round = 0; round < 20; ++round) {
    const pid_t child = ::fork();
    if (child == 0) {
      set_log_enabled(false);
      job.failures([&](const CheckpointRanks& ranks) {
        CheckpointOptions options = options_in(folder, ranks);
        options.async = round % 2 == 1;
        CheckpointStore store(options);
        store.prepare();
        for (int64_t step = last + 1;; ++step) store.save(part_of(step, ranks, 2));
      });
      ::_exit(1);
    }
    ::usleep(static_cast<useconds_t>(10000 + random() % 100000));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    CheckpointStore store({.folder = folder.path()});
    store.prepare();
    const auto step = store.latest_valid(true);
    ASSERT_TRUE(step.has_value());
    EXPECT_GE(*step, last);
    expect_holds(store.open(*step), *step, 1);
    EXPECT_TRUE(finish_discards(std::chrono::minutes(1)));
    for (const auto& entry : fs::directory_iterator(folder.path())) EXPECT_EQ(entry.path().extension(), "") << entry.path();
    last = *step;
  }
  EXPECT_GT(last, 10);
}

TEST(CheckpointRanks, AStepThatIsNotFiniteDeletesNothingAndIsNotTaken) {
  for (const int64_t world : {1, 4})
    for (const double value : {std::numeric_limits<double>::quiet_NaN(), -std::numeric_limits<double>::infinity()}) {
      SCOPED_TRACE(fmt::format("{} ranks, {}", world, value));
      const TemporaryFolder folder;
      Job(world).run([&](const CheckpointRanks& ranks) {
        CheckpointStore store(options_in(folder, ranks));
        for (const int64_t step : {1, 2, 3, 4}) {
          StepState state = part_of(step, ranks);
          if (step >= 3 && ranks.rank == world - 1) state.model[0].tensor.fill_(value);
          store.save(state);
        }
        EXPECT_EQ(store.latest_valid(true), 2);
      });
      const auto steps = [&] {
        std::vector<int64_t> there;
        for (int64_t step = 1; step < 9; ++step)
          if (fs::exists(folder / ("step-" + std::to_string(step)))) there.push_back(step);
        return there;
      };
      EXPECT_EQ(steps(), (std::vector<int64_t>{1, 2, 3, 4}));
      const Json index = Json::parse(testing::read_file(folder / "step-3/index.json"));
      EXPECT_EQ(index["finite"], false);
      EXPECT_EQ(index["tensors"]["w"]["finite"], false);
      EXPECT_EQ(inspect_step(folder / "step-3", false).problem, "tensor w holds a NaN or an infinity");
      Job job(world);
      save(folder, job, 5);
      EXPECT_EQ(steps(), (std::vector<int64_t>{2, 3, 4, 5}));
    }
}

TEST(CheckpointRanks, FiniteIsToldForEveryType) {
  const TemporaryFolder folder;
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf, at::kFloat8_e5m2, at::kFloat8_e4m3fn}) {
    const auto found = [&](double value) {
      const at::Tensor values = at::full({70}, 1.5, at::kDouble);
      values[69].fill_(value);
      return write_tensors(folder / "x.safetensors", {{"x", values.to(type)}}, {}).not_finite.size();
    };
    const double largest = type == at::kFloat8_e4m3fn ? 448 : type == at::kFloat8_e5m2 ? 57344 : 65504;
    EXPECT_EQ(found(largest), 0u) << type;
    EXPECT_EQ(found(-largest), 0u) << type;
    EXPECT_EQ(found(std::numeric_limits<double>::quiet_NaN()), 1u) << type;
    EXPECT_EQ(found(-std::numeric_limits<double>::infinity()), 1u) << type;  // NaN for the type without infinity
  }
  EXPECT_TRUE(write_tensors(folder / "x.safetensors", {{"x", at::full({9}, -1, at::kLong)}}, {}).not_finite.empty());
}

TEST(CheckpointRanks, WhatOneRankFindsDamagedAllSkip) {
  const TemporaryFolder folder;
  Job job(4);
  for (const int64_t step : {1, 2}) save(folder, job, step);
  const fs::path file = folder / "step-2/optim-1-0.safetensors";
  testing::flip_byte(file, fs::file_size(file) - 3);
  job.run([&](const CheckpointRanks& ranks) {
    CheckpointStore store(options_in(folder, ranks));
    EXPECT_EQ(store.latest_valid(true), 1);
    EXPECT_EQ(store.latest_valid(false), 1);  // from the cached result
    expect_holds(store.open(1), 1, 2);
    EXPECT_EQ(resolve_checkpoint(folder.path(), ranks), folder / "step-1");
  });
  int found = 0;  // each file is read by one rank
  for (const int64_t rank : {0, 1, 2, 3}) found += !inspect_step(folder / "step-2", {true, rank, 4}).problem.empty();
  EXPECT_EQ(found, 1);
  fs::remove_all(folder / "step-1");
  // Every rank has the finder's words.
  for (const std::string& failure :
       job.failures([&](const CheckpointRanks& ranks) { CheckpointStore(options_in(folder, ranks)).latest_valid(true); })) {
    for (const std::string& part :
         {std::string("no valid checkpoint in"), file.string() + " has the checksum", std::string("(found by rank ")})
      EXPECT_NE(failure.find(part), std::string::npos) << failure;
    EXPECT_EQ(failure.find("(found by rank 0)"), std::string::npos) << failure;
  }
}

TEST(CheckpointRanks, RankZeroRenamesAfterAllHaveRead) {
  const TemporaryFolder folder;
  Job job(3);
  for (const int64_t step : {1, 2}) save(folder, job, step);
  job.run([&](const CheckpointRanks& ranks) {
    CheckpointStore store(options_in(folder, ranks));
    EXPECT_EQ(store.latest_valid(true), 2);
    ::usleep(static_cast<useconds_t>(ranks.rank * 20000));
    expect_holds(store.open(2), 2, 1);
    EXPECT_EQ(store.set_aside_after(1).size(), ranks.rank == 0 ? 1u : 0u);
    EXPECT_EQ(store.latest_valid(true), 1);
    store.save(part_of(2, ranks));
    EXPECT_EQ(store.latest_valid(true), 2);
  });
  EXPECT_TRUE(fs::exists(folder / "step-2.aside"));
}

TEST(CheckpointRanks, PartsThatDoNotFitAreRefused) {
  const TemporaryFolder folder;
  const auto refused = [&](const std::function<void(StepState&, int64_t rank)>& change, const std::string& part) {
    SCOPED_TRACE(part);
    const auto failures = Job(2).failures([&](const CheckpointRanks& ranks) {
      CheckpointStore store(options_in(folder, ranks));
      store.prepare();
      StepState state = part_of(1, ranks);
      change(state, ranks.rank);
      store.save(state);
    });
    EXPECT_NE(failures[0].find(part), std::string::npos) << failures[0];
    EXPECT_TRUE(CheckpointStore({.folder = folder.path()}).valid_steps().empty());
  };
  refused(
      [](StepState& s, int64_t rank) {
        if (rank == 1) s.model[0].offset[0] -= 1;
      },
      "overlap");
  refused(
      [](StepState& s, int64_t rank) {
        if (rank == 1) s.model.erase(s.model.begin());
      },
      "its chunks hold 12 of 21 elements");
  refused([](StepState& s, int64_t rank) { s.model[0].tensor = s.model[0].tensor.to(rank == 1 ? at::kHalf : at::kFloat); },
          "tensor w is F16 [7, 3], another rank has F32 [7, 3]");
  refused([](StepState& s, int64_t rank) { s.step = 1, s.model_only = rank == 1; }, "a part of step 1");
  refused([](StepState& s, int64_t) { s.model[0].shape = {3, 3}; }, "lies outside the shape [3, 3]");
}

}  // namespace
}  // namespace halftone
