#pragma once
#include <cstdint>
#include <vector>

#include "halftone/data/file_list.h"

namespace halftone {

// Part of a file: bytes [begin, end). A unit (line, paragraph) belongs to the piece in which it starts.
struct Piece {
  size_t file;
  int64_t begin, end;
};

// Groups the files into shards of about kShardBytes; splits larger files if `cut` allows it. Depends only on the file sizes, so that the
// order of documents does not depend on the machine.
constexpr int64_t kShardBytes = int64_t{1} << 20;
std::vector<std::vector<Piece>> make_shards(const FileList& list, bool cut);

}  // namespace halftone
