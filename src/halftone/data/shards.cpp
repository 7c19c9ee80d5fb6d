#include "halftone/data/shards.h"

#include <algorithm>
#include <utility>

namespace halftone {

std::vector<std::vector<Piece>> make_shards(const FileList& list, const std::function<bool(const SourceFile&)>& cut) {
  std::vector<std::vector<Piece>> shards;
  std::vector<Piece> open;
  int64_t bytes = 0;
  const auto close = [&] {
    if (!open.empty()) shards.push_back(std::exchange(open, {}));
    bytes = 0;
  };
  for (size_t f = 0; f < list.files.size(); ++f) {
    const int64_t size = list.files[f].size;
    const int64_t step = size > kShardBytes && cut(list.files[f]) ? kShardBytes : std::max<int64_t>(size, 1);
    for (int64_t at = 0; at < size || at == 0; at += step) {
      const int64_t end = std::min(size, at + step);
      if (bytes + (end - at) > kShardBytes) close();
      open.push_back({f, at, end});
      bytes += end - at;
    }
  }
  close();
  return shards;
}

}  // namespace halftone
