#pragma once
#include <string>
#include <vector>

#include "halftone/checkpoint/gguf_file.h"
#include "halftone/models/decoder_config.h"

// llama.cpp's names for the settings and tensors of a model. No torch here.
namespace halftone {

// Entries of the model itself: general.architecture and those that begin with it. Error, one line, if llama.cpp has no architecture for the
// family, or its graph would compute something else. Windows that only long rows feel, and RoPE scaling by the length of the row, shorten
// the context instead.
GgufMetadata gguf_metadata(const DecoderConfig& config);

// A tensor of the file as rows of one of ours. Ours is seen as [groups, group_rows, K]; the file has rows first, first + step, ... of every
// group, `rows` of them. transposed: each group's rows become columns.
struct GgufSource {
  // matrix: may be stored as codes; table: an embedding or a head; other: fp32.
  enum class Kind { other, matrix, table };
  std::string name{}, native{};
  std::vector<int64_t> shape{};  // in the file, the last extent contiguous
  Kind kind = Kind::other;
  int64_t groups = 1, group_rows = 0, first = 0, step = 1, rows = 0;
  bool transposed = false;
};
// The file's tensors that hold one of ours; none for a tied head and for what llama.cpp's graph lacks. Error for an unknown name.
std::vector<GgufSource> gguf_sources(const DecoderConfig& config, const std::string& native, const std::vector<int64_t>& shape);

// rope_freqs.weight: what RoPE's frequencies are divided by, one number per pair; empty where metadata alone describe the scaling.
std::vector<float> gguf_rope_factors(const DecoderConfig& config);

}  // namespace halftone
