#include "halftone/comm/store.h"

#include <c10/util/Logging.h>

#include <cstdlib>
#include <string_view>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "halftone/base/error.h"

namespace halftone::comm {
namespace {

// LibTorch's own lines say over a page what ours says in one.
void set_log_level(int level) {
  if (std::getenv("TORCH_CPP_LOG_LEVEL") == nullptr) FLAGS_caffe2_log_level = level;
}

c10::intrusive_ptr<c10d::TCPStore> connect(const Environment& e, bool server, std::chrono::milliseconds timeout) {
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
    fail("rank {} found no store at {}:{} within {} s; {}; check MASTER_ADDR and MASTER_PORT", e.rank, e.store_address, e.store_port,
         std::chrono::duration<double>(timeout).count(),
         server                   ? "rank 0 serves it, and the address must be one of its host"
         : e.launcher_hosts_store ? "torchrun serves it"
                                  : "rank 0 serves it: has it started?");
  }
}

// A client that finds its port in use by another job would take that job's place in it.
void prove_job(const Environment& e, c10d::Store& store) {
  const std::string job = fmt::format("{} processes {}", e.world_size, e.job);
  const std::string hint = "; give each job a MASTER_PORT of its own";
  if (e.rank == 0) store.set("halftone/job", job);
  std::string found;
  try {
    found = store.get_to_str("halftone/job");
  } catch (const std::exception&) {
    fail("the store at {}:{} is of another program{}", e.store_address, e.store_port, hint);
  }
  check(found == job, "the store at {}:{} is of another job: expected '{}', found '{}'{}", e.store_address, e.store_port, job, found, hint);
  check(store.add(fmt::format("halftone/taken/{}", e.rank), 1) == 1, "rank {} of the store at {}:{} is taken by a process of another job{}",
        e.rank, e.store_address, e.store_port, hint);
}

}  // namespace

c10::intrusive_ptr<c10d::Store> open_store(const Environment& e, std::chrono::milliseconds timeout) {
  const c10::intrusive_ptr<c10d::TCPStore> store = connect(e, !e.launcher_hosts_store && e.rank == 0, timeout);
  if (!e.launcher_hosts_store) prove_job(e, *store);  // torchrun has proved it, and its store outlives a restart
  // torchrun does not count restarts because of members that come or go, but the number of processes changes then.
  return c10::make_intrusive<c10d::PrefixStore>(fmt::format("halftone/{}/{}", e.restart_count, e.world_size), store);
}

}  // namespace halftone::comm
