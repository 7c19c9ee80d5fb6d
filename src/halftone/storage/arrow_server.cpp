#include <arrow/filesystem/gcsfs.h>
#include <arrow/filesystem/s3fs.h>
#include <arrow/io/interfaces.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string_view>

#include "halftone/base/error.h"
#include "halftone/base/log.h"
#include "halftone/storage/request.h"

// s3:// and gs:// by Arrow's file systems, which make one attempt here: `retried` does the rest.
namespace halftone::storage {
namespace {

namespace afs = arrow::fs;

constexpr double kConnectSeconds = 5, kStallSeconds = 15;  // without a byte

std::string variable(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (const char* value = std::getenv(name); value != nullptr && *value != '\0') return value;
  }
  return "";
}

// "s3://bucket/key" -> "bucket/key", without a slash at the end.
std::string arrow_path(std::string_view address) {
  address.remove_prefix(address.find("://") + 3);
  while (address.ends_with('/')) address.remove_suffix(1);
  return std::string(address);
}
std::string bucket_of(const std::string& address) {
  const std::string path = arrow_path(address);
  const std::string bucket = path.substr(0, path.find('/'));
  check(!bucket.empty(), "{}: expected a bucket, as in s3://bucket/folder", address);
  return bucket;
}

bool may_pass(std::string_view message) {
  static constexpr std::array kSigns = {// Names of the AWS library, which knows status codes where the answer has no text.
                                        "NETWORK_CONNECTION", "REQUEST_TIMEOUT", "SLOW_DOWN", "SERVICE_UNAVAILABLE", "INTERNAL_FAILURE",
                                        "THROTTLING", "SlowDown", "InternalError", "TooManyRequests", "HTTP status 5", "HTTP status 429",
                                        "HTTP status 408",
                                        // Names of Google's.
                                        "closed file", "UNAVAILABLE", "DEADLINE_EXCEEDED", "INTERNAL", "RESOURCE_EXHAUSTED", "ABORTED"};
  return std::any_of(kSigns.begin(), kSigns.end(), [&](const char* sign) { return message.find(sign) != std::string_view::npos; });
}

// "AWS Error X during HeadObject operation: text" -> the part of the message that says what the server answered.
std::string answer(const arrow::Status& status) {
  std::string text = status.message();
  if (const size_t at = text.find("AWS Error "); at != std::string::npos) text.erase(0, at + std::string_view("AWS Error ").size());
  for (const char* detail : {"; Details:", " error_info="}) text.resize(std::min(text.size(), text.find(detail)));
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

class ArrowServer : public Server {
 public:
  Object look(const std::string& address) override {
    const Object found = look_once(address);
    // An answer that is cut in its header looks like an empty file.
    if (found.exists && found.size == 0) confirm(address, found);
    return found;
  }

  void read(const std::string& address, const Object& object, int64_t offset, char* out, size_t size) override {
    const auto fs = file_system(address);
    afs::FileInfo info(arrow_path(address), afs::FileType::File);
    info.set_size(object.size);
    const auto file = value(address, fs->OpenInputFile(info));
    // Arrow reports all bytes as read where an S3 answer ends in its header. The last byte is written last: of two values that it has
    // before, both are left only if the answer was cut.
    char& last = out[size - 1];
    const auto fetch = [&](char before) {
      last = before;
      const int64_t found = value(address, file->ReadAt(offset, static_cast<int64_t>(size), out));
      return found == static_cast<int64_t>(size) && last != before;
    };
    const bool complete = fetch('\x5a') || fetch('\x00');
    // Asked after the bytes, so that these belong to the version that was expected.
    const Object now = look_once(address);
    if (!same(now, object)) confirm(address, now);
    check(same(now, object),
          "{} changed while the run reads it: expected {} bytes of {}, found {}; start the run again, or give each version its own name",
          address, object.size, object.version, now.exists ? fmt::format("{} bytes of {}", now.size, now.version) : "no object");
    if (!complete) throw Unavailable("an answer was cut");
  }

  void read_all(const std::string& address, const Object& object, const std::function<void(const char*, size_t)>& take) override {
    std::string data(static_cast<size_t>(object.size), '\0');
    read(address, object, 0, data.data(), data.size());
    take(data.data(), data.size());
  }

  std::vector<RemoteFile> list(const std::string& folder, bool recursive) override {
    std::vector<RemoteFile> files = list_once(folder, recursive);
    // A page whose answer is cut in its header looks like the end of the list.
    constexpr size_t kPage = 1000;
    if (files.size() % kPage == 0 && list_once(folder, recursive).size() != files.size()) throw Unavailable("an answer was cut");
    return files;
  }

 protected:
  std::vector<RemoteFile> list_once(const std::string& folder, bool recursive) {
    afs::FileSelector all;
    all.base_dir = arrow_path(folder), all.recursive = recursive, all.allow_not_found = true;
    std::vector<RemoteFile> files;
    for (const afs::FileInfo& info : value(folder, file_system(folder)->GetFileInfo(all))) {
      if (info.type() == afs::FileType::File) files.push_back({scheme() + info.path(), info.size(), version(info)});
    }
    return files;
  }
  virtual std::shared_ptr<afs::FileSystem> file_system(const std::string& address) = 0;
  virtual std::string scheme() const = 0;
  virtual std::string version(const afs::FileInfo& info) const = 0;
  virtual std::string advice() const = 0;  // for a request that is refused

  template <class T>
  T value(const std::string& address, arrow::Result<T> result) const {
    if (result.ok()) return std::move(result).ValueUnsafe();
    const arrow::Status& status = result.status();
    const std::string text = answer(status);
    if (may_pass(text)) throw Unavailable(text);
    check(text.find("does not exist") == std::string::npos, "{}: no such object or bucket on the server{}", address, place());
    fail("{}: the server{} refuses the request ({}): {}", address, place(), text, advice());
  }
  static bool same(const Object& a, const Object& b) { return a.exists == b.exists && a.size == b.size && a.version == b.version; }
  Object look_once(const std::string& address) {
    const afs::FileInfo info = value(address, file_system(address)->GetFileInfo(arrow_path(address)));
    // Every answer has a time.
    if (info.type() == afs::FileType::File && info.mtime().time_since_epoch().count() <= 0) throw Unavailable("an answer was cut");
    return {info.type() == afs::FileType::File && !address.ends_with('/'), info.size(), version(info)};
  }
  void confirm(const std::string& address, const Object& found) {
    if (!same(look_once(address), found)) throw Unavailable("an answer was cut");
  }
  virtual std::string place() const { return ""; }  // " at http://..."
};

class S3 : public ArrowServer {
 public:
  explicit S3(const StorageOptions& options) : anonymous_(options.anonymous) {
    endpoint_ = options.endpoint_url.empty() ? variable({"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"}) : options.endpoint_url;
    while (endpoint_.ends_with('/')) endpoint_.pop_back();
    region_ = options.region.empty() ? variable({"AWS_REGION", "AWS_DEFAULT_REGION"}) : options.region;
    const size_t scheme = endpoint_.find("://");
    const bool good = endpoint_.empty() || endpoint_.starts_with("http://") || endpoint_.starts_with("https://");
    check(good && endpoint_.find('/', scheme == std::string::npos ? 0 : scheme + 3) == std::string::npos,
          "[data] endpoint_url (or AWS_ENDPOINT_URL): expected http://host:port or https://host:port, found {}", endpoint_);
    auto global = afs::S3GlobalOptions::Defaults();
    global.log_level = afs::S3LogLevel::Off;
    const arrow::Status started = afs::IsS3Initialized() ? arrow::Status::OK() : afs::InitializeS3(global);
    check(started.ok(), "Amazon's S3 library does not start: {}", started.message());
  }

 private:
  std::shared_ptr<afs::FileSystem> file_system(const std::string& address) override {
    const std::string bucket = bucket_of(address);
    // Amazon's buckets know their regions.
    const bool ask = endpoint_.empty() && region_.empty();
    const std::lock_guard lock(mutex_);
    std::shared_ptr<afs::FileSystem>& fs = by_region_[ask ? bucket : ""];
    if (fs) return fs;
    afs::S3Options o = anonymous_ ? afs::S3Options::Anonymous() : afs::S3Options::Defaults();
    o.region = !region_.empty() ? region_ : ask ? value(address, afs::ResolveS3BucketRegion(bucket)) : "us-east-1";
    if (!endpoint_.empty())
      o.scheme = endpoint_.substr(0, endpoint_.find(':')), o.endpoint_override = endpoint_.substr(o.scheme.size() + 3);
    o.connect_timeout = kConnectSeconds, o.request_timeout = kStallSeconds;
    o.retry_strategy = std::make_shared<Once>();
    o.tls_ca_file_path = authorities_file();
    return fs = value(address, afs::S3FileSystem::Make(o));
  }
  class Once : public afs::S3RetryStrategy {
    bool ShouldRetry(const AWSErrorDetail&, int64_t) override { return false; }
    int64_t CalculateDelayBeforeNextRetry(const AWSErrorDetail&, int64_t) override { return 0; }
  };
  std::string scheme() const override { return "s3://"; }
  // Whole seconds: HEAD says no more.
  std::string version(const afs::FileInfo& info) const override {
    return fmt::format("{}", std::chrono::duration_cast<std::chrono::seconds>(info.mtime().time_since_epoch()).count());
  }
  std::string place() const override { return endpoint_.empty() ? "" : " at " + endpoint_; }
  std::string advice() const override {
    return "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or AWS_PROFILE, or [data] anonymous = true for a public bucket; [data] region "
           "and endpoint_url must be the bucket's";
  }

  bool anonymous_;
  std::string endpoint_, region_;
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<afs::FileSystem>> by_region_;
};

class Gcs : public ArrowServer {
 public:
  explicit Gcs(const StorageOptions& options) {
    std::string emulator = variable({"STORAGE_EMULATOR_HOST"});
    while (emulator.ends_with('/')) emulator.pop_back();
    afs::FileSystemGlobalOptions global;
    global.tls_ca_file_path = authorities_file();
    check(afs::Initialize(global).ok(), "Arrow's file systems do not start");
    afs::GcsOptions o = options.anonymous || !emulator.empty() ? afs::GcsOptions::Anonymous() : afs::GcsOptions::Defaults();
    if (!emulator.empty()) {
      const size_t scheme = emulator.find("://");
      o.scheme = scheme == std::string::npos ? "http" : emulator.substr(0, scheme);
      o.endpoint_override = scheme == std::string::npos ? emulator : emulator.substr(scheme + 3);
    }
    o.retry_limit_seconds = 1;
    auto made = afs::GcsFileSystem::Make(o);
    check(made.ok(), "Google's storage library does not start: {}", made.status().message());
    fs_ = *made;
  }

 private:
  std::shared_ptr<afs::FileSystem> file_system(const std::string& address) override {
    bucket_of(address);
    return fs_;
  }
  std::string scheme() const override { return "gs://"; }
  std::string version(const afs::FileInfo& info) const override { return fmt::format("{}", info.mtime().time_since_epoch().count()); }
  std::string advice() const override {
    return "set GOOGLE_APPLICATION_CREDENTIALS to a key file, or [data] anonymous = true for a public bucket";
  }
  std::shared_ptr<afs::FileSystem> fs_;
};

}  // namespace

std::string authorities_file() {
  const std::string set = variable({"AWS_CA_BUNDLE", "SSL_CERT_FILE"});
  if (!set.empty()) return set;
  for (const char* path :
       {"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem"}) {
    if (::access(path, R_OK) == 0) return path;
  }
  return "";
}

std::shared_ptr<Server> make_s3(const StorageOptions& options) { return std::make_shared<S3>(options); }
std::shared_ptr<Server> make_gcs(const StorageOptions& options) { return std::make_shared<Gcs>(options); }

void end_s3() {
  if (afs::IsS3Initialized() && !afs::FinalizeS3().ok()) log_debug("Amazon's S3 library did not end");
}

}  // namespace halftone::storage
