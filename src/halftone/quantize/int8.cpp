#include "halftone/quantize/int8.h"

#include "halftone/quantize/int8_ref.h"
#include "halftone/quantize/two_pass.h"

namespace halftone {
namespace {

using quantize::Kernels;
using quantize::Source;

// Draws of rows [r0, r1) x columns [c0, c1): element (r, c) is at [(r - r0) * ld + c - c0] of the result. Groups of 8 draws begin at
// logical indices that are multiples of 8, hence the slack before each row.
struct Draws {
  const uint16_t* first;
  int64_t ld;
};
Draws draw(const Kernels& k, const Rounding& how, int64_t cols, int64_t r0, int64_t r1, int64_t c0, int64_t c1,
           std::vector<uint16_t>& buffer) {
  const int64_t width = c1 - c0, length = how.row_length == 0 ? cols : how.row_length;
  const bool aligned = length % 8 == 0;  // then all rows have the same slack
  const int64_t ld = round_up(width, 8) + 8;
  uint16_t* out = quantize::scratch(buffer, (r1 - r0) * ld);
  const int64_t slack = how.index(r0, c0, cols) & 7;
  for (int64_t r = r0; r < r1; ++r) {
    const int64_t i = how.index(r, c0, cols), g = i >> 3, groups = ((i + width - 1) >> 3) - g + 1;
    uint16_t* row = out + (r - r0) * ld;
    k.random16(how.key, how.step, how.micro, g, groups, row);
    if (!aligned && (i & 7) != slack) std::memmove(row + slack, row + (i & 7), static_cast<size_t>(width) * sizeof(uint16_t));
  }
  return {out + slack, ld};
}

void column_tile(const Int8Quantize& p, const Source& s, const Kernels& k, const float* inv, int64_t r0, int64_t r1) {
  static thread_local std::vector<uint16_t> buffer;
  constexpr int64_t kChunk = 512;
  const int64_t stride = panel_bytes(DType::s8, p.rows), quads = (r1 - r0) / 4;
  const Rounding& how = p.col_rounding;
  for (int64_t first = 0; first < p.cols; first += kChunk) {
    const int64_t last = std::min(p.cols, first + kChunk);
    Draws random{nullptr, 0};
    if (how.stochastic) random = draw(k, how, p.cols, r0, r1, first, last, buffer);
    const auto draws = [&](int64_t c) { return random.first == nullptr ? nullptr : random.first + (c - first); };
    const auto tile_of = [&](int64_t c) { return static_cast<int8_t*>(p.col_panels) + c / kPanelColumns * stride + r0 / 4 * kGroupBytes; };
    int64_t panels = 0;
    for (int64_t c = first; c + kPanelColumns <= last; c += panels * kPanelColumns) {
      panels = c + 2 * kPanelColumns <= last ? 2 : 1;
      k.int8_quads(s.row(r0, c), p.type, p.ld, quads, panels, inv + c, draws(c), random.ld, tile_of(c), stride);
    }
    // Remainder of groups and panels, and the padding.
    for (int64_t c = first; c < last; c += kPanelColumns) {
      const int64_t width = std::min(kPanelColumns, p.cols - c), done = width == kPanelColumns ? quads * 4 : 0;
      if (done == quantize::kTileRows) continue;
      int8_t* tile = tile_of(c);
      std::memset(tile + done * 16, 0, static_cast<size_t>((quantize::kTileRows - done) * 16));
      for (int64_t r = r0 + done; r < r1; ++r) {
        for (int64_t j = 0; j < width; ++j) {
          if (inv[c + j] == 0) continue;
          const float y = s.at(r, c + j) * inv[c + j];
          const int code = random.first == nullptr ? encode(Int::int8, y) : encode_sr(Int::int8, y, draws(c)[(r - r0) * random.ld + j]);
          tile[(r - r0) / 4 * kGroupBytes + j * 4 + (r - r0) % 4] = static_cast<int8_t>(code);
        }
      }
    }
  }
}

}  // namespace

void int8_quantize(const Int8Quantize& p, Isa isa) {
  const Source s{p.x, p.type, p.rows, p.cols, p.ld};
  quantize::check_source("int8 quantiser", s);
  check((p.row_codes == nullptr) == (p.row_scale == nullptr) || p.rows * p.cols == 0,
        "int8 quantiser: row codes and row scales must be given together");
  check((p.col_panels == nullptr) == (p.col_scale == nullptr) || p.rows * p.cols == 0,
        "int8 quantiser: column codes and column scales must be given together");
  check(p.row_codes_ld == 0 || p.row_codes_ld >= p.cols, "int8 quantiser: expected a row stride of the codes >= {}, found {}", p.cols,
        p.row_codes_ld);
  if (isa == Isa::ref) return ref::int8_quantize(p);
  const Kernels& k = quantize::kernels(isa);
  static thread_local std::vector<float> inv_buffer;
  float* inv = quantize::scratch(inv_buffer, round_up(p.cols, kPanelColumns));
  const int64_t ld = p.row_codes_ld == 0 ? p.cols : p.row_codes_ld;
  quantize::two_pass(
      s, k, p.row_codes != nullptr, p.col_panels != nullptr,
      [&](int64_t r, uint32_t amax) {
        static thread_local std::vector<uint16_t> buffer;
        const ref::Int8Scale scale = ref::int8_scale(amax);
        p.row_scale[r] = scale.scale;
        if (scale.inv == 0) {
          std::memset(p.row_codes + r * ld, 0, static_cast<size_t>(p.cols));
          return;
        }
        const uint16_t* random = nullptr;
        if (p.row_rounding.stochastic && p.cols > 0) random = draw(k, p.row_rounding, p.cols, r, r + 1, 0, p.cols, buffer).first;
        k.int8_row(s.row(r), p.type, p.cols, scale.inv, random, p.row_codes + r * ld);
      },
      [&](int64_t c, uint32_t amax) {
        const ref::Int8Scale scale = ref::int8_scale(amax);
        p.col_scale[c] = scale.scale;
        inv[c] = scale.inv;
      },
      [&](int64_t r0, int64_t r1) { column_tile(p, s, k, inv, r0, r1); });
}

}  // namespace halftone
