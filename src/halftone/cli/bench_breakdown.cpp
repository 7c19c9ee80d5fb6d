#include "halftone/cli/bench_breakdown.h"

#include <algorithm>
#include <map>
#include <optional>
#include <unordered_map>

#include "halftone/base/error.h"
#include "halftone/cli/text_table.h"
#include "halftone/ops/range.h"

namespace halftone::bench {
namespace {

constexpr int kSteps = 3;  // recorded
constexpr const char* kStep = "step";
constexpr std::string_view kOn = " on ";  // "all-gather on tp": a range of comm/communicator.cpp

struct Sign {
  WorkKind work;
  std::vector<std::string_view> words;
};

// Ranges that determine the kind of all work inside.
const std::vector<Sign> kRanges = {
    {WorkKind::head, {"head"}}, {WorkKind::grad_norm, {"gradient norm"}}, {WorkKind::optimizer, {"optimizer"}}};

// Parts of kernel names; the first match counts. Libraries precede words that occur in their template arguments.
const std::vector<Sign> kKernels = {
    {WorkKind::collective, {"nccl"}},
    {WorkKind::copy, {"Memcpy", "Memset"}},
    {WorkKind::attention, {"flash", "fmha", "sdpa", "cudnn", "attention"}},  // cuDNN and flash-2, some of which contain CUTLASS
    // cuBLASLt, CUTLASS and the kernels around them (gemm/)
    {WorkKind::product, {"cutlass", "gemm", "nvjet", "cublas", "block_rows_kernel", "scalar_kernel", "convert_kernel", "finish_kernel"}},
    // fused/
    {WorkKind::norm, {"RmsNorm", "add_parts_kernel", "Swiglu", "rope_kernel"}},
    {WorkKind::head, {"cross_entropy_kernel"}},
    {WorkKind::optimizer, {"optimizer_kernel"}},
    {WorkKind::grad_norm, {"squares"}},
    {WorkKind::quantiser, {"halftone::"}},                         // quantize/, stored weights and their decoding: the rest of our kernels
    {WorkKind::copy, {"copy_kernel", "CatArray", "FillFunctor"}},  // ATen
};

std::optional<WorkKind> find_sign(const std::vector<Sign>& signs, auto&& fits) {
  for (const Sign& s : signs)
    if (std::any_of(s.words.begin(), s.words.end(), fits)) return s.work;
  return std::nullopt;
}
std::optional<WorkKind> work_of_range(std::string_view range) {
  return find_sign(kRanges, [&](std::string_view word) { return word == range; });
}

std::string_view range_at(const std::vector<const ProfileEvent*>& ranges, int64_t time) {
  for (const ProfileEvent* r : ranges) {
    if (r->begin <= time && time <= r->end) return r->name;
  }
  return {};
}

// Intervals in which a kernel ran.
class BusyTime {
 public:
  // The length of [begin, end) that no interval covers yet.
  int64_t add(int64_t begin, int64_t end) {
    int64_t fresh = 0, at = begin;
    auto next = stretches_.upper_bound(begin);
    if (next != stretches_.begin() && std::prev(next)->second >= begin) {
      --next;
      begin = next->first;
    }
    int64_t last = end;
    while (next != stretches_.end() && next->first <= end) {
      fresh += std::max<int64_t>(0, next->first - at);
      at = std::max(at, next->second), last = std::max(last, next->second);
      next = stretches_.erase(next);
    }
    stretches_[begin] = last;
    return fresh + std::max<int64_t>(0, end - at);
  }

 private:
  std::map<int64_t, int64_t> stretches_;  // begin -> end, disjoint
};

// Without the common parts of names.
std::string short_name(std::string name) {
  for (const std::string_view part : {"void ", "(anonymous namespace)::", "halftone::", "at::native::", "::unnamed>"}) {
    for (size_t at = name.find(part); at != std::string::npos; at = name.find(part)) name.erase(at, part.size());
  }
  constexpr size_t kLongest = 96;
  return name.size() <= kLongest ? name : name.substr(0, kLongest - 3) + "...";
}

}  // namespace

WorkKind work_of(std::string_view kernel, std::string_view range) {
  if (const auto work = work_of_range(range)) return *work;
  return find_sign(kKernels, [&](std::string_view word) { return kernel.find(word) != std::string_view::npos; }).value_or(WorkKind::other);
}

Breakdown break_down(std::span<const ProfileEvent> events) {
  std::vector<const ProfileEvent*> steps, ranges, operations, device;
  std::unordered_map<uint64_t, int64_t> launched;  // when
  for (const ProfileEvent& e : events) {
    if (e.kind == ProfileEvent::Kind::launch) launched.emplace(e.launch, e.begin);
    if (e.kind == ProfileEvent::Kind::device) device.push_back(&e);
    if (e.kind != ProfileEvent::Kind::range) continue;
    if (e.name == kStep) steps.push_back(&e);
    if (e.name.find(kOn) != std::string::npos) operations.push_back(&e);
    if (work_of_range(e.name)) ranges.push_back(&e);
  }
  check(!steps.empty(), "the profiler recorded no step");
  std::sort(device.begin(), device.end(), [](const ProfileEvent* a, const ProfileEvent* b) { return a->begin < b->begin; });
  Breakdown b;
  b.steps = static_cast<int64_t>(steps.size());
  const double per_step = 1.0 / static_cast<double>(b.steps), ms_per_step = 1e-6 * per_step;
  for (const ProfileEvent* s : steps) b.wall_ms += static_cast<double>(s->end - s->begin) * ms_per_step;
  std::map<std::string, Breakdown::Kernel> kernels;
  double busy = 0;
  BusyTime counted;
  for (const bool collectives : {false, true}) {
    for (const ProfileEvent* e : device) {
      const auto launch = launched.find(e->launch);
      const int64_t asked = launch != launched.end() ? launch->second : e->begin;
      if (range_at(steps, asked).empty()) continue;
      const WorkKind kind = work_of(e->name, {}), work = kind == WorkKind::collective ? kind : work_of(e->name, range_at(ranges, asked));
      if ((work == WorkKind::collective) != collectives) continue;
      const double ms = static_cast<double>(counted.add(e->begin, e->end)) * ms_per_step;
      busy += ms, b.kernels += per_step, b.ms[static_cast<size_t>(work)] += ms;
      if (collectives) {
        const std::string_view operation = range_at(operations, asked);
        b.exposed[operation.empty() ? "?" : std::string(operation.substr(operation.find(kOn) + kOn.size()))] += ms;
      }
      Breakdown::Kernel& k =
          kernels.try_emplace(fmt::format("{} {}", static_cast<int>(work), e->name), Breakdown::Kernel{e->name, work}).first->second;
      k.ms += ms, k.calls += per_step;
    }
  }
  b.idle_ms = b.wall_ms - busy;
  for (auto& [name, kernel] : kernels) b.largest.push_back(std::move(kernel));
  std::sort(b.largest.begin(), b.largest.end(), [](const auto& x, const auto& y) { return x.ms > y.ms; });
  return b;
}

std::string breakdown_text(const Breakdown& b, size_t kernels) {
  const auto share = [&](double ms) { return fmt::format("{:.1f}", 100 * ms / b.wall_ms); };
  TextTable kinds({"kind of work", "ms a step", "%"});
  for (size_t i = 0; i < b.ms.size(); ++i) kinds.row({kWorkNames[i], fmt::format("{:.2f}", b.ms[i]), share(b.ms[i])});
  for (const auto& [group, ms] : b.exposed) kinds.row({"  of it on " + group, fmt::format("{:.2f}", ms), share(ms)});
  kinds.row({"idle", fmt::format("{:.2f}", b.idle_ms), share(b.idle_ms)});
  kinds.row({"step", fmt::format("{:.2f}", b.wall_ms), "100"});
  TextTable largest({"ms a step", "calls", "kind of work", "kernel"});
  for (size_t i = 0; i < std::min(kernels, b.largest.size()); ++i) {
    const Breakdown::Kernel& k = b.largest[i];
    largest.row({fmt::format("{:.2f}", k.ms), fmt::format("{:.0f}", k.calls), kWorkNames[static_cast<size_t>(k.work)], short_name(k.name)});
  }
  return fmt::format("GPU time of a step, mean of {} recorded steps with {:.0f} kernels and copies each:\n{}\nlargest kernels:\n{}",
                     b.steps, b.kernels, kinds.text(), largest.text());
}

Breakdown record_breakdown(c10::Device device, const std::function<void()>& step) {
  Profiler profiler(device, Profiler::Detail::ranges);
  step();
  profiler.start();
  for (int i = 0; i < kSteps; ++i) {
    const Range range("{}", kStep);
    step();
  }
  const std::vector<ProfileEvent> events = profiler.events();
  check(std::any_of(events.begin(), events.end(), [](const ProfileEvent& e) { return e.kind == ProfileEvent::Kind::device; }),
        "--breakdown: CUPTI recorded no kernel on {}; another profiler may be attached, or the driver lets only root profile",
        device.str());
  return break_down(events);
}

}  // namespace halftone::bench
