#pragma once
#include <cstdint>
#include <vector>

#include "halftone/data/file_list.h"

namespace halftone {

// Part of a file: bytes [begin, end). Units (lines, paragraphs) belong to the piece in which they start.
struct Piece {
  size_t file;
  int64_t begin, end;
};

// Groups the files into shards of about kShardBytes; larger files are cut when `cut` allows it. Depends on the file sizes
// only, so the order of documents does not depend on the machine.
constexpr int64_t kShardBytes = int64_t{1} << 20;
std::vector<std::vector<Piece>> make_shards(const FileList& list, bool cut);

}  // namespace halftone
