// links: base json
// sources: src/halftone/data/mds_format.cpp
// seeds: tests/fuzz/seeds/mds
// dict: "shards" "column_names" "column_encodings" "column_sizes" "format" "mds" "raw_data" "basename" "bytes" "samples" null
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "halftone/base/error.h"
#include "halftone/data/mds_format.h"

// index.json, a zero byte, and the bytes of its shards: columns lie inside their samples and ids are in range, or an Error.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const std::string_view json = all.substr(0, all.find('\0'));
  const std::string_view bytes = all.substr(std::min(all.size(), json.size() + 1));
  std::vector<int32_t> ids;
  for (const char* encoding : {"ndarray", "ndarray:int32", "ndarray:uint16:3", "bytes"}) {
    try {
      ids.clear();
      halftone::append_mds_ids(encoding, bytes, 300, ids);
      for (const int32_t id : ids)
        if (id < 0 || id >= 300) std::abort();
    } catch (const halftone::Error&) {}
  }
  try {
    for (const halftone::MdsShard& shard : halftone::parse_mds_index(json, "index.json")) {
      size_t at = 0;
      const auto read = [&](char* out, size_t n) {
        n = std::min(n, bytes.size() - at);
        if (n > 0) std::memcpy(out, bytes.data() + at, n);
        at += n;
        return n;
      };
      halftone::read_mds_shard(shard, read, "x.mds", 1 << 20, [&](int64_t, std::span<const std::string_view> columns) {
        size_t sum = 0;
        for (const std::string_view column : columns) sum += column.size();
        if (columns.size() != shard.columns.size() || sum > bytes.size()) std::abort();
      });
    }
  } catch (const halftone::Error&) {}
  return 0;
}
