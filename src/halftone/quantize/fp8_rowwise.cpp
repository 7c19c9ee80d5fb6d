#include "halftone/quantize/fp8_rowwise.h"

#include "halftone/quantize/fp8_rowwise_ref.h"
#include "halftone/quantize/two_pass.h"

namespace halftone {
namespace {

constexpr uint8_t kPoison = poison_code(Float::e4m3);
const bf16 kPoisonValue(std::numeric_limits<float>::quiet_NaN());

void column_tile(const Fp8Rowwise& p, const quantize::Source& s, const quantize::Kernels& k, const float* inv, bool poisoned, int64_t r0,
                 int64_t r1) {
  if (p.col_codes != nullptr) {
    for (int64_t r = r0; r < r1; ++r) {
      uint8_t* codes = p.col_codes + r * p.cols;
      k.e4m3_row(s.row(r), p.type, p.cols, inv, 1, codes, nullptr);
      if (poisoned)
        for (int64_t c = 0; c < p.cols; ++c)
          if (inv[c] == 0) codes[c] = kPoison;
    }
  }
  if (p.col_panels == nullptr) return;
  const int64_t stride = panel_bytes(DType::bf16, p.rows);
  const int64_t end = r1 < p.rows ? r1 : round_up(r1, 2 * kTileGroups);  // the last tile also writes the padding
  const auto tile_of = [&](int64_t c) { return static_cast<std::byte*>(p.col_panels) + c / kPanelColumns * stride + r0 / 2 * kGroupBytes; };
  int64_t panels = 0;
  for (int64_t c = 0; c + kPanelColumns <= p.cols; c += panels * kPanelColumns) {
    panels = c + 2 * kPanelColumns <= p.cols ? 2 : 1;
    k.e4m3_pairs(s.row(r0, c), p.type, p.ld, (r1 - r0) / 2, panels, inv + c, tile_of(c), stride);
  }
  for (int64_t c = 0; c < p.cols; c += kPanelColumns) {
    auto* tile = reinterpret_cast<bf16*>(tile_of(c));
    const int64_t width = std::min(kPanelColumns, p.cols - c), done = width == kPanelColumns ? (r1 - r0) / 2 * 2 : 0;
    if (done < end - r0) std::memset(static_cast<void*>(tile + done * 16), 0, static_cast<size_t>((end - r0 - done) * 32));
    const auto at = [&](int64_t r, int64_t j) -> bf16& { return tile[(r - r0) / 2 * 32 + j * 2 + (r - r0) % 2]; };
    for (int64_t r = r0 + done; r < r1; ++r)
      for (int64_t j = 0; j < width; ++j) at(r, j) = bf16(decode(Float::e4m3, encode(Float::e4m3, s.at(r, c + j) * inv[c + j])));
    if (!poisoned) continue;
    for (int64_t j = 0; j < width; ++j)
      if (inv[c + j] == 0)
        for (int64_t r = r0; r < r1; ++r) at(r, j) = kPoisonValue;
  }
}

}  // namespace

void fp8_rowwise(const Fp8Rowwise& p, Isa isa) {
  const quantize::Source s{p.x, p.type, p.rows, p.cols, p.ld};
  quantize::check_source("fp8 quantiser", s);
  const bool by_row = p.row_codes != nullptr || p.row_values != nullptr, by_col = p.col_codes != nullptr || p.col_panels != nullptr;
  check(by_row == (p.row_scale != nullptr) || p.rows * p.cols == 0, "fp8 quantiser: row outputs and row scales must be given together");
  check(by_col == (p.col_scale != nullptr) || p.rows * p.cols == 0,
        "fp8 quantiser: column outputs and column scales must be given together");
  if (isa == Isa::ref) return ref::fp8_rowwise(p);
  const quantize::Kernels& k = quantize::kernels(isa);
  static thread_local std::vector<float> inv_buffer;
  float* inv = quantize::scratch(inv_buffer, round_up(p.cols, kPanelColumns));
  bool poisoned = false;
  quantize::two_pass(
      s, k, by_row, by_col,
      [&](int64_t r, uint32_t amax) {
        const ref::Fp8Scale scale = ref::fp8_scale_pow2(amax);
        p.row_scale[r] = scale.scale;
        uint8_t* codes = p.row_codes == nullptr ? nullptr : p.row_codes + r * p.cols;
        bf16* values = p.row_values == nullptr ? nullptr : p.row_values + r * p.cols;
        if (scale.inv == 0) {
          if (codes != nullptr) std::fill_n(codes, p.cols, kPoison);
          if (values != nullptr) std::fill_n(values, p.cols, kPoisonValue);
          return;
        }
        k.e4m3_row(s.row(r), p.type, p.cols, &scale.inv, 0, codes, values);
      },
      [&](int64_t c, uint32_t amax) {
        const ref::Fp8Scale scale = ref::fp8_scale_pow2(amax);
        p.col_scale[c] = scale.scale;
        inv[c] = scale.inv;
        poisoned = poisoned || scale.inv == 0;
      },
      [&](int64_t r0, int64_t r1) { column_tile(p, s, k, inv, poisoned, r0, r1); });
}

}  // namespace halftone
