#include "halftone/comm/watch.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <sys/syscall.h>
#include <algorithm>
#include <atomic>
#include <csignal>
#include <ctime>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "comm/ranks.h"
#include "halftone/base/error.h"
#include "halftone/comm/communicator.h"

static time_t wall_clock_ahead = 0;  // of other ranks', in seconds

// In front of libc's, as for std::chrono.
extern "C" int clock_gettime(clockid_t clock, timespec* time) noexcept {
  const auto result = static_cast<int>(syscall(SYS_clock_gettime, clock, time));
  if (clock == CLOCK_REALTIME) time->tv_sec += wall_clock_ahead;
  return result;
}

namespace halftone::comm {
namespace {

using namespace std::chrono_literals;

// The last rank does `trouble` while the others wait for it.
template <class Trouble, class Others>
void job(const Rank& r, Trouble&& trouble, Others&& others, int64_t recorded = 0) {
  Watch watch = r.watch(recorded);
  watch.run([&] {
    Communicator world(watch, "world", r.all(), at::kCPU);
    at::Tensor t = at::zeros({8});
    world.all_reduce(t).wait();
    watch.set_timeout(1s);
    r.rank == r.world - 1 ? trouble(watch, world, t) : others(watch, world, t);
  });
}
void reduce(Watch&, Communicator& world, at::Tensor& t) { world.all_reduce(t).wait(); }
void compute(Watch&, Communicator&, at::Tensor&) { std::this_thread::sleep_for(10min); }
void load_data(Watch& watch) {
  const Activity activity(watch, "data load");
  std::this_thread::sleep_for(10min);
}

// Processes start at different times; timing begins after this barrier.
void meet_all(Watch& watch, const Rank& r) {
  watch.meet("started", {"job", "job", r.all()});
  watch.set_timeout(1s);
}

// Expects one line with this beginning, and status 2.
void expect_line(const Outcome& o, const std::string& beginning) {
  EXPECT_EQ(o.status, 2) << o.said;
  EXPECT_EQ(o.said.substr(0, beginning.size()), beginning);
  EXPECT_EQ(std::count(o.said.begin(), o.said.end(), '\n'), 1) << o.said;
}
using Json = nlohmann::json;
Json next(std::istream& lines) {
  std::string line;
  std::getline(lines, line);
  return Json::parse(line, nullptr, false);  // "discarded" if there is no line
}
bool has(const Outcome& o, const char* text) { return o.said.find(text) != std::string::npos; }

class Trouble : public testing::TestWithParam<int> {
 protected:
  int64_t last() const { return GetParam() - 1; }
  // A rank that waited names the last rank; one that another rank notified first reports that.
  void expect_all_end(const std::vector<Outcome>& outcomes, const std::string& told) const {
    for (int64_t r = 0; r < last(); ++r) {
      const Outcome& o = outcomes[static_cast<size_t>(r)];
      expect_line(o, "halftone: rank " + std::to_string(r) + " ");
      EXPECT_TRUE(has(o, told.c_str())) << o.said;
    }
  }
};

const Ranks kLate("late", [](const Rank& r) {
  job(
      r, [](Watch& watch, auto&&...) { load_data(watch); }, reduce);
});
TEST_P(Trouble, ALateRankIsNamedWithWhatItDoes) {
  const std::vector<Outcome> o = run_ranks("late", GetParam());
  expect_all_end(o, fmt::format("longer than [comm] allows: rank {} has been in data load for ", last()));
  EXPECT_TRUE(std::ranges::any_of(o, [](const Outcome& x) { return has(x, "s for all-reduce on world with rank"); }));
  expect_line(o.back(), fmt::format("halftone: rank {} ends because rank ", last()));
  for (const Outcome& x : o) EXPECT_TRUE(x.flight.empty() && !has(x, "; see ")) << x.said;  // no recorder
}

const Ranks kRecorded("recorded", [](const Rank& r) {
  job(
      r, [](Watch& watch, auto&&...) { load_data(watch); }, reduce, 2);
});
TEST_P(Trouble, EveryRankLeavesItsLastOperations) {
  const std::vector<Outcome> o = run_ranks("recorded", GetParam());
  for (int64_t r = 0; r <= last(); ++r) {
    SCOPED_TRACE(r);
    const Outcome& x = o[static_cast<size_t>(r)];
    expect_line(x, "halftone: rank ");
    EXPECT_TRUE(has(x, "; see /") && x.said.ends_with(fmt::format("/traces/rank_{}.jsonl\n", r))) << x.said;
    std::istringstream lines(x.flight);
    const Json header = next(lines), before = next(lines), newest = next(lines);
    EXPECT_EQ(header["rank"], r);
    EXPECT_EQ(header["world_size"], GetParam());
    EXPECT_EQ(header["groups"]["world@0"], Json(Rank{0, GetParam(), {}}.all()));
    EXPECT_TRUE(has(x, header["reason"].get<std::string>().c_str())) << x.flight;
    // A CPU all-reduce ends with a gather.
    EXPECT_EQ(before["operation"], r == last() ? "all-reduce" : "all-gather") << x.flight;
    EXPECT_NE(before["ended"], "under way");
    EXPECT_EQ(newest["operation"], r == last() ? "all-gather" : "all-reduce");
    EXPECT_EQ(newest["group"], "world@0");
    EXPECT_EQ(newest["number"], r == last() ? 2 : 3);  // shows which rank lags
    EXPECT_EQ(newest["bytes"], 32);
    EXPECT_EQ(newest["dtype"], "Float");
    EXPECT_EQ(newest["ended"] == "under way", r != last()) << x.flight;
  }
}

const Ranks kStopped("stopped", [](const Rank& r) {
  job(
      r, [](auto&&...) { raise(SIGSTOP); }, reduce);
});
TEST_P(Trouble, AStoppedRankSendsNoHeartbeat) {
  expect_all_end(run_ranks("stopped", GetParam()), fmt::format("rank {} has sent no heartbeat for ", last()));
}

const Ranks kKilled("killed", [](const Rank& r) {
  job(
      r,
      [](auto&&...) {
        std::this_thread::sleep_for(1s);  // until all ranks have connected to rank 0
        raise(SIGKILL);
      },
      [](Watch& watch, Communicator& world, at::Tensor& t) {
        watch.set_timeout(20s);
        reduce(watch, world, t);
      });
});
TEST_P(Trouble, ADeadRankIsNamedBeforeTheTimeOut) {
  const std::vector<Outcome> o = run_ranks("killed", GetParam());
  EXPECT_EQ(o.back().status, 128 + SIGKILL);
  expect_all_end(o, fmt::format("rank {} has failed: its process ended without a message (was it killed?), last seen in ", last()));
}

void fail_itself(Watch&, Communicator& world, at::Tensor& t) {
  const Pending under_way = world.all_reduce(t);
  fail("the disk is full\nmore about it");
}
const Ranks kFailing("failing", [](const Rank& r) { job(r, fail_itself, reduce); });
const Ranks kFailingAlone("failing alone", [](const Rank& r) { job(r, fail_itself, compute); });
TEST_P(Trouble, AFailingRankEndsAllWithItsLine) {
  for (const char* name : {"failing", "failing alone"}) {  // others in a collective, and outside of any
    const std::vector<Outcome> o = run_ranks(name, GetParam());
    EXPECT_EQ(o.back().said, "halftone: the disk is full\nmore about it\n");
    EXPECT_EQ(o.back().status, 2);
    expect_all_end(o, fmt::format(" ends because rank {} has failed: the disk is full\n", last()));
  }
}

INSTANTIATE_TEST_SUITE_P(Two, Trouble, testing::Values(2));
INSTANTIATE_TEST_SUITE_P(Distributed, Trouble, testing::Values(4));

const Ranks kAbsent("absent", [](const Rank& r) {
  Watch watch = r.watch();
  watch.run([&] {
    meet_all(watch, r);
    if (r.rank == 1) load_data(watch);
    Communicator(watch, "tp", r.all(), at::kCPU);
  });
});
// Rank 0's message in a job whose rank 1 loads data instead of `what`.
void expect_wait(const std::string& job, const std::string& what) {
  expect_line(run_ranks(job, 2)[0],
              "halftone: rank 0 waited 1.0 s for " + what + " with rank 1, longer than [comm] allows: rank 1 has been in data load for ");
}
TEST(Watch, ACommunicatorThatNotAllOpenNamesWhoIsMissing) { expect_wait("absent", "the meeting 'tp@0' on tp"); }

const Ranks kMessage("message", [](const Rank& r) {
  Watch watch = r.watch();
  watch.run([&] {
    Communicator pp(watch, "pp", r.all(), at::kCPU);
    meet_all(watch, r);
    at::Tensor t = at::zeros({8});
    if (r.rank == 1) load_data(watch);
    pp.recv(t, 1).wait();
  });
});
TEST(Watch, AMessageThatDoesNotComeNamesItsSender) { expect_wait("message", "recv on pp"); }

// Device work that the host does not wait for.
struct DeviceWork : c10d::Work {
  explicit DeviceWork(bool done) {
    if (done) finish();
  }
};
const Ranks kOverdue("overdue", [](const Rank& r) {
  Watch watch = r.watch(3);
  watch.run([&] {
    meet_all(watch, r);
    if (r.rank == 1) load_data(watch);
    const auto group = std::make_shared<Group>(Group{"fsdp", "fsdp@0", r.all()});
    for (const bool done : {true, false}) {
      Operation operation{"all-gather", group};
      watch.begin(operation);
      watch.track(c10::make_intrusive<DeviceWork>(done), operation, at::kCPU);
    }
    std::this_thread::sleep_for(10min);
  });
});
TEST(Watch, TheThreadEndsAProcessThatHangsInADevice) {
  const Outcome o = run_ranks("overdue", 2)[0];
  expect_line(o, "halftone: rank 0 waited 1.");
  std::istringstream lines(o.flight);
  next(lines), next(lines);
  EXPECT_NE(next(lines)["ended"], "under way") << o.flight;
  EXPECT_EQ(next(lines)["ended"], "under way") << o.flight;
}

// The last rank prepares something while the others wait for it, rank 0 first.
template <class Trouble>
void prepare(const Rank& r, Trouble&& trouble) {
  Watch watch = r.watch();
  watch.run([&] {
    meet_all(watch, r);
    if (r.rank == r.world - 1) trouble(watch);
    watch.meet("tokens", {"job", "job", r.all()}, Patience::unlimited);
  });
}
void tokenise(Watch& watch) {
  const Activity activity(watch, "tokenisation");
  std::this_thread::sleep_for(2s);  // twice the timeout
}
const Ranks kPrepares("prepares", [](const Rank& r) { prepare(r, tokenise); });
const Ranks kStopsPreparing("stops preparing", [](const Rank& r) { prepare(r, [](Watch&) { raise(SIGSTOP); }); });
const Ranks kDiesPreparing("dies preparing", [](const Rank& r) {
  prepare(r, [](Watch& watch) {
    const Activity activity(watch, "tokenisation");
    std::this_thread::sleep_for(500ms);  // two heartbeats
    raise(SIGKILL);
  });
});
TEST(Watch, PatienceLastsAsLongAsTheMissingRankLives) {
  for (const Outcome& o : run_ranks("prepares", 2)) EXPECT_EQ(o.status, 0) << o.said;
  expect_line(
      run_ranks("dies preparing", 2)[0],
      "halftone: rank 0 ends because rank 1 has failed: its process ended without a message (was it killed?), last seen in tokenisation\n");
  Outcome o;
  for (int run = 0; run < 3; ++run) {  // once more where the machine stood still for longer than the limit of 1.5 s
    o = run_ranks("stops preparing", 2)[0];
    if (!has(o, "the job's store has not answered")) break;
  }
  expect_line(o, "halftone: rank 0 waited ");
  EXPECT_TRUE(has(o, "s for the meeting 'tokens' on job with rank 1, in vain: rank 1 has sent no heartbeat for ")) << o.said;
}

// Hosts whose wall clocks are an hour apart: the patient wait lasts, and the limited one names what the late rank does.
const Ranks kSkewed("skewed", [](const Rank& r) {
  wall_clock_ahead = (r.rank - 1) * 3600;
  Watch watch = r.watch();
  watch.run([&] {
    meet_all(watch, r);
    if (r.rank == 1) std::this_thread::sleep_for(1200ms);
    watch.meet("prepared", {"job", "job", r.all()}, Patience::unlimited);
    if (r.rank == 1) load_data(watch);
    watch.meet("late", {"job", "job", r.all()});
  });
});
TEST(Watch, ClocksOfTwoHostsAreNotCompared) {
  for (const Outcome& o : run_ranks("skewed", 3)) {
    EXPECT_EQ(o.status, 2);
    EXPECT_TRUE(has(o, "longer than [comm] allows: rank 1 has been in data load for ")) << o.said;
  }
  wall_clock_ahead = 3600;  // the shim works
  EXPECT_GT(std::chrono::system_clock::to_time_t(std::chrono::system_clock::now()), std::time(nullptr) + 3000);
  wall_clock_ahead = 0;
}

// Rank 1 waits for a server for three times the limit, in which rank 0 waits in a collective and in a meeting. `then`: what it does after.
void wait_outside(const Rank& r, void (*then)(Watch&)) {
  Watch watch = r.watch();
  std::atomic<bool> outside = false;
  watch.set_outside([&] { return outside.load(); });
  watch.run([&] {
    Communicator world(watch, "world", r.all(), at::kCPU);
    meet_all(watch, r);
    at::Tensor t = at::ones({8});
    for (int i = 0; i < 2; ++i) {
      if (r.rank == 1) {
        const Activity activity(watch, "data load");
        outside = true;
        std::this_thread::sleep_for(3s);
        if (i == 1) then(watch);
        outside = false;
      }
      i == 0 ? world.all_reduce(t).wait() : watch.meet("late", {"job", "job", r.all()});
    }
    if (t.const_data_ptr<float>()[0] != 2) fail("a wrong sum");
  });
}
const Ranks kOutside("outside", [](const Rank& r) { wait_outside(r, [](Watch&) {}); });
const Ranks kStopsOutside("stops outside", [](const Rank& r) { wait_outside(r, [](Watch&) { raise(SIGSTOP); }); });
TEST(Watch, ARankThatWaitsForAServerIsWaitedFor) {
  for (const Outcome& o : run_ranks("outside", 2)) EXPECT_EQ(o.status, 0) << o.said;
  const Outcome o = run_ranks("stops outside", 2)[0];
  EXPECT_EQ(o.status, 2);
  EXPECT_TRUE(has(o, "longer than [comm] allows: rank 1 has sent no heartbeat for ")) << o.said;
}

// A pause of many heartbeats, but below the limit, ends nothing.
const Ranks kPauses("pauses", [](const Rank& r) {
  Watch watch = r.watch();
  watch.run([&] {
    Communicator world(watch, "world", r.all(), at::kCPU);
    meet_all(watch, r);
    watch.set_timeout(5s);
    at::Tensor t = at::zeros({8});
    if (r.rank == 1) {
      const pid_t paused = getpid();
      if (fork() == 0) {
        std::this_thread::sleep_for(1500ms);
        kill(paused, SIGCONT);
        _exit(0);
      }
      raise(SIGSTOP);
    }
    watch.meet("prepared", {"job", "job", r.all()}, Patience::unlimited);
    world.all_reduce(t).wait();
  });
});
TEST(Watch, APausedRankIsWaitedFor) {
  for (const Outcome& o : run_ranks("pauses", 2)) EXPECT_EQ(o.status, 0) << o.said;
}

// Where ranks cannot connect to rank 0, broken connections and silence tell of a death.
const Ranks kUnconnected("unconnected", [](const Rank& r) {
  Watch watch = r.watch(0, "");
  watch.run([&] {
    Communicator world(watch, "world", r.all(), at::kCPU);
    at::Tensor t = at::zeros({8});
    world.all_reduce(t).wait();
    if (r.rank == 1) raise(SIGKILL);
    world.all_reduce(t).wait();
  });
});
TEST(Watch, ADeadRankIsNamedByItsSilence) {
  const Outcome o = run_ranks("unconnected", 2)[0];
  expect_line(o, "halftone: rank 0 waited ");
  EXPECT_TRUE(has(o, ", and it broke: rank 1 has sent no heartbeat for ")) << o.said;
}

const Ranks kNeverStarts("never starts", [](const Rank& r) {
  if (r.rank == 1) raise(SIGSTOP);
  Watch watch = r.watch();
  watch.run([&] {
    watch.set_timeout(1s);
    watch.meet("tokens", {"job", "job", r.all()}, Patience::unlimited);
  });
});
TEST(Watch, PatienceWithARankThatHasNotStartedHasTheTimeOut) {
  const Outcome o = run_ranks("never starts", 2)[0];
  expect_line(o, "halftone: rank 0 waited 1.");
  EXPECT_TRUE(has(o, ": rank 1 has not started\n")) << o.said;
}

}  // namespace
}  // namespace halftone::comm
