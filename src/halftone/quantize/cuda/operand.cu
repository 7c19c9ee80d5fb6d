#include <algorithm>
#include <optional>

#include "halftone/device/error_text.h"
#include "halftone/formats/fp4_scale.h"
#include "halftone/quantize/cuda/encode.cuh"
#include "halftone/quantize/cuda/generic.h"
#include "halftone/quantize/cuda/kernels.h"
#include "halftone/quantize/cuda/operand_cuda.h"
#include "halftone/quantize/cuda/statistics.h"
#include "halftone/quantize/operand_shape.h"

namespace halftone::device {
namespace {

// Kernel that writes a copy, without its output form.
struct Family {
  Coder coder;
  Step step;
  int block;
  bool stochastic, tile, eden = false;
  bool operator==(const Family&) const = default;
};

bool aligned_to(const void* p, size_t bytes) { return reinterpret_cast<uintptr_t>(p) % bytes == 0; }

// Empty if only quantize_generic supports the copy.
std::optional<Family> family_of(const QuantizeOperand& p, const QuantizedCopy& copy, bool transposed) {
  const OperandSpec& s = copy.spec;
  const int64_t C = operand_length(copy, transposed ? p.rows : p.cols);
  constexpr int64_t kMost = int64_t{65535} * kTile / 2, kMostRows = int64_t{65535} * kTile * kBand;  // grid limits (band_grid)
  if (p.rows == 0 || p.cols == 0 || p.cols % 8 != 0 || p.ld % 8 != 0 || C % 8 != 0 || !aligned_to(p.x, 16)) return {};
  if (p.rows > INT32_MAX / 2 || C > INT32_MAX / 32 || p.ld > INT32_MAX / 32 || p.cols > kMost || (!transposed && C > kMost)) return {};
  if (p.rows > kMostRows || (transposed && C > kMostRows)) return {};
  if (sets_of(p.groups) * p.cols > INT32_MAX / 2) return {};
  if (!aligned_to(copy.codes, 8) || !aligned_to(copy.packed, 4) || !aligned_to(copy.values, 16)) return {};
  if ((s.stochastic || s.eden) && !whole_groups(copy.rounding, p.rows, p.cols, C)) return {};
  const bool fp8 = s.element == Element::e4m3 || s.element == Element::e5m2, fp4 = s.element == Element::e2m1;
  const bool integer = s.element == Element::int8 || s.element == Element::int4 || s.element == Element::ternary;
  const bool blocks = s.granularity == Granularity::block || s.granularity == Granularity::tile, tile = s.granularity == Granularity::tile;
  if (copy.form == ValueForm::f32 || (copy.form == ValueForm::bf16 && integer && !blocks)) return {};
  // Blocks that share a scale would lie in different lanes, rotated elements too.
  if (s.hadamard != 0 && !s.eden && ((!fp4 && s.element != Element::int4) || tile || !transposed || s.hadamard > 32)) return {};
  const Coder coder = s.element == Element::e4m3   ? Coder::e4m3
                      : s.element == Element::e5m2 ? Coder::e5m2
                      : fp4                        ? Coder::e2m1
                                                   : Coder::integer;
  Family f{coder, Step::multiply, 0, s.stochastic, tile};
  if (fp8 && !blocks && !s.stochastic) return f;
  if (integer && !blocks && !(s.element == Element::int4 && s.granularity == Granularity::tensor) &&
      !(s.element == Element::ternary && copy.packed))
    return f;
  f.block = s.block;
  if (integer) {
    f.step = s.element == Element::int4 ? Step::divide : Step::multiply;
    return s.block == (s.element == Element::int4 ? 16 : 32) ? std::optional(f) : std::nullopt;
  }
  if (s.element == Element::e4m3 && blocks && s.block == 128 && s.scale != ScaleFormat::e8m0) return f;
  if (s.scale == ScaleFormat::e8m0 && s.block == 32 && (fp8 || fp4) && s.two_level == TwoLevel::none && s.clip != Clip::dynamic) {
    // Nearest rounding must saturate if the scale lets elements exceed 7; Step::exact does not saturate.
    const bool below7 = s.mode != ScaleMode::floor && s.mode != ScaleMode::uos;
    if (p.type == DType::bf16 && s.clip == Clip::none && (s.stochastic || (fp4 && below7))) f.step = Step::exact;
    if (fp8 && s.clip != Clip::none) return {};
    return f;
  }
  if (fp4 && (s.scale == ScaleFormat::e4m3 || s.scale == ScaleFormat::ue5m3) && s.block == 16 && !is_fold(copy.form)) {
    f.step = s.chain == Fp4Chain::alto && !s.eden ? Step::divide : Step::multiply, f.eden = s.eden;
    return f;
  }
  return {};
}

Form form_of(const QuantizedCopy& copy) {
  const bool codes = copy.codes != nullptr, packed = copy.packed != nullptr, values = copy.form != ValueForm::none;
  if (codes + packed + values != 1 || copy.lost != nullptr) return Form::any;
  return codes ? Form::codes : packed ? Form::packed : copy.form == ValueForm::bf16 ? Form::bf16 : Form::folded;
}

// Maxima from an earlier pass.
struct Scratch {
  uint32_t *tensor, *rotated, *row, *column;
  ScalePair* ternary;
  void* sums;
  int32_t* tile_groups;
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
  const bool groups = p.groups.groups > 0;
  const int64_t sets = groups ? sets_of(p.groups) : 1, parts = groups ? sets : kStatisticsParts;
  m.tensor = reinterpret_cast<uint32_t*>(take(parts * 4)), m.rotated = reinterpret_cast<uint32_t*>(take(parts * 4));
  m.row = reinterpret_cast<uint32_t*>(take(p.rows * 8)), m.column = reinterpret_cast<uint32_t*>(take(sets * p.cols * 8));
  m.ternary = reinterpret_cast<ScalePair*>(take(sets * static_cast<int64_t>(sizeof(ScalePair))));
  m.sums = take(ternary ? static_cast<int64_t>(ternary_workspace(p)) : 0);
  m.tile_groups = reinterpret_cast<int32_t*>(take(groups ? p.rows / kTile * 4 : 0));
  return m;
}

CopyArgs copy_args(const QuantizeOperand& p, const QuantizedCopy& copy, bool transposed, const int32_t* tile_groups) {
  const OperandSpec& s = copy.spec;
  CopyArgs d{};
  d.codes = copy.codes, d.packed = copy.packed, d.scales = copy.scales, d.values = copy.values;
  d.outer = copy.outer, d.fold_scale = copy.fold_scale, d.lost = copy.lost;
  d.R = static_cast<int>(transposed ? p.cols : p.rows), d.C = static_cast<int>(operand_length(copy, transposed ? p.rows : p.cols));
  d.blocks = s.block > 0 ? static_cast<int>(ceil_div(d.C, s.block)) : 1;
  d.form = copy.form, d.element = s.element, d.chain = s.chain, d.two_level = s.two_level;
  d.choice = s.choice, d.range = fp4_range(s);
  if (s.scale == ScaleFormat::e8m0) d.mx = mx_rule(MxElement(s.element), s.mode);
  d.tile = s.granularity == Granularity::tile, d.per_tensor = s.granularity == Granularity::tensor;
  d.pow2 = s.scale == ScaleFormat::fp32_pow2, d.wide = s.scale == ScaleFormat::ue5m3, d.fixed_clip = s.clip == Clip::fixed;
  d.scale_floor = s.scale_floor;
  if (!is_float(s.element)) d.low = static_cast<float>(int_range(s).lowest), d.high = static_cast<float>(int_range(s).highest);
  if (p.groups.groups > 0 && (scales_by_group(copy, transposed) || copy.outer != nullptr)) d.tile_groups = tile_groups;
  d.hadamard = s.hadamard, d.eden = s.eden, d.signs = copy.signs, d.signs_step = copy.signs_step, d.signs_key = copy.signs_key;
  if (s.stochastic || s.eden) d.draws = make_draws(copy.rounding, p.cols);
  if (s.stochastic) {
    d.draw_constant = s.element == Element::e4m3   ? draw_constant<Coder::e4m3>()
                      : s.element == Element::e5m2 ? draw_constant<Coder::e5m2>()
                      : s.element == Element::e2m1 ? draw_constant<Coder::e2m1>()
                                                   : draw_constant<Coder::integer>();
  }
  return d;
}

// Requests the maxima that a copy's scales depend on and points the kernel to them.
void need_maxima(const QuantizeOperand& p, const QuantizedCopy& copy, bool transposed, const Scratch& m, StatisticsArgs& ask, CopyArgs& d) {
  const OperandSpec& s = copy.spec;
  if (s.element == Element::ternary) {
    d.scale_pair = m.ternary;
    return;
  }
  const bool rotated = uses_rotated_amax(s);
  if (rotated) ask.hadamard = s.hadamard, ask.signs = copy.signs, ask.signs_step = copy.signs_step, ask.signs_key = copy.signs_key;
  if (d.per_tensor || s.two_level == TwoLevel::tensor || copy.form == ValueForm::fold_e5m2) {
    d.tensor_parts = d.tile_groups == nullptr ? kStatisticsParts : 1;
    if (rotated) {
      d.tensor_amax = ask.rotated = m.rotated;
    } else if (d.tile_groups != nullptr) {
      d.tensor_amax = ask.tensor = m.tensor;
    } else if (p.amax != nullptr) {
      d.tensor_amax = p.amax, d.tensor_parts = p.amax_parts;
    } else {
      d.tensor_amax = ask.tensor = p.found_amax != nullptr ? p.found_amax : m.tensor;
    }
  }
  if (s.granularity != Granularity::row && copy.form != ValueForm::fold_e4m3) return;
  const bool by_sign = s.element == Element::int4;
  if (transposed && d.tile_groups != nullptr) d.set_words = d.R * (by_sign ? 2 : 1);
  if (!transposed) {
    d.group_amax = ask.row = m.row, ask.by_sign_row = by_sign;
  } else if (rotated) {
    d.group_amax = ask.rotated_column = m.column;
  } else {
    d.group_amax = ask.column = m.column, ask.by_sign_column = by_sign;
  }
}

using Launch = void (*)(const TileArgs&, Copies, TileGrid, cudaStream_t);
struct Kernel {
  DType type;
  Family family;  // tile: ignored
  Form form;
  Launch launch;
};
#define HALFTONE_TILE_KERNEL(T, C, S, B, R, F) {dtype_of<T>, {C, S, B, R, false}, Form::F, launch_tiles<T, C, B, R, Form::F>},
#define HALFTONE_EDEN_KERNEL(T, F) {dtype_of<T>, {Coder::e2m1, Step::multiply, 16, false, false, true}, Form::F, launch_eden<T, Form::F>},
#define HALFTONE_BLOCK_KERNEL(T, C, S, B, R, F) {dtype_of<T>, {C, S, B, R, false}, Form::F, launch_blocks<T, C, S, B, R, Form::F>},
template <class T>
constexpr DType dtype_of = sizeof(T) == 2 ? DType::bf16 : DType::f32;
constexpr Kernel kKernels[] = {
    HALFTONE_TILES_FP8_NEAREST(HALFTONE_TILE_KERNEL, false) HALFTONE_TILES_FP8_BLOCKS(HALFTONE_TILE_KERNEL, false)
        HALFTONE_TILES_FP8_BLOCKS(HALFTONE_TILE_KERNEL, true) HALFTONE_TILES_INTEGER(HALFTONE_TILE_KERNEL, false)
            HALFTONE_TILES_INTEGER(HALFTONE_TILE_KERNEL, true) HALFTONE_BLOCKS_MXFP8_NEAREST(HALFTONE_BLOCK_KERNEL, false)
                HALFTONE_BLOCKS_MXFP8_STOCHASTIC(HALFTONE_BLOCK_KERNEL, true) HALFTONE_BLOCKS_MXFP4(HALFTONE_BLOCK_KERNEL, false)
                    HALFTONE_BLOCKS_MXFP4(HALFTONE_BLOCK_KERNEL, true) HALFTONE_BLOCKS_FP4_TORCHAO(HALFTONE_BLOCK_KERNEL, false)
                        HALFTONE_BLOCKS_FP4_TORCHAO(HALFTONE_BLOCK_KERNEL, true) HALFTONE_BLOCKS_FP4_ALTO(HALFTONE_BLOCK_KERNEL, false)
                            HALFTONE_BLOCKS_FP4_ALTO(HALFTONE_BLOCK_KERNEL, true) HALFTONE_BLOCKS_INTEGER(HALFTONE_BLOCK_KERNEL, false)
                                HALFTONE_BLOCKS_INTEGER(HALFTONE_BLOCK_KERNEL, true) HALFTONE_EDEN(HALFTONE_EDEN_KERNEL)};

// Kernel for the form if instantiated, else the Form::any kernel.
Launch kernel_of(DType type, Family f, Form form) {
  f.tile = false;
  Launch any = nullptr;
  for (const Kernel& k : kKernels) {
    if (k.type != type || !(k.family == f)) continue;
    if (k.form == form) return k.launch;
    if (k.form == Form::any) any = k.launch;
  }
  return any;
}

// Assigns copies to kernels. together: one kernel writes both copies. Copies of different forms are read twice if each form has a kernel:
// storing both from registers is slower.
struct Plan {
  std::optional<Family> row, transposed;
  bool together = false;
};
Plan plan_of(const QuantizeOperand& p) {
  Plan plan;
  if (p.want_row) plan.row = family_of(p, p.row, false);
  if (p.want_transposed) plan.transposed = family_of(p, p.transposed, true);
  if (!plan.row || !plan.transposed || !(*plan.row == *plan.transposed)) return plan;
  const Family& f = *plan.row;
  const Form row = form_of(p.row), transposed = form_of(p.transposed);
  plan.together = row == transposed || (f.block != 16 && f.block != 32) || kernel_of(p.type, f, row) == kernel_of(p.type, f, Form::any) ||
                  kernel_of(p.type, f, transposed) == kernel_of(p.type, f, Form::any);
  return plan;
}

TileArgs matrix_of(const QuantizeOperand& p) {
  TileArgs a{};
  a.x = p.x, a.as_bf16 = p.as_bf16, a.rows = static_cast<int>(p.rows), a.cols = static_cast<int>(p.cols), a.ld = p.ld;
  a.from = p.from;
  return a;
}

// Removes per-group scales from the tile kernel's outputs.
void leave_group_scales(TileArgs& a) {
  for (CopyArgs* d : {&a.row, &a.transposed}) {
    if (d->tile_groups == nullptr) continue;
    d->outer = nullptr;
    if (has_group_scales(*d)) d->scales = nullptr;
    if (has_group_folds(*d)) d->fold_scale = nullptr;
  }
}

// Row tiles per chunk that is scanned for maxima and then quantised: whole groups that fit in the 50 MB L2 cache together with their codes;
// otherwise all tiles.
int64_t tiles_at_once(const QuantizeOperand& p, const StatisticsArgs& ask, int64_t tiles) {
  constexpr int64_t kBytes = int64_t{24} << 20;
  const int64_t of_group = p.group_rows * p.cols * static_cast<int64_t>(size_of(p.type)), n = of_group == 0 ? 0 : kBytes / of_group;
  return n == 0 || ask.tile_groups == nullptr ? tiles : std::min(tiles, n * p.group_rows / kTile);
}

// Whether the full-row kernel (row_kernel.cu) wrote the copy.
bool run_rows(const QuantizeOperand& p, const Family& f, const Scratch& m, cudaStream_t stream) {
  if (f.block != 0 || p.row.spec.granularity != Granularity::row || (p.type != DType::bf16 && !p.as_bf16) || form_of(p.row) != Form::codes)
    return false;
  TileArgs a = matrix_of(p);
  a.row = copy_args(p, p.row, false, m.tile_groups);
  return a.row.tile_groups == nullptr && launch_rows(a, f.coder, f.stochastic, stream);
}

cudaError_t run_kernel(const QuantizeOperand& p, const Family& f, Copies copies, const Scratch& m, cudaStream_t stream) {
  const bool row = copies != Copies::transposed, transposed = copies != Copies::row;
  TileArgs a = matrix_of(p);
  StatisticsArgs ask{};
  ask.x = p.x, ask.type = p.type, ask.as_bf16 = p.as_bf16, ask.rows = a.rows, ask.cols = a.cols, ask.ld = p.ld;
  ask.from = p.from;
  int64_t rows = p.rows, columns = p.cols;
  if (row) {
    a.row = copy_args(p, p.row, false, m.tile_groups);
    need_maxima(p, p.row, false, m, ask, a.row);
    columns = std::max<int64_t>(columns, a.row.C);
  }
  if (transposed) {
    a.transposed = copy_args(p, p.transposed, true, m.tile_groups);
    need_maxima(p, p.transposed, true, m, ask, a.transposed);
    rows = std::max<int64_t>(rows, a.transposed.C);
  }
  const bool groups = a.row.tile_groups != nullptr || a.transposed.tile_groups != nullptr;
  if (groups || p.from.source != nullptr) ask.groups = p.groups, ask.tile_groups = m.tile_groups;
  const bool ternary = a.row.scale_pair != nullptr || a.transposed.scale_pair != nullptr;
  const bool searches = !ternary && (ask.tensor || ask.rotated || ask.row || ask.column || ask.rotated_column);
  if (ternary) {
    const cudaError_t status = collect_ternary(p, m.sums, m.ternary, m.tile_groups, stream);
    if (status != cudaSuccess) return status;
  }
  a.dependent = a.backwards = ternary || searches;
  const TileArgs whole = a;
  leave_group_scales(a);
  const Form of_row = form_of(p.row), of_transposed = form_of(p.transposed);
  Form form = !transposed ? of_row : !row || of_row == of_transposed ? of_transposed : Form::any;
  if (form == Form::folded && groups) form = Form::folded_groups;
  const Launch launch = kernel_of(p.type, f, form);
  const int64_t tiles = ceil_div(rows, kTile), step = searches ? tiles_at_once(p, ask, tiles) : tiles;
  for (int64_t first = 0; first < tiles; first += step) {
    const int64_t n = std::min(step, tiles - first);
    ask.first_tile = a.first_tile = static_cast<int>(first), ask.tiles = a.tiles_r = static_cast<int>(n);
    if (searches) {
      if (const cudaError_t status = collect_statistics(ask, stream); status != cudaSuccess) return status;
    }
    launch(a, copies, {static_cast<unsigned>(n), static_cast<unsigned>(ceil_div(columns, kTile))}, stream);
  }
  if (groups) {
    if (const cudaError_t status = launch_group_scales(whole, static_cast<int>(p.groups.groups), stream); status != cudaSuccess)
      return status;
  }
  return cudaGetLastError();
}

// Whether the matrix is rotated before it is quantised: no kernel rotates it as it reads it.
bool rotates_first(const QuantizeOperand& p, const QuantizedCopy& copy, bool transposed) {
  return uses_rotated_amax(copy.spec) && !family_of(p, copy, transposed);
}
// The request without that copy, and with the copy alone, of the rotated matrix at `rotated`, which takes rotated_bytes.
QuantizeOperand without(QuantizeOperand p, bool transposed) {
  (transposed ? p.want_transposed : p.want_row) = false;
  return p;
}
QuantizeOperand of_rotated(const QuantizeOperand& p, bool transposed, void* rotated) {
  QuantizeOperand q = without(p, !transposed);
  QuantizedCopy& copy = transposed ? q.transposed : q.row;
  const int64_t C = operand_length(copy, transposed ? p.rows : p.cols);
  q.x = rotated, (transposed ? q.rows : q.cols) = C, q.ld = q.cols;
  q.amax = nullptr, q.amax_parts = 1, q.found_amax = nullptr, q.from = {};
  copy.spec.hadamard = 0;
  if (copy.rounding.row_length == 0) copy.rounding.row_length = p.cols;
  return q;
}
size_t rotated_bytes(const QuantizeOperand& q) { return (static_cast<size_t>(q.rows * q.cols) * size_of(q.type) + 255) / 256 * 256; }

cudaError_t run(const QuantizeOperand& p, void* workspace, cudaStream_t stream) {
  for (const bool transposed : {false, true}) {
    const QuantizedCopy& copy = transposed ? p.transposed : p.row;
    if (!(transposed ? p.want_transposed : p.want_row) || !rotates_first(p, copy, transposed)) continue;
    const QuantizeOperand q = of_rotated(p, transposed, workspace);
    cudaError_t status = rotate_matrix(p, copy, transposed, workspace, p.type, stream);
    if (status == cudaSuccess) status = run(q, static_cast<uint8_t*>(workspace) + rotated_bytes(q), stream);
    return status == cudaSuccess ? run(without(p, transposed), workspace, stream) : status;
  }
  const Plan plan = plan_of(p);
  const Scratch m = scratch_in(p, workspace);
  if (plan.together) return run_kernel(p, *plan.row, Copies::both, m, stream);
  cudaError_t status = cudaSuccess;
  if (p.want_row && plan.row) {
    status = run_rows(p, *plan.row, m, stream) ? cudaGetLastError() : run_kernel(p, *plan.row, Copies::row, m, stream);
  } else if (p.want_row) {
    status = quantize_generic(p, p.row, false, workspace, stream);
  }
  if (status != cudaSuccess || !p.want_transposed) return status;
  return plan.transposed ? run_kernel(p, *plan.transposed, Copies::transposed, m, stream)
                         : quantize_generic(p, p.transposed, true, workspace, stream);
}

size_t workspace_of(const QuantizeOperand& p) {
  for (const bool transposed : {false, true}) {
    if (!(transposed ? p.want_transposed : p.want_row) || !rotates_first(p, transposed ? p.transposed : p.row, transposed)) continue;
    const QuantizeOperand q = of_rotated(p, transposed, nullptr);
    return std::max(rotated_bytes(q) + workspace_of(q), workspace_of(without(p, transposed)));
  }
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
  const cudaError_t status =
      collect_amax(what->x, what->type, what->as_bf16, what->rows, what->cols, what->ld, amax, static_cast<cudaStream_t>(stream));
  return halftone::device::error_text(status);
}
