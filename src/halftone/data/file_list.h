#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace halftone {

struct SourceFile {
  std::string path;        // path to open
  std::string name;        // relative to FileList::root: the same on every machine
  int64_t size = 0;        // bytes
  int64_t changed_ns = 0;  // the later of modification and status change
  std::string version;     // of a remote file, instead of a time (RemoteFile)
};

struct FileList {
  std::string pattern;            // as requested
  std::string root;               // deepest folder that contains all files
  std::vector<SourceFile> files;  // sorted by name, byte by byte
  int64_t others = 0;             // files of the folder with other suffixes
  int64_t bytes() const;
  // Names, sizes and change times or versions. Cheap; equal means that no file was touched.
  std::string fingerprint() const;
};

// Files named by `pattern`: a file, a folder (everything below it whose name ends in one of `suffixes`; none: everything), or a glob with
// `*`, `?`, `[...]` inside a path component and `**` for any number of folders. Wildcards match no leading dot and `**`
// follows no linked folder. A remote address is listed by its server (list_remote). No match is an Error.
FileList find_files(const std::string& pattern, const std::vector<std::string>& suffixes);

// The list of files that were chosen otherwise, not empty; sets their names. `pattern` as the user wrote it.
FileList list_files(const std::string& pattern, std::vector<SourceFile> files, int64_t others = 0);
// Size and time of a local file.
SourceFile local_file(const std::string& path);

// Digest over names, sizes and contents, independent of the files' location and times. Reads everything but remote files, whose versions
// stand for their contents.
std::string content_digest(const FileList& list, int threads);

}  // namespace halftone
