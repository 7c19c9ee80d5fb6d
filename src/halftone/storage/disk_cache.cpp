#include "halftone/storage/disk_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <thread>
#include <vector>

#include "halftone/base/error.h"
#include "halftone/base/log.h"
#include "halftone/storage/request.h"

namespace halftone::storage {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMagic = 0x3165686361436668;  // "hfCache1"
struct Trailer {
  uint64_t magic, size, checksum;
};

constexpr std::chrono::seconds kInUse{60};   // a whole file is not removed so soon after its use: its reader may still open it
constexpr std::chrono::hours kAbandoned{1};  // temporary files of processes that were killed
constexpr double kSlack = 0.05;              // removed beyond what is needed, since removing looks at all files

class File {
 public:
  File(const std::string& path, int flags) : fd(::open(path.c_str(), flags | O_CLOEXEC, 0666)) {}
  ~File() {
    if (fd >= 0) ::close(fd);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  const int fd;
};

// Only one thread of one process at a time; of other processes' threads by flock, of this one's by the mutex that flock lacks.
class Exclusive {
 public:
  explicit Exclusive(int fd) : lock_(mutex()), fd_(fd) { ::flock(fd_, LOCK_EX); }
  ~Exclusive() { ::flock(fd_, LOCK_UN); }
  Exclusive(const Exclusive&) = delete;
  Exclusive& operator=(const Exclusive&) = delete;

 private:
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }
  std::lock_guard<std::mutex> lock_;
  int fd_;
};

bool write_all(int fd, const void* data, size_t size) {
  for (const char* at = static_cast<const char*>(data); size > 0;) {
    const ssize_t n = ::write(fd, at, size);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    at += n, size -= static_cast<size_t>(n);
  }
  return true;
}

// From an address without its query.
std::string file_name(const std::string& address) {
  constexpr size_t kLongest = 200;
  std::string name = fs::path(address.substr(0, address.find_first_of("?#"))).filename().string();
  if (name.size() > kLongest) name.erase(0, name.size() - kLongest);
  return name.empty() || name.starts_with('.') ? "file" + name : name;
}

void touch(const std::string& path) { ::utimensat(AT_FDCWD, path.c_str(), nullptr, 0); }

}  // namespace

std::string DiskCache::key(const std::string& address, const std::string& version, int64_t size, int64_t part) {
  const std::string text = fmt::format("{}\n{}\n{}\n{}", address, version, size, part);
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

DiskCache::DiskCache(std::string folder, int64_t bytes) : folder_(std::move(folder)), bytes_(bytes) {
  if (folder_.empty() || bytes_ <= 0) return;
  std::error_code error;
  fs::create_directories(folder_, error);
  lock_ = ::open((folder_ + "/used").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  // Room on the disk, or a write to the mapped page would be a bus error.
  const int problem = lock_ < 0 ? errno : ::posix_fallocate(lock_, 0, sizeof *used_);
  void* mapped = problem == 0 ? ::mmap(nullptr, sizeof *used_, PROT_READ | PROT_WRITE, MAP_SHARED, lock_, 0) : MAP_FAILED;
  if (mapped == MAP_FAILED) {
    switch_off(std::strerror(problem == 0 ? errno : problem));
    return;
  }
  used_ = static_cast<std::atomic<int64_t>*>(mapped);
  on_ = true;
  evict(bytes_);  // counts what is there
}

DiskCache::~DiskCache() {
  if (used_ != nullptr) ::munmap(static_cast<void*>(used_), sizeof *used_);
  if (lock_ >= 0) ::close(lock_);
}

int64_t DiskCache::used() const { return used_ == nullptr ? 0 : used_->load(); }
std::string DiskCache::path_of(const std::string& key) const { return folder_ + "/" + key.substr(0, 2) + "/" + key; }
std::string DiskCache::temporary() { return fmt::format("{}/tmp.{}.{}", folder_, ::getpid(), ++temporaries_); }

void DiskCache::switch_off(const std::string& why) {
  const bool first = on_.exchange(false) || used_ == nullptr;
  if (first) log_warning("the disk cache {} is off for this run: {}; remote files are read again when needed", folder_, why);
}

// Looks at all files: sets the count, and removes the oldest until `goal` is kept.
void DiskCache::evict(int64_t goal) {
  struct Kept {
    fs::file_time_type used;
    int64_t size;
    fs::path path;
    bool whole;
  };
  const Exclusive alone(lock_);
  std::vector<Kept> all;
  int64_t sum = 0;
  const auto now = fs::file_time_type::clock::now();
  std::error_code error;
  for (fs::recursive_directory_iterator it(folder_, error), end; !error && it != end; it.increment(error)) {
    std::error_code gone;
    if (!it->is_regular_file(gone) || gone || it->path().filename() == "used") continue;
    const auto size = static_cast<int64_t>(it->file_size(gone));
    if (gone) continue;
    const auto time = it->last_write_time(gone);
    if (gone) continue;
    if (it.depth() == 0) {  // temporary files
      now - time > kAbandoned ? static_cast<void>(fs::remove(it->path(), gone)) : static_cast<void>(sum += size);
      continue;
    }
    sum += size;
    all.push_back({time, size, it->path(), it.depth() == 2});
  }
  if (sum > goal) {
    std::sort(all.begin(), all.end(), [](const Kept& a, const Kept& b) { return a.used < b.used; });
    for (const Kept& file : all) {
      if (sum <= goal) break;
      if (file.whole && now - file.used < kInUse) continue;
      if (!fs::remove(file.path, error)) continue;
      if (file.whole) fs::remove(file.path.parent_path(), error);
      sum -= file.size;
    }
  }
  used_->store(sum);
}

bool DiskCache::make_room(int64_t size) {
  if (size > bytes_) return false;
  if (used_->fetch_add(size) + size <= bytes_) return true;
  evict(static_cast<int64_t>(static_cast<double>(bytes_ - size) * (1 - kSlack)));
  if (used_->fetch_add(size) + size <= bytes_) return true;
  used_->fetch_sub(size);
  return false;
}

std::optional<std::string> DiskCache::get(const std::string& key) {
  if (!on_) return std::nullopt;
  const std::string path = path_of(key);
  const File file(path, O_RDONLY);
  struct stat info {};
  if (file.fd < 0 || ::fstat(file.fd, &info) != 0) return std::nullopt;
  const auto size = info.st_size - static_cast<int64_t>(sizeof(Trailer));
  std::string data;
  bool sound = S_ISREG(info.st_mode) && size >= 0 && size <= bytes_;
  if (sound) {
    data.resize(static_cast<size_t>(size));
    Trailer trailer{};
    const auto read = [&](void* out, size_t bytes, int64_t at) {
      for (size_t done = 0; done < bytes;) {
        const ssize_t n = ::pread(file.fd, static_cast<char*>(out) + done, bytes - done, at + static_cast<int64_t>(done));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        done += static_cast<size_t>(n);
      }
      return true;
    };
    sound = read(data.data(), data.size(), 0) && read(&trailer, sizeof trailer, size) && trailer.magic == kMagic &&
            trailer.size == data.size() && trailer.checksum == XXH3_64bits(data.data(), data.size());
  }
  if (!sound) {
    log_debug("the disk cache's file {} is damaged and is fetched again", path);
    if (::unlink(path.c_str()) == 0) used_->fetch_sub(info.st_size);
    return std::nullopt;
  }
  touch(path);
  return data;
}

void DiskCache::put(const std::string& key, const std::string& data) {
  if (!on_) return;
  const auto size = static_cast<int64_t>(data.size() + sizeof(Trailer));
  if (!make_room(size)) return;
  const std::string path = path_of(key), temporary = this->temporary();
  const Trailer trailer{kMagic, data.size(), XXH3_64bits(data.data(), data.size())};
  std::error_code error;
  fs::create_directories(fs::path(path).parent_path(), error);
  bool written = false;
  int problem = 0;
  {
    const File file(temporary, O_WRONLY | O_CREAT | O_TRUNC);
    written = file.fd >= 0 && write_all(file.fd, data.data(), data.size()) && write_all(file.fd, &trailer, sizeof trailer);
    problem = errno;
  }
  const bool again = written && ::access(path.c_str(), F_OK) == 0;  // another thread or process was faster
  if (written && ::rename(temporary.c_str(), path.c_str()) == 0) {
    if (again) used_->fetch_sub(size);
    return;
  }
  if (written) problem = errno;
  ::unlink(temporary.c_str());
  used_->fetch_sub(size);
  switch_off(std::strerror(problem));
}

std::string DiskCache::whole(const std::string& key, const std::string& name, int64_t size, const std::function<void(int fd)>& write) {
  check(on_, "{}: must be copied to the disk cache, which is off: set [data] cache_folder and cache_gib", name);
  const fs::path folder = path_of(key), path = folder / file_name(name);
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0 && (size < 0 || info.st_size == size)) {
    touch(path);
    return path.string();
  }
  // One process fetches it, the others wait.
  const std::string lock = fmt::format("{}/lock.{}", folder_, key);
  const File locked(lock, O_RDWR | O_CREAT);
  check(locked.fd >= 0, "{}: cannot write its copy in {}: {}", name, folder_, std::strerror(errno));
  while (::flock(locked.fd, LOCK_EX | LOCK_NB) != 0) {
    check_not_stopped(name);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  if (::stat(path.c_str(), &info) == 0 && (size < 0 || info.st_size == size)) return path.string();
  const auto too_large = [&](int64_t found) {
    fail("{}: {:.1f} GB do not fit into the disk cache {} of {:.1f} GB: raise [data] cache_gib", name, static_cast<double>(found) / 1e9,
         folder_, static_cast<double>(bytes_) / 1e9);
  };
  if (size > bytes_) too_large(size);
  if (size > 0 && !make_room(size)) fail("{}: the disk cache {} is full of files in use: raise [data] cache_gib", name, folder_);
  const std::string temporary = this->temporary();
  const auto give_up = [&] {
    ::unlink(temporary.c_str());
    if (size > 0) used_->fetch_sub(size);
  };
  try {
    const File file(temporary, O_RDWR | O_CREAT | O_TRUNC);
    check(file.fd >= 0, "{}: cannot write its copy in {}: {}", name, folder_, std::strerror(errno));
    write(file.fd);
    check(::fsync(file.fd) == 0 && ::fstat(file.fd, &info) == 0, "{}: cannot write its copy in {}: {}", name, folder_,
          std::strerror(errno));
    check(size < 0 || info.st_size == size, "{}: expected {} bytes, found {}", name, size, info.st_size);
    if (size < 0 && !make_room(info.st_size)) too_large(info.st_size);
    std::error_code error;
    fs::create_directories(folder, error);
    check(::rename(temporary.c_str(), path.c_str()) == 0, "{}: cannot write its copy in {}: {}", name, folder_, std::strerror(errno));
  } catch (...) {
    give_up();
    throw;
  }
  return path.string();
}

}  // namespace halftone::storage
