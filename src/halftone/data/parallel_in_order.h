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

// Reads items i in [0, n), each a sequence of chunks of unknown number: read(i, emit) calls emit(chunk) for each of them, make(chunk) turns
// one into its result, and take(i, result) gets the results in the order of i, then of the chunks, whatever the number of threads. Reading
// and making run on `threads` threads, taking on the calling one. One item with many chunks keeps all threads busy: a reader that is far
// ahead makes results itself. At most 5 * threads chunks and results are held, of at most 2 * threads items. The first failure in that
// order is rethrown once all threads have stopped; read() is then left by an exception of emit that it must let through.
template <class Chunk, class Result, class Read, class Make, class Take>
class OrderedChunks {
 public:
  OrderedChunks(int64_t n, int threads, Read& read, Make& make, Take& take)
      : n_(n), threads_(std::max(threads, 1)), read_(read), make_(make), take_(take) {}

  void run() {
    try {
      for (int t = 0; t < threads_; ++t) pool_.emplace_back([this] { work(); });
      consume();
    } catch (...) {
      finish();
      throw;
    }
    finish();
  }

 private:
  struct Stopped {};
  using Key = std::pair<int64_t, int64_t>;  // item, chunk
  struct Done {
    Result result;
    std::exception_ptr error;
  };
  struct End {
    int64_t chunks;
    std::exception_ptr error;
  };
  using Lock = std::unique_lock<std::mutex>;

  void consume() {
    Lock lock(mutex_);
    for (; head_ < n_; ++head_) {
      for (int64_t chunk = 0;; ++chunk) {
        changed_.wait(lock, [&] { return done_.contains({head_, chunk}) || ends_at(chunk); });
        if (ends_at(chunk)) break;
        Done done = std::move(done_.extract({head_, chunk}).mapped());
        --held_, --held_of_[head_];
        lock.unlock();
        changed_.notify_all();
        if (done.error) std::rethrow_exception(done.error);
        take_(head_, std::move(done.result));
        lock.lock();
      }
      const End end = std::move(ends_.extract(head_).mapped());
      held_of_.erase(head_);
      if (end.error) std::rethrow_exception(end.error);
      changed_.notify_all();  // head_ is about to move
    }
  }
  bool ends_at(int64_t chunk) const {
    const auto end = ends_.find(head_);
    return end != ends_.end() && end->second.chunks == chunk;
  }

  void work() {
    Lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return stop_ || !pending_.empty() || may_read() || (next_ >= n_ && readers_ == 0); });
      if (stop_ || (pending_.empty() && !may_read())) return;
      pending_.empty() ? read_one(lock) : make_one(lock);
    }
  }
  bool may_read() const { return next_ < n_ && next_ < head_ + 2 * threads_; }

  void read_one(Lock& lock) {
    const int64_t item = next_++;
    int64_t chunks = 0;
    ++readers_;
    lock.unlock();
    std::exception_ptr error;
    try {
      read_(item, [&](Chunk&& chunk) { emit({item, chunks++}, std::move(chunk)); });
    } catch (const Stopped&) {
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    --readers_;
    ends_[item] = {chunks, error};
    changed_.notify_all();
  }

  void emit(Key key, Chunk&& chunk) {
    Lock lock(mutex_);
    pending_.emplace(key, std::move(chunk));
    ++held_, ++held_of_[key.first];
    changed_.notify_all();
    const auto room = [&] { return held_ < 4 * threads_ || (key.first == head_ && held_of_[key.first] < std::max(2, threads_)); };
    while (!stop_ && !room()) {
      if (pending_.empty()) {
        changed_.wait(lock, [&] { return stop_ || room() || !pending_.empty(); });
      } else {
        make_one(lock);
      }
    }
    if (stop_) throw Stopped();
  }

  void make_one(Lock& lock) {
    auto node = pending_.extract(pending_.begin());
    lock.unlock();
    Done done;
    try {
      done.result = make_(std::move(node.mapped()));
    } catch (...) {
      done.error = std::current_exception();
    }
    lock.lock();
    done_.emplace(node.key(), std::move(done));
    changed_.notify_all();
  }

  void finish() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    for (std::thread& t : pool_) t.join();
  }

  const int64_t n_;
  const int threads_;
  Read& read_;
  Make& make_;
  Take& take_;
  std::vector<std::thread> pool_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Key, Chunk> pending_;
  std::map<Key, Done> done_;
  std::map<int64_t, End> ends_;  // of items that were read
  std::map<int64_t, int> held_of_;
  int64_t head_ = 0, next_ = 0;  // item that is taken; item to be read next
  int held_ = 0, readers_ = 0;   // chunks and results held; items that are read
  bool stop_ = false;
};

template <class Chunk, class Read, class Make, class Take>
void in_order_chunks(int64_t n, int threads, Read&& read, Make&& make, Take&& take) {
  using Result = decltype(make(std::declval<Chunk>()));
  OrderedChunks<Chunk, Result, Read, Make, Take>(n, threads, read, make, take).run();
}

// The same for items of one chunk, their number: take(i, make(i)).
template <class Make, class Take>
void in_order(int64_t n, int threads, Make&& make, Take&& take) {
  const auto used = static_cast<int>(std::clamp<int64_t>(threads, 1, std::max<int64_t>(n, 1)));
  in_order_chunks<int64_t>(
      n, used, [](int64_t i, auto&& emit) { emit(int64_t{i}); }, make, take);
}

}  // namespace halftone
