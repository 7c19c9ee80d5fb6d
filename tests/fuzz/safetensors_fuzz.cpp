// links: checkpoint_formats
// seeds: tests/fuzz/seeds/safetensors
// dict: { } [ ] " : , "dtype" "shape" "data_offsets" "__metadata__" "F32" "BF16" "U8" [0,8] 4294967296 9223372036854775807 -1 1e9 null \x00
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string_view>

#include "halftone/base/error.h"
#include "halftone/checkpoint/safetensors.h"

// A safetensors file: any input yields tensors that lie one after another inside the file, or an Error.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace halftone;
  if (size < 8) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 8, size - 8);
  try {
    const uint64_t bytes = safetensors_header_bytes(std::span<const uint8_t, 8>(data, 8), size, "x");
    const SafetensorsHeader header = parse_safetensors_header(rest.substr(0, bytes), size, "x");
    uint64_t covered = 0;
    for (const TensorEntry& entry : header.tensors) {
      if (entry.begin != covered || entry.end < entry.begin) std::abort();
      if (byte_count(entry.dtype, entry.shape, "x") != entry.end - entry.begin) std::abort();
      covered = entry.end;
    }
    if (header.data_start + covered != size) std::abort();
  } catch (const Error&) {}
  // Most mutations break the length; the header is also parsed alone.
  try {
    parse_safetensors_header(rest, size + 8, "x");
  } catch (const Error&) {}
  return 0;
}
