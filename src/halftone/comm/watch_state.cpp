#include "halftone/comm/watch_state.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <sstream>

#include "halftone/base/log.h"
#include "halftone/base/ranges.h"

namespace halftone::comm {
namespace {

// "ranks 1-3, 7"
std::string names(const std::vector<int64_t>& ranks) { return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", ranges_text(ranks)); }

}  // namespace

void Watch::State::beat(c10d::Store& s) {
  std::unique_lock lock(mutex);
  const auto now = Clock::now();
  if (outside && outside()) outside_at = now;
  // For the time of a limit after that, since the ranks that waited may look late.
  own.outside = outside_at != Clock::time_point{} && now - outside_at <= timeout.load();
  ++own.number, own.seconds = seconds(now - since);
  const Heartbeat copy = own;
  lock.unlock();
  copy.write(rank, s);
}

bool Watch::State::excused(c10d::Store& s) {
  std::vector<int64_t> others;
  for (int64_t r = 0; r < world_size; ++r)
    if (r != rank) others.push_back(r);
  peers.look(others, s);
  const auto waits = [&](int64_t r) {
    const std::optional<Heartbeats::Seen> seen = peers.of(r);
    return seen && seen->beat.outside && seen->silent <= seconds(timeout.load());
  };
  const bool own_wait = [&] {
    const std::lock_guard lock(mutex);
    return own.outside;
  }();
  if (!own_wait && std::ranges::none_of(others, waits)) return false;
  excused_at = Clock::now();
  return true;
}

std::string Watch::State::describe(int64_t other) const {
  const std::optional<Heartbeats::Seen> seen = peers.of(other);
  if (!seen) return fmt::format("rank {} has not started", other);
  if (silent(*seen))
    return fmt::format("rank {} has sent no heartbeat for {:.1f} s, last seen in {}", other, seen->silent, seen->beat.doing);
  return fmt::format("rank {} has been in {} for {:.1f} s", other, seen->beat.doing, seen->beat.seconds + seen->silent);
}

std::string Watch::State::describe(const std::vector<int64_t>& others) const {
  std::vector<std::string> shown;
  for (size_t i = 0; i < std::min(others.size(), kShown); ++i) shown.push_back(describe(others[i]));
  return fmt::format("{}{}", fmt::join(shown, "; "), others.size() > kShown ? fmt::format("; and {} more", others.size() - kShown) : "");
}

Failure Watch::State::others_failure(c10d::Store& s) {
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

void Watch::State::tell(c10d::Store& s, int64_t failed, const Failure& failure) {
  s.compareSet("failed", "", fmt::format("{} {}\n{}", failed, failure.lost, failure.line));
}

void Watch::State::say_farewell(c10d::Store& s) {
  if (!farewell.exchange(true)) s.add("left", 1);
}

void Watch::State::wait_for_farewells(int64_t ranks, c10d::Store& s) const {
  const auto end = Clock::now() + kFarewell * period;
  while (s.add("left", 0) < ranks && Clock::now() < end) std::this_thread::sleep_for(period / 10);
}

std::string Watch::State::save(const std::string& line) {
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

void Watch::State::report(const Failure& failure, c10d::Store& s) {
  try {
    tell(s, rank, failure);
    save(failure.line);
    say_farewell(s);
    wait_for_farewells(world_size - failure.lost, s);
  } catch (const std::exception&) {  // no store: the others see that themselves
  }
  reported = true;
}

Clock::time_point Watch::State::next_look(Clock::time_point start, Clock::time_point now) const {
  const Clock::duration limit = timeout.load(), often = limit - (kSilent + 2) * period, time = now - start;
  if (now == start) return start + std::max<Clock::duration>(Clock::duration(0), std::min(limit / 4, often));
  return time >= often ? now : now + std::min(time, often - time);
}

void Watch::State::look(c10d::Store& s) {
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

void Watch::State::connect(c10d::Store& s) try {
  for (const int64_t other : presence->lost(s)) closed.emplace(other, Clock::now());
} catch (const std::exception&) {  // the store is gone
}

void Watch::State::look_for_ended(c10d::Store& s) {
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

std::vector<int64_t> Watch::State::missing(const Operation& operation, bool broke, c10d::Store& s) {
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

bool Watch::State::in_vain(const Operation& operation, Clock::time_point start, Milliseconds between) const {
  const auto now = Clock::now();
  if (now - start <= timeout.load() || now - answered.load() > kSilent * period) return false;
  return std::ranges::any_of(operation.peers(rank), [&](int64_t r) {
    const std::optional<Heartbeats::Seen> seen = peers.of(r);
    return !seen || seen->silent > seconds(timeout.load() + between);
  });
}

std::string Watch::State::waited(const Operation& operation, Clock::time_point start) const {
  return fmt::format("rank {} waited {:.1f} s for {} on {} with {}, ", rank, seconds(Clock::now() - start), operation.what,
                     operation.group->name, names(operation.peers(rank)));
}

Failure Watch::State::verdict(const Operation& operation, Clock::time_point start, std::string_view problem, c10d::Store& s) {
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

Failure Watch::State::overdue() {
  std::unique_lock lock(mutex);
  const auto any_late = [&] {
    return std::ranges::any_of(tracked, [&](const Tracked& t) { return late(t.start) && !t.completed(); }) ||
           std::ranges::any_of(waits, [&](const Wait& w) { return !w.operation->patient && late(w.start, kGrace * period); });
  };
  if (any_late()) {
    lock.unlock();
    excused(*own_store);
    lock.lock();
  }
  for (auto t = tracked.begin(); t != tracked.end();) {
    const bool completed = t->completed();
    if (completed && t->work->exception() == nullptr) {
      recorder.end(t->operation.entry);
      t = tracked.erase(t);
    } else if (completed || late(t->start)) {
      const Tracked failed = *t;
      lock.unlock();
      return verdict(failed.operation, failed.start, completed ? "the device's work ended with an error" : "", *own_store);
    } else {
      ++t;
    }
  }
  for (const Wait& w : waits) {
    if (w.operation->patient || !late(w.start, kGrace * period)) continue;
    const Operation operation = *w.operation;
    const auto start = w.start;
    lock.unlock();
    return verdict(operation, start, "", *own_store);
  }
  return {};
}

std::string Watch::State::unanswered() {
  const auto now = Clock::now();
  const Clock::duration hangs = now - answered.load();
  if (hangs <= kSilent * period) return "";
  const auto line = [&](const Operation& operation, Clock::time_point start) {
    return fmt::format("{}and the job's store has not answered for {:.1f} s: has the process or host of rank 0 stopped?",
                       waited(operation, start), seconds(hangs));
  };
  const std::lock_guard lock(mutex);
  for (const Wait& w : waits)
    if (w.operation->patient ? hangs > timeout.load() : late(w.start)) return line(*w.operation, w.start);
  for (const Tracked& t : tracked)
    if (late(t.start) && !t.completed()) return line(t.operation, t.start);
  return "";
}

bool Watch::State::pause(Milliseconds time, const bool& stopped) {
  std::unique_lock lock(mutex);
  return wake.wait_for(lock, time, [&] { return stopped; });
}

void Watch::State::stop_thread(std::thread& which, bool& stopped) {
  {
    const std::lock_guard lock(mutex);
    stopped = true;
  }
  wake.notify_all();
  if (which.joinable()) which.join();
}

void Watch::State::tell_end(const Failure& failure) {
  while (!claim(main)) pause(period, stop_second);
  set_ending_line(failure.line);
  report(failure, *store);
}

void Watch::State::set_ending_line(const std::string& line) {
  const std::lock_guard lock(mutex);
  ending_line = line;
}

void Watch::State::end_process(const std::string& line) {
  const std::string text = fmt::format("halftone: {}{}\n", line, save(line));
  if (!printed.exchange(true) && write(STDERR_FILENO, text.data(), text.size()) < 0) {  // nobody reads it
  }
  _exit(2);
}

void Watch::State::watch() {
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

void Watch::State::watch_the_watch() {
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
}  // namespace halftone::comm
