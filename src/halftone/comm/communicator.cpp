#include "halftone/comm/communicator.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>
#include <dlfcn.h>

#include <algorithm>
#include <exception>
#include <numeric>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>

#include "halftone/base/error.h"
#include "halftone/base/log.h"
#include "halftone/base/module.h"
#include "halftone/comm/backends.h"

namespace halftone::comm {
namespace {

template <class Function>
Function* of_nccl(const char* name) {
  static const OpenModule module = open_module("halftone_nccl.so", "build with HALFTONE_CUDA=ON, and with nccl.h of requirements-cuda.txt");
  check(module.handle != nullptr, "NCCL: {}", module.problem);
  auto* function = reinterpret_cast<Function*>(dlsym(module.handle, name));
  check(function != nullptr, "halftone_nccl.so lacks {}; it belongs to another build", name);
  return function;
}

c10::intrusive_ptr<c10d::Backend> make_nccl(const BackendArguments& arguments) {
  c10::intrusive_ptr<c10d::Backend> backend;
  of_nccl<MakeNccl>(kMakeNccl)(&arguments, &backend);
  return backend;
}

c10::intrusive_ptr<c10d::Work> watched(const c10d::Work& work) {
  static const auto light = of_nccl<WatchedNccl>(kWatchedNccl);
  c10::intrusive_ptr<c10d::Work> copy;
  light(&work, &copy);
  return copy;
}

// Flat bytes, which every backend moves (Gloo has no fp8 and coalesces only tensors of one dtype).
at::Tensor bytes(const at::Tensor& t) { return t.view({-1}).view(at::kByte); }

c10d::ReduceOp reduce_op(Reduce how) { return how == Reduce::sum ? c10d::ReduceOp::SUM : c10d::ReduceOp::MAX; }

int64_t sum(const std::vector<int64_t>& v) { return std::accumulate(v.begin(), v.end(), int64_t{0}); }

// An operation of a dry run.
struct Ended : c10d::Work {
  bool isCompleted() override { return true; }
  bool wait(std::chrono::milliseconds) override { return true; }
};

}  // namespace

Pending::Pending(Watch& watch, Operation operation, c10::intrusive_ptr<c10d::Work> work, bool on_host)
    : watch_(watch), operation_(std::move(operation)), work_(std::move(work)), on_host_(on_host) {}
Pending::Pending(Pending&&) noexcept = default;
Pending::~Pending() = default;

Pending Pending::then(std::function<void()> last) && {
  last_ = std::move(last);
  return std::move(*this);
}

bool Pending::ended() const { return work_->isCompleted(); }

void Pending::wait() {
  const Activity activity(watch_, fmt::format("{} on {}", operation_.what, operation_.group->name));
  const Waiting waiting(watch_, operation_);
  const auto start = Clock::now();
  std::string problem;
  bool done = false;
  for (bool again = true; again && !done;) {
    again = false;
    const auto begun = Clock::now();
    try {
      done = work_->wait(on_host_ ? watch_.timeout() : kNoTimeout);
    } catch (const std::exception& error) {
      problem = error.what();
      // The wait is over, not the operation.
      again = on_host_ && !work_->isCompleted() && Clock::now() - begun >= watch_.timeout() && watch_.excused();
    }
  }
  if (!done) watch_.fail_wait(operation_, start, problem);
  if (on_host_) watch_.end(operation_);
  if (const auto last = std::exchange(last_, nullptr)) last();
}

Communicator::Communicator(Watch& watch, const std::string& name, std::vector<int64_t> ranks, at::Device device)
    : watch_(watch), device_(device) {
  const auto own = std::ranges::find(ranks, watch.rank());
  check(own != ranks.end(), "communicator {}: rank {} is not in its group", name, watch.rank());
  index_ = own - ranks.begin();
  const std::string key = fmt::format("{}@{}", name, ranks.front());
  group_ = std::make_shared<Group>(Group{name, key, std::move(ranks)});
  if (device.is_meta()) return;
  const Activity activity(watch_, "opening communicator " + name);
  watch_.meet(key, *group_);  // names the missing ranks; a backend would only wait for an address
  const Operation connection{"the connection", group_};
  const Waiting waiting(watch_, connection);
  const auto begun = Clock::now();
  const BackendArguments arguments{c10::make_intrusive<c10d::PrefixStore>(key, watch_.store()), key, static_cast<int>(index_),
                                   static_cast<int>(size()), watch_.timeout()};
  try {
    backend_ = device.is_cpu() ? make_gloo(arguments) : make_nccl(arguments);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    watch_.fail_wait(connection, begun, error.what());
  }
  // Our deadline may change, does not run while a rank waits for data, and its message says more; the backend's only must not end sooner.
  constexpr std::chrono::hours kBackend{20 * 24};
  backend_->setTimeout(std::max<Milliseconds>(kBackend, 2 * watch_.timeout()));
}

Communicator::~Communicator() {
  if (!backend_) return;
  const Operation closing{"the end", group_};
  const Waiting waiting(watch_, closing);
  try {
    watch_.ending() || std::uncaught_exceptions() > 0 ? (void)backend_.release() : backend_->shutdown();
  } catch (const std::exception& error) {
    log_warning("communicator {} did not close: {}", group_->name, error.what());
  }
}

Communicator::Task::Task(const char* name, at::TensorList moved) : what(name) {
  for (const at::Tensor& t : moved) dtype = c10::toString(t.scalar_type()), bytes += static_cast<int64_t>(t.nbytes());
}

template <class Call>
Pending Communicator::start(Task task, Call&& call, int64_t peer) {
  Operation operation{task.what, group_, 0, peer < 0 ? -1 : group_->ranks.at(peer), task.bytes, task.dtype};
  watch_.begin(operation);
  if (device_.is_meta()) return {watch_, std::move(operation), c10::make_intrusive<Ended>(), true};
  at::RecordFunction range(at::RecordScope::USER_SCOPE);  // whose kernels these are, for bench's breakdown and traces
  if (range.isActive()) range.before(fmt::format("{} on {}", operation.what, group_->name));
  c10::intrusive_ptr<c10d::Work> work;
  const auto begun = Clock::now();
  try {
    const Waiting waiting(watch_, operation);  // NCCL connects here
    work = call();
  } catch (const std::exception& error) {
    watch_.fail_wait(operation, begun, error.what());
  }
  if (!device_.is_cpu()) watch_.track(watched(*work), operation, device_);
  return {watch_, std::move(operation), std::move(work), device_.is_cpu()};
}

Pending Communicator::exchange_and_sum(const char* what, at::Tensor parts, std::function<void(const at::Tensor&)> use) {
  at::Tensor came = at::empty_like(parts), to = bytes(came), from = bytes(parts);
  std::vector<int64_t> even;
  Pending exchange = start({what, parts}, [&] { return backend_->alltoall_base(to, from, even, even); });
  return std::move(exchange).then([came, parts, use = std::move(use), ranks = size()] {
    const at::Tensor wide = came.scalar_type() == at::kBFloat16 ? came.to(at::kFloat) : came;
    const int64_t n = wide.numel() / ranks;
    at::Tensor sum = wide.narrow(0, 0, n);
    for (int64_t r = 1; r < ranks; ++r) sum.add_(wide.narrow(0, r * n, n));
    use(sum);
  });
}

Pending Communicator::all_reduce(at::Tensor& t, Reduce how) {
  if (!device_.is_cpu() || how != Reduce::sum) {
    std::vector<at::Tensor> tensors = {t};
    return start({"all-reduce", t}, [&] { return backend_->allreduce(tensors, {.reduceOp = reduce_op(how)}); });
  }
  const int64_t count = t.numel(), part = (count + size() - 1) / size();
  at::Tensor padded = at::zeros({part * size()}, t.options());
  padded.narrow(0, 0, count).copy_(t.view({-1}));
  return exchange_and_sum("all-reduce", padded, [this, t, padded, count, part](const at::Tensor& sum) {
    at::Tensor own = padded.narrow(0, index_ * part, part);
    own.copy_(sum);
    all_gather({padded}, {own}).wait();
    t.view({-1}).copy_(padded.narrow(0, 0, count));
  });
}

void Communicator::check_parts(const char* what, const std::vector<at::Tensor>& whole, const std::vector<at::Tensor>& parts) const {
  check(whole.size() == parts.size(), "{} on {}: {} tensors and {} parts", what, group_->name, whole.size(), parts.size());
  for (size_t i = 0; i < whole.size(); ++i) {
    check(whole[i].numel() == parts[i].numel() * size() && whole[i].scalar_type() == parts[i].scalar_type(),
          "{} on {}: expected {} times {} elements of {}, found {} of {}", what, group_->name, size(), parts[i].numel(),
          c10::toString(parts[i].scalar_type()), whole[i].numel(), c10::toString(whole[i].scalar_type()));
  }
}

Pending Communicator::all_gather(const std::vector<at::Tensor>& out, const std::vector<at::Tensor>& in) {
  check_parts("all-gather", out, in);
  std::vector<at::Tensor> to, from;
  for (const at::Tensor& t : out) to.push_back(bytes(t));
  for (const at::Tensor& t : in) from.push_back(bytes(t));
  if (to.size() == 1) return start({"all-gather", out[0]}, [&] { return backend_->_allgather_base(to[0], from[0]); });
  return start({"all-gather", out}, [&] { return backend_->allgather_into_tensor_coalesced(to, from); });
}

Pending Communicator::reduce_scatter(const std::vector<at::Tensor>& out, const std::vector<at::Tensor>& in) {
  check_parts("reduce-scatter", in, out);
  std::vector<at::Tensor> to, from;
  for (const at::Tensor& t : out) to.push_back(t.view({-1}));
  for (const at::Tensor& t : in) from.push_back(t.view({-1}));
  if (!device_.is_cpu()) return start({"reduce-scatter", in}, [&] { return backend_->reduce_scatter_tensor_coalesced(to, from); });
  std::vector<at::Tensor> parts;  // by rank, then by tensor
  for (int64_t r = 0; r < size(); ++r) {
    for (size_t i = 0; i < to.size(); ++i) parts.push_back(from[i].narrow(0, r * to[i].numel(), to[i].numel()));
  }
  return exchange_and_sum("reduce-scatter", at::cat(parts), [to](const at::Tensor& sum) {
    int64_t at = 0;
    for (const at::Tensor& t : to) {
      at::Tensor(t).copy_(sum.narrow(0, at, t.numel()));
      at += t.numel();
    }
  });
}

Pending Communicator::broadcast(at::Tensor& t, int64_t root) {
  std::vector<at::Tensor> tensors = {bytes(t)};
  return start({"broadcast", t}, [&] { return backend_->broadcast(tensors, {.rootRank = root}); });
}

Pending Communicator::all_to_all(at::Tensor& out, const at::Tensor& in, const std::vector<int64_t>& out_rows,
                                 const std::vector<int64_t>& in_rows) {
  check(sum(out_rows) == out.size(0) && sum(in_rows) == in.size(0), "all-to-all on {}: expected {} and {} rows, found {} and {}",
        group_->name, sum(out_rows), sum(in_rows), out.size(0), in.size(0));
  const auto in_bytes = [](const at::Tensor& t, std::vector<int64_t> rows) {
    for (int64_t& r : rows) r *= static_cast<int64_t>(t.nbytes()) / std::max<int64_t>(t.size(0), 1);
    return rows;
  };
  at::Tensor to = bytes(out), from = bytes(in);
  std::vector<int64_t> to_counts = in_bytes(out, out_rows), from_counts = in_bytes(in, in_rows);
  return start({"all-to-all", in}, [&] { return backend_->alltoall_base(to, from, to_counts, from_counts); });
}

Pending Communicator::send(const at::Tensor& t, int64_t to, int tag) {
  std::vector<at::Tensor> tensors = {bytes(t)};
  return start(
      {"send", t}, [&] { return backend_->send(tensors, static_cast<int>(to), tag); }, to);
}

Pending Communicator::recv(at::Tensor& t, int64_t from, int tag) {
  std::vector<at::Tensor> tensors = {bytes(t)};
  return start(
      {"recv", t}, [&] { return backend_->recv(tensors, static_cast<int>(from), tag); }, from);
}

void Communicator::barrier() {
  c10d::BarrierOptions options;
  options.device = device_;
  start("barrier", [&] { return backend_->barrier(options); }).wait();
}

}  // namespace halftone::comm
