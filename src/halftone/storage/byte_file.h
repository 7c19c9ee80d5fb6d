#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace halftone {

// Bytes of a file by position, wherever it lies. Thread-safe. Errors name the file as the user wrote it.
class ByteFile {
 public:
  virtual ~ByteFile() = default;
  virtual const std::string& path() const = 0;
  virtual int64_t size() const = 0;
  // Up to `size` bytes from `offset`; fewer only at the end of the file. Remote files retry until the data is back (see StorageOptions).
  virtual size_t read(int64_t offset, char* out, size_t size) const = 0;
};

// A local path, or an address: s3://, gs://, https://, http://.
bool is_remote(const std::string& path);
std::shared_ptr<const ByteFile> open_bytes(const std::string& path);

// One remote file as listed.
struct RemoteFile {
  std::string path;
  int64_t size = 0;
  std::string version;  // ETag, generation or modification time: changes when the contents do
};
// Files of an address: one file, a folder (everything below it) or a glob with *, ?, [...] and **; sorted by path. Error if there is none.
// https:// has no folders: a single address, or a text file of addresses, one a line, whose own address ends in ".list".
std::vector<RemoteFile> list_remote(const std::string& address);

// The whole file in the disk cache, for readers that map it. Returns the local path; a local file is returned as it is.
std::string local_copy(const std::string& path);

struct StorageOptions {
  std::string endpoint_url{};    // of an S3-compatible server; empty: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, else Amazon's
  std::string region{};          // empty: AWS_REGION, AWS_DEFAULT_REGION, else the profile's
  bool anonymous = false;        // no credentials
  std::string cache_folder{};    // empty: no disk cache
  int64_t cache_bytes = 0;       // size that the cache is held to
  int64_t read_ahead_bytes = 0;  // of a file that is read sequentially
  double first_retry_seconds = 0.5, longest_retry_seconds = 60;
};
// Applies to every file opened later. Called once, before threads read.
void set_storage_options(const StorageOptions& options);
// Ends waits for a server: pending and later remote reads throw an Error. For the end of a run.
void stop_remote_reads();
// Whether a remote read has waited for its server for some seconds: peers of this process must then be patient.
bool waits_for_server();

// Ends what remote reads need (threads, Arrow's S3 library, which crashes in a process that exits without it). Lives in main().
class StorageSession {
 public:
  StorageSession() = default;
  ~StorageSession();
  StorageSession(const StorageSession&) = delete;
  StorageSession& operator=(const StorageSession&) = delete;
};

}  // namespace halftone
