// Copies with one scale per row: a row is encoded while it is in cache after its amax, columns into panels in a second pass.
#include <algorithm>

#include "halftone/quantize/operand_tile.h"

namespace halftone::quantize {
namespace {

uint16_t* draw_buffer(int64_t rows, int64_t width) {
  static thread_local std::vector<uint16_t> buffer;
  return scratch(buffer, draw_elements(rows, width));
}

void write_row(const QuantizeOperand& p, const Source& s, const OperandKernels& k, int64_t r, uint32_t amax) {
  const QuantizedCopy& copy = p.row;
  const OperandSpec& spec = copy.spec;
  const ScalePair scale = fp32_scale(spec, amax);
  static_cast<float*>(copy.scales)[r] = scale.scale;
  uint8_t* codes = copy.codes == nullptr ? nullptr : copy.codes + r * p.cols;
  bf16* values = copy.values == nullptr ? nullptr : static_cast<bf16*>(copy.values) + r * p.cols;
  if (poisoned(amax)) {
    if (codes != nullptr) std::fill_n(codes, p.cols, is_float(spec.element) ? poison_code(float_of(spec.element)) : uint8_t{0});
    if (values != nullptr) std::fill_n(values, p.cols, bf16(quiet_nan()));
    return;
  }
  const uint16_t* draws = nullptr;
  if (spec.stochastic) draws = draw_tile(k, copy.rounding, p.cols, r, 0, 1, p.cols, draw_buffer(1, p.cols)).first;
  k.row(spec.element, s.row(r), p.type, p.cols, scale.inv, draws, codes, values);
}

// Writes panels of the transposed copy; inv[c] is 0 in a poisoned column.
class PanelWriter {
 public:
  PanelWriter(const QuantizeOperand& p, const Source& s, const OperandKernels& k, const float* inv, bool poisoned)
      : p_(p), s_(s), k_(k), inv_(inv), poisoned_(poisoned) {}

  // Rows [r0, r1) of all panels, padding included.
  void write(int64_t r0, int64_t r1) const {
    constexpr int64_t kChunk = 512;
    const int64_t whole = (r1 - r0) / group_, all = round_up(ceil_div(r1 - r0, group_), kTileGroups);
    for (int64_t first = 0; first < p_.cols; first += kChunk) {
      const int64_t last = std::min(p_.cols, first + kChunk);
      DrawTile draws{nullptr, 0};
      if (spec_.stochastic) {  // with room for whole groups and panels; their padding encodes to 0 with any draw
        uint16_t* buffer = draw_buffer(all * group_, round_up(last - first, kPanelColumns));
        draws = draw_tile(k_, p_.transposed.rounding, p_.cols, r0, first, r1 - r0, last - first, buffer);
      }
      const auto panels = [&](const void* x, int64_t ld, int64_t group, int64_t groups, int64_t c, int64_t columns) {
        const uint16_t* u = draws.first == nullptr ? nullptr : draws.first + group * group_ * draws.ld + (c - first);
        std::byte* out = out_ + c / kPanelColumns * stride_ + (r0 / group_ + group) * kGroupBytes;
        k_.panels(spec_.element, x, p_.type, ld, groups, columns, inv_ + c, u, draws.ld, out, stride_);
      };
      int64_t columns = 0;
      for (int64_t c = first; c < last; c += columns) {
        columns = last - c >= 2 * kPanelColumns ? 2 * kPanelColumns : kPanelColumns;
        const int64_t done = c + columns <= last ? whole : 0;
        if (done > 0) panels(s_.row(r0, c), p_.ld, 0, done, c, columns);
        for (int64_t i = c; done < all && i < std::min(last, c + columns); i += kPanelColumns) {
          // The rest of a panel, from a zero-padded copy of the elements.
          alignas(64) std::byte padded[kTileRows * kPanelColumns * sizeof(float)];
          const auto size = static_cast<int64_t>(size_of(p_.type)), row_bytes = kPanelColumns * size;
          std::memset(padded, 0, static_cast<size_t>((all - done) * group_ * row_bytes));
          for (int64_t r = done * group_; r < r1 - r0; ++r) {
            const auto n = static_cast<size_t>(std::min(kPanelColumns, last - i) * size);
            std::memcpy(padded + (r - done * group_) * row_bytes, s_.row(r0 + r, i), n);
          }
          panels(padded, kPanelColumns, done, all - done, i, kPanelColumns);
        }
      }
    }
    if (!poisoned_ || spec_.element == Element::int8) return;  // int8 codes of x * 0 are 0, also where x is NaN or infinite
    const bf16 value(quiet_nan());
    for (int64_t c = 0; c < p_.cols; ++c) {
      for (int64_t r = r0; r < r1 && inv_[c] == 0; ++r) std::memcpy(out_ + panel_offset(DType::bf16, p_.rows, r, c), &value, sizeof value);
    }
  }

 private:
  const QuantizeOperand& p_;
  const Source& s_;
  const OperandKernels& k_;
  const float* inv_;
  bool poisoned_;
  const OperandSpec& spec_ = p_.transposed.spec;
  const DType type_ = panel_type(spec_);
  int64_t group_ = group_size(type_), stride_ = panel_bytes(type_, p_.rows);
  std::byte* out_ = static_cast<std::byte*>(p_.transposed.panels);
};

}  // namespace

bool quantize_rows(const QuantizeOperand& p, const OperandKernels& k) {
  const QuantizedCopy &row = p.row, &col = p.transposed;
  if (p.want_transposed && (col.panels == nullptr || (p.want_row && row.spec.element != col.spec.element))) return false;
  if (p.want_row) {
    if (!has_panels(row.spec) || row.scales == nullptr || operand_length(row, p.cols) != p.cols) return false;
    if (row.form == ValueForm::f32 || (row.form == ValueForm::bf16 && row.spec.element == Element::int8)) return false;
    if (row.codes == nullptr && row.values == nullptr) return false;
    if (row.outer != nullptr) *row.outer = 1;
  }
  const Source s{p.x, p.type, p.rows, p.cols, p.ld};
  static thread_local std::vector<float> buffer;
  const int64_t padded = round_up(p.cols, kPanelColumns);
  float* inv = p.want_transposed ? scratch(buffer, padded) : nullptr;
  bool poison = false;
  over_amax(
      s, k, p.want_transposed,
      [&](int64_t r, uint32_t amax) {
        if (p.want_row) write_row(p, s, k, r, amax);
      },
      [&](int64_t c, uint32_t amax) {
        const ScalePair scale = fp32_scale(col.spec, amax);
        static_cast<float*>(col.scales)[c] = scale.scale;
        inv[c] = poisoned(amax) ? 0 : scale.inv;
        poison = poison || poisoned(amax);
      });
  if (!p.want_transposed) return true;
  std::fill(inv + p.cols, inv + padded, 0.0f);
  const PanelWriter panels(p, s, k, inv, poison);
  s.over_tiles([&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) panels.write(t * kTileRows, std::min(s.rows, (t + 1) * kTileRows));
  });
  return true;
}

}  // namespace halftone::quantize
