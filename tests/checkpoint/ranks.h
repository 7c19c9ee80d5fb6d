#pragma once
#include <ATen/ops/arange.h>
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "halftone/base/error.h"
#include "halftone/checkpoint/store.h"

namespace halftone::testing {

// The ranks of a job as threads of this process; collectives are barriers between them.
class Job {
 public:
  explicit Job(int64_t world) : world_(world) {}

  // The exception text of each rank's body; empty if none was thrown. The other ranks see the job ending, unless `ends` is false.
  std::vector<std::string> failures(const std::function<void(const CheckpointRanks&)>& body, bool ends = true) {
    std::vector<std::string> thrown(static_cast<size_t>(world_));
    meeting_.emplace(world_);
    values_.assign(thrown.size(), 0), texts_.assign(thrown.size(), "");
    ending_ = false;
    std::vector<std::thread> threads;
    for (int64_t rank = 0; rank < world_; ++rank)
      threads.emplace_back([&, rank] {
        try {
          body(ranks(rank));
        } catch (const Error& error) {
          thrown[static_cast<size_t>(rank)] = error.what();
          if (ends) ending_ = true;
        }
        meeting_->arrive_and_drop();
      });
    for (std::thread& thread : threads) thread.join();
    return thrown;
  }
  void run(const std::function<void(const CheckpointRanks&)>& body) {
    for (const std::string& failure : failures(body)) EXPECT_EQ(failure, "");
  }

 private:
  CheckpointRanks ranks(int64_t rank) {
    CheckpointRanks ranks{.rank = rank, .world = world_};
    ranks.agree = [=, this](int64_t value) { return exchange(rank, value)[0]; };
    ranks.all = [=, this](bool value) {
      bool all = true;
      for (const int64_t other : exchange(rank, value)) all = all && other != 0;
      return all;
    };
    ranks.said = [=, this](const std::string& own) {
      texts_[static_cast<size_t>(rank)] = own;
      meeting_->arrive_and_wait();
      const std::vector<std::string> all = texts_;
      meeting_->arrive_and_wait();
      return all;
    };
    ranks.ending = [this] { return ending_.load(); };
    return ranks;
  }
  std::vector<int64_t> exchange(int64_t rank, int64_t value) {
    values_[static_cast<size_t>(rank)] = value;
    meeting_->arrive_and_wait();
    const std::vector<int64_t> all = values_;
    meeting_->arrive_and_wait();
    return all;
  }

  int64_t world_;
  std::optional<std::barrier<>> meeting_;
  std::vector<int64_t> values_;
  std::vector<std::string> texts_;
  std::atomic<bool> ending_ = false;
};

// The rows of `whole` that member `index` of `count` holds: equally many, the last ones fewer or none.
inline NamedTensor shard_of(const std::string& name, const at::Tensor& whole, int64_t index, int64_t count) {
  const int64_t rows = whole.size(0), most = (rows + count - 1) / count, first = std::min(index * most, rows);
  std::vector<int64_t> offset(static_cast<size_t>(whole.dim()), 0);
  offset[0] = first;
  return {name, whole.narrow(0, first, std::min(most, rows - first)), whole.sizes().vec(), offset};
}

}  // namespace halftone::testing
