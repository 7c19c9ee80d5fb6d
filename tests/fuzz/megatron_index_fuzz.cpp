// links: base
// sources: src/halftone/data/megatron_index.cpp
// seeds: tests/fuzz/seeds/megatron_index
// dict: MMIDIDX\x00\x00 \x01\x00\x00\x00\x00\x00\x00\x00 \xFF\xFF\xFF\xFF\xFF\xFF\xFF\x7F
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "halftone/base/error.h"
#include "halftone/data/megatron_index.h"

// An index of a .bin file of 1000 bytes: sequences lie inside of it, or an Error.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr int64_t kBin = 1000;
  try {
    const halftone::MegatronIndex index({reinterpret_cast<const std::byte*>(data), size}, kBin, "x.idx");
    int64_t tokens = 0;
    for (int64_t d = 0; d < index.documents(); ++d) {
      index.each_sequence(d, [&](int64_t offset, int64_t n) {
        if (offset < 0 || n < 0 || offset + n * index.width() > kBin) std::abort();
        tokens += n;
      });
    }
    if (tokens != index.tokens()) std::abort();
    if (index.contiguous() && tokens * index.width() != kBin) std::abort();
  } catch (const halftone::Error&) {}
  return 0;
}
