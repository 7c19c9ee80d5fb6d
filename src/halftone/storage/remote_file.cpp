#include "halftone/storage/remote_file.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <thread>

#include "halftone/base/error.h"
#include "halftone/storage/blocks.h"

namespace halftone {
namespace storage {
namespace {

// State that the readers of remote files share.
struct Shared {
  explicit Shared(const StorageOptions& o) : disk(o.cache_folder, o.cache_bytes), blocks(disk, o.read_ahead_bytes) {}
  DiskCache disk;
  Blocks blocks;
};

std::mutex shared_mutex;
std::shared_ptr<Shared> shared_now;

std::shared_ptr<Shared> shared() {
  const std::lock_guard lock(shared_mutex);
  if (!shared_now) shared_now = std::make_shared<Shared>(options());
  return shared_now;
}

// Sizes and versions of listed files, so that opening one asks the server nothing.
std::mutex listed_mutex;
std::unordered_map<std::string, Object> listed;

class RemoteBytes : public ByteFile {
 public:
  explicit RemoteBytes(Source source)
      : source_(std::make_shared<const Source>(std::move(source))), shared_(shared()), ahead_(options().read_ahead_bytes / kBlock) {
    ends_.fill(-1);
  }
  ~RemoteBytes() override { shared_->blocks.forget(*source_, fetched_); }

  const std::string& path() const override { return source_->address; }
  int64_t size() const override { return source_->object.size; }

  size_t read(int64_t offset, char* out, size_t size) const override {
    check(offset >= 0, "{}: cannot read at offset {}", path(), offset);
    check_not_stopped(path());
    const int64_t end = std::min(this->size(), offset + static_cast<int64_t>(std::min<size_t>(size, INT64_MAX / 2)));
    if (offset >= end) return 0;
    const int64_t first = offset / kBlock, last = (end - 1) / kBlock;
    if (!sequential(offset, end)) {
      if (!whole_blocks_pay(first, last, end - offset)) {
        retried(path(), [&] { source_->server->read(path(), source_->object, offset, out, static_cast<size_t>(end - offset)); });
        return static_cast<size_t>(end - offset);
      }
    } else {
      read_ahead(first + 1, last + ahead_);
    }
    for (int64_t block = first; block <= last; ++block) {
      const Blocks::Data data = shared_->blocks.get(*source_, block);
      const int64_t begin = std::max(offset, block * kBlock), stop = std::min(end, (block + 1) * kBlock);
      std::memcpy(out + (begin - offset), data->data() + (begin - block * kBlock), static_cast<size_t>(stop - begin));
    }
    return static_cast<size_t>(end - offset);
  }

 private:
  static constexpr int64_t kGap = int64_t{1} << 20;  // that a sequential reader may skip
  static constexpr int64_t kSmall = kBlock / 4;

  // Whether this read goes on where one of the last eight ended, or begins at the start.
  bool sequential(int64_t offset, int64_t end) const {
    const std::lock_guard lock(mutex_);
    for (int64_t& e : ends_) {
      if (e >= 0 && offset >= e - kGap && offset <= e + kGap) return e = end, true;
    }
    ends_[next_end_++ % ends_.size()] = end;
    return offset == 0;
  }

  // A few bytes at random are read alone: always without a disk cache, else when their block is touched for the first time.
  bool whole_blocks_pay(int64_t first, int64_t last, int64_t bytes) const {
    if (bytes >= kSmall || size() <= kBlock || shared_->blocks.has(*source_, first)) return true;
    if (!shared_->disk.on()) return false;
    const std::lock_guard lock(mutex_);
    if (touched_.empty()) touched_.resize(static_cast<size_t>(source_->blocks()));
    const bool before = touched_[static_cast<size_t>(first)];
    for (int64_t block = first; block <= last; ++block) touched_[static_cast<size_t>(block)] = true;
    return before;
  }

  void read_ahead(int64_t from, int64_t to) const {
    to = std::min(to, source_->blocks() - 1);
    for (int64_t block = from; block <= to; ++block) {
      {
        const std::lock_guard lock(mutex_);
        if (std::find(fetched_.begin(), fetched_.end(), block) == fetched_.end()) fetched_.push_back(block);
        if (fetched_.size() > kRemembered) fetched_.pop_front();
      }
      shared_->blocks.ahead(source_, block);
    }
  }

  static constexpr size_t kRemembered = 64;
  std::shared_ptr<const Source> source_;
  std::shared_ptr<Shared> shared_;
  int64_t ahead_;  // blocks
  mutable std::mutex mutex_;
  mutable std::array<int64_t, 8> ends_;  // of streams
  mutable size_t next_end_ = 0;
  mutable std::vector<bool> touched_;
  mutable std::deque<int64_t> fetched_;  // ahead, lately
};

Source find(const std::string& address) {
  check_not_stopped(address);
  Source source{address, {}, server_of(address), ""};
  bool known = false;
  {
    const std::lock_guard lock(listed_mutex);
    const auto found = listed.find(address);
    if (found != listed.end()) known = true, source.object = found->second;
  }
  if (!known) retried(address, [&] { source.object = source.server->look(address); });
  check(source.object.exists, "{}: no such object on the server", address);
  // Without a version the next process may find other contents.
  static const std::string own = fmt::format("{} {}", ::getpid(), std::chrono::steady_clock::now().time_since_epoch().count());
  source.cache_version = source.object.version.empty() ? own : source.object.version;
  return source;
}

void write_at(int fd, const std::string& address, const char* data, size_t size, int64_t offset) {
  while (size > 0) {
    const ssize_t n = ::pwrite(fd, data, size, offset);
    if (n < 0 && errno == EINTR) continue;
    check(n > 0, "{}: cannot write its copy in the disk cache: {}", address, n < 0 ? std::strerror(errno) : "no progress");
    data += n, offset += n, size -= static_cast<size_t>(n);
  }
}

// In parallel: one connection rarely fills the line.
void download(const Source& source, int fd) {
  constexpr int64_t kAtOnce = 8;
  const int64_t blocks = source.blocks();
  std::atomic<int64_t> next = 0;
  std::mutex mutex;
  std::exception_ptr error;
  const auto work = [&] {
    std::string data;
    for (int64_t block = next++; block < blocks; block = next++) {
      try {
        const int64_t offset = block * kBlock;
        data.resize(static_cast<size_t>(std::min(kBlock, source.object.size - offset)));
        retried(source.address, [&] { source.server->read(source.address, source.object, offset, data.data(), data.size()); });
        write_at(fd, source.address, data.data(), data.size(), offset);
      } catch (...) {
        const std::lock_guard lock(mutex);
        error = std::current_exception();
        next = blocks;
      }
    }
  };
  std::vector<std::thread> threads;
  for (int64_t i = 1; i < std::min(kAtOnce, blocks); ++i) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  if (error) std::rethrow_exception(error);
}

void download_as_a_whole(const Source& source, int fd, int64_t limit) {
  retried(source.address, [&] {
    int64_t at = 0;
    source.server->read_all(source.address, source.object, [&](const char* data, size_t size) {
      check_not_stopped(source.address);
      check(at + static_cast<int64_t>(size) <= limit, "{}: larger than the disk cache of {:.1f} GB: raise [data] cache_gib", source.address,
            static_cast<double>(limit) / 1e9);
      write_at(fd, source.address, data, size, at);
      at += static_cast<int64_t>(size);
    });
    check(::ftruncate(fd, at) == 0, "{}: cannot write its copy in the disk cache: {}", source.address, std::strerror(errno));
  });
}

std::string copy_of(const Source& source) {
  const std::shared_ptr<Shared> s = shared();
  return s->disk.whole(source.key(-1), source.address, source.object.size, [&](int fd) {
    source.object.ranges&& source.object.size >= 0 ? download(source, fd) : download_as_a_whole(source, fd, s->disk.bytes());
  });
}

}  // namespace

std::shared_ptr<const ByteFile> open_remote(const std::string& address) {
  Source source = find(address);
  if (source.object.ranges && source.object.size >= 0) return std::make_shared<RemoteBytes>(std::move(source));
  return open_local(copy_of(source), address);
}

void remember(const std::vector<RemoteFile>& files) {
  const std::lock_guard lock(listed_mutex);
  for (const RemoteFile& f : files) listed[f.path] = {true, f.size, f.version, true};
}

void end_shared_state() {
  std::shared_ptr<Shared> last;
  {
    const std::lock_guard lock(shared_mutex);
    last.swap(shared_now);
  }
  const std::lock_guard lock(listed_mutex);
  listed.clear();
}

void wake_readers() {
  const std::lock_guard lock(shared_mutex);
  if (shared_now) shared_now->blocks.stop();
}

}  // namespace storage

std::string local_copy(const std::string& path) { return is_remote(path) ? storage::copy_of(storage::find(path)) : path; }

void set_storage_options(const StorageOptions& options) {
  storage::end_shared_state();
  storage::replace_options(options);
  storage::resume_requests();
}

void stop_remote_reads() {
  storage::stop_requests();
  storage::wake_readers();
}

StorageSession::~StorageSession() {
  stop_remote_reads();
  storage::end_shared_state();
  storage::end_outage_reporting();
  storage::replace_options({});
  storage::end_s3();
}

}  // namespace halftone
