#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace halftone::storage {

// Parts of remote files on the local disk, shared by the processes of a node and held to `bytes` by removing what was not used for
// longest. A part is a file <folder>/<2 digits>/<key> with its size and checksum at the end; one that is damaged counts as missing. A
// whole file is <folder>/<2 digits>/<key>/<name> as it is. Files appear by a rename. When the disk fails, the cache ends with one warning.
class DiskCache {
 public:
  DiskCache(std::string folder, int64_t bytes);
  ~DiskCache();
  DiskCache(const DiskCache&) = delete;
  DiskCache& operator=(const DiskCache&) = delete;

  // Key of a part of an object: changes with its address and version. 32 hexadecimal digits.
  static std::string key(const std::string& address, const std::string& version, int64_t size, int64_t part);

  bool on() const { return on_; }
  int64_t bytes() const { return bytes_; }
  std::optional<std::string> get(const std::string& key);
  void put(const std::string& key, const std::string& data);

  // The path of a whole file. Where it is missing, `write` writes it to the open file that it gets; its size must then be `size` (-1: any).
  // Error if it cannot be kept here.
  std::string whole(const std::string& key, const std::string& name, int64_t size, const std::function<void(int fd)>& write);

  int64_t used() const;  // bytes, of all processes

 private:
  bool make_room(int64_t size);
  void evict(int64_t goal);
  void switch_off(const std::string& why);
  std::string path_of(const std::string& key) const;
  std::string temporary();

  std::string folder_;
  int64_t bytes_;
  std::atomic<bool> on_ = false;
  std::atomic<int64_t>* used_ = nullptr;  // mapped from the file <folder>/used, so that all processes count together
  int lock_ = -1;                         // that file
  std::atomic<int64_t> temporaries_ = 0;
};

}  // namespace halftone::storage
