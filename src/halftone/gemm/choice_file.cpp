#include "halftone/gemm/choice_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "halftone/base/philox.h"

namespace halftone::gemm {
namespace {

namespace fs = std::filesystem;

struct Header {
  char magic[8];
  uint64_t record_bytes, count, checksum;
};
constexpr char kMagic[] = "htchoice";
static_assert(sizeof(kMagic) == sizeof(Header::magic) + 1 && sizeof(Header) == 32);

// Covers the records and the file name, which identifies device and versions.
uint64_t checksum(const fs::path& file, const void* records, size_t bytes) {
  return fnv1a64(file.filename().string()) ^ fnv1a64({static_cast<const char*>(records), bytes});
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

// Reads `bytes` bytes, or fewer at end of file or on an error.
size_t read_all(int fd, void* to, size_t bytes) {
  size_t done = 0;
  while (done < bytes) {
    const ssize_t n = ::read(fd, static_cast<char*>(to) + done, bytes - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    done += static_cast<size_t>(n);
  }
  return done;
}
bool write_all(int fd, const void* from, size_t bytes) {
  size_t done = 0;
  while (done < bytes) {
    const ssize_t n = ::write(fd, static_cast<const char*>(from) + done, bytes - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    done += static_cast<size_t>(n);
  }
  return true;
}

bool same_product(const ProductChoice& a, const ProductChoice& b) { return a.owner == b.owner && a.key == b.key; }

}  // namespace

fs::path cache_folder(const GetVariable& get) {
  const auto value = [&](const char* name) -> std::string {
    const char* text = get(name);
    return text != nullptr ? text : "";
  };
  if (const std::string ours = value("HALFTONE_CACHE"); !ours.empty()) return ours;
  if (const std::string all = value("XDG_CACHE_HOME"); all.starts_with("/")) return fs::path(all) / "halftone";
  const std::string home = value("HOME");
  return home.empty() ? fs::path() : fs::path(home) / ".cache" / "halftone";
}

fs::path choice_file(const fs::path& folder, std::string_view device, std::string_view library, std::string_view halftone) {
  if (folder.empty()) return {};
  std::string name = fmt::format("products-{}-{}-{}", device, library, halftone);
  for (char& c : name) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' || c == '-';
    if (!plain) c = '_';
  }
  return folder / name;
}

LoadedChoices load_choices(const fs::path& file) {
  LoadedChoices out;
  const Descriptor fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0) {
    if (errno != ENOENT) out.problem = fmt::format("cannot be read: {}", std::strerror(errno));
    return out;
  }
  Header header{};
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) {
    out.problem = "is not a file";
  } else if (read_all(fd.get(), &header, sizeof header) != sizeof header || std::memcmp(header.magic, kMagic, sizeof header.magic) != 0 ||
             header.record_bytes != sizeof(ProductChoice)) {
    out.problem = "is not a choice file of this version";
  } else if (header.count > kMostChoices || static_cast<uint64_t>(info.st_size) != sizeof header + header.count * sizeof(ProductChoice)) {
    out.problem = fmt::format("has {} bytes and names {} records of {}", info.st_size, header.count, sizeof(ProductChoice));
  }
  if (!out.problem.empty()) return out;
  out.choices.resize(header.count);
  const size_t bytes = out.choices.size() * sizeof(ProductChoice);
  if (read_all(fd.get(), out.choices.data(), bytes) != bytes || checksum(file, out.choices.data(), bytes) != header.checksum) {
    out.choices.clear();
    out.problem = "has another checksum than its records";
  }
  return out;
}

std::string add_choices(const fs::path& file, std::span<const ProductChoice> choices) {
  std::vector<ProductChoice> all = load_choices(file).choices;
  for (const ProductChoice& choice : choices) {
    std::erase_if(all, [&](const ProductChoice& old) { return same_product(old, choice); });
    all.push_back(choice);
  }
  if (all.size() > kMostChoices) all.erase(all.begin(), all.end() - kMostChoices);
  std::error_code error;
  fs::create_directories(file.parent_path(), error);
  std::string temporary = file.string() + ".XXXXXX";
  const auto problem = [&](const char* what) { return fmt::format("{} {}: {}", what, temporary, std::strerror(errno)); };
  const Descriptor fd(::mkostemp(temporary.data(), O_CLOEXEC));
  if (fd.get() < 0) return problem("cannot make");
  const size_t bytes = all.size() * sizeof(ProductChoice);
  Header header{{}, sizeof(ProductChoice), all.size(), checksum(file, all.data(), bytes)};
  std::memcpy(header.magic, kMagic, sizeof header.magic);
  if (write_all(fd.get(), &header, sizeof header) && write_all(fd.get(), all.data(), bytes) &&
      ::rename(temporary.c_str(), file.c_str()) == 0) {
    return "";
  }
  const std::string why = problem("cannot write");
  ::unlink(temporary.c_str());
  return why;
}

}  // namespace halftone::gemm
