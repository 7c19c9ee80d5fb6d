#include "halftone/data/packed_file.h"

#include <array>
#include <string_view>

#include "halftone/base/error.h"
#include "halftone/storage/byte_file.h"

namespace halftone {
namespace {

using namespace std::string_view_literals;

struct Packed {
  std::string_view first;  // bytes
  const char *name, *remedy;
};
// Signatures from RFC 1952 (gzip), RFC 8878 (Zstandard), and the specifications of xz, bzip2, ZIP and Unicode (byte order mark).
constexpr std::array<Packed, 7> kPacked = {{{"\x1F\x8B"sv, "gzip", "unpack it with: gzip -dk {}"},
                                            {"\x28\xB5\x2F\xFD"sv, "zstd", "unpack it with: zstd -d {}"},
                                            {"\xFD"
                                             "7zXZ\0"sv,
                                             "xz", "unpack it with: xz -dk {}"},
                                            {"BZh"sv, "bzip2", "unpack it with: bzip2 -dk {}"},
                                            {"PK\x03\x04"sv, "a ZIP archive", "unpack it with: unzip {}"},
                                            {"\xFF\xFE"sv, "UTF-16", "write it as UTF-8: iconv -f UTF-16 -t UTF-8 {}"},
                                            {"\xFE\xFF"sv, "UTF-16", "write it as UTF-8: iconv -f UTF-16 -t UTF-8 {}"}}};
// Follows "BZh" and a digit, with which text may also begin.
constexpr std::string_view kBzip2Block = "1AY&SY";
constexpr std::string_view kLfsPointer = "version https://git-lfs.github.com/spec/";  // first line of a Git LFS pointer
constexpr std::string_view kParquet = "PAR1";                                         // at both ends

}  // namespace

void refuse_lfs_pointer(std::string_view first, const std::string& path, const char* expected) {
  check(!first.starts_with(kLfsPointer), "{}: expected {}, found a pointer of Git LFS; fetch the file: git lfs pull", path, expected);
}

void refuse_packed(std::string_view first, const std::string& path, const char* expected) {
  refuse_lfs_pointer(first, path, expected);
  for (const Packed& p : kPacked) {
    if (!first.starts_with(p.first)) continue;
    if (p.first == "BZh" && (first.size() < 10 || first.substr(4, 6) != kBzip2Block)) continue;
    fail("{}: expected {}, found {}; {}", path, expected, p.name, fmt::format(fmt::runtime(p.remedy), path));
  }
  if (!first.starts_with(kParquet)) return;
  std::array<char, 4> tail{};
  const auto file = open_bytes(path);
  const int64_t size = file->size();
  const bool ends =
      size >= 12 && file->read(size - 4, tail.data(), tail.size()) == tail.size() && std::string_view(tail.data(), 4) == kParquet;
  check(!ends, "{}: expected {}, found Parquet; set dataset = \"parquet\"", path, expected);
}

std::string first_bytes(const std::string& path) {
  std::string bytes(4096, '\0');
  bytes.resize(open_bytes(path)->read(0, bytes.data(), bytes.size()));
  return bytes;
}

}  // namespace halftone
