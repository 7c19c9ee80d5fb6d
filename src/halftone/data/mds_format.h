#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace halftone {

// MosaicML streaming's MDS, version 2: index.json describes shard files. A shard, little-endian: u32 samples n, u32 offset[n + 1] in the
// file, the writer's settings, then the samples; a sample is a u32 size of each column of variable size, then the columns' bytes. A shard
// may be compressed as a whole.
struct MdsColumn {
  std::string name, encoding;
  int64_t size = -1;  // bytes; -1: variable
};
struct MdsShard {
  std::vector<MdsColumn> columns;
  std::string raw_name, zip_name;  // file beside index.json, and the compressed one; empty: none
  int64_t samples = 0, raw_bytes = 0, zip_bytes = 0;
};

// Error naming `path` for anything else: another version or format, missing fields, names that leave the folder, a compression other than
// zstd and gzip.
std::vector<MdsShard> parse_mds_index(std::string_view json, const std::string& path);

// Reads a shard from its start to its end, decompressed, with read(out, size) as of ByteStream, and calls visit(sample, columns) with the
// bytes of each column. Memory: the offsets, and one sample, of up to `longest` bytes. Error naming `path` and the sample.
void read_mds_shard(const MdsShard& shard, const std::function<size_t(char*, size_t)>& read, const std::string& path, int64_t longest,
                    const std::function<void(int64_t sample, std::span<const std::string_view> columns)>& visit);

// Whether an encoding holds token ids: ndarray with integers of any width, or bytes, then int64 as LLM Foundry writes them.
bool is_mds_ids(std::string_view encoding);
// Appends the ids of a column. Error, without the place, for a wrong header or size and for ids that are not from 0 to vocab_size - 1.
void append_mds_ids(std::string_view encoding, std::string_view bytes, int64_t vocab_size, std::vector<int32_t>& out);

}  // namespace halftone
