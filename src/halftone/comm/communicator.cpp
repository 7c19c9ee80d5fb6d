#include "halftone/comm/communicator.h"

#include <dlfcn.h>

#include <algorithm>
#include <exception>
#include <numeric>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>

#include "halftone/base/error.h"
#include "halftone/base/log.h"
#include "halftone/base/module.h"
#include "halftone/comm/backends.h"

namespace halftone::comm {
namespace {

c10::intrusive_ptr<c10d::Backend> make_nccl(const BackendArguments& arguments) {
  static const OpenModule module = open_module("halftone_nccl.so", "build with HALFTONE_CUDA=ON, and with nccl.h of requirements-cuda.txt");
  check(module.handle != nullptr, "NCCL: {}", module.problem);
  auto* make = reinterpret_cast<MakeNccl*>(dlsym(module.handle, kMakeNccl));
  check(make != nullptr, "halftone_nccl.so lacks {}; it is of another build", kMakeNccl);
  c10::intrusive_ptr<c10d::Backend> backend;
  make(&arguments, &backend);
  return backend;
}

// Flat bytes: every backend moves them, whatever the dtype (Gloo knows no fp8, and coalesces tensors of one dtype only).
at::Tensor bytes(const at::Tensor& t) { return t.view({-1}).view(at::kByte); }

c10d::ReduceOp reduce_op(Reduce how) { return how == Reduce::sum ? c10d::ReduceOp::SUM : c10d::ReduceOp::MAX; }

int64_t sum(const std::vector<int64_t>& v) { return std::accumulate(v.begin(), v.end(), int64_t{0}); }

}  // namespace

Pending::Pending(Watch& watch, Operation operation, c10::intrusive_ptr<c10d::Work> work, bool on_host)
    : watch_(watch), operation_(std::move(operation)), work_(std::move(work)), on_host_(on_host) {}
Pending::Pending(Pending&&) noexcept = default;
Pending::~Pending() = default;

void Pending::wait() {
  const Activity activity(watch_, fmt::format("{} on {}", operation_.what, operation_.group->name));
  const auto start = Clock::now();
  std::string problem;
  try {
    if (work_->wait(on_host_ ? watch_.timeout() : kNoTimeout)) return;
  } catch (const std::exception& error) {
    problem = error.what();
  }
  watch_.fail_wait(operation_, start, problem);
}

Communicator::Communicator(Watch& watch, const std::string& name, std::vector<int64_t> ranks, at::Device device)
    : watch_(watch), device_(device) {
  const auto own = std::ranges::find(ranks, watch.rank());
  check(own != ranks.end(), "communicator {}: rank {} is not of its group", name, watch.rank());
  index_ = own - ranks.begin();
  const std::string key = fmt::format("{}@{}", name, ranks.front());
  group_ = std::make_shared<Group>(Group{name, key, std::move(ranks)});
  const Activity activity(watch_, "opening communicator " + name);
  watch_.meet(key, *group_);  // names who is missing; a backend would wait for an address
  const auto begun = Clock::now();
  const BackendArguments arguments{c10::make_intrusive<c10d::PrefixStore>(key, watch_.store()), key, static_cast<int>(index_),
                                   static_cast<int>(size()), watch_.timeout()};
  try {
    backend_ = device.is_cpu() ? make_gloo(arguments) : make_nccl(arguments);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    watch_.fail_wait({"the connection", group_}, begun, error.what());
  }
  // The deadline is ours, which may change and says more; theirs is a second net.
  backend_->setTimeout(std::max<Milliseconds>(kBackendDefaultTimeout, 2 * watch_.timeout()));
}

Communicator::~Communicator() {
  try {
    watch_.ending() || std::uncaught_exceptions() > 0 ? (void)backend_.release() : backend_->shutdown();
  } catch (const std::exception& error) {
    log_warning("communicator {} did not close: {}", group_->name, error.what());
  }
}

template <class Call>
Pending Communicator::start(const char* what, Call&& call, int64_t peer) {
  Operation operation{what, group_, peer < 0 ? watch_.begin(*group_) : 0, peer < 0 ? -1 : group_->ranks.at(peer)};
  c10::intrusive_ptr<c10d::Work> work;
  const auto begun = Clock::now();
  try {
    work = call();
  } catch (const std::exception& error) {
    watch_.fail_wait(operation, begun, error.what());
  }
  if (!device_.is_cpu()) watch_.track(work, operation, device_);
  return {watch_, std::move(operation), std::move(work), device_.is_cpu()};
}

Pending Communicator::all_reduce(at::Tensor& t, Reduce how) {
  std::vector<at::Tensor> tensors = {t};
  return start("all-reduce", [&] { return backend_->allreduce(tensors, {.reduceOp = reduce_op(how)}); });
}

Pending Communicator::all_gather(at::Tensor& out, const at::Tensor& in) {
  check(out.nbytes() == in.nbytes() * static_cast<size_t>(size()), "all-gather on {}: expected {} times {} bytes, found {}", group_->name,
        size(), in.nbytes(), out.nbytes());
  at::Tensor to = bytes(out), from = bytes(in);
  return start("all-gather", [&] { return backend_->_allgather_base(to, from); });
}

Pending Communicator::all_gather_in_place(const std::vector<at::Tensor>& whole) {
  std::vector<at::Tensor> to, from;
  for (const at::Tensor& t : whole) {
    check(t.numel() % size() == 0, "all-gather on {}: {} elements are not {} equal parts", group_->name, t.numel(), size());
    to.push_back(bytes(t));
    const int64_t part = to.back().numel() / size();
    from.push_back(to.back().narrow(0, index_ * part, part));
  }
  return start("all-gather", [&] { return backend_->allgather_into_tensor_coalesced(to, from); });
}

Pending Communicator::reduce_scatter(at::Tensor& out, const at::Tensor& in, Reduce how) {
  check(in.numel() == out.numel() * size(), "reduce-scatter on {}: expected {} times {} elements, found {}", group_->name, size(),
        out.numel(), in.numel());
  at::Tensor to = out.view({-1}), from = in.view({-1});
  return start("reduce-scatter", [&] { return backend_->_reduce_scatter_base(to, from, {.reduceOp = reduce_op(how)}); });
}

Pending Communicator::broadcast(at::Tensor& t, int64_t root) {
  std::vector<at::Tensor> tensors = {bytes(t)};
  return start("broadcast", [&] { return backend_->broadcast(tensors, {.rootRank = root}); });
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
  return start("all-to-all", [&] { return backend_->alltoall_base(to, from, to_counts, from_counts); });
}

Pending Communicator::send(const at::Tensor& t, int64_t to) {
  std::vector<at::Tensor> tensors = {bytes(t)};
  return start(
      "send", [&] { return backend_->send(tensors, static_cast<int>(to), 0); }, to);
}

Pending Communicator::recv(at::Tensor& t, int64_t from) {
  std::vector<at::Tensor> tensors = {bytes(t)};
  return start(
      "recv", [&] { return backend_->recv(tensors, static_cast<int>(from), 0); }, from);
}

void Communicator::barrier() {
  c10d::BarrierOptions options;
  options.device = device_;
  start("barrier", [&] { return backend_->barrier(options); }).wait();
}

}  // namespace halftone::comm
