#pragma once
#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace c10d {
class Store;
class Work;
}  // namespace c10d

namespace halftone::comm {

using Milliseconds = std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// Ranks that communicate. `key` tells groups of one name apart, such as the rows of a mesh.
struct Group {
  std::string name, key;
  std::vector<int64_t> ranks;  // of the job, by their index in the group
};

// An operation that a rank waits for: the number-th collective of its group, or a message of `peer` (rank of the job; then number = 0).
struct Operation {
  std::string what;
  std::shared_ptr<const Group> group;
  int64_t number = 0;
  int64_t peer = -1;
  int64_t bytes = 0;       // moved in all; 0 = not known
  const char* dtype = "";  // then
  bool patient = false;    // no deadline
  int64_t entry = 0;       // of the flight recorder

  std::vector<int64_t> peers(int64_t own) const;  // ranks that the rank `own` waits for
};

// Options of the flight recorder: how many operations a rank keeps (0 = off), and the file that it writes them to when the job fails.
struct Recorder {
  int64_t entries = 0;
  std::filesystem::path path;
};

enum class Patience {
  limited,    // until Watch::timeout()
  unlimited,  // as long as the missing ranks send heartbeats; one that is silent or has not started has until Watch::timeout()
};

// This rank's part in watching over the job. A thread writes the rank's heartbeat into the store once a period and reads there whether
// another rank has failed. It then gives the rank's own thread two periods to end, prints one line and ends the process (status 2). A
// second thread ends the process where the store itself no longer answers. So no rank outlives the failure of another, whatever it hangs
// in. docs/parallel/failures.md lists who prints what.
//
// A wait ends by its limit, or early where a process ended: its connections close. A rank that only pauses is waited for.
class Watch {
 public:
  // `timeout`: the longest wait for other ranks ([comm]). `period`: of the thread. `address`: of rank 0's host, whose connections tell
  // that a process ended; "" = none.
  Watch(c10::intrusive_ptr<c10d::Store> store, int64_t rank, int64_t world_size, Milliseconds timeout,
        Milliseconds period = Milliseconds(1000), Recorder recorder = {}, std::string address = "127.0.0.1");
  // Over nobody, of a dry run: communicators of the meta device open without the other ranks, and their operations end at once. note: told
  // when an operation begins and when it has been waited for.
  Watch(int64_t rank, int64_t world_size, std::function<void(Operation&, bool begins)> note);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  // Runs the rank's work and leaves when all ranks are done, rank 0 last, whose process may serve the store. An exception becomes the
  // line that the other ranks end with, and is thrown on.
  void run(const std::function<void()>& body);

  // Returns when every rank of the group has called it with this key, which is good once. Through the store: for rare events. Ends the
  // process in one line as Pending::wait does. With unlimited patience peers wait for a rank that prepares something for an unknown time.
  void meet(const std::string& key, const Group& group, Patience patience = Patience::limited);

  // `waits`: whether this rank waits for something outside of the job, such as a server of data. Limits of other ranks' waits begin anew
  // while it does and sends heartbeats. Called by the watch's thread once a period.
  void set_outside(std::function<bool()> waits);
  // Also of operations under way: the trainer calls it when step 1 has ended on the device.
  void set_timeout(Milliseconds timeout);
  Milliseconds timeout() const;
  int64_t rank() const;
  std::shared_ptr<const Group> everybody() const;  // all ranks of the job
  c10::intrusive_ptr<c10d::Store> store() const;
  // This rank or another has failed: do not wait for a collective.
  bool ending() const;
  // Which of these ranks are silent, and for how long; "" where all send heartbeats, as far as is known: asking makes the thread look at
  // them, so ask about once a period. Of any thread; does not block.
  std::string silent(const std::vector<int64_t>& ranks) const;

  // For communicators. An operation begins: its number, if it is a collective, and its entry in the flight recorder.
  void begin(Operation& operation);
  // It has ended, for the recorder. The thread notes that of tracked works.
  void end(Operation& operation);
  // The thread ends the process when this work of the device does not complete in time. Graph captures must be thread-local.
  void track(c10::intrusive_ptr<c10d::Work> work, const Operation& operation, c10::Device device);
  // Whether some rank's wait outside of the job is a reason to go on waiting; asks the store.
  bool excused();
  // Ends the process in one line: how long the operation was waited for, and which rank is late, gone or has failed. `problem` is what the
  // wait threw.
  [[noreturn]] void fail_wait(const Operation& operation, Clock::time_point start, std::string_view problem);

 private:
  friend class Activity;
  friend class Waiting;
  struct State;
  std::shared_ptr<State> state_;  // shared with the threads, which outlive a failing Watch
};

// While it lives, peers see that this rank does `what` (such as "data load"), and for how long. Of the thread that runs Watch::run; nests.
class Activity {
 public:
  Activity(Watch& watch, std::string_view what);
  ~Activity();
  Activity(const Activity&) = delete;
  Activity& operator=(const Activity&) = delete;

 private:
  Watch& watch_;
  std::string outer_;
  Clock::time_point outer_since_;
};

// While it lives, this rank waits for the operation, which stays where it is, in a call that may not keep Watch::timeout(): the threads of
// the watch then do.
class Waiting {
 public:
  Waiting(Watch& watch, const Operation& operation, Milliseconds between_looks = {}, Clock::time_point start = Clock::now());
  ~Waiting();
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  Watch& watch_;
  int64_t id_;
};

}  // namespace halftone::comm
