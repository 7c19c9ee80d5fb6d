#include "halftone/cli/bench_timer.h"

#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>

#include <algorithm>
#include <numeric>

#include "halftone/base/stopwatch.h"
#include "halftone/ops/device.h"

namespace halftone::bench {
namespace {

// at::cuda::sleep(int64_t cycles) of LibTorch's CUDA half, which the program does not link.
void hold_device(double seconds) {
  static const auto sleep = reinterpret_cast<void (*)(int64_t)>(dlsym(RTLD_DEFAULT, "_ZN2at4cuda5sleepEl"));
  constexpr double kClock = 2e9, kMost = 0.05;
  if (sleep != nullptr && seconds > 0) sleep(static_cast<int64_t>(std::min(seconds, kMost) * kClock));
}

struct Laps {
  std::vector<double> seconds;
  double queueing = 0;  // seconds that the host needs to queue them
};

// Times the laps in order; the device first waits for `queueing` seconds.
Laps time_laps(c10::Device device, const std::vector<std::function<void()>>& laps, double queueing) {
  Laps out;
  if (device.is_cpu()) {
    for (const auto& lap : laps) {
      const Stopwatch watch;
      lap();
      out.seconds.push_back(watch.seconds());
    }
    return out;
  }
  const c10::Stream stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  std::vector<c10::Event> events;
  for (size_t i = 0; i <= laps.size(); ++i) events.emplace_back(device.type(), c10::EventFlag::BACKEND_DEFAULT);
  hold_device(queueing * 1.25 + 20e-6);
  const Stopwatch watch;
  events[0].record(stream);
  for (size_t i = 0; i < laps.size(); ++i) {
    laps[i]();
    events[i + 1].record(stream);
  }
  out.queueing = watch.seconds();
  events.back().synchronize();
  for (size_t i = 0; i < laps.size(); ++i) out.seconds.push_back(events[i].elapsedTime(events[i + 1]) * 1e-3);
  return out;
}

}  // namespace

void warm_up(c10::Device device) {
  const int64_t n = device.is_cpu() ? 512 : 4096;
  const double seconds = device.is_cpu() ? 0.05 : 0.3;
  const at::Tensor a = at::randn({n, n}, at::TensorOptions().device(device).dtype(at::kBFloat16));
  for (const Stopwatch watch; watch.seconds() < seconds;) {
    at::mm(a, a);
    synchronize(device);
  }
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::vector<std::vector<double>> time_in_turns(c10::Device device, const std::vector<Parts>& works, const Turns& turns) {
  constexpr int kMostCalls = 256;
  struct State {
    int calls = 1;
    int64_t turn = 0;
    double queueing = 0;
    std::vector<std::vector<double>> seconds;  // [part]
  };
  std::vector<State> states(works.size());
  const auto turn = [&](size_t i) {
    State& s = states[i];
    std::vector<std::function<void()>> laps;
    if (turns.together) {
      laps.emplace_back([&] {
        for (int call = 0; call < s.calls; ++call) works[i][0](s.turn++);
      });
    } else {
      for (int call = 0; call < s.calls; ++call, ++s.turn)
        for (const Part& part : works[i]) laps.emplace_back([&part, at = s.turn] { part(at); });
    }
    return time_laps(device, laps, s.queueing);
  };
  for (size_t i = 0; i < works.size(); ++i) {
    State& s = states[i];
    turn(i);  // makes buffers, chooses algorithms
    const Laps laps = turn(i);
    const double once = std::accumulate(laps.seconds.begin(), laps.seconds.end(), 0.0);
    s.calls = std::clamp(static_cast<int>(turns.target / std::max(once, 1e-7)), 1, kMostCalls);
    s.queueing = laps.queueing * s.calls;
    s.seconds.resize(works[i].size());
  }
  for (int round = 0; round < turns.rounds; ++round) {
    for (size_t i = 0; i < works.size(); ++i) {
      State& s = states[i];
      const size_t parts = works[i].size(), first = turns.together ? 0 : static_cast<size_t>(s.calls / 4) * parts;
      const Laps laps = turn(i);
      s.queueing = laps.queueing;
      for (size_t at = first; at < laps.seconds.size(); ++at)
        s.seconds[at % parts].push_back(laps.seconds[at] / (turns.together ? s.calls : 1));
    }
  }
  std::vector<std::vector<double>> out(works.size());
  for (size_t i = 0; i < works.size(); ++i) {
    for (const auto& part : states[i].seconds) out[i].push_back(median(part));
  }
  return out;
}

}  // namespace halftone::bench
