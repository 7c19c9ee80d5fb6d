#include "halftone/checkpoint/store.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>

#include "checkpoint/support.h"
#include "halftone/base/json_reader.h"
#include "halftone/base/log.h"
#include "halftone/checkpoint/discard.h"

static std::atomic<bool> deletions_end = true;

// In front of libc's, as for std::filesystem.
extern "C" int unlinkat(int folder, const char* name, int flags) noexcept {
  while (!deletions_end) ::usleep(1000);
  return static_cast<int>(::syscall(SYS_unlinkat, folder, name, flags));
}

namespace halftone::store_test {
namespace {

namespace fs = std::filesystem;
using testing::expect_error;
using testing::TemporaryFolder;

at::Tensor ramp(at::IntArrayRef shape, double start = 0) {
  int64_t n = 1;
  for (const int64_t extent : shape) n *= extent;
  return (at::arange(n, at::kFloat) * 0.25 + start).reshape(shape);
}

StepState state_of(int64_t step, bool model_only = false) {
  StepState state;
  state.step = step;
  state.model_only = model_only;
  state.model = {{"tok_embeddings.weight", ramp({6, 4}, static_cast<double>(step))}, {"norm.weight", ramp({4}).to(at::kBFloat16)}};
  state.optim = {{"optim.state.norm.weight.exp_avg", ramp({4}, 1)}, {"optim.state.norm.weight.step", at::full({}, step, at::kLong)}};
  state.state_json = R"({"train_state": {"step": )" + std::to_string(step) + "}}";
  return state;
}

std::vector<int64_t> steps_after(CheckpointOptions options, const std::vector<int64_t>& saves) {
  {
    CheckpointStore store(options);
    for (const int64_t step : saves) store.save(state_of(step));
  }
  return CheckpointStore(options).valid_steps();
}

void expect_holds(const LoadedStep& loaded, int64_t step) {
  EXPECT_EQ(loaded.step(), step);
  const StepState wanted = state_of(step);
  for (const auto* list : {&wanted.model, &wanted.optim})
    for (const NamedTensor& t : *list) {
      const at::Tensor found = loaded.read(t.name);
      EXPECT_EQ(found.scalar_type(), t.tensor.scalar_type());
      EXPECT_TRUE(at::equal(found, t.tensor)) << t.name;
    }
  EXPECT_EQ(loaded.state_json(), wanted.state_json);
}

TEST(CheckpointStore, RoundTrip) {
  const TemporaryFolder folder;
  testing::write_file(folder / "tok.json", "{\"vocab\": 1}");
  CheckpointStore store({.folder = folder / "checkpoint"});
  store.prepare();
  StepState state = state_of(5);
  state.copy_files = {{"tokenizer.json", folder / "tok.json"}};
  store.save(state);
  EXPECT_EQ(store.valid_steps(), std::vector<int64_t>{5});
  EXPECT_EQ(store.latest_valid(true), 5);
  const LoadedStep loaded = store.open(5);
  expect_holds(loaded, 5);
  EXPECT_FALSE(loaded.model_only());
  EXPECT_EQ(loaded.model_names(), (std::vector<std::string>{"norm.weight", "tok_embeddings.weight"}));
  EXPECT_EQ(loaded.optim_names().size(), 2u);
  EXPECT_EQ(testing::read_file(folder / "checkpoint/step-5/tokenizer.json"), "{\"vocab\": 1}");
  loaded.check_model_names({"tok_embeddings.weight", "norm.weight"});
  expect_error(
      [&] {
        loaded.check_model_names({"tok_embeddings.weight", "output.weight"});
      },
      "1 tensors are missing: output.weight; 1 tensors are unknown: norm.weight");
  EXPECT_EQ(resolve_checkpoint(folder.path()), folder / "checkpoint/step-5");
  EXPECT_EQ(resolve_checkpoint(folder / "checkpoint/step-5"), folder / "checkpoint/step-5");
  expect_error([&] { resolve_checkpoint(folder / "nowhere"); }, "no checkpoint at");
  expect_error([&] { store.open(6); }, "no checkpoint of step 6");
}

TEST(CheckpointStore, ReadsIntoStridedAndOtherTypes) {
  const TemporaryFolder folder;
  CheckpointStore store({.folder = folder.path()});
  StepState state = state_of(1);
  state.model[0].tensor = ramp({4, 6}).t();  // stored from a strided tensor
  store.save(state);
  const LoadedStep loaded = store.open(1);
  at::Tensor strided = ramp({4, 6}).t() * 0;
  ASSERT_FALSE(strided.is_contiguous());
  loaded.read_into("tok_embeddings.weight", strided);
  EXPECT_TRUE(at::equal(strided, state.model[0].tensor));
  at::Tensor half = at::full({6, 4}, 0, at::kBFloat16);
  expect_error([&] { loaded.read_into("tok_embeddings.weight", half); }, "has type F32, expected BFloat16");
  loaded.read_into("tok_embeddings.weight", half, true);
  EXPECT_TRUE(at::equal(half, state.model[0].tensor.to(at::kBFloat16)));
  at::Tensor integers = at::full({6, 4}, 0, at::kLong);
  expect_error([&] { loaded.read_into("tok_embeddings.weight", integers, true); }, "has type F32, expected Long");
  at::Tensor shape = at::full({4, 6}, 0, at::kFloat);
  expect_error([&] { loaded.read_into("tok_embeddings.weight", shape); }, "has shape [6, 4], expected [4, 6]");
  expect_error([&] { loaded.read("absent"); }, "no tensor named absent");
}

TEST(CheckpointStore, SplitsIntoFilesAndConvertsTheModel) {
  const TemporaryFolder folder;
  CheckpointStore store({.folder = folder.path(), .max_shard_bytes = 40});
  StepState state = state_of(3, true);
  for (int i = 0; i < 4; ++i) state.model.push_back({"extra" + std::to_string(i), ramp({5}, i)});
  state.model_dtype = at::kBFloat16;
  store.save(state);
  EXPECT_TRUE(fs::exists(folder / "step-3/model-2.safetensors"));
  EXPECT_FALSE(fs::exists(folder / "step-3/optim-0.safetensors"));
  const LoadedStep loaded = store.open(3);
  EXPECT_TRUE(loaded.model_only());
  EXPECT_TRUE(at::equal(loaded.read("extra2"), ramp({5}, 2).to(at::kBFloat16)));
  EXPECT_EQ(store.latest_valid(false), 3);
  EXPECT_EQ(store.latest_valid(true), std::nullopt);  // never a resume point
}

TEST(CheckpointStore, ReadsShardedTensors) {
  const TemporaryFolder folder;
  fs::create_directory(folder / "step-2");
  const at::Tensor whole = ramp({5, 4});
  CheckpointIndex index{.step = 2, .world = 2};
  IndexedTensor row{.dtype = FileDType::f32, .shape = {5, 4}};
  row.chunks = {{"model-0.safetensors", {0, 0}, {3, 4}}, {"model-1.safetensors", {3, 0}, {2, 4}}};
  for (const TensorChunk& chunk : row.chunks) {
    const at::Tensor part = whole.narrow(0, chunk.offset[0], chunk.shape[0]);
    const WrittenFile written = write_tensors(folder / "step-2" / chunk.file, {{chunk_name("w", row, chunk), part}}, {});
    index.files[chunk.file] = {written.bytes, written.checksum};
  }
  index.tensors["w"] = row;
  testing::write_file(folder / "step-2/index.json", write_index(index));
  EXPECT_TRUE(at::equal(LoadedStep::open(folder / "step-2", true).read("w"), whole));
}

TEST(CheckpointStore, KeepsTheNewestAndNeverTheOneJustWritten) {
  const TemporaryFolder a, b, c;
  EXPECT_EQ(steps_after({.folder = a.path(), .keep_latest_k = 2}, {1, 2, 3, 4}), (std::vector<int64_t>{3, 4}));
  EXPECT_EQ(steps_after({.folder = b.path(), .keep_latest_k = 0}, {1, 2, 3, 4}), (std::vector<int64_t>{1, 2, 3, 4}));
  // A run that rolled back to an older step keeps what it writes.
  EXPECT_EQ(steps_after({.folder = c.path(), .keep_latest_k = 2}, {30, 40, 5}), (std::vector<int64_t>{5, 40}));
  for (const auto& entry : fs::directory_iterator(a.path())) EXPECT_NE(entry.path().extension(), ".tmp");
}

// A file system on which no deletion ends: saves, the end of a run and its next start do not wait for one.
TEST(CheckpointStore, NobodyWaitsForADeletion) {
  const TemporaryFolder folder;
  const CheckpointOptions options{.folder = folder.path(), .keep_latest_k = 2};
  const auto discarded = [&] {
    int64_t count = 0;
    for (const auto& entry : fs::directory_iterator(folder.path())) count += is_discarded(entry.path().filename().string());
    return count;
  };
  EXPECT_TRUE(finish_discards(std::chrono::minutes(1)));
  deletions_end = false;
  EXPECT_EQ(steps_after(options, {1, 2, 3, 4, 4}), (std::vector<int64_t>{3, 4}));
  EXPECT_EQ(discarded(), 3);                                   // the replaced step 4, too
  for (const char* name : {"step-5.tmp", "step-9.deleted"}) {  // of a process that was killed
    fs::create_directory(folder / name);
    testing::write_file(folder / name / "model-0.safetensors", "x");
  }
  CheckpointStore next(options);
  next.prepare();
  EXPECT_FALSE(fs::exists(folder / "step-5.tmp"));
  EXPECT_EQ(next.latest_valid(true), 4);
  next.save(state_of(5));
  EXPECT_EQ(next.valid_steps(), (std::vector<int64_t>{4, 5}));
  EXPECT_FALSE(finish_discards(std::chrono::milliseconds(1)));
  EXPECT_EQ(discarded(), 6);
  deletions_end = true;
  EXPECT_TRUE(finish_discards(std::chrono::minutes(1)));
  EXPECT_EQ(discarded(), 0);
}

TEST(CheckpointStore, ModelOnlySavesDoNotPurge) {
  const TemporaryFolder folder;
  {
    CheckpointStore store({.folder = folder.path(), .keep_latest_k = 2});
    store.save(state_of(1));
    store.save(state_of(2));
    store.save(state_of(3, true));
  }
  EXPECT_EQ(CheckpointStore({.folder = folder.path()}).valid_steps(), (std::vector<int64_t>{1, 2, 3}));
}

// The last save of a run is made at once, while the previous one may still be written and older steps deleted.
TEST(CheckpointStore, EveryKindOfFullSaveLeavesTheNewest) {
  const TemporaryFolder folder;
  {
    CheckpointStore store({.folder = folder.path(), .keep_latest_k = 2, .async = true});
    for (const int64_t step : {0, 1, 5, 10, 15}) store.save(state_of(step));
    store.save(state_of(17), true);
  }
  EXPECT_EQ(CheckpointStore({.folder = folder.path()}).valid_steps(), (std::vector<int64_t>{15, 17}));
}

TEST(CheckpointStore, ReplacesAStep) {
  const TemporaryFolder folder;
  CheckpointStore store({.folder = folder.path()});
  StepState state = state_of(4);
  state.model[0].tensor.fill_(9);
  store.save(state);
  testing::write_file(folder / "step-4/stale", "x");
  store.save(state_of(4));
  expect_holds(store.open(4), 4);
  EXPECT_FALSE(fs::exists(folder / "step-4/stale"));
  EXPECT_FALSE(fs::exists(folder / "step-4.tmp"));
}

TEST(CheckpointStore, RemovesLeftovers) {
  const TemporaryFolder folder;
  {
    CheckpointStore store({.folder = folder.path()});
    store.save(state_of(4));
    store.save(state_of(6));
  }
  fs::create_directory(folder / "step-5.tmp");
  testing::write_file(folder / "step-5.tmp/model-0.safetensors", "half");
  fs::create_directory(folder / "step-4.old");
  fs::rename(folder / "step-6", folder / "step-6.old");  // a crash between the two renames of a replacement
  fs::create_directory(folder / "step-x.tmp");           // not ours
  testing::write_file(folder / ".writable-7", "");       // of a process that was killed while it tried to write
  CheckpointStore store({.folder = folder.path()});
  EXPECT_EQ(store.valid_steps(), std::vector<int64_t>{4});
  store.prepare();
  EXPECT_FALSE(fs::exists(folder / "step-5.tmp"));
  EXPECT_FALSE(fs::exists(folder / "step-4.old"));
  EXPECT_FALSE(fs::exists(folder / ".writable-7"));
  EXPECT_TRUE(fs::exists(folder / "step-x.tmp"));
  EXPECT_EQ(store.valid_steps(), (std::vector<int64_t>{4, 6}));
  expect_holds(store.open(6), 6);
}

TEST(CheckpointStore, DamagedStepsAreSkippedAndNamed) {
  const TemporaryFolder folder;
  const CheckpointOptions options{.folder = folder.path()};
  CheckpointStore store(options);
  for (const int64_t step : {1, 2}) store.save(state_of(step));
  const fs::path newest = folder / "step-2";
  const auto damaged = [&](const std::string& file, const std::function<void(const fs::path&)>& damage, const std::string& part) {
    SCOPED_TRACE(file + ": " + part);
    store.save(state_of(2));
    EXPECT_EQ(CheckpointStore(options).latest_valid(true), 2);
    damage(newest / file);
    EXPECT_EQ(CheckpointStore(options).latest_valid(true), 1);
    expect_error([&] { CheckpointStore(options).open(2); }, part);
  };
  damaged(
      "model-0.safetensors", [](auto& p) { fs::resize_file(p, fs::file_size(p) - 1); }, "truncated");
  damaged(
      "model-0.safetensors", [](auto& p) { fs::resize_file(p, fs::file_size(p) + 1); }, "not the one that was saved");
  damaged(
      "model-0.safetensors", [](auto& p) { testing::flip_byte(p, fs::file_size(p) - 3); }, "the file is damaged");
  damaged(
      "optim-0.safetensors", [](auto& p) { testing::flip_byte(p, 12); }, "the file is damaged");
  damaged(
      "optim-0.safetensors", [](auto& p) { fs::remove(p); }, "No such file");
  damaged(
      "state.json", [](auto& p) { testing::flip_byte(p, 3); }, "the file is damaged");
  damaged(
      "index.json", [](auto& p) { fs::resize_file(p, fs::file_size(p) / 2); }, "not valid JSON");
  damaged(
      "index.json", [](auto& p) { fs::remove(p); }, "expected index.json of a step");
  damaged(
      "index.json", [&](auto& p) { fs::copy_file(folder / "step-1/index.json", p, fs::copy_options::overwrite_existing); },
      "belongs to step 1");
  fs::remove_all(folder / "step-1");
  expect_error([&] { CheckpointStore(options).latest_valid(true); }, "no valid checkpoint in");
  fs::remove_all(folder / "step-2");
  EXPECT_EQ(CheckpointStore(options).latest_valid(true), std::nullopt);
}

TEST(CheckpointStore, AStepIsVerifiedOnceAndAgainAfterItWasWritten) {
  const TemporaryFolder folder;
  CheckpointStore store({.folder = folder.path()});
  store.save(state_of(2));
  EXPECT_EQ(store.latest_valid(true), 2);
  testing::flip_byte(folder / "step-2/model-0.safetensors", 300);
  EXPECT_NO_THROW(store.open(2));
  store.save(state_of(2));
  testing::flip_byte(folder / "step-2/model-0.safetensors", 300);
  expect_error([&] { store.open(2); }, "the file is damaged");
}

TEST(CheckpointStore, IndexAndTensorFileMustAgree) {
  const TemporaryFolder folder;
  CheckpointStore store({.folder = folder.path(), .checksum = false});
  store.save(state_of(2));
  Json index = Json::parse(testing::read_file(folder / "step-2/index.json"));
  EXPECT_FALSE(index["files"]["model-0.safetensors"].contains("xxh3_64"));
  index["tensors"]["tok_embeddings.weight"]["dtype"] = "I32";
  testing::write_file(folder / "step-2/index.json", index.dump());
  expect_error([&] { store.open(2); }, "is F32 [6, 4], index.json says I32 [6, 4]");
}

TEST(CheckpointStore, WithoutVerifyAFlippedByteIsOnlyFoundWhenItBreaksTheForm) {
  const TemporaryFolder folder;
  CheckpointStore store({.folder = folder.path(), .verify_on_load = false});
  store.save(state_of(2));
  const fs::path file = folder / "step-2/model-0.safetensors";
  testing::flip_byte(file, fs::file_size(file) - 3);
  EXPECT_EQ(store.latest_valid(true), 2);
  EXPECT_NO_THROW(store.open(2));
  EXPECT_THROW(LoadedStep::open(folder / "step-2", true), Error);
}

// A process-wide file size limit makes writes fail halfway, as a full disk does.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    ::getrlimit(RLIMIT_FSIZE, &old_);
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{bytes, old_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &old_);
    ::signal(SIGXFSZ, SIG_DFL);
  }

 private:
  rlimit old_{};
};

TEST(CheckpointStore, AFailedWriteLeavesThePreviousStepAlone) {
  for (const bool async : {false, true}) {
    SCOPED_TRACE(async);
    const TemporaryFolder folder;
    CheckpointStore store({.folder = folder.path(), .keep_latest_k = 2, .async = async});
    store.save(state_of(1));
    store.wait();
    for (const int64_t step : {2, 1}) {  // a new step, and a replacement of the valid one
      StepState big = state_of(step);
      big.model[0].tensor = ramp({100000});
      const FileSizeLimit limit(10000);
      if (async) {
        store.save(big);
        expect_error([&] { store.wait(); }, "File too large");
      } else {
        expect_error([&] { store.save(big); }, "File too large");
      }
      EXPECT_EQ(store.valid_steps(), std::vector<int64_t>{1});
      EXPECT_FALSE(fs::exists(folder / ("step-" + std::to_string(step) + ".tmp")));
    }
    expect_holds(store.open(1), 1);
    store.save(state_of(3));
    store.wait();
    EXPECT_EQ(store.latest_valid(true), 3);
  }
}

TEST(CheckpointStore, AsyncSavesTheTensorsOfThatMoment) {
  const TemporaryFolder folder;
  CheckpointStore store({.folder = folder.path(), .async = true});
  StepState state = state_of(1);
  for (int64_t step = 1; step <= 4; ++step) {
    state.step = step;
    state.state_json = state_of(step).state_json;
    state.model[0].tensor.copy_(state_of(step).model[0].tensor);
    state.optim[1].tensor.fill_(step);
    store.save(state);
    state.model[0].tensor.fill_(-1);  // training continues
  }
  store.wait();
  for (int64_t step = 1; step <= 4; ++step) expect_holds(store.open(step), step);
}

TEST(CheckpointStore, AProcessKilledAtAnyMomentLeavesACompleteStep) {
  const TemporaryFolder folder;
  const CheckpointOptions options{.folder = folder.path(), .keep_latest_k = 2};
  CheckpointStore(options).save(state_of(1));
  int64_t last = 1;
  for (int round = 0; round < 12; ++round) {
    const pid_t child = ::fork();
    if (child == 0) {
      set_log_enabled(false);
      CheckpointStore store(options);
      for (int64_t step = last + 1;; ++step) store.save(state_of(step));
    }
    ::usleep(static_cast<useconds_t>(20000 + round * 7001));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    CheckpointStore store(options);
    store.prepare();
    const auto step = store.latest_valid(true);
    ASSERT_TRUE(step.has_value());
    EXPECT_GE(*step, last);
    expect_holds(store.open(*step), *step);
    EXPECT_TRUE(finish_discards(std::chrono::minutes(1)));
    for (const auto& entry : fs::directory_iterator(folder.path())) EXPECT_EQ(entry.path().extension(), "") << entry.path();
    last = *step;
  }
  EXPECT_GT(last, 1);
}

TEST(CheckpointStore, UnwritableFolder) {
  const TemporaryFolder folder;
  testing::write_file(folder / "file", "x");
  CheckpointStore store({.folder = folder / "file" / "checkpoint"});
  expect_error([&] { store.prepare(); }, "cannot create the folder");
  CheckpointStore in_the_way({.folder = folder / "file"});
  expect_error([&] { in_the_way.prepare(); }, "cannot create the folder");
  if (::geteuid() != 0) {  // root may write anywhere
    fs::create_directory(folder / "locked");
    fs::permissions(folder / "locked", fs::perms::owner_read | fs::perms::owner_exec);
    CheckpointStore locked({.folder = folder / "locked"});
    expect_error([&] { locked.prepare(); }, "is not writable");
  }
  CheckpointStore kernel({.folder = "/proc"});
  expect_error([&] { kernel.prepare(); }, "is not writable");
}

TEST(CheckpointStore, OtherFoldersAreNamed) {
  const TemporaryFolder folder;
  expect_error([&] { LoadedStep::open(folder / "absent", true); }, "there is no such folder");
  expect_error([&] { resolve_checkpoint(folder.path()); }, "expected index.json of a step");
  testing::write_file(folder / "__0_0.distcp", "x");
  expect_error([&] { resolve_checkpoint(folder.path()); }, "python -m halftone.dcp to-halftone " + folder.path().string() + " OUT");
  expect_error([&] { LoadedStep::open(folder.path(), true); }, "is a DCP folder of PyTorch");
}

TEST(CheckpointStore, RefusesWrongState) {
  const TemporaryFolder folder;
  CheckpointStore store({.folder = folder.path()});
  StepState state = state_of(1);
  state.state_json = "[]";
  expect_error([&] { store.save(state); }, "expected a JSON object");
  state = state_of(1);
  state.optim.push_back(state.model[0]);
  expect_error([&] { store.save(state); }, "two tensors named tok_embeddings.weight");
  state = state_of(1);
  state.copy_files = {{"tokenizer.json", folder / "absent"}};
  expect_error([&] { store.save(state); }, "absent");
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

}  // namespace
}  // namespace halftone::store_test
