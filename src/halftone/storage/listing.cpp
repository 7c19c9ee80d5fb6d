#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>

#include "halftone/base/error.h"
#include "halftone/storage/glob.h"
#include "halftone/storage/remote_file.h"

namespace halftone {
namespace storage {
namespace {

constexpr int64_t kLongestList = int64_t{64} << 20;  // bytes of a .list file

std::vector<RemoteFile> files_below(const std::string& folder, bool recursive) {
  const std::shared_ptr<Server> server = server_of(folder);
  std::vector<RemoteFile> files;
  retried(folder, [&] { files = server->list(folder, recursive); });
  return files;
}

RemoteFile single(const std::string& address) {
  const std::shared_ptr<Server> server = server_of(address);
  Object object;
  retried(address, [&] { object = server->look(address); });
  check(object.exists, "{}: no such file on the server", address);
  return {address, object.size, object.version};
}

// s3:// and gs://.
std::vector<RemoteFile> in_bucket(const std::string& address) {
  const size_t bucket = address.find("://") + 3, key = std::min(address.find('/', bucket), address.size());
  check(key > bucket, "{}: expected a bucket and a path, as in s3://bucket/folder", address);
  check(!has_wildcard(address.substr(bucket, key - bucket)), "{}: a bucket's name has no wildcards", address);
  const size_t wildcard = address.find_first_of("*?[", key);
  const bool glob = wildcard != std::string::npos;
  if (!glob && key + 1 < address.size() && !address.ends_with('/')) {
    const std::shared_ptr<Server> server = server_of(address);
    Object object;
    retried(address, [&] { object = server->look(address); });
    if (object.exists) return {{address, object.size, object.version}};
  }
  // The folder in front of the first wildcard is listed and compared with the rest.
  std::string folder = glob ? address.substr(0, address.rfind('/', wildcard) + 1) : address;
  if (!folder.ends_with('/')) folder += '/';
  const std::vector<std::string> pattern = glob ? pattern_parts(address.substr(folder.size())) : std::vector<std::string>{"**"};
  std::vector<RemoteFile> files = files_below(folder, pattern.size() > 1 || pattern[0] == "**");
  std::erase_if(files, [&](const RemoteFile& f) {
    return !f.path.starts_with(folder) || f.path.ends_with('/') || !matches(pattern, pattern_parts(f.path.substr(folder.size())));
  });
  check(!files.empty(), "{}: {}", address, glob ? "no file on the server matches" : "no such file or folder on the server");
  return files;
}

// A text file of addresses, each of which is looked at.
std::vector<RemoteFile> in_list(const std::string& address) {
  const std::shared_ptr<const ByteFile> list = open_remote(address);
  check(list->size() <= kLongestList, "{}: expected a list of addresses, found {} bytes", address, list->size());
  std::string text(static_cast<size_t>(list->size()), '\0');
  text.resize(list->read(0, text.data(), text.size()));
  std::vector<RemoteFile> files;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string line = text.substr(begin, end - begin);
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
    if (!line.empty() && !line.starts_with('#')) {
      check(line.starts_with("https://") || line.starts_with("http://"), "{}: expected an address a line, found '{}'", address,
            line.substr(0, 100));
      files.push_back({std::move(line), 0, ""});
    }
    begin = end + 1;
  }
  check(!files.empty(), "{}: the list is empty", address);
  constexpr size_t kAtOnce = 16;
  std::atomic<size_t> next = 0;
  std::mutex mutex;
  std::exception_ptr error;
  const auto work = [&] {
    for (size_t i = next++; i < files.size(); i = next++) {
      try {
        files[i] = single(files[i].path);
      } catch (...) {
        const std::lock_guard lock(mutex);
        error = std::current_exception();
        next = files.size();
      }
    }
  };
  std::vector<std::thread> threads;
  for (size_t i = 1; i < std::min(kAtOnce, files.size()); ++i) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  if (error) std::rethrow_exception(error);
  return files;
}

}  // namespace
}  // namespace storage

std::vector<RemoteFile> list_remote(const std::string& address) {
  check(is_remote(address), "{}: expected an address", address);
  const bool web = address.starts_with("http");
  std::vector<RemoteFile> files = !web                         ? storage::in_bucket(address)
                                  : address.ends_with(".list") ? storage::in_list(address)
                                                               : std::vector{storage::single(address)};
  std::sort(files.begin(), files.end(), [](const RemoteFile& a, const RemoteFile& b) { return a.path < b.path; });
  files.erase(std::unique(files.begin(), files.end(), [](const auto& a, const auto& b) { return a.path == b.path; }), files.end());
  if (!web) storage::remember(files);  // of a web server it is not known whether it has ranges
  return files;
}

}  // namespace halftone
