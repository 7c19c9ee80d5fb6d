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

// A set of ranks that communicate. `key` tells groups of one name apart, such as the rows of a mesh.
struct Group {
  std::string name, key;
  std::vector<int64_t> ranks;  // of the job, by their index in the group
};

// What a rank waits for: the number-th collective of its group, or a message of `peer` (rank of the job; then number = 0).
struct Operation {
  std::string what;
  std::shared_ptr<const Group> group;
  int64_t number = 0;
  int64_t peer = -1;
  int64_t bytes = 0;       // of the whole of what is moved; 0 = not known
  const char* dtype = "";  // then
  bool patient = false;    // no deadline
  int64_t entry = 0;       // of the flight recorder

  std::vector<int64_t> peers(int64_t own) const;  // whom the rank `own` waits for
};

// Options of the flight recorder: how many of the last operations a rank keeps (0 = off), and the file that it writes them to when the
// job fails.
struct Recorder {
  int64_t entries = 0;
  std::filesystem::path path;
};

enum class Patience {
  limited,    // until Watch::timeout()
  unlimited,  // as long as the missing ranks show signs of life; one that has not started yet has until Watch::timeout()
};

// This rank's part in watching over the job. A thread writes into the store what the rank does and looks there whether another rank
// has failed; it then gives the rank's own thread two periods to end with that, prints one line and ends the process (status 2). So
// no rank outlives the failure of another, whatever it hangs in. docs/parallel/failures.md says who prints what.
class Watch {
 public:
  // `timeout`: the longest wait for other ranks ([comm]). `period`: of the thread.
  Watch(c10::intrusive_ptr<c10d::Store> store, int64_t rank, int64_t world_size, Milliseconds timeout,
        Milliseconds period = Milliseconds(1000), Recorder recorder = {});
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  // Runs the rank's work and leaves when all ranks are done, rank 0 last, whose process may serve the store. An exception becomes the
  // line that the other ranks end with, and is thrown on.
  void run(const std::function<void()>& body);

  // Returns when every rank of the group has called it with this key, which is good once. Through the store: for rare events. Error in
  // one line as of Pending::wait. A rank that prepares something for an unknown time lets the others wait with unlimited patience.
  void meet(const std::string& key, const Group& group, Patience patience = Patience::limited);

  // Of operations under way, too: the trainer calls it when step 1 has ended on the device.
  void set_timeout(Milliseconds timeout);
  Milliseconds timeout() const;
  int64_t rank() const;
  c10::intrusive_ptr<c10d::Store> store() const;
  // This rank or another has failed: what hangs in a collective must not be waited for.
  bool ending() const;
  // What is known of those of these ranks that give no sign of life; "" where all do, or where the store does not answer. Of any thread.
  std::string silent(const std::vector<int64_t>& ranks) const;

  // For communicators. An operation begins: its number, if it is a collective, and its entry in the flight recorder.
  void begin(Operation& operation);
  // It has ended, for the recorder. The thread notes that of tracked works.
  void end(const Operation& operation);
  // The thread ends the process when this work of the device does not complete in time. Graph captures must be thread-local.
  void track(c10::intrusive_ptr<c10d::Work> work, const Operation& operation, c10::Device device);
  // Error in one line: what was waited for since `start`, and which rank is late, gone or has failed. `problem` is what the wait threw.
  [[noreturn]] void fail_wait(const Operation& operation, Clock::time_point start, std::string_view problem);

 private:
  friend class Activity;
  struct State;
  std::shared_ptr<State> state_;  // shared with the thread, which outlives a failing Watch
};

// While it lives, other ranks are told that this one does `what` (such as "data load"), and since when. Of the thread that runs
// Watch::run; nests.
class Activity {
 public:
  Activity(Watch& watch, std::string_view what);
  ~Activity();
  Activity(const Activity&) = delete;
  Activity& operator=(const Activity&) = delete;

 private:
  Watch& watch_;
  std::string outer_;
  std::chrono::system_clock::time_point outer_since_;
};

}  // namespace halftone::comm
