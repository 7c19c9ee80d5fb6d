#include "halftone/data/file_list.h"

#include <fmt/ranges.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "halftone/base/error.h"
#include "halftone/data/digest.h"
#include "halftone/data/file_io.h"
#include "halftone/data/parallel_in_order.h"
#include "halftone/storage/byte_file.h"
#include "halftone/storage/glob.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kDigestChunk = int64_t{16} << 20;

bool is_folder(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}
bool is_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

std::vector<fs::directory_entry> entries(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::directory_entry> out;
  fs::directory_iterator it(folder.empty() ? fs::path(".") : folder, error);
  if (error == std::errc::not_a_directory || error == std::errc::no_such_file_or_directory) return out;
  check(!error, "cannot list {}: {}", folder.string(), error.message());
  for (; it != fs::directory_iterator(); it.increment(error)) {
    check(!error, "cannot list {}: {}", folder.string(), error.message());
    out.push_back(*it);
  }
  return out;
}

// Matches parts[i..] below `folder` and adds the files found.
void expand(const fs::path& folder, const std::vector<std::string>& parts, size_t i, std::set<std::string>& out) {
  const std::string& part = parts[i];
  const bool last = i + 1 == parts.size();
  if (part == "**") {
    // As the last component `**` matches every file below; elsewhere the rest may start here or in any folder below.
    if (!last) expand(folder, parts, i + 1, out);
    for (const fs::directory_entry& e : entries(folder)) {
      const std::string name = e.path().filename().string();
      if (name.starts_with(".")) continue;
      std::error_code ignored;
      const fs::path below = folder / name;
      if (e.is_directory(ignored)) {
        if (!e.is_symlink(ignored)) expand(below, parts, i, out);
      } else if (last && e.is_regular_file(ignored)) {
        out.insert(below.string());
      }
    }
    return;
  }
  const auto descend = [&](const fs::path& path) {
    if (last) {
      if (is_file(path)) out.insert(path.string());
    } else if (is_folder(path)) {
      expand(path, parts, i + 1, out);
    }
  };
  if (!has_wildcard(part)) return descend(folder / part);
  for (const fs::directory_entry& e : entries(folder)) {
    const std::string name = e.path().filename().string();
    if (matches_component(part, name)) descend(folder / name);
  }
}

std::set<std::string> glob(const std::string& pattern) {
  const std::vector<std::string> parts = pattern_parts(fs::path(pattern).relative_path().string());
  std::set<std::string> out;
  if (!parts.empty()) expand(fs::path(pattern).root_path(), parts, 0, out);
  return out;
}

// Escapes a path into a glob that matches only that path.
std::string literal(const std::string& path) {
  std::string out;
  for (const char c : path) out += std::string_view("*?[").find(c) == std::string_view::npos ? std::string(1, c) : fmt::format("[{}]", c);
  return out;
}

fs::path common_folder(const std::set<std::string>& paths) {
  fs::path root = fs::path(*paths.begin()).parent_path();
  for (const std::string& path : paths) {
    const fs::path folder = fs::path(path).parent_path();
    const auto [end, ignored] = std::mismatch(root.begin(), root.end(), folder.begin(), folder.end());
    fs::path shared;
    for (auto it = root.begin(); it != end; ++it) shared /= *it;
    root = shared;
  }
  return root;
}

bool ends_in(const std::string& path, const std::vector<std::string>& suffixes) {
  return std::any_of(suffixes.begin(), suffixes.end(), [&](const std::string& s) { return path.ends_with(s); });
}

const char* home_hint(const std::string& path) { return path.starts_with("~") ? "; ~ is not expanded: write the whole path" : ""; }

void check_found(bool found, const std::string& pattern, const std::vector<std::string>& suffixes) {
  const std::string wanted = fmt::format("{}", fmt::join(suffixes, ", "));
  check(found, "dataset_path {}: the folder holds no file{}{}", pattern, wanted.empty() ? "" : " ending in ", wanted);
}

FileList find_remote(const std::string& address, const std::vector<std::string>& suffixes) {
  FileList list;
  list.pattern = address;
  std::vector<RemoteFile> found = list_remote(address);
  const bool web = address.starts_with("http"), one = found.size() == 1 && found[0].path == address;
  if (!web && !one && !has_wildcard(address)) {
    list.others = static_cast<int64_t>(std::erase_if(found, [&](const RemoteFile& f) { return !ends_in(f.path, suffixes); }));
    check_found(!found.empty(), address, suffixes);
  }
  // The longest beginning that ends in a slash and that all addresses share.
  std::string root = found[0].path;
  for (const RemoteFile& f : found)
    root.resize(static_cast<size_t>(std::mismatch(root.begin(), root.end(), f.path.begin(), f.path.end()).first - root.begin()));
  root.resize(root.rfind('/') + 1);
  const size_t scheme = address.find("://") + 3;
  if (root.size() <= scheme) root.clear();  // of several servers or buckets
  list.root = root;
  for (RemoteFile& f : found) list.files.push_back({f.path, f.path.substr(root.size()), f.size, 0, std::move(f.version)});
  return list;
}

int64_t nanoseconds(const timespec& t) { return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec; }

}  // namespace

int64_t FileList::bytes() const {
  int64_t sum = 0;
  for (const SourceFile& f : files) sum += f.size;
  return sum;
}

std::string FileList::fingerprint() const {
  std::string text;
  for (const SourceFile& f : files) text += fmt::format("{}\n{} {}{}\n", f.name, f.size, f.changed_ns, f.version);
  return digest_hex(text);
}

FileList list_files(const std::string& pattern, std::vector<SourceFile> files, int64_t others) {
  FileList list;
  list.pattern = pattern;
  list.others = others;
  std::set<std::string> paths;
  for (const SourceFile& file : files) paths.insert(file.path);
  const fs::path root = common_folder(paths);
  list.root = root.string();
  for (SourceFile& file : files) {
    file.name = root.empty() ? file.path : fs::path(file.path).lexically_relative(root).generic_string();
    list.files.push_back(std::move(file));
  }
  std::sort(list.files.begin(), list.files.end(), [](const SourceFile& a, const SourceFile& b) { return a.name < b.name; });
  return list;
}

SourceFile local_file(const std::string& path) {
  struct stat info {};
  check(::stat(path.c_str(), &info) == 0, "cannot read {}", path);
  SourceFile file;
  file.path = path;
  file.size = info.st_size;
  file.changed_ns = std::max(nanoseconds(info.st_mtim), nanoseconds(info.st_ctim));
  return file;
}

FileList find_files(const std::string& pattern, const std::vector<std::string>& suffixes) {
  check(!pattern.empty(), "dataset_path is empty: expected a file, a folder or a glob");
  if (is_remote(pattern)) return find_remote(pattern, suffixes);
  std::vector<SourceFile> files;
  int64_t others = 0;
  if (is_file(pattern)) {
    files.push_back(local_file(pattern));
  } else if (is_folder(pattern)) {
    for (const std::string& path : glob((fs::path(literal(pattern)) / "**").string()))
      ends_in(path, suffixes) ? files.push_back(local_file(path)) : static_cast<void>(++others);
    check_found(!files.empty(), pattern, suffixes);
  } else {
    check(has_wildcard(pattern), "dataset_path {}: no such file or folder{}", pattern, home_hint(pattern));
    for (const std::string& path : glob(pattern)) files.push_back(local_file(path));
    check(!files.empty(), "dataset_path {}: no file matches{}", pattern, home_hint(pattern));
  }
  return list_files(pattern, std::move(files), others);
}

std::string content_digest(const FileList& list, int threads) {
  struct Chunk {
    size_t file;
    int64_t begin, size;
  };
  std::vector<Chunk> chunks;
  std::string text;
  for (size_t f = 0; f < list.files.size(); ++f) {
    text += fmt::format("{}\n{}\n", list.files[f].name, list.files[f].size);
    if (is_remote(list.files[f].path)) {
      text += list.files[f].version + "\n";
      continue;
    }
    for (int64_t at = 0; at < list.files[f].size; at += kDigestChunk)
      chunks.push_back({f, at, std::min(kDigestChunk, list.files[f].size - at)});
  }
  in_order(
      static_cast<int64_t>(chunks.size()), threads,
      [&](int64_t i) {
        const Chunk& c = chunks[static_cast<size_t>(i)];
        std::string buffer(static_cast<size_t>(c.size), '\0');
        InputFile(list.files[c.file].path).read_exactly(c.begin, buffer.data(), buffer.size());
        return hash_bytes(buffer.data(), buffer.size());
      },
      [&](int64_t, uint64_t hash) { text += fmt::format("{:016x}\n", hash); });
  return digest_hex(text);
}

}  // namespace halftone
