#include "halftone/quantize/check_operand.h"

#include "halftone/formats/names.h"

namespace halftone {
namespace {

void check_spec(const OperandSpec& s) {
  const std::string_view element = name_of(kElementNames, s.element, "hp");
  const bool blocks = s.granularity == Granularity::block || s.granularity == Granularity::tile;
  check(s.quantized(), "quantiser: expected a quantised element type, found hp");
  check(s.granularity != Granularity::none, "quantiser: {} without a granularity", element);
  check(!blocks || s.block == 16 || s.block == 32 || s.block == 128, "quantiser: expected blocks of 16, 32 or 128 elements, found {}",
        s.block);
  const bool fp32 = s.scale == ScaleFormat::fp32, eight_bit = s.element == Element::e4m3 || s.element == Element::e5m2;
  bool legal = false;
  switch (s.element) {
    case Element::int8:
    case Element::int4:
      legal = blocks ? s.scale == (s.element == Element::int8 ? ScaleFormat::e8m0 : ScaleFormat::e4m3) : fp32;
      break;
    case Element::uint4:
      legal = (fp32 || s.scale == ScaleFormat::bf16) && s.granularity == Granularity::block;
      break;
    case Element::ternary:
      legal = fp32 && s.granularity == Granularity::tensor;
      break;
    default:
      legal = ((fp32 || s.scale == ScaleFormat::fp32_pow2) && eight_bit) || (s.scale == ScaleFormat::e8m0 && blocks) ||
              (has_byte_scales(s.scale) && s.element == Element::e2m1 && blocks);
  }
  constexpr const char* kGranularities[] = {"no", "tensor", "row", "1xB", "BxB"};
  constexpr const char* kScales[] = {"no", "fp32", "fp32 power-of-two", "e8m0", "e4m3", "ue5m3", "bf16"};
  check(legal, "quantiser: {} elements do not combine with {} scales in {}", element, kGranularities[static_cast<int>(s.granularity)],
        kScales[static_cast<int>(s.scale)]);
  const bool mx = s.scale == ScaleFormat::e8m0;
  check(mx == (s.mode != ScaleMode::none), "quantiser: a scale mode needs e8m0 scales, and they need one");
  check(s.mode != ScaleMode::uos || s.element == Element::e2m1, "quantiser: scale mode uos is defined for e2m1, not for {}", element);
  const bool mxfp4 = mx && s.element == Element::e2m1;
  check(s.two_level != TwoLevel::macro || (mxfp4 && s.block == 32),
        "quantiser: macro blocks need e2m1 elements with e8m0 scales and blocks of 32");
  check(s.two_level != TwoLevel::tensor || (has_byte_scales(s.scale) && !mx),
        "quantiser: a tensor's outer scale needs e4m3 or ue5m3 block scales");
  check(s.chain != Fp4Chain::torchao || (s.scale == ScaleFormat::e4m3 && s.element == Element::e2m1 && s.two_level == TwoLevel::tensor),
        "quantiser: scale chain torchao needs e2m1 elements with e4m3 block scales and an outer scale");
  check(!s.eden || (s.element == Element::e2m1 && s.granularity == Granularity::block && s.block == 16 && s.scale == ScaleFormat::e4m3 &&
                    s.two_level == TwoLevel::tensor && s.hadamard != 0 && !s.stochastic),
        "quantiser: MS-EDEN needs 1x16 blocks of e2m1 with e4m3 scales, an outer scale and a rotation, and rounds codes to nearest");
  check(s.choice == ScaleChoice::amax || (s.element == Element::e2m1 && has_byte_scales(s.scale) && !mx && !s.eden),
        "quantiser: a choice between two scales needs e2m1 elements with e4m3 or ue5m3 scales, without MS-EDEN");
  check(s.clip == Clip::none || (mxfp4 && s.granularity == Granularity::block && s.two_level != TwoLevel::macro),
        "quantiser: clipping needs 1x32 blocks of e2m1 with e8m0 scales, without macro blocks");
}

void check_copy(const QuantizedCopy& c, bool transposed, int64_t rows, int64_t contracted) {
  check_spec(c.spec);
  const int n = c.spec.hadamard;
  check(n == 0 || n == 16 || n == 32 || n == 64 || n == 128, "quantiser: expected a rotation of 16, 32, 64 or 128 elements, found {}", n);
  check(c.length == 0 || c.length >= contracted, "quantiser: expected a padded length of at least {}, found {}", contracted, c.length);
  const int64_t C = operand_length(c, contracted);
  if (c.packed != nullptr) {
    check(bits_of(c.spec.element) < 8, "quantiser: {} codes have no packed form", name_of(kElementNames, c.spec.element));
    const int64_t group = packed_group(c.spec.element);
    check(C % group == 0, "quantiser: packed codes need a length that is a multiple of {}, found {}", group, C);
  }
  check(c.panels == nullptr || (transposed && has_panels(c.spec) && C == contracted && c.scales != nullptr),
        "quantiser: panels need transposed copies with one scale per row, int8 or nearest e4m3");
  check((c.values != nullptr) == (c.form != ValueForm::none) || rows * C == 0, "quantiser: values and their form must be given together");
  const bool macro = c.spec.two_level == TwoLevel::macro;  // macro scales do not follow from the tensor amax
  check(!is_fold(c.form) ||
            (c.spec.element == Element::e2m1 && c.spec.scale == ScaleFormat::e8m0 && (!macro || c.form == ValueForm::fold_e4m3)),
        "quantiser: only e2m1 codes with e8m0 scales fold into 8-bit codes, those with macro blocks into e4m3");
  check(!is_fold(c.form) || c.fold_scale != nullptr || rows * C == 0, "quantiser: folded codes need a place for their scale");
}

}  // namespace

void check_operand(const QuantizeOperand& p) {
  check(p.type == DType::bf16 || p.type == DType::f32, "quantiser: expected bf16 or f32 elements, found type {}", static_cast<int>(p.type));
  check(p.rows >= 0 && p.cols >= 0, "quantiser: expected sizes >= 0, found {} x {}", p.rows, p.cols);
  check(p.rows <= 1 || p.ld >= p.cols, "quantiser: expected a row stride >= {} columns, found {}", p.cols, p.ld);
  check(p.x != nullptr || p.rows * p.cols == 0, "quantiser: no input for {} x {} elements", p.rows, p.cols);
  check(!p.as_bf16 || (p.type == DType::f32 && p.row.spec.hadamard == 0 && p.transposed.spec.hadamard == 0),
        "quantiser: only fp32 elements that no copy rotates are taken as bf16");
  const int64_t groups = p.groups.groups;
  check(groups >= 0 && (groups == 0 || p.groups.offsets != nullptr), "quantiser: {} groups of rows without offsets", groups);
  check(groups == 0 || p.rows % kGroupRows == 0, "quantiser: expected groups in a multiple of {} rows, found {}", kGroupRows, p.rows);
  check(groups == 0 || !p.want_transposed || operand_length(p.transposed, p.rows) == p.rows,
        "quantiser: expected no padded length beside groups of rows, found {} for {} rows", p.transposed.length, p.rows);
  const bool ternary =
      (p.want_row && p.row.spec.element == Element::ternary) || (p.want_transposed && p.transposed.spec.element == Element::ternary);
  check(p.group_rows % kGroupRows == 0 && (p.group_rows == 0 || p.group_rows * groups == p.rows),
        "quantiser: {} groups of {} rows each do not add up to {}", groups, p.group_rows, p.rows);
  check(p.from.source == nullptr || (groups > 0 && p.from.each >= 1 && !ternary),
        "quantiser: rows of another matrix need groups, and no copy of them may be ternary");
  if (p.want_row) check_copy(p.row, false, p.rows, p.cols);
  if (p.want_transposed) check_copy(p.transposed, true, p.cols, p.rows);
}

}  // namespace halftone
