#include "halftone/quantize/operand.h"

#include <memory>

#include "halftone/formats/fp4_scale.h"
#include "halftone/quantize/operand_ref.h"
#include "halftone/quantize/operand_tile.h"

namespace halftone {
namespace {

using quantize::CopyState;
using quantize::Source;

bool grouped(const OperandSpec& s) { return s.granularity == Granularity::block || s.granularity == Granularity::tile; }
bool uses_row_amax(const QuantizedCopy& c) { return c.spec.granularity == Granularity::row && c.spec.element != Element::int4; }

CopyState state_of(const QuantizeOperand& p, const QuantizedCopy& copy, bool transposed) {
  CopyState state;
  state.p = &p, state.copy = &copy, state.transposed = transposed, state.spec = copy.spec;
  state.R = transposed ? p.cols : p.rows;
  state.C = operand_length(copy, transposed ? p.rows : p.cols);
  state.codes = copy.codes;
  if (has_byte_scales(copy.spec.scale)) state.scale_bytes = static_cast<uint8_t*>(copy.scales);
  if (!is_fold(copy.form)) return state;
  if (state.codes == nullptr) {
    state.own_codes.resize(static_cast<size_t>(state.R * state.C));
    state.codes = state.own_codes.data();
  }
  if (state.scale_bytes == nullptr) {
    const BlockShape b = block_shape(copy.spec, state.R, state.C);
    state.own_scales.resize(static_cast<size_t>(ceil_div(state.R, b.rows) * ceil_div(state.C, b.cols)));
    state.scale_bytes = state.own_scales.data();
  }
  return state;
}

// Calls f(worker, first row, first column) for all tiles in parallel.
template <class F>
void over_tiles(const quantize::OperandKernels& k, quantize::TileShape shape, int64_t r1, int64_t c1, F&& f) {
  const int64_t down = ceil_div(r1, shape.height), across = ceil_div(c1, shape.width);
  parallel_for(down * across, 2, [&](int64_t begin, int64_t end) {
    static thread_local const auto worker = std::make_unique<quantize::TileWorker>();
    worker->use(k, shape);
    for (int64_t i = begin; i < end; ++i) f(*worker, i / across * shape.height, i % across * shape.width);
  });
}

// Passes over the matrix before the encoding pass.
class Preparation {
 public:
  Preparation(const QuantizeOperand& p, const quantize::OperandKernels& k, quantize::TileShape shape)
      : p_(p), k_(k), shape_(shape), s_{p.x, p.type, p.rows, p.cols, p.ld} {}

  void needs(const CopyState& state) {
    const QuantizedCopy& c = *state.copy;
    amax_ = amax_ || (uses_tensor_amax(c) && !uses_rotated_amax(c.spec) && p_.amax == nullptr) || uses_row_amax(c);
    by_column_ = by_column_ || (uses_row_amax(c) && state.transposed);
    signed_ = signed_ || (c.spec.element == Element::int4 && !has_byte_scales(c.spec.scale));
    sum_ = sum_ || c.spec.element == Element::ternary;
  }
  void measure() {
    row_amax_.resize(amax_ ? static_cast<size_t>(p_.rows) : 0), column_amax_.resize(by_column_ ? static_cast<size_t>(p_.cols) : 0);
    if (amax_) {
      quantize::over_amax(
          s_, k_, by_column_, [&](int64_t r, uint32_t a) { row_amax_[static_cast<size_t>(r)] = a; },
          [&](int64_t c, uint32_t a) { column_amax_[static_cast<size_t>(c)] = a; });
    }
    for (const uint32_t a : row_amax_) matrix_amax_ = std::max(matrix_amax_, a);
    if (signed_) signs_ = quantize::signed_amax(s_);
    if (sum_) total_ = quantize::absolute_sum(s_);
  }
  void finish(CopyState& state) {
    const QuantizedCopy& c = *state.copy;
    if (uses_tensor_amax(c)) state.amax = uses_rotated_amax(c.spec) ? rotated(state) : p_.amax != nullptr ? *p_.amax : matrix_amax_;
    state.outer =
        c.spec.eden ? eden_outer(c.spec.hadamard, state.amax) : fp4_outer(c.spec.chain, fp4_range(c.spec), c.spec.two_level, state.amax);
    if (c.outer != nullptr) *c.outer = state.outer.scale;
    if (c.form == ValueForm::fold_e5m2) {
      const uint8_t byte = mx_reference_byte(float_of(c.spec.element), c.spec.mode, c.spec.clip, state.amax);
      *c.fold_scale = byte == kE8m0Nan ? quiet_nan() : fold_scale(Float::e5m2, byte - 127);
    }
    if (!grouped(c.spec)) group_factors(state);
  }

 private:
  uint32_t rotated(const CopyState& state) {
    std::atomic<uint32_t> amax = 0;
    over_tiles(k_, shape_, state.transposed ? state.C : state.R, state.transposed ? state.R : state.C,
               [&](quantize::TileWorker& w, int64_t r0, int64_t c0) {
                 const uint32_t a = w.rotated_amax(state, r0, c0);
                 uint32_t seen = amax.load();
                 while (seen < a && !amax.compare_exchange_weak(seen, a)) {}
               });
    return amax.load();
  }

  // Writes tensor and row scales; stores the element factors in state.inv.
  void group_factors(CopyState& state) {
    const OperandSpec& s = state.spec;
    const bool one = s.granularity == Granularity::tensor;
    const int64_t n = one ? 1 : state.R;
    state.inv.assign(static_cast<size_t>(round_up(n, quantize::kTileElements / 128)), 0.0f);
    auto* scales = static_cast<float*>(state.copy->scales);
    for (int64_t i = 0; i < n; ++i) {
      const auto at = static_cast<size_t>(i);
      const uint32_t amax = one ? state.amax : !uses_row_amax(*state.copy) ? 0 : state.transposed ? column_amax_[at] : row_amax_[at];
      ScalePair pair{};
      switch (s.element) {
        case Element::int4: {
          const auto& pos = state.transposed ? signs_.column_pos : signs_.row_pos;
          const auto& neg = state.transposed ? signs_.column_neg : signs_.row_neg;
          pair = int4_scale(one ? signs_.pos : pos[at], one ? signs_.neg : neg[at], s.scale_floor);
          break;
        }
        case Element::ternary:
          pair = ternary_scale(total_, p_.rows * p_.cols);
          break;
        default:
          pair = quantize::fp32_scale(s, amax);
      }
      if (scales != nullptr) scales[i] = pair.scale;
      state.inv[at] = pair.inv;
      state.poisoned = state.poisoned || pair.inv != pair.inv;
    }
  }

  const QuantizeOperand& p_;
  const quantize::OperandKernels& k_;
  quantize::TileShape shape_;
  Source s_;
  bool amax_ = false, by_column_ = false, signed_ = false, sum_ = false;
  std::vector<uint32_t> row_amax_, column_amax_;
  uint32_t matrix_amax_ = 0;
  quantize::SignedStats signs_;
  double total_ = 0;
};

// Whether the transposed copy is exactly the transpose of the row copy (codes and values).
bool shared_codes(const QuantizeOperand& p) {
  const OperandSpec &a = p.row.spec, &b = p.transposed.spec;
  const Rounding &x = p.row.rounding, &y = p.transposed.rounding;
  const bool same_draws = x.key.lo == y.key.lo && x.key.hi == y.key.hi && x.step == y.step && x.micro == y.micro &&
                          x.first_row == y.first_row && x.first_column == y.first_column && x.row_length == y.row_length;
  const bool symmetric = a.granularity == Granularity::tensor || a.granularity == Granularity::tile;
  return p.want_row && p.want_transposed && symmetric && a.element == b.element && a.granularity == b.granularity && a.block == b.block &&
         a.scale == b.scale && a.mode == b.mode && a.two_level == b.two_level && a.two_level != TwoLevel::macro && a.chain == b.chain &&
         a.choice == b.choice && a.scale_floor == b.scale_floor && b.hadamard == 0 && a.stochastic == b.stochastic &&
         (!a.stochastic || same_draws);
}

}  // namespace

void quantize_operand(const QuantizeOperand& p, Isa isa) {
  check_operand(p);
  check(!p.as_bf16, "quantiser: on the processor the caller rounds the elements to bf16");
  check(p.groups.groups == 0, "quantiser: found {} groups of rows, which only CUDA quantises together; pass one group at a time",
        p.groups.groups);
  check(available(isa), "instruction set {} is not available on this processor", name(isa));
  const bool panels = p.want_transposed && p.transposed.panels != nullptr;
  if (isa == Isa::ref || p.rows == 0 || p.cols == 0) return ref::quantize_operand(p);
  const quantize::OperandKernels& k = isa >= Isa::avx512 ? quantize::operand_kernels_avx512() : quantize::operand_kernels_v3();
  if (quantize_rows(p, k)) return;
  if (panels) {  // the row copy is of a different kind: read x separately for each
    QuantizeOperand one = p;
    one.want_row = false, quantize_operand(one, isa);
    one.want_row = true, one.want_transposed = false;
    return quantize_operand(one, isa);
  }

  CopyState row, transposed;
  std::vector<CopyState*> states;
  if (p.want_row) row = state_of(p, p.row, false), states.push_back(&row);
  if (p.want_transposed) transposed = state_of(p, p.transposed, true), states.push_back(&transposed);
  int64_t r1 = 0, c1 = 0;
  bool down = false, high = false;  // groups span rows; groups span more than 32 rows
  for (const CopyState* state : states) {
    const OperandSpec& s = state->spec;
    const bool reaches = state->transposed || s.granularity == Granularity::tile;
    down = down || reaches;
    high =
        high || (reaches && ((grouped(s) && s.block == 128) || s.two_level == TwoLevel::macro)) || (state->transposed && s.hadamard > 32);
    r1 = std::max(r1, state->transposed ? state->C : state->R);
    c1 = std::max(c1, state->transposed ? state->R : state->C);
  }
  quantize::TileShape shape{high ? 128 : 64, 128, high ? 128 : 32};
  if (!down) {
    shape.width = std::clamp<int64_t>(static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(c1))), 128, quantize::kTileRow);
    shape.height = shape.step = 4096 / shape.width;
  }
  Preparation prepare(p, k, shape);
  for (const CopyState* state : states) prepare.needs(*state);
  prepare.measure();
  for (CopyState* state : states) prepare.finish(*state);

  const bool shared = shared_codes(p);
  over_tiles(k, shape, r1, c1, [&](quantize::TileWorker& w, int64_t r0, int64_t c0) {
    w.run(p.want_row ? &row : nullptr, p.want_transposed ? &transposed : nullptr, shared, r0, c0);
  });

  for (const CopyState* state : states) {
    if (!is_fold(state->copy->form)) continue;
    std::atomic<unsigned long long> lost = 0;
    parallel_for(state->R, std::max<int64_t>(1, (int64_t{1} << 16) / state->C),
                 [&](int64_t begin, int64_t end) { lost += fold_rows(*state, begin, end); });
    if (state->copy->lost != nullptr) *state->copy->lost += lost.load();
  }
}

}  // namespace halftone
