#include "halftone/quantize/kernels.h"

#include "halftone/formats/float_code.h"
#include "halftone/formats/int_spec.h"

namespace halftone::quantize {

int8_t int8_one(float y, const uint16_t* random) {
  return static_cast<int8_t>(random == nullptr ? encode(Int::int8, y) : encode_sr(Int::int8, y, *random));
}

uint8_t e4m3_one(float y, bf16* value) {
  const uint8_t code = encode(Float::e4m3, y);
  if (value != nullptr) *value = bf16(decode(Float::e4m3, code));
  return code;
}

void random16_group(PhiloxKey key, uint32_t step, uint32_t micro, int64_t g, uint16_t* out) {
  for (const uint32_t word : philox(key, static_cast<uint64_t>(g), step, micro)) {
    *out++ = static_cast<uint16_t>(word);
    *out++ = static_cast<uint16_t>(word >> 16);
  }
}

}  // namespace halftone::quantize
