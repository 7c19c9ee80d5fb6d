#include "halftone/comm/watch.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <csignal>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <sstream>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "halftone/base/error.h"
#include "halftone/base/log.h"
#include "halftone/base/ranges.h"
#include "halftone/comm/flight_recorder.h"

namespace halftone::comm {
namespace {

using Wall = std::chrono::system_clock;

// In periods of the watching thread:
constexpr int kGrace = 2;     // a rank may end by itself when another has failed
constexpr int kSilent = 4;    // a rank without a heartbeat counts as gone
constexpr int kFarewell = 5;  // rank 0 stays for the others, and a rank that has failed; the flight recorder may write
constexpr int kLeave = 15;    // a rank that has failed may take to end its process
constexpr size_t kShown = 8;  // ranks that one line tells about

double seconds(auto duration) { return std::chrono::duration<double>(duration).count(); }

std::string first_line(std::string_view text) { return std::string(text.substr(0, text.find('\n'))); }

std::string beat_key(int64_t rank) { return fmt::format("beat/{}", rank); }

// "ranks 1-3, 7"
std::string names(const std::vector<int64_t>& ranks) { return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", ranges_text(ranks)); }

// What a rank said of itself with its last heartbeat.
struct Beat {
  double age = 0, doing_for = 0;  // seconds
  std::string doing;
  std::map<std::string, int64_t> begun;  // collectives by the group's key

  bool has_begun(const Operation& operation) const {
    const auto count = begun.find(operation.group->key);
    return count != begun.end() && count->second >= operation.number;
  }
};

}  // namespace

std::vector<int64_t> Operation::peers(int64_t own) const {
  if (peer >= 0) return {peer};
  std::vector<int64_t> others = group->ranks;
  std::erase(others, own);
  return others;
}

struct Watch::State {
  explicit State(Recorder options) : recorder(std::move(options)) {}

  c10::intrusive_ptr<c10d::Store> store, own_store;  // of the rank's thread and of the watching thread: a waiting call blocks a store
  int64_t rank = 0, world_size = 1;
  Milliseconds period{};
  std::atomic<Milliseconds> timeout{};
  std::thread thread;

  std::mutex mutex;  // of what follows
  std::condition_variable wake;
  bool stop = false;
  std::string doing = "the start";
  Wall::time_point since = Wall::now();
  std::map<std::string, int64_t> begun;
  struct Tracked {
    c10::intrusive_ptr<c10d::Work> work;
    Operation operation;
    c10::Device device;
    Clock::time_point start;

    bool completed() const {
      c10::impl::VirtualGuardImpl(device.type()).setDevice(device);  // or the query would use memory of device 0
      return work->isCompleted();
    }
  };
  std::list<Tracked> tracked;
  std::string told;  // others_failure(), once it said something
  FlightRecorder recorder;

  std::mutex saving;  // of what follows
  std::optional<std::string> saved;

  // Who ends the process and so says why: the first to claim it.
  enum Ender { nobody, main, watcher };
  std::atomic<Ender> ender = nobody;
  std::atomic<bool> farewell = false;
  bool claim(Ender who) {
    Ender before = nobody;
    return ender.compare_exchange_strong(before, who) || before == who;
  }

  void beat(c10d::Store& s) {
    std::unique_lock lock(mutex);
    const auto ms = [](Wall::time_point t) { return std::chrono::duration_cast<Milliseconds>(t.time_since_epoch()).count(); };
    std::string text = fmt::format("{} {}\n{}\n", ms(Wall::now()), ms(since), doing);
    for (const auto& [key, count] : begun) text += fmt::format("{} {}\n", count, key);
    lock.unlock();
    s.set(beat_key(rank), text);
  }

  std::optional<Beat> beat_of(int64_t other, c10d::Store& s) const {
    if (!s.check({beat_key(other)})) return {};
    std::istringstream text(s.get_to_str(beat_key(other)));
    int64_t now = 0, then = 0, count = 0;
    Beat beat;
    text >> now >> then >> std::ws;
    std::getline(text, beat.doing);
    for (std::string key; text >> count >> std::ws && std::getline(text, key);) beat.begun[key] = count;
    beat.age = seconds(Wall::now().time_since_epoch() - Milliseconds(now));
    beat.doing_for = seconds(Milliseconds(now - then));
    return beat;
  }

  bool silent(const Beat& beat) const { return beat.age > kSilent * seconds(period); }

  std::string describe(int64_t other, c10d::Store& s) const {
    const std::optional<Beat> beat = beat_of(other, s);
    if (!beat) return fmt::format("rank {} has not started", other);
    if (silent(*beat)) return fmt::format("rank {} gives no sign of life since {:.1f} s, the last in {}", other, beat->age, beat->doing);
    return fmt::format("rank {} in {} since {:.1f} s", other, beat->doing, beat->doing_for + beat->age);
  }

  std::string describe(const std::vector<int64_t>& others, c10d::Store& s) const {
    std::vector<std::string> shown;
    for (size_t i = 0; i < std::min(others.size(), kShown); ++i) shown.push_back(describe(others[i], s));
    return fmt::format("{}{}", fmt::join(shown, "; "), others.size() > kShown ? fmt::format("; and {} more", others.size() - kShown) : "");
  }

  // Why this rank must end though it did nothing wrong; "" where no rank has failed. A store that is gone is a reason, too.
  std::string others_failure(c10d::Store& s) {
    try {
      if (!s.check({"failed"})) return "";
      const std::string text = s.get_to_str("failed");
      const size_t cut = text.find('\n');
      if (text.substr(0, cut) == std::to_string(rank)) return "";
      std::string line = fmt::format("rank {} ends because rank {} has failed: {}", rank, text.substr(0, cut), text.substr(cut + 1));
      save(line);
      {
        const std::lock_guard lock(mutex);
        told = line;
      }
      say_farewell(s);  // rank 0 may go, and the store with it
      return line;
    } catch (const std::exception& error) {
      const std::lock_guard lock(mutex);
      if (!told.empty()) return told;
      return fmt::format("rank {} ends because the store of the job does not answer any more: has rank 0 died, or the launcher? ({})", rank,
                         first_line(error.what()));
    }
  }

  void say_farewell(c10d::Store& s) {
    if (!farewell.exchange(true)) s.add("left", 1);
  }

  // Until so many ranks need nothing of the others any more, or too long.
  void wait_for_farewells(int64_t ranks, c10d::Store& s) const {
    const auto end = Clock::now() + kFarewell * period;
    while (s.add("left", 0) < ranks && Clock::now() < end) std::this_thread::sleep_for(period / 10);
  }

  // "; see FILE" for the line of this rank when the flight recorder's file is written, which is tried once.
  std::string save(const std::string& line) {
    const std::lock_guard once(saving);
    if (saved || !recorder.on()) return saved.value_or("");
    saved.emplace();
    std::string problem;
    try {
      std::unique_lock lock(mutex);
      for (const Tracked& t : tracked) {
        if (t.completed() && t.work->exception() == nullptr) recorder.end(t.operation.entry);
      }
      std::string text = recorder.text(rank, world_size, line);
      lock.unlock();
      problem = recorder.write(std::move(text), kFarewell * period);
    } catch (const std::exception& error) {
      problem = first_line(error.what());
    }
    if (problem.empty()) {
      saved = "; see " + recorder.path().string();
    } else {
      log_debug("the flight recorder did not write {}: {}", recorder.path().string(), problem);
    }
    return *saved;
  }

  // A launcher ends all processes of a host when one of them does, and rank 0 may serve the store: all have time to save first.
  void report(const std::string& line, c10d::Store& s) {
    try {
      s.compareSet("failed", "", fmt::format("{}\n{}", rank, line));
      save(line);
      say_farewell(s);
      wait_for_farewells(world_size, s);
    } catch (const std::exception&) {  // no store: the others see that themselves
    }
  }

  // Those that the operation waits for: ranks that give no sign of life and, unless it broke, those that have not begun it.
  std::vector<int64_t> missing(const Operation& operation, bool broke, c10d::Store& s) const {
    std::vector<int64_t> found;
    for (const int64_t r : operation.peers(rank)) {
      const std::optional<Beat> beat = beat_of(r, s);
      if (!beat || silent(*beat) || (!broke && (operation.peer >= 0 || !beat->has_begun(operation)))) found.push_back(r);
    }
    return found;
  }

  // A patient wait is in vain: a rank gives no sign of life, or has not started in time.
  bool in_vain(const Operation& operation, Clock::time_point start, c10d::Store& s) const {
    return std::ranges::any_of(operation.peers(rank), [&](int64_t r) {
      const std::optional<Beat> beat = beat_of(r, s);
      return beat ? silent(*beat) : Clock::now() - start > timeout.load();
    });
  }

  // Why the operation, waited for since `start`, does not come to its end. When a connection broke, as `problem` says, it takes a
  // while until the line of a failed rank arrives, or until enough heartbeats of a dead one are missing.
  std::string verdict(const Operation& operation, Clock::time_point start, std::string_view problem, c10d::Store& s) {
    const Clock::duration time = Clock::now() - start;
    const bool broke = operation.patient || time < timeout.load();
    const auto end = Clock::now() + (broke ? (kSilent + 3) * period : Milliseconds(0));
    const std::string waited = fmt::format("rank {} waited {:.1f} s for {} on {} with {}, ", rank, seconds(time), operation.what,
                                           operation.group->name, names(operation.peers(rank)));
    while (true) {
      if (std::string line = others_failure(s); !line.empty()) return line;
      try {
        const std::vector<int64_t> found = missing(operation, broke, s);
        if (!found.empty()) return waited + (broke ? "and it broke: " : "longer than [comm] allows: ") + describe(found, s);
      } catch (const std::exception&) {  // the store is gone, as others_failure will say
        continue;
      }
      if (Clock::now() >= end) break;
      std::this_thread::sleep_for(period / 4);
    }
    return waited + (broke ? "and it broke: " + first_line(problem)
                           : "longer than [comm] allows: all of them are in it, so the network or a device hangs");
  }

  // A line when a tracked work is overdue or broken.
  std::string overdue() {
    std::unique_lock lock(mutex);
    for (auto t = tracked.begin(); t != tracked.end();) {
      const bool completed = t->completed();
      if (completed && t->work->exception() == nullptr) {
        recorder.end(t->operation.entry);
        t = tracked.erase(t);
      } else if (completed || Clock::now() - t->start > timeout.load()) {
        const Tracked failed = *t;
        lock.unlock();
        return verdict(failed.operation, failed.start, completed ? "the device's work ended with an error" : "", *own_store);
      } else {
        ++t;
      }
    }
    return "";
  }

  void stop_thread() {
    {
      const std::lock_guard lock(mutex);
      stop = true;
    }
    wake.notify_all();
    if (thread.joinable()) thread.join();
  }

  // The rank's thread ends the process and has told the others why, unless the watching thread does so already.
  void end_with(const std::string& line) {
    while (!claim(main)) pause(period);
    report(line, *store);
  }

  // True when the thread is to stop before the time is over.
  bool pause(Milliseconds time) {
    std::unique_lock lock(mutex);
    return wake.wait_for(lock, time, [&] { return stop; });
  }

  [[noreturn]] void end_process(const std::string& line) {
    const std::string text = fmt::format("halftone: {}{}\n", line, save(line));
    if (write(STDERR_FILENO, text.data(), text.size()) < 0) {  // nobody reads it
    }
    _exit(2);
  }

  void watch() {
    while (ender == nobody) {
      std::string line = others_failure(*own_store);
      if (!line.empty()) {
        if (pause(kGrace * period)) return;
        if (claim(watcher)) end_process(line);
        break;
      }
      try {
        beat(*own_store);
        line = overdue();
      } catch (const std::exception&) {  // the store is gone: the next look says so
      }
      if (!line.empty() && claim(watcher)) report(line, *own_store), end_process(line);
      if (pause(period)) return;
    }
    // The rank's own thread has said why and is ending. It may hang where the others are missing.
    if (!pause(kLeave * period)) _exit(2);
  }
};

Watch::Watch(c10::intrusive_ptr<c10d::Store> store, int64_t rank, int64_t world_size, Milliseconds timeout, Milliseconds period,
             Recorder recorder)
    : state_(std::make_shared<State>(std::move(recorder))) {
  std::signal(SIGPIPE, SIG_IGN);  // a write to a dead rank is an error like others
  State& s = *state_;
  s.own_store = store->clone();
  s.store = std::move(store);
  s.rank = rank, s.world_size = world_size, s.timeout = timeout, s.period = period;
  s.beat(*s.store);
  s.thread = std::thread([state = state_] { state->watch(); });
}

Watch::~Watch() {
  if (ending() && state_->thread.joinable()) {
    state_->thread.detach();  // it sees to it that the process ends
  } else {
    state_->stop_thread();
  }
}

void Watch::run(const std::function<void()>& body) {
  State& s = *state_;
  Group all{"all", "all", {}};
  for (int64_t r = 0; r < s.world_size; ++r) all.ranks.push_back(r);
  try {
    body();
    const Activity activity(*this, "the end of the run");
    meet("end", all);
    s.stop_thread();  // the store may go now
    s.rank == 0 ? s.wait_for_farewells(s.world_size - 1, *s.store) : s.say_farewell(*s.store);
  } catch (const std::exception& error) {
    if (s.ender != State::main) s.end_with(first_line(error.what()));  // no report yet
    throw;
  }
}

void Watch::meet(const std::string& key, const Group& group, Patience patience) {
  State& s = *state_;
  const std::string arrived = "meet/" + key, everybody = arrived + "/all";
  Operation meeting{fmt::format("the meeting '{}'", key), std::make_shared<Group>(Group{group.name, arrived, group.ranks})};
  meeting.patient = patience == Patience::unlimited;
  begin(meeting);
  const auto start = Clock::now();
  std::string problem;
  try {
    const int64_t place = s.store->add(arrived, 1);
    if (place == static_cast<int64_t>(group.ranks.size())) s.store->set(everybody, std::string("1"));
    // Looks after the others the more rarely the later it came, or many ranks would keep the store busy.
    const Clock::duration between = place * kSilent * s.period;
    auto look = start + between;
    for (Milliseconds nap(1);; nap = std::min(2 * nap, Milliseconds(100))) {
      if (s.store->check({everybody})) return end(meeting);
      const auto now = Clock::now();
      if (!meeting.patient && now - start > timeout()) break;
      if (meeting.patient && now > look) {
        if (s.in_vain(meeting, start, *s.store)) break;
        look = now + between;
      }
      std::this_thread::sleep_for(nap);
    }
  } catch (const std::exception& error) {
    problem = error.what();
  }
  fail_wait(meeting, start, problem);
}

void Watch::fail_wait(const Operation& operation, Clock::time_point start, std::string_view problem) {
  State& s = *state_;
  const std::string line = s.verdict(operation, start, problem, *s.store);
  s.end_with(line);
  throw Error(line + s.save(line));
}

void Watch::set_timeout(Milliseconds timeout) { state_->timeout = timeout; }
Milliseconds Watch::timeout() const { return state_->timeout; }
int64_t Watch::rank() const { return state_->rank; }
c10::intrusive_ptr<c10d::Store> Watch::store() const { return state_->store; }
bool Watch::ending() const { return state_->ender != State::nobody; }

std::string Watch::silent(const std::vector<int64_t>& ranks) const {
  State& s = *state_;
  try {
    std::vector<int64_t> found;
    for (const int64_t r : ranks) {
      const std::optional<Beat> beat = s.beat_of(r, *s.own_store);
      if (!beat || s.silent(*beat)) found.push_back(r);
    }
    return s.describe(found, *s.own_store);
  } catch (const std::exception&) {  // as the watching thread will say
    return "";
  }
}

void Watch::begin(Operation& operation) {
  const std::lock_guard lock(state_->mutex);
  if (operation.peer < 0) operation.number = ++state_->begun[operation.group->key];
  operation.entry = state_->recorder.begin(operation);
}

void Watch::end(const Operation& operation) {
  const std::lock_guard lock(state_->mutex);
  state_->recorder.end(operation.entry);
}

void Watch::track(c10::intrusive_ptr<c10d::Work> work, const Operation& operation, c10::Device device) {
  const std::lock_guard lock(state_->mutex);
  state_->tracked.push_back({std::move(work), operation, device, Clock::now()});
}

Activity::Activity(Watch& watch, std::string_view what) : watch_(watch) {
  Watch::State& s = *watch.state_;
  const std::lock_guard lock(s.mutex);
  outer_ = std::exchange(s.doing, std::string(what));
  outer_since_ = std::exchange(s.since, Wall::now());
}

Activity::~Activity() {
  Watch::State& s = *watch_.state_;
  const std::lock_guard lock(s.mutex);
  s.doing = std::move(outer_), s.since = outer_since_;
}

}  // namespace halftone::comm
