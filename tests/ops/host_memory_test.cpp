#include "halftone/ops/host_memory.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "halftone/base/stopwatch.h"
#include "halftone/ops/optimizer.h"
#include "ops/test_device.h"

namespace halftone {
namespace {

class HostMemory : public OnDevice {};
INSTANTIATE_TEST_SUITE_P(On, HostMemory, test_devices(), [](const auto& info) { return info.param; });

FlatParameters flat(int64_t count, at::ScalarType states, bool on_host) {
  const at::TensorOptions there = at::TensorOptions(at::kFloat).device(test_device());
  const auto moment = [&] { return on_host ? host_zeros(count, states, test_device()) : at::zeros({count}, there.dtype(states)); };
  FlatParameters f;
  f.param = at::sin(at::arange(count, there)), f.grad = at::cos(at::arange(count, there)), f.states = {moment(), moment()};
  OptimizerSegment s;
  s.lr = 1e-3, s.weight_decay = 0.1, s.count = count / 3;  // full vectors, and single elements after them
  f.segments = {s, s};
  f.segments[1].offset = s.count, f.segments[1].count = count - s.count;
  return f;
}

// Two steps, the second over the first one's kernel output, and another one over values written by the host in between.
TEST_P(HostMemory, AnOptimizerLeavesTheBitsThatItLeavesInTheDevices) {
  OptimizerHyper hyper;
  hyper.zero_grad = false;
  for (const at::ScalarType states : {at::kFloat, at::kBFloat16}) {
    FlatParameters host = flat(300007, states, true), device = flat(300007, states, false);
    EXPECT_TRUE(host.states[0].is_cpu() && host.states[0].eq(0).all().item<bool>());
    EXPECT_EQ(host.states[0].is_pinned(), !test_device().is_cpu());
    for (FlatParameters* f : {&host, &device}) {
      optimizer_step(*f, hyper, 1), optimizer_step(*f, hyper, 2);
      synchronize(test_device());
      f->states[1].mul_(0.5);
      optimizer_step(*f, hyper, 3);
    }
    synchronize(test_device());
    EXPECT_GT(host.states[1].max().item<float>(), 0);
    for (const auto& [a, b] : {std::pair{host.param, device.param}, {host.states[0], device.states[0]}, {host.states[1], device.states[1]}})
      EXPECT_TRUE(at::equal(a.cpu(), b.cpu())) << states;
  }
}

// Bus bandwidth of the steps of a large buffer; freed while the last one is queued.
TEST(HostMemoryRate, OfAnOptimizerOnCuda) {
  enter_device("cuda");
  if (IsSkipped()) return;
  for (const at::ScalarType states : {at::kFloat, at::kBFloat16}) {
    FlatParameters host = flat(int64_t{1} << 28, states, true), device = flat(int64_t{1} << 28, states, false);
    double seconds[2] = {1e9, 1e9};
    for (int64_t t = 1; t <= 4; ++t) {
      for (FlatParameters* f : {&host, &device}) {
        synchronize(test_device());
        const Stopwatch watch;
        optimizer_step(*f, {}, t);
        synchronize(test_device());
        double& best = seconds[f == &device];
        best = std::min(best, watch.seconds());
      }
    }
    const double rate = 1e-9 * static_cast<double>(host.states[0].nbytes() + host.states[1].nbytes()) / seconds[0];
    std::printf("268 M parameters, %s states: %.1f ms in host memory (%.1f GB/s each way), %.1f ms in the device's\n",
                c10::toString(states), seconds[0] * 1e3, rate, seconds[1] * 1e3);
    EXPECT_GT(rate, 10) << "a link of this speed should give more";
    optimizer_step(host, {}, 5);
  }
  leave_device();
}

}  // namespace
}  // namespace halftone
