// Steps as CUDA graphs (train/step_graph.h) produce the same bits as steps launched kernel by kernel.
#include "halftone/train/step_graph.h"

#include <gtest/gtest.h>

#include "halftone/ops/device.h"
#include "halftone/train/engine.h"
#include "ops/test_device.h"
#include "train/small_engine.h"

namespace halftone {
namespace {

class GraphedStep : public OnDevice {
 protected:
  void SetUp() override {
    OnDevice::SetUp();
    if (!IsSkipped()) at::globalContext().setDeterministicAlgorithms(true, true);  // no timed choice of algorithm: equal bits
  }
  void TearDown() override {
    at::globalContext().setDeterministicAlgorithms(false, false);
    OnDevice::TearDown();
  }
  struct Course {
    std::vector<StepResult> results;
    std::vector<at::Tensor> masters;
    std::vector<double> evaluations;
  };
  // Seven steps, with an evaluation, a step that is given up, one of other rows and labels that do not count in between.
  static Course course(std::vector<std::string> more, bool graphs, bool padding = false) {
    if (!graphs) more.push_back("--training.disable_cuda_graphs=true");
    Engine::Options options = small_options();
    options.device = test_device();
    Engine engine(small_config(more), options);
    engine.initialize();
    at::manual_seed(8);
    Course c;
    for (int64_t step = 1; step <= 7; ++step) {
      std::vector<MicroBatch> batches = small_step();
      if (step == 5) {
        batches.front().labels.narrow(1, 0, 3).fill_(-100);
        batches.front().valid_labels -= 3 * batches.front().labels.size(0);
      }
      if (step == 6) batches.pop_back();
      for (MicroBatch& b : batches) b.input.tokens = b.input.tokens.to(options.device), b.labels = b.labels.to(options.device);
      for (MicroBatch& b : batches)
        if (padding)
          b.input.padding = at::arange(kSmallPositions).ge(kSmallPositions - 5 * step).expand_as(b.labels).contiguous().to(options.device);
      if (step == 4) engine.accumulate(batches, step), engine.drop_gradients();
      c.results.push_back(engine.step(batches, step, 1.0 / static_cast<double>(step)));
      if (step == 4) c.evaluations.push_back(engine.evaluate(batches.front()));
    }
    for (const nn::Parameter* p : engine.store().parameters()) c.masters.push_back(p->values().cpu());
    return c;
  }
};

TEST_P(GraphedStep, HasTheBitsOfAQueuedOne) {
  const std::vector<std::vector<std::string>> runs = {{"--quantize.scheme=none"},
                                                      {"--quantize.scheme=fp8_tensorwise", "--activation_checkpoint.mode=full"},
                                                      {"--quantize.scheme=mxfp4"},
                                                      {"--quantize.scheme=int8", "--quantize.stochastic_rounding=true"},
                                                      {"--quantize.scheme=int8_weight"},
                                                      {"--quantize.scheme=int8",  // captured in step 3
                                                       R"(--quantize.phases=[{"from": 4, "scheme": "mxfp4"}])"}};
  for (const std::vector<std::string>& run : runs) {
    const bool padding = &run == &runs.front();  // other places in every step
    const Course queued = course(run, false, padding), replayed = course(run, true, padding);
    for (size_t i = 0; i < queued.results.size(); ++i) {
      EXPECT_EQ(replayed.results[i].loss_sum, queued.results[i].loss_sum) << run.front() << ", step " << i + 1;
      EXPECT_EQ(replayed.results[i].grad_norm, queued.results[i].grad_norm) << run.front() << ", step " << i + 1;
      EXPECT_TRUE(replayed.results[i].updated) << run.front() << ", step " << i + 1;
    }
    EXPECT_EQ(replayed.evaluations, queued.evaluations) << run.front();
    for (size_t i = 0; i < queued.masters.size(); ++i) EXPECT_TRUE(at::equal(replayed.masters[i], queued.masters[i])) << run.front();
  }
}

// Which steps are captured.
TEST_P(GraphedStep, IsMadeWhereItFits) {
  int calls = 0;
  const auto passes = [&](std::span<const MicroBatch>, const at::Tensor&) { ++calls; };
  std::vector<MicroBatch> batches = small_step();
  for (MicroBatch& b : batches) b.input.tokens = b.input.tokens.to(test_device()), b.labels = b.labels.to(test_device());
  StepGraph never(test_device(), false, 1), large(test_device(), true, int64_t{1} << 40), small(test_device(), true, 1);
  for (int step = 1; step <= 4; ++step) {
    EXPECT_FALSE(never.run(batches, 1, passes));
    EXPECT_FALSE(large.run(batches, 1, passes));
    EXPECT_EQ(small.run(batches, 1, passes), step > 2 && !test_device().is_cpu());
  }
  EXPECT_EQ(calls, test_device().is_cpu() ? 0 : 1);
  batches.front().first_row += 1;
  EXPECT_FALSE(small.run(batches, 1, passes));
  EXPECT_FALSE(small.exists());
}

INSTANTIATE_TEST_SUITE_P(On, GraphedStep, test_devices(), [](const auto& info) { return info.param; });

}  // namespace
}  // namespace halftone
