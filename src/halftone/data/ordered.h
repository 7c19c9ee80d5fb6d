#pragma once
#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace halftone {

// Calls make(i) for i in [0, n) on `threads` threads and take(i, result) on the calling thread in the order of i, so that the outcome
// does not depend on the number of threads. At most 2 * threads results are queued. The first failure in that order is rethrown once all
// threads have stopped.
template <class Make, class Take>
void in_order(int64_t n, int threads, Make&& make, Take&& take) {
  using Result = decltype(make(int64_t{0}));
  struct Slot {
    Result result{};
    std::exception_ptr error;
  };
  threads = static_cast<int>(std::clamp<int64_t>(threads, 1, std::max<int64_t>(n, 1)));
  const int64_t window = 2 * threads;
  std::mutex mutex;
  std::condition_variable ready, room;
  std::map<int64_t, Slot> slots;
  int64_t next = 0, taken = 0;
  bool stop = false;

  auto work = [&] {
    for (;;) {
      int64_t i;
      {
        std::unique_lock lock(mutex);
        room.wait(lock, [&] { return stop || next >= n || next < taken + window; });
        if (stop || next >= n) return;
        i = next++;
      }
      Slot slot;
      try {
        slot.result = make(i);
      } catch (...) {
        slot.error = std::current_exception();
      }
      {
        const std::lock_guard lock(mutex);
        slots.emplace(i, std::move(slot));
      }
      ready.notify_one();
    }
  };
  std::vector<std::thread> pool;
  const auto finish = [&] {
    {
      const std::lock_guard lock(mutex);
      stop = true;
    }
    room.notify_all();
    for (std::thread& t : pool) t.join();
  };
  try {
    for (int t = 0; t < threads; ++t) pool.emplace_back(work);
    for (int64_t i = 0; i < n; ++i) {
      Slot slot;
      {
        std::unique_lock lock(mutex);
        ready.wait(lock, [&] { return slots.count(i) != 0; });
        slot = std::move(slots.extract(i).mapped());
        taken = i + 1;
      }
      room.notify_all();
      if (slot.error) std::rethrow_exception(slot.error);
      take(i, std::move(slot.result));
    }
  } catch (...) {
    finish();
    throw;
  }
  finish();
}

}  // namespace halftone
