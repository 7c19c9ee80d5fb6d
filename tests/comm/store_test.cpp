#include "halftone/comm/store.h"

#include <ATen/ops/ones.h>
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "comm/ranks.h"
#include "halftone/base/error.h"
#include "halftone/comm/communicator.h"

namespace halftone::comm::store_test {
namespace {

using namespace std::chrono_literals;

int64_t free_port() {
  const int s = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
  socklen_t length = sizeof address;
  bind(s, reinterpret_cast<sockaddr*>(&address), length);
  getsockname(s, reinterpret_cast<sockaddr*>(&address), &length);
  close(s);
  return ntohs(address.sin_port);
}

Environment process(int64_t rank, int64_t world, int64_t port) {
  Environment e;
  e.rank = rank, e.world_size = world, e.store_port = port;
  return e;
}

std::string problem(const Environment& e) {
  try {
    open_store(e, 500ms);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

void wait_for(const std::filesystem::path& file) {
  while (!std::filesystem::exists(file)) std::this_thread::sleep_for(5ms);
}
void make(const std::filesystem::path& file) { std::ofstream(file) << "x"; }

// A port that all processes of a test read from a file, which is complete once it has its name.
int64_t shared_port(const Rank& r) {
  const std::filesystem::path file = r.folder / "port", part = r.folder / "port.part";
  int64_t port = 0;
  if (r.rank == 0) {
    std::ofstream(part) << free_port();
    std::filesystem::rename(part, file);
  }
  wait_for(file);
  std::ifstream(file) >> port;
  return port;
}

TEST(Store, NobodyAnswersIsOneLineWithTheAddress) {
  const int64_t port = free_port();
  EXPECT_EQ(problem(process(1, 2, port)),
            fmt::format(
                "rank 1 found no store at 127.0.0.1:{} within 0.5 s; rank 0 serves it: has it started?; check MASTER_ADDR and MASTER_PORT",
                port));
}

// A program that accepts connections, or lets the kernel do so, and never answers.
TEST(Store, APortThatNeverAnswersHasTheTimeOut) {
  const int64_t port = free_port();
  const int s = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{
      .sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(port)), .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
  ASSERT_EQ(bind(s, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(listen(s, 16), 0);
  EXPECT_EQ(problem(process(1, 2, port)),
            fmt::format("rank 1 waited 0.5 s for an answer from 127.0.0.1:{}, which accepts connections but is no store of a job; is "
                        "MASTER_PORT used by another program? Check MASTER_ADDR and MASTER_PORT",
                        port));
  close(s);
}

// A store without the job's name.
TEST(Store, TheStoreOfAnotherProgramHasTheTimeOut) {
  c10d::TCPStoreOptions options;
  options.port = 0, options.isServer = true, options.waitWorkers = false;
  const auto other = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  EXPECT_EQ(problem(process(1, 2, other->getPort())),
            fmt::format("the store at 127.0.0.1:{} belongs to another program; give each job a MASTER_PORT of its own", other->getPort()));
}

TEST(Store, KeysOfAnEarlierStartAreNotSeen) {
  Environment e = process(0, 1, free_port());
  const auto served = open_store(e, 5s);
  served->set("failed", std::string("x"));
  e.launcher_hosts_store = true;  // a client from here on
  EXPECT_TRUE(open_store(e, 5s)->check({"failed"}));
  e.restart_count = 1;
  EXPECT_FALSE(open_store(e, 5s)->check({"failed"}));
}

TEST(Store, AnotherJobIsRefused) {
  const int64_t port = free_port();
  const auto served = open_store(process(0, 2, port), 5s);
  EXPECT_EQ(problem(process(1, 4, port)),
            fmt::format("the store at 127.0.0.1:{} belongs to another job: expected '4 processes ', found '2 processes '; "
                        "give each job a MASTER_PORT of its own",
                        port));
}

// Processes 0 and 1 form one job; 2 and 3 another one on the same port, started later.
const Ranks kTwoJobs("two jobs", [](const Rank& r) {
  const bool second = r.rank >= 2;
  const int64_t port = shared_port(r);
  const auto mark = [&](int64_t rank) { return r.folder / fmt::format("done{}", rank); };
  if (second) wait_for(r.folder / "up");
  try {
    const auto store = open_store(process(r.rank % 2, 2, port), 10s);
    Watch watch(store, r.rank % 2, 2, 10s, 100ms);
    watch.run([&] {
      watch.meet("up", {"job", "job", {0, 1}});
      make(r.folder / "up");
      wait_for(mark(2)), wait_for(mark(3));
    });
  } catch (const Error&) {
    make(mark(r.rank));
    throw;
  }
});
TEST(Store, TwoJobsOnOnePortTheSecondSaysSo) {
  const std::vector<Outcome> o = run_ranks("two jobs", 4);
  for (size_t first : {0, 1}) EXPECT_EQ(o[first].status, 0) << o[first].said;
  EXPECT_TRUE(o[2].said.find("of this host is taken, so rank 0 cannot serve the store of this job") != std::string::npos) << o[2].said;
  EXPECT_TRUE(o[3].said.find("is taken by a process of another job") != std::string::npos) << o[3].said;
  for (size_t second : {2, 3}) EXPECT_EQ(std::count(o[second].said.begin(), o[second].said.end(), '\n'), 1) << o[second].said;
}

// Rank 0, which serves the store, finishes at once and still exits last. Also runs under a launcher: `torchrun --no-python
// --nproc-per-node 2 comm_test --rank launched 0 1 .`.
const Ranks kLaunched("launched", [](const Rank& r) {
  if (std::getenv("RANK") == nullptr) {
    for (const auto& [name, value] : {std::pair{"RANK", r.rank}, {"WORLD_SIZE", r.world}, {"MASTER_PORT", shared_port(r)}}) {
      setenv(name, std::to_string(value).c_str(), 1);
    }
    setenv("MASTER_ADDR", "localhost", 1);
  }
  const Environment e = read_environment();
  Watch watch(open_store(e, 10s), e.rank, e.world_size, 10s, 100ms);
  watch.run([&] {
    std::vector<int64_t> all;
    for (int64_t rank = 0; rank < e.world_size; ++rank) all.push_back(rank);
    Communicator world(watch, "world", all, at::kCPU);
    at::Tensor one = at::ones({3});
    world.all_reduce(one).wait();
    check(one[0].item<float>() == static_cast<float>(e.world_size), "the sum is wrong");
    std::this_thread::sleep_for(e.rank * 200ms);
  });
});
// Rank 0, which serves the store, fails.
template <class Trouble>
void server_in_trouble(const Rank& r, Trouble&& trouble) {
  Watch watch(open_store(process(r.rank, r.world, shared_port(r)), 10s), r.rank, r.world, 10s, 100ms);
  watch.run([&] {
    watch.meet("up", {"job", "job", r.all()});
    if (r.rank == 0) trouble();
    std::this_thread::sleep_for(10min);
  });
}
const Ranks kServerDies("server dies", [](const Rank& r) { server_in_trouble(r, [] { raise(SIGKILL); }); });
const Ranks kServerStops("server stops", [](const Rank& r) {
  Watch watch(open_store(process(r.rank, r.world, shared_port(r)), 10s), r.rank, r.world, 10s, 100ms);
  watch.run([&] {
    watch.meet("up", {"job", "job", r.all()});
    make(r.folder / fmt::format("up{}", r.rank));
    if (r.rank == 0) wait_for(r.folder / "up1"), wait_for(r.folder / "up2"), raise(SIGSTOP);
    watch.set_timeout(1s);
    watch.meet("never", {"job", "job", r.all()}, r.rank == 1 ? Patience::limited : Patience::unlimited);
  });
});
// Its connections stay open: only the limit of the wait ends it.
TEST(Store, AServerThatStopsEndsWaitsByTheirLimit) {
  const std::vector<Outcome> o = run_ranks("server stops", 3);
  for (size_t r : {1, 2}) {
    EXPECT_EQ(o[r].status, 2);
    EXPECT_TRUE(o[r].said.starts_with(fmt::format("halftone: rank {} waited 1.", r))) << o[r].said;
    EXPECT_TRUE(o[r].said.find("s for the meeting 'never' on job with ranks ") != std::string::npos) << o[r].said;
    EXPECT_TRUE(o[r].said.find(" and the job's store has not answered for ") != std::string::npos) << o[r].said;
    EXPECT_EQ(std::count(o[r].said.begin(), o[r].said.end(), '\n'), 1) << o[r].said;
  }
}

const Ranks kServerFails("server fails", [](const Rank& r) { server_in_trouble(r, [] { fail("the disk is full"); }); });
TEST(Store, TheServersProcessLeavesLast) {
  for (const Outcome& o : run_ranks("launched", 3)) EXPECT_EQ(o.status, 0) << o.said;
  const std::vector<Outcome> dead = run_ranks("server dies", 2), failed = run_ranks("server fails", 2);
  EXPECT_EQ(dead[1].status, 2);
  EXPECT_EQ(std::count(dead[1].said.begin(), dead[1].said.end(), '\n'), 1) << dead[1].said;
  EXPECT_TRUE(dead[1].said.starts_with("halftone: rank 1 ends because the job's store no longer answers")) << dead[1].said;
  EXPECT_EQ(failed[1].said, "halftone: rank 1 ends because rank 0 has failed: the disk is full\n");
}

}  // namespace
}  // namespace halftone::comm::store_test
