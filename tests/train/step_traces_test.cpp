#include "halftone/train/step_traces.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "ops/test_device.h"  // before what opens halftone::testing, where it would look for gtest's names
//
#include "checkpoint/support.h"
#include "train/small_engine.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;

struct Trace {
  std::set<std::string> names, categories;
};

Trace read_trace(const fs::path& file) {
  std::ifstream in(file);
  EXPECT_TRUE(in.good()) << file;
  Trace trace;
  const nlohmann::json json = nlohmann::json::parse(in);
  for (const auto& event : json.at("traceEvents")) {
    trace.names.insert(event.value("name", ""));
    trace.categories.insert(event.value("cat", ""));
  }
  return trace;
}

std::string read_bytes(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

class StepTracesOn : public OnDevice {};

TEST_P(StepTracesOn, WritesTheLastStepsOfEveryCycle) {
  const testing::TemporaryFolder folder;
  const JobConfig config = small_config({"--profiling.enable_profiling", "--profiling.profile_freq=3", "--profiling.profiler_active=1",
                                         "--profiling.profiler_warmup=1", "--profiling.enable_memory_snapshot", "--training.steps=6",
                                         "--job.dump_folder=" + (folder / "run").string()});
  Engine::Options options = small_options();
  options.device = test_device();
  Engine engine(config, options);
  engine.initialize();
  std::vector<MicroBatch> batches = small_step();
  for (MicroBatch& b : batches) b.input.tokens = b.input.tokens.to(test_device()), b.labels = b.labels.to(test_device());
  const bool cuda = !test_device().is_cpu();
  StepTraces traces(config, 0, test_device(), 1);
  for (const int64_t step : {1, 2, 3, 4, 5, 6, 5, 6}) {  // a rollback from the recorded step restarts its cycle
    traces.before(step);
    EXPECT_TRUE(engine.step(batches, step, 1.0).updated);
    if (step != 6 || engine.updates() == 8) traces.after(step);
  }
  traces.out_of_memory(7);
  for (const char* iteration : {"iteration_3", "iteration_6"}) {
    const Trace trace = read_trace(folder / "run" / "profile_traces" / iteration / "rank0_trace.json");
    for (const char* name :
         {"layers.0 forward", "layers.1 backward", "layers.1.attention", "layers.0.feed_forward", "head", "gradient norm", "optimizer"})
      EXPECT_TRUE(trace.names.contains(name)) << iteration << ' ' << name;
    EXPECT_TRUE(trace.categories.contains("cpu_op"));
    EXPECT_EQ(trace.categories.contains("kernel"), cuda);
  }
  for (const char* iteration : {"iteration_3", "iteration_6", "iteration_7_exit"}) {
    const std::string snapshot = read_bytes(folder / "run" / "memory_snapshot" / iteration / "rank0_memory_snapshot.pickle");
    ASSERT_EQ(!snapshot.empty(), cuda) << iteration;
    if (!cuda) continue;
    EXPECT_TRUE(snapshot.starts_with("\x80\x02") && snapshot.ends_with('.')) << iteration;
    for (const char* part : {"segments", "device_traces"}) EXPECT_NE(snapshot.find(part), std::string::npos) << part;
  }
}
INSTANTIATE_TEST_SUITE_P(Devices, StepTracesOn, test_devices(), [](const auto& info) { return info.param; });

}  // namespace
}  // namespace halftone
