#pragma once
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include <atomic>
#include <condition_variable>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "halftone/comm/flight_recorder.h"
#include "halftone/comm/heartbeats.h"
#include "halftone/comm/presence.h"

// The state of a Watch, and what its two threads do with it.
namespace halftone::comm {

// In periods of the watching thread:
inline constexpr int kGrace = 2;     // a rank may end by itself when another has failed; its connection is closed and no heartbeat comes
inline constexpr int kSilent = 3;    // a rank without a heartbeat is said to be silent
inline constexpr int kBroken = 5;    // the same where a connection broke, which says why by then if its process ended
inline constexpr int kFarewell = 5;  // rank 0 stays for the others, and a rank that has failed; the flight recorder may write
inline constexpr int kLinger = 5;    // a rank may take to end its process after it has told the others why
inline constexpr int kLeave = 12;    // a rank may take to do both
inline constexpr size_t kShown = 8;  // ranks in one line

inline constexpr const char *kStart = "the start", *kOwnWork = "its own work";  // outside of any Activity

double seconds(auto duration) { return std::chrono::duration<double>(duration).count(); }

inline std::string first_line(std::string_view text) { return std::string(text.substr(0, text.find('\n'))); }

// Why a job ends.
struct Failure {
  std::string line;
  int64_t lost = 0;  // ranks that will say no farewell
};

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
  std::function<bool()> outside;
  Clock::time_point outside_at{};  // when it was true last
  std::vector<int64_t> asked;      // ranks that silent() was asked for last
  Clock::time_point asked_at{};
  std::string told;         // others_failure(), once it said something
  std::string ending_line;  // for the second thread to print where the first to end the process hangs
  FlightRecorder recorder;
  std::function<void(Operation&, bool begins)> note;  // of a dry run; then there are no threads, store and peers

  std::mutex saving;  // of what follows
  std::optional<std::string> saved;

  Heartbeats peers;
  std::optional<Presence> presence;                        // of the watching thread
  std::map<int64_t, Clock::time_point> closed;             // connections
  std::atomic<Clock::time_point> answered = Clock::now();  // the store

  // The thread that ends the process and prints the reason: the first to claim it.
  enum Ender { nobody, main, watcher };
  std::atomic<Ender> ender = nobody;
  std::atomic<bool> farewell = false, reported = false, printed = false;
  bool claim(Ender who) {
    Ender before = nobody;
    return ender.compare_exchange_strong(before, who) || before == who;
  }

  void beat(c10d::Store& s);
  // When a rank was last found to wait outside of the job: limits count from there.
  std::atomic<Clock::time_point> excused_at = Clock::time_point{};
  // A wait since `start` is over its limit, as far as is known.
  bool late(Clock::time_point start, Milliseconds beyond = {}) const {
    return Clock::now() - std::max(start, excused_at.load()) > timeout.load() + beyond;
  }
  // Looks at the ranks' heartbeats: whether one waits outside of the job and is not silent.
  bool excused(c10d::Store& s);
  bool silent(const Heartbeats::Seen& seen, int periods = kSilent) const { return seen.silent > periods * seconds(period); }
  std::string describe(int64_t other) const;
  std::string describe(const std::vector<int64_t>& others) const;
  std::string waited(const Operation& operation, Clock::time_point start) const;

  // Why this rank must end though it did nothing wrong; "" where no rank has failed. A store that is gone is a reason, too.
  Failure others_failure(c10d::Store& s);
  // The first to tell the job why it ends is heard.
  void tell(c10d::Store& s, int64_t failed, const Failure& failure);
  void say_farewell(c10d::Store& s);
  // Until so many ranks need nothing of the others any more, or too long.
  void wait_for_farewells(int64_t ranks, c10d::Store& s) const;
  // "; see FILE" for the line of this rank when the flight recorder's file is written, which is tried once.
  std::string save(const std::string& line);
  // A launcher ends all processes of a host when one of them does, and rank 0 may serve the store: all have time to save first.
  void report(const Failure& failure, c10d::Store& s);

  // When to look at the peers of a limited wait: rarely, and once a period before its end, for how long they are silent then.
  Clock::time_point next_look(Clock::time_point start, Clock::time_point now) const;
  // Looks at the peers whose turn it is.
  void look(c10d::Store& s);
  // Makes connections between ranks and rank 0, and notes which have closed.
  void connect(c10d::Store& s);
  // Where a connection closes and no heartbeat follows, the process has ended: the job is told in its stead.
  void look_for_ended(c10d::Store& s);

  // Ranks that the operation waits for: those that are silent and, unless it broke, those that have not begun it.
  std::vector<int64_t> missing(const Operation& operation, bool broke, c10d::Store& s);
  // A patient wait is in vain: a rank is silent for too long, or has not started in time. As far as the thread could look.
  bool in_vain(const Operation& operation, Clock::time_point start, Milliseconds between) const;
  // Why the operation, waited for since `start`, does not end. When a connection broke, as `problem` says, it takes a while until the line
  // of a failed rank arrives, or until enough heartbeats are missing.
  Failure verdict(const Operation& operation, Clock::time_point start, std::string_view problem, c10d::Store& s);
  // A tracked work is overdue or broken, or a call does not return in time.
  Failure overdue();
  // A line when a wait is over its limit and the store does not answer, so that nothing else can be said.
  std::string unanswered();

  // True when the thread is to stop before the time is over.
  bool pause(Milliseconds time, const bool& stopped);
  void stop_thread(std::thread& which, bool& stopped);
  // The rank's thread tells the others why it ends, unless the watching thread ends the process already.
  void tell_end(const Failure& failure);
  void set_ending_line(const std::string& line);
  [[noreturn]] void end_process(const std::string& line);

  void watch();            // the watching thread
  void watch_the_watch();  // the second thread, which never calls the store
};

}  // namespace halftone::comm
