#include <immintrin.h>

#include "halftone/formats/mx_scale.h"
#include "halftone/quantize/operand_tile.h"
#include "halftone/quantize/panels.h"

namespace halftone::quantize {
namespace {

// Folded bytes of the 16 e2m1 codes for every distance of a block from the reference, and flags of the codes that lost bits. Below kLowest
// every code is lost in the same way.
constexpr int kLowest = -48;
struct FoldRow {
  alignas(16) uint8_t byte[16];
  uint8_t changed[16];
  bool exact;
};
template <Float kTarget>
constexpr std::array<FoldRow, 1 - kLowest> make_table() {
  std::array<FoldRow, 1 - kLowest> t{};
  for (int d = kLowest; d <= 0; ++d) {
    FoldRow& row = t[static_cast<size_t>(d - kLowest)];
    row.exact = true;
    for (int q = 0; q < 16; ++q) {
      const FoldedCode folded = fold_code(kTarget, static_cast<uint8_t>(q), d, 0);
      row.byte[q] = folded.code, row.changed[q] = folded.changed ? 1 : 0;
      row.exact = row.exact && !folded.changed;
    }
  }
  return t;
}
constexpr auto kFoldE4m3 = make_table<Float::e4m3>(), kFoldE5m2 = make_table<Float::e5m2>();

unsigned long long fold_block(const FoldRow& row, const uint8_t* codes, int64_t n, uint8_t* out) {
  const __m128i table = _mm_load_si128(reinterpret_cast<const __m128i*>(row.byte));
  int64_t c = 0;
  for (; c + 16 <= n; c += 16) {
    const __m128i q = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + c));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + c), _mm_shuffle_epi8(table, q));
  }
  for (; c < n; ++c) out[c] = row.byte[codes[c]];
  unsigned long long lost = 0;
  if (!row.exact) {
    for (int64_t i = 0; i < n; ++i) lost += row.changed[codes[i]];
  }
  return lost;
}

}  // namespace

unsigned long long fold_rows(const CopyState& state, int64_t begin, int64_t end) {
  const QuantizedCopy& copy = *state.copy;
  const OperandSpec& s = state.spec;
  const bool narrow = copy.form == ValueForm::fold_e4m3;
  const Float target = narrow ? Float::e4m3 : Float::e5m2;
  const int64_t blocks = ceil_div(state.C, s.block), high = s.granularity == Granularity::tile ? s.block : 1;
  const uint8_t whole = mx_reference_byte(float_of(s.element), s.mode, s.clip, state.amax);
  unsigned long long lost = 0;
  for (int64_t r = begin; r < end; ++r) {
    const uint8_t* bytes = state.scale_bytes + r / high * blocks;
    const uint8_t* codes = state.codes + r * state.C;
    uint8_t* out = static_cast<uint8_t*>(copy.values) + r * state.C;
    uint8_t reference = whole;
    if (narrow) {
      reference = 0;
      for (int64_t b = 0; b < blocks; ++b) reference = std::max(reference, bytes[b]);
      copy.fold_scale[r] = reference == kE8m0Nan ? quiet_nan() : fold_scale(target, reference - 127);
    }
    if (reference == kE8m0Nan) {
      std::fill_n(out, state.C, poison_code(target));
      continue;
    }
    for (int64_t b = 0; b < blocks; ++b) {
      const int64_t c = b * s.block, n = std::min<int64_t>(s.block, state.C - c);
      if (bytes[b] == kE8m0Nan) {
        std::fill_n(out + c, n, poison_code(target));
        continue;
      }
      const auto row = static_cast<size_t>(std::max(bytes[b] - reference, kLowest) - kLowest);
      lost += fold_block(narrow ? kFoldE4m3[row] : kFoldE5m2[row], codes + c, n, out + c);
    }
  }
  return lost;
}

}  // namespace halftone::quantize
