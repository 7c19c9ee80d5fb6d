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
#include <set>
#include <sstream>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "halftone/base/error.h"
#include "halftone/base/log.h"
#include "halftone/base/ranges.h"
#include "halftone/comm/flight_recorder.h"
#include "halftone/comm/heartbeats.h"
#include "halftone/comm/presence.h"

namespace halftone::comm {
namespace {

// In periods of the watching thread:
constexpr int kGrace = 2;     // a rank may end by itself when another has failed; its connection is closed and no heartbeat comes
constexpr int kSilent = 3;    // a rank without a heartbeat is said to be silent
constexpr int kBroken = 5;    // the same where a connection broke, which says why by then if its process ended
constexpr int kFarewell = 5;  // rank 0 stays for the others, and a rank that has failed; the flight recorder may write
constexpr int kLinger = 5;    // a rank may take to end its process after it has told the others why
constexpr int kLeave = 12;    // a rank may take to do both
constexpr size_t kShown = 8;  // ranks in one line

constexpr const char *kStart = "the start", *kOwnWork = "its own work";  // outside of any Activity

double seconds(auto duration) { return std::chrono::duration<double>(duration).count(); }

std::string first_line(std::string_view text) { return std::string(text.substr(0, text.find('\n'))); }

// "ranks 1-3, 7"
std::string names(const std::vector<int64_t>& ranks) { return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", ranges_text(ranks)); }

// Why a job ends.
struct Failure {
  std::string line;
  int64_t lost = 0;  // ranks that will say no farewell
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
  std::thread thread, second_thread;

  std::mutex mutex;  // of what follows
  std::condition_variable wake;
  bool stop = false, stop_second = false;
  Heartbeat own{.doing = kStart};
  Clock::time_point since = Clock::now();
  struct Tracked {
    c10::intrusive_ptr<c10d::Work> work;
    Operation operation;
    c10::Device device;
    Clock::time_point start, look;

    bool completed() const {
      c10::impl::VirtualGuardImpl(device.type()).setDevice(device);  // or the query would use memory of device 0
      return work->isCompleted();
    }
  };
  std::list<Tracked> tracked;
  struct Wait {
    int64_t id;
    const Operation* operation;
    Clock::time_point start, look;
    Milliseconds between;  // looks of a patient wait
  };
  std::vector<Wait> waits;
  int64_t waits_begun = 0;
  std::vector<int64_t> asked;  // ranks that silent() was asked for last
  Clock::time_point asked_at{};
  std::string told;         // others_failure(), once it said something
  std::string ending_line;  // for the second thread to print where the first to end the process hangs
  FlightRecorder recorder;

  std::mutex saving;  // of what follows
  std::optional<std::string> saved;

  Heartbeats peers;
  std::optional<Presence> presence;                        // of the watching thread
  std::map<int64_t, Clock::time_point> closed;             // connections
  std::atomic<Clock::time_point> answered = Clock::now();  // the store

  // Who ends the process and so says why: the first to claim it.
  enum Ender { nobody, main, watcher };
  std::atomic<Ender> ender = nobody;
  std::atomic<bool> farewell = false, reported = false, printed = false;
  bool claim(Ender who) {
    Ender before = nobody;
    return ender.compare_exchange_strong(before, who) || before == who;
  }

  void beat(c10d::Store& s) {
    std::unique_lock lock(mutex);
    ++own.number, own.seconds = seconds(Clock::now() - since);
    const Heartbeat copy = own;
    lock.unlock();
    copy.write(rank, s);
  }

  bool silent(const Heartbeats::Seen& seen, int periods = kSilent) const { return seen.silent > periods * seconds(period); }

  std::string describe(int64_t other) const {
    const std::optional<Heartbeats::Seen> seen = peers.of(other);
    if (!seen) return fmt::format("rank {} has not started", other);
    if (silent(*seen))
      return fmt::format("rank {} has sent no heartbeat for {:.1f} s, last seen in {}", other, seen->silent, seen->beat.doing);
    return fmt::format("rank {} has been in {} for {:.1f} s", other, seen->beat.doing, seen->beat.seconds + seen->silent);
  }

  std::string describe(const std::vector<int64_t>& others) const {
    std::vector<std::string> shown;
    for (size_t i = 0; i < std::min(others.size(), kShown); ++i) shown.push_back(describe(others[i]));
    return fmt::format("{}{}", fmt::join(shown, "; "), others.size() > kShown ? fmt::format("; and {} more", others.size() - kShown) : "");
  }

  // Why this rank must end though it did nothing wrong; "" where no rank has failed. A store that is gone is a reason, too.
  Failure others_failure(c10d::Store& s) {
    try {
      const bool failed = s.check({"failed"});
      answered = Clock::now();
      if (!failed) return {};
      const std::string text = s.get_to_str("failed");
      const size_t cut = text.find('\n');
      int64_t other = 0, lost = 0;
      std::istringstream(text.substr(0, cut)) >> other >> lost;
      if (other == rank) return {};
      Failure failure{fmt::format("rank {} ends because rank {} has failed: {}", rank, other, text.substr(cut + 1)), lost};
      save(failure.line);
      {
        const std::lock_guard lock(mutex);
        told = failure.line;
      }
      say_farewell(s);  // rank 0 may go, and the store with it
      return failure;
    } catch (const std::exception& error) {
      const std::lock_guard lock(mutex);
      if (!told.empty()) return {told};
      return {fmt::format("rank {} ends because the job's store no longer answers: has rank 0 or the launcher died? ({})", rank,
                          first_line(error.what()))};
    }
  }

  void tell(c10d::Store& s, int64_t failed, const Failure& failure) {
    s.compareSet("failed", "", fmt::format("{} {}\n{}", failed, failure.lost, failure.line));
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
  void report(const Failure& failure, c10d::Store& s) {
    try {
      tell(s, rank, failure);
      save(failure.line);
      say_farewell(s);
      wait_for_farewells(world_size - failure.lost, s);
    } catch (const std::exception&) {  // no store: the others see that themselves
    }
    reported = true;
  }

  // When to look at the peers of a limited wait: rarely, and once a period before its end, for how long they are silent then.
  Clock::time_point next_look(Clock::time_point start, Clock::time_point now) const {
    const Clock::duration limit = timeout.load(), often = limit - (kSilent + 2) * period, time = now - start;
    if (now == start) return start + std::max<Clock::duration>(Clock::duration(0), std::min(limit / 4, often));
    return time >= often ? now : now + std::min(time, often - time);
  }

  void look(c10d::Store& s) {
    std::set<int64_t> ranks;
    {
      const auto now = Clock::now();
      const std::lock_guard lock(mutex);
      const auto add = [&](auto& waiting, const Operation& operation, Milliseconds between) {
        if (now < waiting.look) return;
        for (const int64_t r : operation.peers(rank)) ranks.insert(r);
        waiting.look = operation.patient ? now + between : next_look(waiting.start, now);
      };
      for (Wait& w : waits) add(w, *w.operation, w.between);
      for (Tracked& t : tracked) add(t, t.operation, {});
      if (now - asked_at < kSilent * period) ranks.insert(asked.begin(), asked.end());
    }
    peers.look({ranks.begin(), ranks.end()}, s);
  }

  void connect(c10d::Store& s) try {
    for (const int64_t other : presence->lost(s)) closed.emplace(other, Clock::now());
  } catch (const std::exception&) {  // the store is gone
  }

  // Where a connection closes and no heartbeat follows, the process has ended: the job is told in its stead.
  void look_for_ended(c10d::Store& s) {
    connect(s);
    for (auto c = closed.begin(); c != closed.end();) {
      peers.look({c->first}, s);
      const std::optional<Heartbeats::Seen> seen = peers.of(c->first);
      if (seen && silent(*seen, kGrace)) {
        tell(s, c->first, {fmt::format("its process ended without a message (was it killed?), last seen in {}", seen->beat.doing), 1});
        c = closed.erase(c);
      } else if (Clock::now() - c->second > 2 * kSilent * period) {
        c = closed.erase(c);  // the network closed it
      } else {
        ++c;
      }
    }
  }

  // Ranks that the operation waits for: those that are silent and, unless it broke, those that have not begun it.
  std::vector<int64_t> missing(const Operation& operation, bool broke, c10d::Store& s) {
    std::vector<int64_t> found;
    peers.look(operation.peers(rank), s);
    answered = Clock::now();
    for (const int64_t r : operation.peers(rank)) {
      const std::optional<Heartbeats::Seen> seen = peers.of(r);
      if (!seen || silent(*seen, broke ? kBroken : kSilent) || (!broke && (operation.peer >= 0 || !seen->beat.has_begun(operation))))
        found.push_back(r);
    }
    return found;
  }

  // A patient wait is in vain: a rank is silent for too long, or has not started in time. As far as the thread could look.
  bool in_vain(const Operation& operation, Clock::time_point start, Milliseconds between) const {
    const auto now = Clock::now();
    if (now - start <= timeout.load() || now - answered.load() > kSilent * period) return false;
    return std::ranges::any_of(operation.peers(rank), [&](int64_t r) {
      const std::optional<Heartbeats::Seen> seen = peers.of(r);
      return !seen || seen->silent > seconds(timeout.load() + between);
    });
  }

  std::string waited(const Operation& operation, Clock::time_point start) const {
    return fmt::format("rank {} waited {:.1f} s for {} on {} with {}, ", rank, seconds(Clock::now() - start), operation.what,
                       operation.group->name, names(operation.peers(rank)));
  }

  // Why the operation, waited for since `start`, does not end. When a connection broke, as `problem` says, it takes a while until the line
  // of a failed rank arrives, or until enough heartbeats are missing.
  Failure verdict(const Operation& operation, Clock::time_point start, std::string_view problem, c10d::Store& s) {
    const bool broke = operation.patient || Clock::now() - start < timeout.load();
    const auto end = Clock::now() + (broke ? (kBroken + 2) * period : Milliseconds(0));
    const std::string begin = waited(operation, start) + (!broke              ? "longer than [comm] allows: "
                                                          : operation.patient ? "in vain: "
                                                                              : "and it broke: ");
    while (true) {
      if (Failure failure = others_failure(s); !failure.line.empty()) return failure;
      try {
        const std::vector<int64_t> found = missing(operation, broke, s);
        const auto lost = std::ranges::count_if(found, [&](int64_t r) {
          const auto seen = peers.of(r);
          return !seen || silent(*seen);
        });
        if (!found.empty()) return {begin + describe(found), lost};
      } catch (const std::exception&) {  // the store is gone, as others_failure will say
        continue;
      }
      if (Clock::now() >= end) break;
      std::this_thread::sleep_for(period / 4);
    }
    return {begin + (broke ? first_line(problem) : "all peers are in it, so the network or a device hangs")};
  }

  // A tracked work is overdue or broken, or a call does not return in time.
  Failure overdue() {
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
    for (const Wait& w : waits) {
      if (w.operation->patient || Clock::now() - w.start <= timeout.load() + kGrace * period) continue;
      const Operation operation = *w.operation;
      const auto start = w.start;
      lock.unlock();
      return verdict(operation, start, "", *own_store);
    }
    return {};
  }

  // A line when a wait is over its limit and the store does not answer, so that nothing else can be said.
  std::string unanswered() {
    const auto now = Clock::now();
    const Clock::duration hangs = now - answered.load();
    if (hangs <= kSilent * period) return "";
    const auto line = [&](const Operation& operation, Clock::time_point start) {
      return fmt::format("{}and the job's store has not answered for {:.1f} s: has the process or host of rank 0 stopped?",
                         waited(operation, start), seconds(hangs));
    };
    const std::lock_guard lock(mutex);
    for (const Wait& w : waits)
      if ((w.operation->patient ? hangs : now - w.start) > timeout.load()) return line(*w.operation, w.start);
    for (const Tracked& t : tracked)
      if (now - t.start > timeout.load() && !t.completed()) return line(t.operation, t.start);
    return "";
  }

  // True when the thread is to stop before the time is over.
  bool pause(Milliseconds time, const bool& stopped) {
    std::unique_lock lock(mutex);
    return wake.wait_for(lock, time, [&] { return stopped; });
  }

  void stop_thread(std::thread& which, bool& stopped) {
    {
      const std::lock_guard lock(mutex);
      stopped = true;
    }
    wake.notify_all();
    if (which.joinable()) which.join();
  }

  // The rank's thread tells the others why it ends, unless the watching thread ends the process already.
  void tell_end(const Failure& failure) {
    while (!claim(main)) pause(period, stop_second);
    set_ending_line(failure.line);
    report(failure, *store);
  }

  void set_ending_line(const std::string& line) {
    const std::lock_guard lock(mutex);
    ending_line = line;
  }

  [[noreturn]] void end_process(const std::string& line) {
    const std::string text = fmt::format("halftone: {}{}\n", line, save(line));
    if (!printed.exchange(true) && write(STDERR_FILENO, text.data(), text.size()) < 0) {  // nobody reads it
    }
    _exit(2);
  }

  // The watching thread.
  void watch() {
    const auto begun = Clock::now();
    for (auto before = begun; ender == nobody;) {
      const Failure others = others_failure(*own_store);
      if (!others.line.empty()) {
        if (pause(kGrace * period, stop)) return;
        if (claim(watcher)) set_ending_line(others.line), end_process(others.line);
        return;
      }
      Failure failure;
      try {
        const auto now = Clock::now();
        if (now - std::exchange(before, now) > (kSilent + 1) * period) peers.restart();  // this process or the store was held up
        beat(*own_store);
        look(*own_store);
        look_for_ended(*own_store);
        answered = Clock::now();
        failure = overdue();
      } catch (const std::exception&) {  // the store is gone: the next look says so
      }
      if (!failure.line.empty() && claim(watcher)) set_ending_line(failure.line), report(failure, *own_store), end_process(failure.line);
      constexpr int kOften = 10;  // while connections are made
      const int pauses = Clock::now() - begun < kOften * period && !presence->settled() ? kOften : 1;
      for (int i = 1; i <= pauses; ++i) {
        if (pause(period / pauses, stop)) return;
        if (i < pauses) connect(*own_store);
      }
    }
  }

  // The second thread, which never calls the store.
  void watch_the_watch() {
    for (int late = 0, ending = 0, leaving = 0; !pause(period, stop_second);) {  // counts, in which no pause of the process counts
      if (ender != nobody) {
        leaving += reported;
        if (++ending <= kLeave && leaving <= kLinger) continue;
        std::unique_lock lock(mutex);
        const std::string line = ending_line;
        lock.unlock();
        if (line.empty()) _exit(2);  // printed by the rank's thread
        end_process(line);
      }
      const std::string line = unanswered();
      late = line.empty() ? 0 : late + 1;
      if (late > kGrace && claim(watcher)) end_process(line);
    }
  }
};

Watch::Watch(c10::intrusive_ptr<c10d::Store> store, int64_t rank, int64_t world_size, Milliseconds timeout, Milliseconds period,
             Recorder recorder, std::string address)
    : state_(std::make_shared<State>(std::move(recorder))) {
  std::signal(SIGPIPE, SIG_IGN);  // a write to a dead rank is an error like others
  State& s = *state_;
  s.own_store = store->clone();
  s.store = std::move(store);
  s.rank = rank, s.world_size = world_size, s.timeout = timeout, s.period = period;
  s.presence.emplace(std::move(address), rank, world_size);
  s.beat(*s.store);
  s.thread = std::thread([state = state_] { state->watch(); });
  s.second_thread = std::thread([state = state_] { state->watch_the_watch(); });
}

Watch::~Watch() {
  State& s = *state_;
  if (ending()) {
    for (std::thread* thread : {&s.thread, &s.second_thread})
      if (thread->joinable()) thread->detach();  // they see to it that the process ends
    return;
  }
  s.stop_thread(s.thread, s.stop);
  s.presence->leave();
  s.stop_thread(s.second_thread, s.stop_second);
}

void Watch::run(const std::function<void()>& body) {
  State& s = *state_;
  Group all{"all", "all", {}};
  for (int64_t r = 0; r < s.world_size; ++r) all.ranks.push_back(r);
  try {
    body();
    const Activity activity(*this, "the end of the run");
    meet("end", all);
    const Operation last{"the end of the run", std::make_shared<Group>(std::move(all))};
    const Waiting waiting(*this, last);
    s.stop_thread(s.thread, s.stop);  // the store may go now
    s.presence->leave();
    s.rank == 0 ? s.wait_for_farewells(s.world_size - 1, *s.store) : s.say_farewell(*s.store);
  } catch (const std::exception& error) {
    s.tell_end({first_line(error.what())});
    s.set_ending_line("");  // the caller prints the error
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
  // Without a place yet. Who comes late looks rarely after the others, or many ranks would keep the store busy.
  std::optional<Waiting> waiting(std::in_place, *this, meeting);
  std::string problem;
  try {
    const int64_t place = s.store->add(arrived, 1);
    if (place == static_cast<int64_t>(group.ranks.size())) s.store->set(everybody, std::string("1"));
    const Milliseconds between = std::min<Milliseconds>(place * kSilent * s.period, timeout() / 3);
    if (meeting.patient) waiting.emplace(*this, meeting, between);
    for (Milliseconds nap(1);; nap = std::min(2 * nap, Milliseconds(100))) {
      if (s.store->check({everybody})) return end(meeting);
      if (meeting.patient ? s.in_vain(meeting, start, between) : Clock::now() - start > timeout()) break;
      std::this_thread::sleep_for(nap);
    }
  } catch (const std::exception& error) {
    problem = error.what();
  }
  fail_wait(meeting, start, problem);
}

void Watch::fail_wait(const Operation& operation, Clock::time_point start, std::string_view problem) {
  State& s = *state_;
  const Failure failure = s.verdict(operation, start, problem, *s.store);
  s.tell_end(failure);
  s.end_process(failure.line);  // at once: destructors may hang where the others are missing
}

void Watch::set_timeout(Milliseconds timeout) { state_->timeout = timeout; }
Milliseconds Watch::timeout() const { return state_->timeout; }
int64_t Watch::rank() const { return state_->rank; }
c10::intrusive_ptr<c10d::Store> Watch::store() const { return state_->store; }
bool Watch::ending() const { return state_->ender != State::nobody; }

std::string Watch::silent(const std::vector<int64_t>& ranks) const {
  State& s = *state_;
  {
    const std::lock_guard lock(s.mutex);
    s.asked = ranks, s.asked_at = Clock::now();
  }
  std::vector<int64_t> found;
  for (const int64_t r : ranks) {
    const std::optional<Heartbeats::Seen> seen = s.peers.of(r);
    if (seen && s.silent(*seen)) found.push_back(r);
  }
  return s.describe(found);
}

void Watch::begin(Operation& operation) {
  const std::lock_guard lock(state_->mutex);
  if (operation.peer < 0) operation.number = ++state_->own.begun[operation.group->key];
  operation.entry = state_->recorder.begin(operation);
}

void Watch::end(const Operation& operation) {
  const std::lock_guard lock(state_->mutex);
  state_->recorder.end(operation.entry);
}

void Watch::track(c10::intrusive_ptr<c10d::Work> work, const Operation& operation, c10::Device device) {
  const std::lock_guard lock(state_->mutex);
  const auto now = Clock::now();
  state_->tracked.push_back({std::move(work), operation, device, now, state_->next_look(now, now)});
}

Activity::Activity(Watch& watch, std::string_view what) : watch_(watch) {
  Watch::State& s = *watch.state_;
  const std::lock_guard lock(s.mutex);
  outer_ = std::exchange(s.own.doing, std::string(what));
  outer_since_ = std::exchange(s.since, Clock::now());
}

Activity::~Activity() {
  Watch::State& s = *watch_.state_;
  const std::lock_guard lock(s.mutex);
  const bool outermost = outer_ == kStart || outer_ == kOwnWork;
  s.own.doing = outermost ? kOwnWork : std::move(outer_), s.since = outermost ? Clock::now() : outer_since_;
}

Waiting::Waiting(Watch& watch, const Operation& operation, Milliseconds between_looks) : watch_(watch) {
  Watch::State& s = *watch.state_;
  const std::lock_guard lock(s.mutex);
  const auto now = Clock::now();
  id_ = s.waits_begun++;
  s.waits.push_back({id_, &operation, now, operation.patient ? now : s.next_look(now, now), between_looks});
}

Waiting::~Waiting() {
  Watch::State& s = *watch_.state_;
  const std::lock_guard lock(s.mutex);
  std::erase_if(s.waits, [&](const auto& w) { return w.id == id_; });
}

}  // namespace halftone::comm
