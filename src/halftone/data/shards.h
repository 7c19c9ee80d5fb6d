#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "halftone/data/file_list.h"

namespace halftone {

// Part of a file: bytes [begin, end). A unit (line, paragraph) belongs to the piece in which it starts.
struct Piece {
  size_t file;
  int64_t begin, end;
};

// Groups the files into shards of about kShardBytes; splits larger files if cut(file) allows it. Depends only on sizes and contents, so
// that the order of documents does not depend on the machine.
constexpr int64_t kShardBytes = int64_t{1} << 20;
std::vector<std::vector<Piece>> make_shards(const FileList& list, const std::function<bool(const SourceFile&)>& cut);

}  // namespace halftone
