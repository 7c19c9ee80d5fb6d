#pragma once
#include <condition_variable>
#include <deque>
#include <exception>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "halftone/storage/disk_cache.h"
#include "halftone/storage/request.h"

namespace halftone::storage {

inline constexpr int64_t kBlock = int64_t{8} << 20;

// A remote file as it was when it was opened.
struct Source {
  std::string address;
  Object object;
  std::shared_ptr<Server> server;
  std::string cache_version;  // for keys: its version, or something of this process alone

  int64_t blocks() const { return (object.size + kBlock - 1) / kBlock; }
  std::string key(int64_t part) const { return DiskCache::key(address, cache_version, object.size, part); }
};

// Blocks of remote files in memory, of all readers of the process: those read ahead, and a few that were read last. Thread-safe.
class Blocks {
 public:
  using Data = std::shared_ptr<const std::string>;

  Blocks(DiskCache& disk, int64_t ahead_bytes) : disk_(disk), ahead_limit_(kStreams * ahead_bytes) {}
  ~Blocks();
  Blocks(const Blocks&) = delete;
  Blocks& operator=(const Blocks&) = delete;

  // Waits until the block is there; throws what went wrong.
  Data get(const Source& source, int64_t block);
  // Begins to fetch it in the background, unless much is waiting to be read already.
  void ahead(const std::shared_ptr<const Source>& source, int64_t block);
  // The file is closed: its blocks need not wait for a reader.
  void forget(const Source& source, const std::deque<int64_t>& blocks);
  bool has(const Source& source, int64_t block);
  void stop();  // waiting readers

 private:
  static constexpr int64_t kStreams = 8, kKept = int64_t{64} << 20;
  static constexpr int kThreads = 8;
  enum class State { queued, loading, ready, failed };
  struct Entry {
    State state;
    Data data;
    std::exception_ptr error;
    bool unread;
    int64_t size;
    std::list<std::string>::iterator age;
  };
  using Lock = std::unique_lock<std::mutex>;

  std::string fetch(const Source& source, int64_t block, const std::string& key);
  Data load(const Source& source, int64_t block, const std::string& key, Lock& lock);
  void read(Entry& entry);
  void drop_old();
  void erase(const std::string& key);
  void work();

  DiskCache& disk_;
  int64_t ahead_limit_;
  std::mutex mutex_;  // of what follows
  std::condition_variable changed_, queued_;
  std::unordered_map<std::string, Entry> entries_;
  std::list<std::string> ages_;  // keys; the newest last
  int64_t unread_bytes_ = 0, read_bytes_ = 0;
  struct Task {
    std::shared_ptr<const Source> source;
    int64_t block;
    std::string key;
  };
  std::deque<Task> tasks_;
  int idle_ = 0;
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace halftone::storage
