#include "halftone/data/file_list.h"

#include <fmt/ranges.h>
#include <fnmatch.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "halftone/base/error.h"
#include "halftone/data/digest.h"
#include "halftone/data/file_io.h"
#include "halftone/data/ordered.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kDigestChunk = int64_t{16} << 20;

bool has_wildcard(const std::string& text) { return text.find_first_of("*?[") != std::string::npos; }
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
    if (::fnmatch(part.c_str(), name.c_str(), FNM_PERIOD) == 0) descend(folder / name);
  }
}

std::set<std::string> glob(const std::string& pattern) {
  std::vector<std::string> parts;
  for (const fs::path& part : fs::path(pattern).relative_path()) {
    // "a/**/**/b" would visit every folder many times.
    if (!part.empty() && !(part == "**" && !parts.empty() && parts.back() == "**")) parts.push_back(part.string());
  }
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

int64_t nanoseconds(const timespec& t) { return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec; }

}  // namespace

int64_t FileList::bytes() const {
  int64_t sum = 0;
  for (const SourceFile& f : files) sum += f.size;
  return sum;
}

std::string FileList::fingerprint() const {
  std::string text;
  for (const SourceFile& f : files) text += fmt::format("{}\n{} {}\n", f.name, f.size, f.changed_ns);
  return digest_hex(text);
}

FileList find_files(const std::string& pattern, const std::vector<std::string>& suffixes) {
  check(!pattern.empty(), "dataset_path is empty: expected a file, a folder or a glob");
  std::set<std::string> paths;
  FileList list;
  if (is_file(pattern)) {
    paths.insert(pattern);
  } else if (is_folder(pattern)) {
    for (const std::string& path : glob((fs::path(literal(pattern)) / "**").string())) {
      const bool read = std::any_of(suffixes.begin(), suffixes.end(), [&](const std::string& s) { return path.ends_with(s); });
      read ? static_cast<void>(paths.insert(path)) : static_cast<void>(++list.others);
    }
    check(!paths.empty(), "dataset_path {}: the folder holds no file ending in {}", pattern, fmt::join(suffixes, ", "));
  } else {
    check(has_wildcard(pattern), "dataset_path {}: no such file or folder", pattern);
    paths = glob(pattern);
    check(!paths.empty(), "dataset_path {}: no file matches", pattern);
  }
  list.pattern = pattern;
  const fs::path root = common_folder(paths);
  list.root = root.string();
  for (const std::string& path : paths) {
    struct stat info {};
    check(::stat(path.c_str(), &info) == 0, "cannot read {}", path);
    list.files.push_back({path, fs::path(path).lexically_relative(root.empty() ? fs::path(".") : root).generic_string(), info.st_size,
                          std::max(nanoseconds(info.st_mtim), nanoseconds(info.st_ctim))});
    if (root.empty()) list.files.back().name = path;
  }
  std::sort(list.files.begin(), list.files.end(), [](const SourceFile& a, const SourceFile& b) { return a.name < b.name; });
  return list;
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
