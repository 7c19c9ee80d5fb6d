#include "halftone/data/bpe_word_count.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <string_view>
#include <thread>
#include <unordered_map>

#include "halftone/data/bpe_hash.h"
#include "halftone/data/unicode.h"

namespace halftone {
namespace {

struct Hash {
  using is_transparent = void;
  size_t operator()(std::string_view s) const { return XXH3_64bits(s.data(), s.size()); }
};
using Counts = std::unordered_map<std::string, int64_t, Hash, std::equal_to<>>;
using Batch = std::vector<std::string>;

constexpr size_t kBatchBytes = 1 << 20;

// Batches from the reading thread to the counting threads; push blocks while enough are queued.
class BatchQueue {
 public:
  explicit BatchQueue(size_t capacity) : capacity_(capacity) {}
  void push(Batch batch) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return batches_.size() < capacity_ || stopped_; });
    batches_.push_back(std::move(batch));
    changed_.notify_all();
  }
  bool pop(Batch& batch) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !batches_.empty() || stopped_; });
    if (batches_.empty()) return false;
    batch = std::move(batches_.front());
    batches_.pop_front();
    changed_.notify_all();
    return true;
  }
  void stop() {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    changed_.notify_all();
  }

 private:
  const size_t capacity_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Batch> batches_;
  bool stopped_ = false;
};

void count_text(std::string_view text, const Pretokenizer& pretokenizer, Pretokenizer::Scratch& scratch, std::vector<Range>& pieces,
                Counts& counts) {
  while (!text.empty()) {
    const size_t valid = valid_utf8_prefix(text);
    pieces.clear();
    pretokenizer.split(text.substr(0, valid), scratch, pieces);
    for (const Range& r : pieces) {
      if (r.end - r.begin < 2) continue;
      const std::string_view piece = text.substr(r.begin, r.end - r.begin);
      if (const auto found = counts.find(piece); found != counts.end()) {
        ++found->second;
      } else {
        counts.emplace(piece, 1);
      }
    }
    text.remove_prefix(std::min(valid + 1, text.size()));
  }
}

}  // namespace

std::vector<WordCount> count_words(const std::function<bool(std::string&)>& next_document, const Pretokenizer& pretokenizer, int threads,
                                   const std::function<void(std::string_view, double)>& progress) {
  BatchQueue queue(static_cast<size_t>(threads) * 2);
  std::vector<Counts> counts(threads);
  std::vector<std::exception_ptr> errors(threads);
  auto work = [&](int t) {
    try {
      Pretokenizer::Scratch scratch;
      std::vector<Range> pieces;
      for (Batch batch; queue.pop(batch);) {
        for (const std::string& text : batch) count_text(text, pretokenizer, scratch, pieces, counts[t]);
      }
    } catch (...) {
      errors[t] = std::current_exception();
      queue.stop();
    }
  };
  {
    std::vector<std::jthread> workers;
    struct Stop {  // also if next_document throws: the workers are joined afterwards
      BatchQueue& queue;
      ~Stop() { queue.stop(); }
    };
    for (int t = 0; t < threads; ++t) workers.emplace_back(work, t);
    const Stop stop{queue};
    Batch batch;
    size_t bytes = 0;
    for (std::string text; next_document(text); text.clear()) {
      bytes += text.size();
      batch.push_back(std::move(text));
      if (bytes < kBatchBytes) continue;
      queue.push(std::move(batch));
      batch.clear();
      bytes = 0;
      if (progress) progress("reading", -1);
    }
    queue.push(std::move(batch));
  }
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  for (int t = 1; t < threads; ++t) {
    for (const auto& [word, count] : counts[t]) counts[0][word] += count;
    counts[t] = {};
  }
  std::vector<WordCount> words(counts[0].begin(), counts[0].end());
  std::sort(words.begin(), words.end());
  return words;
}

}  // namespace halftone
