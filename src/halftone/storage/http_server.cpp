#define CURL_DISABLE_DEPRECATION  // options by name exist since libcurl 7.85 only
#include <curl/curl.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstring>
#include <mutex>
#include <optional>
#include <string_view>

#include "halftone/base/error.h"
#include "halftone/storage/request.h"

// https:// and http:// by libcurl, which is loaded when the first such address is read. Ranges: RFC 9110, section 14.
namespace halftone::storage {
namespace {

constexpr long kConnectSeconds = 5, kStallSeconds = 15, kMostRedirects = 10;
constexpr const char* kLibrary = "libcurl.so.4";

struct Curl {
  decltype(&curl_global_init) global_init;
  decltype(&curl_easy_init) easy_init;
  decltype(&curl_easy_reset) easy_reset;
  decltype(&curl_easy_setopt) setopt;
  decltype(&curl_easy_perform) perform;
  decltype(&curl_easy_getinfo) getinfo;
  decltype(&curl_easy_cleanup) cleanup;
  decltype(&curl_easy_strerror) strerror;
};

const Curl& curl() {
  static const Curl loaded = [] {
    void* library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
    check(library != nullptr, "https:// addresses need {}, which is not installed: install Debian's libcurl4 or copy the files here",
          kLibrary);
    Curl c{};
    const auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
      check(function != nullptr, "{} lacks {}: expected libcurl 7.19 or newer", kLibrary, name);
    };
    find(c.global_init, "curl_global_init"), find(c.easy_init, "curl_easy_init"), find(c.easy_reset, "curl_easy_reset");
    find(c.setopt, "curl_easy_setopt"), find(c.perform, "curl_easy_perform"), find(c.getinfo, "curl_easy_getinfo");
    find(c.cleanup, "curl_easy_cleanup"), find(c.strerror, "curl_easy_strerror");
    check(c.global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK, "{} does not start", kLibrary);
    return c;
  }();
  return loaded;
}

// An answer's header, of the last response where there were redirects.
struct Answer {
  long status = 0;
  std::string etag, modified;
  std::optional<int64_t> length;                                 // of the body
  std::optional<int64_t> begin, total;                           // of Content-Range
  std::function<bool(const Answer&, const char*, size_t)> take;  // the body; false ends the transfer
  bool ended = false;                                            // by `take`
  std::exception_ptr error;

  std::string version() const { return !etag.empty() ? etag : modified; }
};

std::optional<int64_t> number(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

size_t on_header(char* data, size_t one, size_t count, void* to) {
  Answer& answer = *static_cast<Answer*>(to);
  std::string_view line(data, one * count);
  while (!line.empty() && std::isspace(static_cast<unsigned char>(line.back()))) line.remove_suffix(1);
  if (line.starts_with("HTTP/")) {
    answer.etag.clear(), answer.modified.clear();
    answer.length = answer.begin = answer.total = std::nullopt;
    const size_t space = line.find(' ');
    answer.status = space == std::string_view::npos ? 0 : static_cast<long>(number(line.substr(space + 1, 3)).value_or(0));
  }
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos) return one * count;
  std::string name(line.substr(0, colon));
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  std::string_view value = line.substr(colon + 1);
  while (!value.empty() && value.front() == ' ') value.remove_prefix(1);
  if (name == "etag") answer.etag = value;
  if (name == "last-modified") answer.modified = value;
  if (name == "content-length") answer.length = number(value);
  if (name == "content-range" && value.starts_with("bytes ")) {  // "bytes 0-99/1234", "bytes */1234"
    value.remove_prefix(6);
    const size_t slash = value.find('/');
    if (slash != std::string_view::npos) answer.total = number(value.substr(slash + 1));
    answer.begin = number(value.substr(0, value.find('-')));
  }
  return one * count;
}

size_t on_body(char* data, size_t one, size_t count, void* to) {
  Answer& answer = *static_cast<Answer*>(to);
  try {
    if (answer.take(answer, data, one * count)) return one * count;
    answer.ended = true;
  } catch (...) {
    answer.error = std::current_exception();
  }
  return 0;
}

class Http : public Server {
 public:
  ~Http() override {
    for (CURL* handle : idle_) curl().cleanup(handle);
  }

  Object look(const std::string& address) override {
    // Not HEAD: servers that sign addresses for GET refuse it, and this one tells whether the server has ranges.
    const Answer answer = get(address, "0-0", [](const Answer& a, const char*, size_t) { return a.status != 200; });
    const bool empty = answer.status == 416 && answer.total == 0;
    Object none;
    none.exists = false;
    if (answer.status == 404 || answer.status == 410) return none;
    if (!empty) check_status(address, answer);
    if (answer.status == 206) {
      check(answer.total.has_value(), "{}: the server does not say the size of the file (no Content-Range)", address);
      return {true, *answer.total, answer.version()};
    }
    return {true, empty ? 0 : answer.length.value_or(-1), answer.version(), empty};
  }

  void read(const std::string& address, const Object& object, int64_t offset, char* out, size_t size) override {
    size_t done = 0;
    const Answer answer = get(address, fmt::format("{}-{}", offset, offset + static_cast<int64_t>(size) - 1),
                              [&](const Answer& a, const char* data, size_t n) {
                                if (a.status != 206) return a.status >= 300;  // the text of an error is left out
                                const size_t fit = std::min(n, size - done);
                                std::memcpy(out + done, data, fit);
                                done += fit;
                                return fit == n;
                              });
    if (answer.status != 416 && answer.status != 200) check_status(address, answer);
    check_same(address, object, answer, answer.total.value_or(-1));
    check(answer.status == 206 && answer.begin == offset, "{}: the server does not send the range asked for (HTTP {})", address,
          answer.status);
    if (done != size) throw Unavailable(fmt::format("{} of {} bytes came", done, size));
  }

  void read_all(const std::string& address, const Object& object, const std::function<void(const char*, size_t)>& take) override {
    int64_t done = 0;
    const Answer answer = get(address, "", [&](const Answer& a, const char* data, size_t n) {
      if (a.status != 200) return true;
      take(data, n), done += static_cast<int64_t>(n);
      return true;
    });
    check_status(address, answer);
    check_same(address, object, answer, done);
  }

  std::vector<RemoteFile> list(const std::string& folder, bool) override { fail("{}: https:// has no folders", folder); }

 private:
  static void check_status(const std::string& address, const Answer& answer) {
    const long s = answer.status;
    if (s >= 500 || s == 429 || s == 408) throw Unavailable(fmt::format("HTTP {}", s));
    check(s != 404 && s != 410, "{}: no such file on the server (HTTP {})", address, s);
    check(s == 200 || s == 206, "{}: the server refuses the request (HTTP {}): expected an address that can be read without a login",
          address, s);
  }

  static void check_same(const std::string& address, const Object& object, const Answer& answer, int64_t size) {
    const bool same = (object.size < 0 || size == object.size) && answer.version() == object.version;
    check(same, "{} changed while the run reads it: expected {} bytes of {}, found {} of {}; start the run again", address, object.size,
          object.version, size, answer.version());
  }

  Answer get(const std::string& address, const std::string& range, std::function<bool(const Answer&, const char*, size_t)> take) {
    const Curl& c = curl();
    CURL* handle = acquire();
    struct Return {
      Http& http;
      CURL* handle;
      ~Return() { http.release(handle); }
    } give_back{*this, handle};
    Answer answer;
    answer.take = std::move(take);
    const std::string authorities = authorities_file();
    const auto set = [&](CURLoption option, auto value) {
      check(c.setopt(handle, option, value) == CURLE_OK, "{}: {} lacks option {}", address, kLibrary, static_cast<int>(option));
    };
    set(CURLOPT_URL, address.c_str());
    set(CURLOPT_NOSIGNAL, 1L);
    set(CURLOPT_FOLLOWLOCATION, 1L), set(CURLOPT_MAXREDIRS, kMostRedirects);
    constexpr long kWeb = CURLPROTO_HTTP | CURLPROTO_HTTPS;
    set(CURLOPT_PROTOCOLS, kWeb), set(CURLOPT_REDIR_PROTOCOLS, kWeb);
    set(CURLOPT_CONNECTTIMEOUT, kConnectSeconds), set(CURLOPT_LOW_SPEED_LIMIT, 1L), set(CURLOPT_LOW_SPEED_TIME, kStallSeconds);
    set(CURLOPT_USERAGENT, "halftone");
    if (!range.empty()) set(CURLOPT_RANGE, range.c_str());
    if (!authorities.empty()) set(CURLOPT_CAINFO, authorities.c_str());
    set(CURLOPT_HEADERFUNCTION, on_header), set(CURLOPT_HEADERDATA, static_cast<void*>(&answer));
    set(CURLOPT_WRITEFUNCTION, on_body), set(CURLOPT_WRITEDATA, static_cast<void*>(&answer));
    const CURLcode code = c.perform(handle);
    if (answer.error) std::rethrow_exception(answer.error);
    static constexpr std::array kWrong = {CURLE_URL_MALFORMAT, CURLE_UNSUPPORTED_PROTOCOL, CURLE_TOO_MANY_REDIRECTS,
                                          CURLE_SSL_CACERT_BADFILE, CURLE_PEER_FAILED_VERIFICATION};
    const std::string why = c.strerror(code);
    check(std::find(kWrong.begin(), kWrong.end(), code) == kWrong.end(), "{}: {}", address, why);
    if (code != CURLE_OK && !answer.ended) throw Unavailable(why);
    return answer;
  }

  CURL* acquire() {
    const std::lock_guard lock(mutex_);
    if (idle_.empty()) {
      CURL* handle = curl().easy_init();
      check(handle != nullptr, "{}: no memory for a connection", kLibrary);
      return handle;
    }
    CURL* handle = idle_.back();
    idle_.pop_back();
    return handle;
  }
  void release(CURL* handle) {
    curl().easy_reset(handle);  // keeps the connection
    const std::lock_guard lock(mutex_);
    idle_.push_back(handle);
  }

  std::mutex mutex_;
  std::vector<CURL*> idle_;
};

}  // namespace

std::shared_ptr<Server> make_http(const StorageOptions&) { return std::make_shared<Http>(); }

}  // namespace halftone::storage
