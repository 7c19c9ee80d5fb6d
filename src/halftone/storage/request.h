#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "halftone/storage/byte_file.h"

// Requests to servers, as the rest of this layer sees them.
namespace halftone::storage {

// A request failed in a way that may pass: no connection, a cut, a time-out, 5xx, 429. Other failures are an Error.
class Unavailable : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Object {
  bool exists = true;
  int64_t size = 0;     // -1: the server does not say
  std::string version;  // empty: the server does not say
  bool ranges = true;   // parts can be read
};

// One kind of server. Each call makes one attempt. Thread-safe.
class Server {
 public:
  virtual ~Server() = default;
  virtual Object look(const std::string& address) = 0;
  // `size` bytes from `offset` of the object that was found. Error if its version or size has changed.
  virtual void read(const std::string& address, const Object& object, int64_t offset, char* out, size_t size) = 0;
  // The whole contents from the start, for servers without ranges; `take` gets the parts in order.
  virtual void read_all(const std::string& address, const Object& object, const std::function<void(const char*, size_t)>& take) = 0;
  // Objects whose address begins with `folder`, which ends in a slash: all, or only those without a further slash.
  virtual std::vector<RemoteFile> list(const std::string& folder, bool recursive) = 0;
};
std::shared_ptr<Server> make_s3(const StorageOptions& options);
std::shared_ptr<Server> make_gcs(const StorageOptions& options);
std::shared_ptr<Server> make_http(const StorageOptions& options);
void end_s3();  // after the last request
// File of the authorities that certificates are checked against: SSL_CERT_FILE, AWS_CA_BUNDLE, or the distribution's.
std::string authorities_file();

// The server of an address, by its scheme ("s3"); made when first used. Tests put their own in its place until the options are set again.
std::shared_ptr<Server> server_of(const std::string& address);
void set_server(const std::string& scheme, std::shared_ptr<Server> server);
const StorageOptions& options();
void replace_options(const StorageOptions& options);

// Calls `attempt` until it throws no Unavailable, with pauses that grow as StorageOptions says; a thread logs a line a minute meanwhile.
// Error once stop_remote_reads() was called.
void retried(const std::string& address, const std::function<void()>& attempt);
void check_not_stopped(const std::string& address);
bool stopped();
void stop_requests();
void resume_requests();
void end_outage_reporting();  // stops the thread

// "3 min", "40 s"
std::string span(double seconds);

}  // namespace halftone::storage
