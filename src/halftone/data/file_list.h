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
  // Names, sizes and change times. Cheap; equal means that no file was touched.
  std::string fingerprint() const;
};

// Files named by `pattern`: a file, a folder (everything below it whose name ends in one of `suffixes`), or a glob with
// `*`, `?`, `[...]` inside a path component and `**` for any number of folders. Wildcards match no leading dot and `**`
// follows no linked folder. No match is an Error.
FileList find_files(const std::string& pattern, const std::vector<std::string>& suffixes);

// Digest over names, sizes and contents, independent of the files' location and times. Reads everything.
std::string content_digest(const FileList& list, int threads);

}  // namespace halftone
