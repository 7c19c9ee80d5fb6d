#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "halftone/data/source.h"
#include "halftone/data/text_codec.h"

namespace halftone {

// How a streamed data set becomes a fixed number of lanes, independent sequences of documents, whatever the number of processes:
//   files     an epoch takes the files in a random order (or by name); file number i of that order belongs to group i mod groups
//   groups    each reads its files one after the other, in blocks of at most `window` / groups documents (kBlockBytes), and shuffles
//             each block
//   lanes     each block's documents go, in that order, to the lane of the group with the fewest bytes so far
// A process reads the groups of its lanes and tokenises only its own lanes' documents.
struct StreamOptions {
  int64_t lanes = 64;
  int64_t window = 10000;  // documents; 1 lane's share of it is shuffled at a time
  bool shuffle = false;
  uint64_t seed = 42;
  int64_t epochs = 0;  // > 0: the lanes end behind so many
  int threads = 1;     // that tokenise
};
constexpr int64_t kBlockBytes = int64_t{64} << 20;

// Where a block starts, and what its group has dealt before.
struct BlockStart {
  int64_t epoch = 0;
  int64_t place = 0;                  // of the file in the group's order
  int64_t document = 0;               // in the file
  std::vector<int64_t> bytes, dealt;  // by lane of the group: bytes (the smallest is 0) and documents
};

struct StreamedDocument {
  std::shared_ptr<const BlockStart> block;
  int64_t ordinal = 0;  // among its lane's documents
  std::vector<int32_t> ids;
  std::vector<uint8_t> learned;  // of each id: whether it has a loss; empty: all
  std::vector<size_t> ends;      // ids are one or more documents, each ending with its EOS
};

// First document that a lane still needs.
struct LaneStart {
  std::shared_ptr<const BlockStart> block;
  int64_t ordinal = 0;
};

// The documents of a process's lanes. Reading and tokenising run ahead in the background, up to a bound.
class StreamReader {
 public:
  StreamReader(std::shared_ptr<const DocumentSource> source, TextCodec codec, StreamOptions options);
  ~StreamReader();
  StreamReader(const StreamReader&) = delete;
  StreamReader& operator=(const StreamReader&) = delete;

  int64_t groups() const { return static_cast<int64_t>(groups_.size()); }
  int64_t group_of(int64_t lane) const;
  // The beginning of a lane.
  LaneStart beginning(int64_t lane) const;
  // Restarts at the given starts (missing: at the beginning). `owned`: the lanes of which next() is asked for documents.
  void restart(const std::map<int64_t, LaneStart>& starts, const std::vector<bool>& owned);
  // The next document of an owned lane; null behind its last epoch. Blocks until it is there; rethrows failures of the reader, again on
  // every call.
  std::shared_ptr<const StreamedDocument> next(int64_t lane);
  const DocumentSource& source() const { return *source_; }

 private:
  struct Raw;
  struct Group;
  struct Stop {};
  void run(Group& group);
  void deal(Group& group, std::vector<Raw>& block, const BlockStart& start);
  void tokenise(StreamedDocument& document, const Raw& raw) const;
  void skip(const BadLine& line);
  void stop();
  void work();

  std::shared_ptr<const DocumentSource> source_;
  TextCodec codec_;
  StreamOptions options_;
  std::vector<std::unique_ptr<Group>> groups_;
  std::atomic<int64_t> bad_lines_{0};  // skipped; the first, tenth, hundredth, ... is logged
  int64_t announced_epoch_ = 0;
  std::chrono::steady_clock::time_point announced_at_;

  std::vector<std::thread> workers_;
  std::mutex tasks_mutex_;
  std::condition_variable tasks_ready_;
  std::deque<std::function<void()>> tasks_;
  std::atomic<bool> stop_{false};
};

}  // namespace halftone
