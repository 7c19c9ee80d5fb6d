#include <algorithm>
#include <optional>

#include "halftone/device/error_text.h"
#include "halftone/quantize/cuda/arrange.h"
#include "halftone/quantize/cuda/encode.cuh"
#include "halftone/quantize/cuda/fp4_slab.h"
#include "halftone/quantize/cuda/generic.h"
#include "halftone/quantize/cuda/int_range.h"
#include "halftone/quantize/cuda/kernels.h"
#include "halftone/quantize/cuda/operand_cuda.h"
#include "halftone/quantize/cuda/statistics.h"
#include "halftone/quantize/operand_shape.h"

namespace halftone::device {
namespace {

// Which tile kernel writes a copy.
struct Family {
  Coder coder;
  Step step;
  int block;
  bool stochastic, tile128;
  bool operator==(const Family&) const = default;
};

bool aligned_to(const void* p, size_t bytes) { return reinterpret_cast<uintptr_t>(p) % bytes == 0; }

std::optional<Family> family_of(const QuantizeOperand& p, const QuantizedCopy& copy, bool transposed) {
  const OperandSpec& s = copy.spec;
  const int64_t C = operand_length(copy, transposed ? p.rows : p.cols);
  constexpr int64_t kMost = int64_t{65535} * kTile, kMostRows = kMost * kBand;  // of a grid (band_grid)
  if (p.rows == 0 || p.cols == 0 || p.cols % 8 != 0 || p.ld % 8 != 0 || C % 8 != 0 || !aligned_to(p.x, 16)) return {};
  if (p.rows > INT32_MAX / 2 || C > INT32_MAX / 32 || p.ld > INT32_MAX / 32 || p.cols > kMost || (!transposed && C > kMost)) return {};
  if (p.rows > kMostRows || (transposed && C > kMostRows)) return {};
  if (!aligned_to(copy.codes, 8) || !aligned_to(copy.packed, 4) || !aligned_to(copy.values, 16)) return {};
  if (s.stochastic && !whole_groups(copy.rounding, p.rows, p.cols, C)) return {};
  const bool fp8 = s.element == Element::e4m3 || s.element == Element::e5m2, fp4 = s.element == Element::e2m1;
  const bool integer = s.element == Element::int8 || s.element == Element::int4 || s.element == Element::ternary;
  const bool blocks = s.granularity == Granularity::block || s.granularity == Granularity::tile;
  if (copy.form == ValueForm::f32 || (copy.form == ValueForm::bf16 && integer) || (s.hadamard != 0 && !fp4)) return {};
  const Coder coder = s.element == Element::e4m3   ? Coder::e4m3
                      : s.element == Element::e5m2 ? Coder::e5m2
                      : fp4                        ? Coder::e2m1
                                                   : Coder::integer;
  Family f{coder, Step::multiply, 0, s.stochastic, false};
  if (fp8 && !blocks && !s.stochastic) return f;
  if (integer && !(s.element == Element::int4 && s.granularity == Granularity::tensor) && !(s.element == Element::ternary && copy.packed))
    return f;
  if (s.element == Element::e4m3 && blocks && s.block == 128 && s.scale != ScaleFormat::e8m0) {
    f.block = 128, f.tile128 = s.granularity == Granularity::tile;
    return f;
  }
  if (s.scale == ScaleFormat::e8m0 && s.block == 32 && (fp8 || fp4) && s.two_level == TwoLevel::none && s.clip != Clip::dynamic) {
    f.block = 32;
    // Nearest codes of elements that the scale lets pass 7 must saturate: not this step's.
    const bool below7 = s.mode != ScaleMode::floor && s.mode != ScaleMode::uos;
    if (p.type == DType::bf16 && s.clip == Clip::none && (s.stochastic || (fp4 && below7))) f.step = Step::exact;
    if (fp8 && s.clip != Clip::none) return {};
    return f;
  }
  if (fp4 && (s.scale == ScaleFormat::e4m3 || s.scale == ScaleFormat::ue5m3) && s.block == 16 && !is_fold(copy.form)) {
    f.block = 16, f.step = s.chain == Fp4Chain::alto ? Step::divide : Step::multiply;
    return f;
  }
  return {};
}

// Whether a row copy needs its whole rows and fits the kernel that holds them.
bool by_rows(const QuantizedCopy& row, int64_t cols) {
  const bool folded = row.form == ValueForm::fold_e4m3 && row.spec.granularity == Granularity::block;
  return (row.spec.granularity == Granularity::row || folded) && row_fits(operand_length(row, cols));
}

// What is written by which kernel.
struct Plan {
  std::optional<Family> row, transposed;
  bool fused = false, rows = false;  // rows: the row copy by the row kernel
};
Plan plan_of(const QuantizeOperand& p) {
  Plan plan;
  if (p.want_row) plan.row = family_of(p, p.row, false);
  if (p.want_transposed) plan.transposed = family_of(p, p.transposed, true);
  plan.fused = plan.row && plan.transposed && *plan.row == *plan.transposed;
  plan.rows = plan.row && !plan.fused && by_rows(p.row, p.cols);
  return plan;
}

// Whether a tile has 4 bytes of scales a vector, which are better stored together with others: row copies alone by thread blocks that are
// wide (tile_args.h), the others by tiles together (arrange.h). Blocks of 16 have eight.
bool gathers_scales(const QuantizedCopy& copy, int64_t C) {
  const OperandSpec& s = copy.spec;
  if (copy.scales == nullptr || s.granularity != Granularity::block || (s.block != 32 && s.block != kTile)) return false;
  return arranges(ceil_div(C, s.block) * (s.block == kTile ? 4 : 1)) && aligned_to(copy.scales, 16);
}

Form form_of(const QuantizedCopy& copy) {
  const bool codes = copy.codes != nullptr, packed = copy.packed != nullptr, values = copy.form != ValueForm::none;
  if (codes + packed + values != 1) return Form::any;
  if (codes) return Form::codes;
  if (packed) return Form::packed;
  if (copy.form == ValueForm::bf16) return Form::bf16;
  return copy.lost == nullptr ? Form::folded : Form::any;
}

// Memory of the tile kernels: maxima of an earlier pass, and scales as tiles write them.
struct Scratch {
  uint32_t *tensor, *rotated, *row, *column, *rotated_column;
  ScalePair* ternary;
  void *sums, *row_scales, *transposed_scales;
  size_t bytes;
};
Scratch scratch_in(const QuantizeOperand& p, void* memory) {
  auto* base = static_cast<uint8_t*>(memory);
  Scratch m{};
  const auto take = [&](int64_t n) {
    uint8_t* at = base == nullptr ? nullptr : base + m.bytes;
    m.bytes += static_cast<size_t>(n + 255) / 256 * 256;
    return at;
  };
  const bool ternary =
      (p.want_row && p.row.spec.element == Element::ternary) || (p.want_transposed && p.transposed.spec.element == Element::ternary);
  m.tensor = reinterpret_cast<uint32_t*>(take(kStatisticsParts * 4)), m.rotated = reinterpret_cast<uint32_t*>(take(kStatisticsParts * 4));
  m.row = reinterpret_cast<uint32_t*>(take(p.rows * 8)), m.column = reinterpret_cast<uint32_t*>(take(p.cols * 8));
  m.rotated_column = reinterpret_cast<uint32_t*>(take(p.cols * 4));
  m.ternary = reinterpret_cast<ScalePair*>(take(sizeof(ScalePair)));
  m.sums = take(ternary ? static_cast<int64_t>(ternary_workspace(p.rows * p.cols)) : 0);
  const bool both = p.want_row && p.want_transposed;
  const auto scales = [&](const QuantizedCopy& copy, int64_t R, int64_t contracted) -> void* {
    const int64_t C = operand_length(copy, contracted);
    // With fewer elements the second kernel takes longer than it saves, which is less where draws or a rotation take longer than stores.
    const bool slow = p.type == DType::bf16 && (copy.spec.stochastic || p.transposed.spec.hadamard != 0);
    // Kernels of packed MXFP4 of both copies with draws store pieces of sectors while they compute: 2 to 3% less time without that one.
    const bool packed_pair = copy.spec.element == Element::e2m1 && p.row.spec.stochastic && p.transposed.spec.hadamard != 16;
    // So does the kernel of rotated columns alone.
    const bool rotated = !p.want_row && p.type == DType::bf16 && copy.spec.stochastic && copy.spec.hadamard == 32 &&
                         copy.spec.element == Element::e2m1 && form_of(copy) == Form::packed;
    const bool hidden = rotated || (both && copy.packed != nullptr && copy.spec.stochastic && (p.type == DType::f32 || packed_pair));
    if (hidden || !gathers_scales(copy, C) || R * C < int64_t{1} << (both && !slow ? 25 : 26)) return nullptr;
    return take(ceil_div(R, kTile) * ceil_div(C, kTile) * kTile * 4);
  };
  if (p.want_row && p.want_transposed) m.row_scales = scales(p.row, p.rows, p.cols);
  if (p.want_transposed) m.transposed_scales = scales(p.transposed, p.cols, p.rows);
  return m;
}

CopyArgs copy_args(const QuantizeOperand& p, const QuantizedCopy& copy, bool transposed) {
  const OperandSpec& s = copy.spec;
  CopyArgs d{};
  d.codes = copy.codes, d.packed = copy.packed, d.scales = copy.scales, d.values = copy.values;
  d.outer = copy.outer, d.fold_scale = copy.fold_scale, d.lost = copy.lost;
  d.R = static_cast<int>(transposed ? p.cols : p.rows), d.C = static_cast<int>(operand_length(copy, transposed ? p.rows : p.cols));
  d.blocks = s.block > 0 ? static_cast<int>(ceil_div(d.C, s.block)) : 1;
  d.form = copy.form, d.element = s.element, d.chain = s.chain, d.two_level = s.two_level;
  if (s.scale == ScaleFormat::e8m0) d.mx = mx_rule(halftone::float_of(s.element), s.mode);
  d.tile = s.granularity == Granularity::tile, d.per_tensor = s.granularity == Granularity::tensor;
  d.pow2 = s.scale == ScaleFormat::fp32_pow2, d.wide = s.scale == ScaleFormat::ue5m3, d.fixed_clip = s.clip == Clip::fixed;
  d.scale_floor = s.scale_floor;
  if (!is_float(s.element))
    d.low = static_cast<float>(spec(int_of(s.element)).lowest), d.high = static_cast<float>(spec(int_of(s.element)).highest);
  d.in_range = stays_in_range(s, p.type);
  d.hadamard = s.hadamard, d.signs = copy.signs, d.signs_step = copy.signs_step, d.signs_key = copy.signs_key;
  if (s.stochastic) {
    d.draws = make_draws(copy.rounding, p.cols);
    d.draw_constant = s.element == Element::e4m3   ? draw_constant<Coder::e4m3>()
                      : s.element == Element::e5m2 ? draw_constant<Coder::e5m2>()
                      : s.element == Element::e2m1 ? draw_constant<Coder::e2m1>()
                                                   : draw_constant<Coder::integer>();
  }
  return d;
}

// Asks for the maxima that a copy's scales follow from and points the kernel to them.
void need_maxima(const QuantizeOperand& p, const QuantizedCopy& copy, bool transposed, const Scratch& m, StatisticsArgs& ask, CopyArgs& d) {
  const OperandSpec& s = copy.spec;
  if (s.element == Element::ternary) {
    d.scale_pair = m.ternary;
    return;
  }
  if (s.hadamard != 0) ask.hadamard = s.hadamard, ask.signs = copy.signs, ask.signs_step = copy.signs_step, ask.signs_key = copy.signs_key;
  if (d.per_tensor || s.two_level == TwoLevel::tensor || copy.form == ValueForm::fold_e5m2) {
    d.tensor_parts = kStatisticsParts;
    if (s.hadamard != 0) {
      d.tensor_amax = ask.rotated = m.rotated;
    } else if (p.amax != nullptr) {
      d.tensor_amax = p.amax, d.tensor_parts = 1;
    } else {
      d.tensor_amax = ask.tensor = m.tensor;
    }
  }
  if (s.granularity != Granularity::row && copy.form != ValueForm::fold_e4m3) return;
  const bool by_sign = s.element == Element::int4;
  if (!transposed) {
    d.group_amax = ask.row = m.row, ask.by_sign_row = by_sign;
  } else if (s.hadamard != 0) {
    d.group_amax = ask.rotated_column = m.rotated_column;
  } else {
    d.group_amax = ask.column = m.column, ask.by_sign_column = by_sign;
  }
}

using TileLaunch = void (*)(const TileArgs&, Copies, TileGrid, cudaStream_t);
using RowLaunch = void (*)(const RowArgs&, cudaStream_t);
// The kernel for one form where there is one: of bf16 input, which carries the traffic, and of what has kernels by blocks.
template <class T, Coder kCoder, Step kStep, int kBlock, bool kStochastic, Form... kForms>
TileLaunch with_form([[maybe_unused]] Form form) {
  TileLaunch launch = launch_tiles<T, kCoder, kStep, kBlock, kStochastic, Form::any>;
  [[maybe_unused]] const auto take = [&]<Form kForm>() {
    if constexpr (sizeof(T) == 2 || by_blocks<T>(kCoder, kStep, kBlock, kForm)) {
      if (form == kForm) launch = launch_tiles<T, kCoder, kStep, kBlock, kStochastic, kForm>;
    }
  };
  (take.template operator()<kForms>(), ...);
  return launch;
}
template <class T, Coder kCoder, Step kStep, int kBlock, Form... kForms>
TileLaunch tiles(bool stochastic, Form form) {
  return stochastic ? with_form<T, kCoder, kStep, kBlock, true, kForms...>(form)
                    : with_form<T, kCoder, kStep, kBlock, false, kForms...>(form);
}
// bf16 elements are scaled in bf16: with powers of two that is exact.
template <class T, Coder kCoder, Form... kForms>
TileLaunch mx_stochastic(Form form) {
  return with_form < T, kCoder, sizeof(T) == 2 ? Step::exact : Step::multiply, 32, true, kForms... > (form);
}
template <class T>
TileLaunch tile_launch(const Family& f, Form form) {
  constexpr Coder kE4m3 = Coder::e4m3, kE5m2 = Coder::e5m2, kE2m1 = Coder::e2m1;
  constexpr Form kCodes = Form::codes, kPacked = Form::packed, kBf16 = Form::bf16;
  if (f.coder == Coder::integer) return tiles<T, Coder::integer, Step::multiply, 0, kCodes, kPacked>(f.stochastic, form);
  if (f.block == 0) {
    return f.coder == kE4m3 ? with_form<T, kE4m3, Step::multiply, 0, false, kCodes>(form)
                            : with_form<T, kE5m2, Step::multiply, 0, false, kCodes>(form);
  }
  if (f.block == 128) return tiles<T, kE4m3, Step::multiply, 128, kCodes>(f.stochastic, form);
  if (f.coder != kE2m1) {
    if (f.stochastic) return f.coder == kE4m3 ? mx_stochastic<T, kE4m3, kCodes, kBf16>(form) : mx_stochastic<T, kE5m2, kCodes, kBf16>(form);
    return f.coder == kE4m3 ? with_form<T, kE4m3, Step::multiply, 32, false, kCodes, kBf16>(form)
                            : with_form<T, kE5m2, Step::multiply, 32, false, kCodes, kBf16>(form);
  }
  if (f.block == 16) {
    return f.step == Step::divide ? tiles<T, kE2m1, Step::divide, 16>(f.stochastic, form)
                                  : tiles<T, kE2m1, Step::multiply, 16>(f.stochastic, form);
  }
  if (f.stochastic && (sizeof(T) == 4 || f.step == Step::exact)) return mx_stochastic<T, kE2m1, kPacked, kBf16, Form::folded>(form);
  if (f.stochastic) return launch_tiles<T, kE2m1, Step::multiply, 32, true, Form::any>;
  if constexpr (sizeof(T) == 4) {
    return with_form<T, kE2m1, Step::multiply, 32, false, kPacked, Form::folded>(form);
  } else if (f.step == Step::exact) {
    return with_form<T, kE2m1, Step::exact, 32, false, kPacked, kBf16, Form::folded>(form);
  }
  return launch_tiles<T, kE2m1, Step::multiply, 32, false, Form::any>;
}
template <class T, Coder kCoder, Step kStep, int kBlock, Form kForm>
RowLaunch rows(bool stochastic) {
  return stochastic ? launch_rows<T, kCoder, kStep, kBlock, true, kForm> : launch_rows<T, kCoder, kStep, kBlock, false, kForm>;
}
template <class T>
RowLaunch row_launch(const Family& f, [[maybe_unused]] Form form) {
  if (f.coder == Coder::e4m3) return launch_rows<T, Coder::e4m3, Step::multiply, 0, false, Form::any>;
  if (f.coder == Coder::e5m2) return launch_rows<T, Coder::e5m2, Step::multiply, 0, false, Form::any>;
  if (f.coder == Coder::integer) {
    if (sizeof(T) == 2 && f.stochastic && form == Form::packed)
      return launch_rows<bf16, Coder::integer, Step::multiply, 0, true, Form::packed>;
    return rows<T, Coder::integer, Step::multiply, 0, Form::any>(f.stochastic);
  }
  if constexpr (sizeof(T) == 2) {
    constexpr Coder kE2m1 = Coder::e2m1;
    if (f.step == Step::exact) {
      return form == Form::folded ? rows<T, kE2m1, Step::exact, 32, Form::folded>(f.stochastic)
                                  : rows<T, kE2m1, Step::exact, 32, Form::any>(f.stochastic);
    }
  }
  return rows<T, Coder::e2m1, Step::multiply, 32, Form::any>(f.stochastic);
}

cudaError_t run_tiles(const QuantizeOperand& p, const Family& f, Copies copies, const Scratch& m, cudaStream_t stream) {
  const bool row = copies != Copies::transposed, transposed = copies != Copies::row;
  TileArgs a{};
  a.x = p.x, a.rows = static_cast<int>(p.rows), a.cols = static_cast<int>(p.cols), a.ld = p.ld;
  StatisticsArgs ask{};
  ask.x = p.x, ask.type = p.type, ask.rows = a.rows, ask.cols = a.cols, ask.ld = p.ld;
  int64_t rows = p.rows, columns = p.cols;
  if (row) {
    a.row = copy_args(p, p.row, false);
    need_maxima(p, p.row, false, m, ask, a.row);
    a.wide = !transposed && gathers_scales(p.row, a.row.C);
    a.row.scale_tiles = a.wide ? nullptr : m.row_scales, a.row.tiles_c = static_cast<int>(ceil_div(a.row.C, kTile));
    columns = std::max<int64_t>(columns, a.row.C);
  }
  if (transposed) {
    a.transposed = copy_args(p, p.transposed, true);
    need_maxima(p, p.transposed, true, m, ask, a.transposed);
    a.transposed.scale_tiles = m.transposed_scales, a.transposed.tiles_c = static_cast<int>(ceil_div(a.transposed.C, kTile));
    rows = std::max<int64_t>(rows, a.transposed.C);
  }
  const Form of_row = form_of(p.row), of_transposed = form_of(p.transposed);
  const Form form = !transposed ? of_row : !row || of_row == of_transposed ? of_transposed : Form::any;
  const SlabLaunch slabs =
      f.block == 16 ? slab_launch(p.type, f.step, f.stochastic, copies, of_row, of_transposed, a.transposed.hadamard) : nullptr;
  cudaError_t status = cudaSuccess;
  if (a.row.scale_pair != nullptr || a.transposed.scale_pair != nullptr) {
    status = collect_ternary(p, m.sums, m.ternary, stream);
    a.dependent = a.backwards = true;
  } else if (ask.tensor || ask.rotated || ask.row || ask.column || ask.rotated_column) {
    if (!ask.rotated && !ask.rotated_column) ask.hadamard = 0;
    const auto of_tiles = [](const CopyArgs& d) { return d.group_amax == nullptr || d.tile; };
    ask.tiles =
        p.type == DType::bf16 && (ask.row || ask.column) && !ask.tensor && !ask.hadamard && of_tiles(a.row) && of_tiles(a.transposed);
    ask.packed_next = slabs != nullptr && (!row || of_row == Form::packed) && (!transposed || of_transposed == Form::packed);
    ask.slow_next = slabs != nullptr && f.stochastic && copies == Copies::both && p.type == DType::bf16;
    status = collect_statistics(ask, stream);
    a.dependent = a.backwards = true;
  }
  if (status != cudaSuccess) return status;
  const TileGrid grid{static_cast<unsigned>(ceil_div(rows, kTile)), static_cast<unsigned>(ceil_div(columns, kTile))};
  a.tiles_r = static_cast<int>(grid.rows);
  const auto by_pairs = [&] {
    const bool mxfp4 = f.coder == Coder::e2m1 && f.block == 32 && f.step == Step::exact;
    if (f.stochastic && copies == Copies::transposed && p.type == DType::bf16) {
      if (form == Form::folded) return mxfp4 && launch_mxfp4_rotated(a, copies, grid, stream);
      return mxfp4 && form == Form::packed && launch_mxfp4_columns(a, grid, stream);
    }
    if (!f.stochastic || copies != Copies::both) return false;
    const bool fp8 = f.coder == Coder::e4m3 || f.coder == Coder::e5m2;
    if (p.type == DType::f32) {
      if (f.coder == Coder::e2m1) return f.block == 32 && form == Form::packed && launch_mxfp4_packed_f32(a, grid, stream);
      return fp8 && f.block == 32 && form == Form::codes && launch_mxfp8_pair_f32(a, f.coder, grid, stream);
    }
    if (f.coder == Coder::integer) return launch_int_pair(a, form, grid, stream);
    if (form == Form::folded)
      return f.step == Step::exact && (launch_mxfp4_pair(a, grid, stream) || launch_mxfp4_rotated(a, copies, grid, stream));
    if (form == Form::packed) return mxfp4 && (launch_mxfp4_packed_pair(a, grid, stream) || launch_mxfp4_rotated_packed(a, grid, stream));
    if (form != Form::codes) return false;
    if (f.coder == Coder::e4m3 && f.block == 128) return launch_fp8_pair(a, grid, stream);
    return fp8 && f.block == 32 && f.step == Step::exact && launch_mxfp8_pair(a, grid, stream);
  };
  if (slabs != nullptr) {
    slabs(slab_args(a), grid, stream);
  } else if (!by_pairs()) {
    (p.type == DType::bf16 ? tile_launch<bf16>(f, form) : tile_launch<float>(f, form))(a, copies, grid, stream);
  }
  if (status = cudaGetLastError(); status != cudaSuccess) return status;
  ScaleRows rows_of[2];
  int count = 0;
  for (const auto& [copy, d] : {std::pair<const QuantizedCopy*, const CopyArgs*>{&p.row, &a.row}, {&p.transposed, &a.transposed}}) {
    if (d->scale_tiles == nullptr) continue;
    rows_of[count++] = {d->scale_tiles, d->scales, d->R, d->tiles_c, d->blocks * (copy->spec.block == kTile ? 4 : 1)};
  }
  return arrange_scales(rows_of, count, stream);
}

cudaError_t run(const QuantizeOperand& p, void* workspace, cudaStream_t stream) {
  const Plan plan = plan_of(p);
  const Scratch m = scratch_in(p, workspace);
  if (plan.fused) return run_tiles(p, *plan.row, Copies::both, m, stream);
  cudaError_t status = cudaSuccess;
  if (p.want_row && !plan.row) status = quantize_generic(p, p.row, false, workspace, stream);
  if (plan.rows) {
    const RowArgs a{p.x, static_cast<int>(p.rows), static_cast<int>(p.cols), p.ld, copy_args(p, p.row, false)};
    const Form form = form_of(p.row);
    (p.type == DType::bf16 ? row_launch<bf16>(*plan.row, form) : row_launch<float>(*plan.row, form))(a, stream);
    status = cudaGetLastError();
  } else if (plan.row) {
    status = run_tiles(p, *plan.row, Copies::row, m, stream);
  }
  if (status != cudaSuccess || !p.want_transposed) return status;
  if (!plan.transposed) return quantize_generic(p, p.transposed, true, workspace, stream);
  return run_tiles(p, *plan.transposed, Copies::transposed, m, stream);
}

size_t workspace_of(const QuantizeOperand& p) {
  const Plan plan = plan_of(p);
  size_t bytes = plan.row || plan.transposed ? scratch_in(p, nullptr).bytes : 0;
  if (p.want_row && !plan.row) bytes = std::max(bytes, generic_workspace(p, p.row, false));
  if (p.want_transposed && !plan.transposed) bytes = std::max(bytes, generic_workspace(p, p.transposed, true));
  return bytes;
}

const char* problem(const QuantizeOperand& p) {
  if (p.type != DType::bf16 && p.type != DType::f32) return "quantiser: expected bf16 or f32 elements";
  if (p.rows < 0 || p.cols < 0 || (p.rows > 1 && p.ld < p.cols)) return "quantiser: expected sizes >= 0 and a row stride >= the columns";
  if (p.x == nullptr && p.rows * p.cols != 0) return "quantiser: no input";
  return nullptr;
}

}  // namespace
}  // namespace halftone::device

size_t halftone_cuda_quantize_workspace(const halftone::QuantizeOperand* what) { return halftone::device::workspace_of(*what); }

const char* halftone_cuda_quantize_operand(const halftone::QuantizeOperand* what, void* workspace, size_t bytes, void* stream) {
  using namespace halftone;
  using namespace halftone::device;
  if (const char* message = problem(*what)) return message;
  for (const QuantizedCopy* copy : {what->want_row ? &what->row : nullptr, what->want_transposed ? &what->transposed : nullptr}) {
    if (copy != nullptr && !copy->spec.quantized()) return "quantiser: expected a quantised element type, found hp";
  }
  if (bytes < workspace_of(*what)) return "quantiser: the workspace is smaller than halftone_cuda_quantize_workspace says";
  const cudaError_t status = run(*what, workspace, static_cast<cudaStream_t>(stream));
  return device::error_text(status);
}

const char* halftone_cuda_amax(const halftone::QuantizeOperand* what, unsigned* amax, void* stream) {
  using namespace halftone::device;
  if (const char* message = problem(*what)) return message;
  const cudaError_t status = collect_amax(what->x, what->type, what->rows, what->cols, what->ld, amax, static_cast<cudaStream_t>(stream));
  return halftone::device::error_text(status);
}
