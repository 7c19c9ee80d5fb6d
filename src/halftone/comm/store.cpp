#include "halftone/comm/store.h"

#include <c10/util/Logging.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <future>
#include <optional>
#include <string_view>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "halftone/base/error.h"

namespace halftone::comm {
namespace {

using Milliseconds = std::chrono::milliseconds;

// LibTorch's messages fill a page; ours are one line.
void set_log_level(int level) {
  if (std::getenv("TORCH_CPP_LOG_LEVEL") == nullptr) FLAGS_caffe2_log_level = level;
}

[[noreturn]] void fail_to_find(const Environment& e, Milliseconds timeout) {
  const bool server = !e.launcher_hosts_store && e.rank == 0;
  fail("rank {} found no store at {}:{} within {} s; {}; check MASTER_ADDR and MASTER_PORT", e.rank, e.store_address, e.store_port,
       std::chrono::duration<double>(timeout).count(),
       server                   ? "rank 0 serves it, and the address must be one of its host"
       : e.launcher_hosts_store ? "torchrun serves it"
                                : "rank 0 serves it: has it started?");
}

c10::intrusive_ptr<c10d::TCPStore> connect(const Environment& e, bool server, Milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(e.store_port);
  options.isServer = server;
  options.waitWorkers = false;
  options.timeout = timeout;
  set_log_level(c10::GLOG_FATAL);
  try {
    auto store = c10::make_intrusive<c10d::TCPStore>(e.store_address, options);
    set_log_level(c10::GLOG_ERROR);
    return store;
  } catch (const std::exception& error) {
    check(!server || std::string_view(error.what()).find("EADDRINUSE") == std::string_view::npos,
          "port {} of this host is taken, so rank 0 cannot serve the store of this job; is another job running? Set MASTER_PORT to a free "
          "port",
          e.store_port);
    fail_to_find(e, timeout);
  }
}

constexpr const char* kHint = "; give each job a MASTER_PORT of its own";

[[noreturn]] void fail_other_program(const Environment& e) {
  fail("the store at {}:{} belongs to another program{}", e.store_address, e.store_port, kHint);
}

// A client that finds its port in use by another job must not take that job's place.
void prove_job(const Environment& e, c10d::Store& store) {
  const std::string job = fmt::format("{} processes {}", e.world_size, e.job);
  if (e.rank == 0) store.set("halftone/job", job);
  std::string found;
  try {
    found = store.get_to_str("halftone/job");
  } catch (const std::exception&) {
    fail_other_program(e);
  }
  check(found == job, "the store at {}:{} belongs to another job: expected '{}', found '{}'{}", e.store_address, e.store_port, job, found,
        kHint);
  check(store.add(fmt::format("halftone/taken/{}", e.rank), 1) == 1, "rank {} of the store at {}:{} is taken by a process of another job{}",
        e.rank, e.store_address, e.store_port, kHint);
}

// The function's result, or none after the limit: its thread then stays behind, as a call of LibTorch that nothing bounds.
template <class Result>
std::optional<Result> within(Milliseconds limit, std::function<Result()> function) {
  std::packaged_task<Result()> task(std::move(function));
  std::future<Result> result = task.get_future();
  std::thread(std::move(task)).detach();
  if (result.wait_for(limit) != std::future_status::ready) return {};
  return result.get();
}

// Whether something accepts connections there.
bool accepts(const std::string& address, int64_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return false;
  bool connected = false;
  for (const addrinfo* a = found; a != nullptr && !connected; a = a->ai_next) {
    const int fd = ::socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    connected = fd >= 0 && ::connect(fd, a->ai_addr, a->ai_addrlen) == 0;
    if (fd >= 0) ::close(fd);
  }
  ::freeaddrinfo(found);
  return connected;
}

}  // namespace

c10::intrusive_ptr<c10d::Store> open_store(const Environment& e, Milliseconds timeout) {
  using Store = c10::intrusive_ptr<c10d::TCPStore>;
  const auto connected = std::make_shared<std::atomic<bool>>(false);
  // LibTorch tries to connect for up to twice its limit, and has none for the first answer.
  const std::optional<Store> store = within<Store>(timeout, [e, timeout, connected] {
    Store opened = connect(e, !e.launcher_hosts_store && e.rank == 0, timeout);
    *connected = true;
    if (!e.launcher_hosts_store) prove_job(e, *opened);  // torchrun has proved it, and its store outlives a restart
    return opened;
  });
  if (!store) {
    if (*connected) fail_other_program(e);
    constexpr Milliseconds kProbe(500);
    check(
        !within<bool>(kProbe, [e] { return accepts(e.store_address, e.store_port); }).value_or(false),
        "rank {} waited {} s for an answer from {}:{}, which accepts connections but is no store of a job; is MASTER_PORT used by another "
        "program? Check MASTER_ADDR and MASTER_PORT",
        e.rank, std::chrono::duration<double>(timeout).count(), e.store_address, e.store_port);
    fail_to_find(e, timeout);
  }
  // torchrun does not count restarts because of members that come or go, but the number of processes changes then.
  return c10::make_intrusive<c10d::PrefixStore>(fmt::format("halftone/{}/{}", e.restart_count, e.world_size), *store);
}

}  // namespace halftone::comm
