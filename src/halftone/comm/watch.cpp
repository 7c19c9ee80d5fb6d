#include "halftone/comm/watch.h"

#include <algorithm>
#include <csignal>
#include <numeric>

#include "halftone/base/error.h"
#include "halftone/comm/watch_state.h"

namespace halftone::comm {

std::vector<int64_t> Operation::peers(int64_t own) const {
  if (peer >= 0) return {peer};
  std::vector<int64_t> others = group->ranks;
  std::erase(others, own);
  return others;
}

Watch::Watch(c10::intrusive_ptr<c10d::Store> store, int64_t rank, int64_t world_size, Milliseconds timeout, Milliseconds period,
             Recorder recorder, std::string address)
    : state_(std::make_shared<State>(std::move(recorder))) {
  std::signal(SIGPIPE, SIG_IGN);  // a write to a dead rank is an error like others
  State& s = *state_;
  s.store = std::move(store);
  s.rank = rank, s.world_size = world_size, s.timeout = timeout, s.period = period;
  s.presence.emplace(std::move(address), rank, world_size);
  s.second_thread = std::thread([state = state_] { state->watch_the_watch(); });
  const Operation start{"the start", everybody()};
  const Waiting waiting(*this, start);
  s.own_store = s.store->clone();
  s.beat(*s.store);
  s.thread = std::thread([state = state_] { state->watch(); });
}

Watch::Watch(int64_t rank, int64_t world_size, std::function<void(Operation&, bool begins)> note)
    : state_(std::make_shared<State>(Recorder{})) {
  state_->rank = rank, state_->world_size = world_size, state_->note = std::move(note);
}

std::shared_ptr<const Group> Watch::everybody() const {
  std::vector<int64_t> ranks(static_cast<size_t>(state_->world_size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return std::make_shared<Group>(Group{"all", "all", std::move(ranks)});
}

Watch::~Watch() {
  State& s = *state_;
  if (s.note) return;
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
  try {
    body();
    const Activity activity(*this, "the end of the run");
    const Operation last{"the end of the run", everybody()};
    meet("end", *last.group);
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
  if (s.note) return;
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
      if (meeting.patient ? s.in_vain(meeting, start, between) : s.late(start) && !s.excused(*s.store)) break;
      std::this_thread::sleep_for(nap);
    }
  } catch (const std::exception& error) {
    problem = error.what();
  }
  fail_wait(meeting, start, problem);
}

void Watch::fail_wait(const Operation& operation, Clock::time_point start, std::string_view problem) {
  State& s = *state_;
  const Waiting waiting(*this, operation, {}, start);  // until the store has answered
  const Failure failure = s.verdict(operation, start, problem, *s.store);
  s.tell_end(failure);
  s.end_process(failure.line);  // at once: destructors may hang where the others are missing
}

void Watch::set_outside(std::function<bool()> waits) {
  const std::lock_guard lock(state_->mutex);
  state_->outside = std::move(waits);
}

bool Watch::excused() {
  try {
    return state_->excused(*state_->store);
  } catch (const std::exception&) {  // the store is gone
    return false;
  }
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
  if (state_->note) return state_->note(operation, true);
  const std::lock_guard lock(state_->mutex);
  if (operation.peer < 0) operation.number = ++state_->own.begun[operation.group->key];
  operation.entry = state_->recorder.begin(operation);
}

void Watch::end(Operation& operation) {
  if (state_->note) return state_->note(operation, false);
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

Waiting::Waiting(Watch& watch, const Operation& operation, Milliseconds between_looks, Clock::time_point start) : watch_(watch) {
  Watch::State& s = *watch.state_;
  const std::lock_guard lock(s.mutex);
  const auto now = Clock::now();
  id_ = s.waits_begun++;
  s.waits.push_back({id_, &operation, start, operation.patient ? now : s.next_look(now, now), between_looks});
}

Waiting::~Waiting() {
  Watch::State& s = *watch_.state_;
  const std::lock_guard lock(s.mutex);
  std::erase_if(s.waits, [&](const auto& w) { return w.id == id_; });
}

}  // namespace halftone::comm
