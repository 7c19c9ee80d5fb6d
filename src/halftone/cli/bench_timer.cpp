#include "halftone/cli/bench_timer.h"

#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <numeric>

#include "halftone/ops/device.h"

namespace halftone::bench {
namespace {

using Clock = std::chrono::steady_clock;

double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// at::cuda::sleep(int64_t cycles) of LibTorch's CUDA half, which the program does not link.
void hold_device(double seconds) {
  static const auto sleep = reinterpret_cast<void (*)(int64_t)>(dlsym(RTLD_DEFAULT, "_ZN2at4cuda5sleepEl"));
  constexpr double kClock = 2e9, kMost = 0.05;
  if (sleep != nullptr && seconds > 0) sleep(static_cast<int64_t>(std::min(seconds, kMost) * kClock));
}

}  // namespace

Stopwatch::Laps Stopwatch::laps(const std::vector<std::function<void()>>& parts, double queueing) const {
  Laps out;
  if (device_.is_cpu()) {
    for (const auto& part : parts) {
      const auto start = Clock::now();
      part();
      out.seconds.push_back(since(start));
    }
    return out;
  }
  const c10::Stream stream = c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
  std::vector<c10::Event> events;
  for (size_t i = 0; i <= parts.size(); ++i) events.emplace_back(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
  hold_device(queueing * 1.25 + 20e-6);
  const auto start = Clock::now();
  events[0].record(stream);
  for (size_t i = 0; i < parts.size(); ++i) {
    parts[i]();
    events[i + 1].record(stream);
  }
  out.queueing = since(start);
  events.back().synchronize();
  for (size_t i = 0; i < parts.size(); ++i) out.seconds.push_back(events[i].elapsedTime(events[i + 1]) * 1e-3);
  return out;
}

void warm_up(c10::Device device) {
  const int64_t n = device.is_cpu() ? 512 : 4096;
  const double seconds = device.is_cpu() ? 0.05 : 0.3;
  const at::Tensor a = at::randn({n, n}, at::TensorOptions().device(device).dtype(at::kBFloat16));
  for (const auto start = Clock::now(); since(start) < seconds;) {
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

std::vector<double> time_in_turns(const Stopwatch& watch, const std::vector<Work>& works, int rounds, double target) {
  struct State {
    int runs = 1;
    int64_t turn = 0;
    double queueing = 0;
    std::vector<double> seconds;
  };
  std::vector<State> states(works.size());
  const auto group = [&](size_t i) {
    State& s = states[i];
    const auto laps = watch.laps({[&] {
                                   for (int r = 0; r < s.runs; ++r) works[i](s.turn++);
                                 }},
                                 s.queueing);
    s.queueing = laps.queueing;
    return laps.seconds[0] / s.runs;
  };
  for (size_t i = 0; i < works.size(); ++i) {
    group(i);                // makes buffers, chooses algorithms
    states[i].queueing = 0;  // unknown for the next call
    const double once = group(i);
    states[i].runs = std::clamp(static_cast<int>(target / std::max(once, 1e-7)), 1, 200);
    group(i);
  }
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < works.size(); ++i) states[i].seconds.push_back(group(i));
  }
  std::vector<double> out;
  for (const State& s : states) out.push_back(median(s.seconds));
  return out;
}

std::vector<std::vector<double>> time_parts_in_turns(const Stopwatch& watch, const std::vector<Parts>& works, int rounds, double target) {
  constexpr int kMostCalls = 256;
  struct State {
    int calls = 1;
    double queueing = 0;
    std::vector<std::vector<double>> seconds;  // [part]
  };
  std::vector<State> states(works.size());
  // One turn: seconds of each part in every call, [call * parts + part].
  const auto turn = [&](size_t i) {
    Parts parts;
    for (int call = 0; call < states[i].calls; ++call) parts.insert(parts.end(), works[i].begin(), works[i].end());
    return watch.laps(parts, states[i].queueing);
  };
  for (size_t i = 0; i < works.size(); ++i) {
    turn(i);  // makes buffers, chooses algorithms
    const auto laps = turn(i);
    const double once = std::accumulate(laps.seconds.begin(), laps.seconds.end(), 0.0);
    states[i].calls = std::clamp(static_cast<int>(target / std::max(once, 1e-7)), 1, kMostCalls);
    states[i].queueing = laps.queueing * states[i].calls;
    states[i].seconds.resize(works[i].size());
  }
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < works.size(); ++i) {
      State& s = states[i];
      const auto laps = turn(i);
      s.queueing = laps.queueing;
      for (size_t at = static_cast<size_t>(s.calls / 4) * works[i].size(); at < laps.seconds.size(); ++at) {
        s.seconds[at % works[i].size()].push_back(laps.seconds[at]);
      }
    }
  }
  std::vector<std::vector<double>> out(works.size());
  for (size_t i = 0; i < works.size(); ++i) {
    for (const auto& part : states[i].seconds) out[i].push_back(median(part));
  }
  return out;
}

}  // namespace halftone::bench
