#include "halftone/quantize/operand_tile.h"

#include <cmath>
#include <cstring>

#include "halftone/formats/fp4_scale.h"
#include "halftone/formats/mx_scale.h"
#include "halftone/formats/packing.h"
#include "halftone/formats/pairwise_sum.h"

namespace halftone::quantize {
namespace {

constexpr int log2_of(int64_t block) { return std::countr_zero(static_cast<uint64_t>(block)); }

// Values of the 256 codes of a byte scale.
template <ScaleFormat kFormat>
const std::array<float, 256>& scale_values() {
  static const std::array<float, 256> table = [] {
    std::array<float, 256> t{};
    for (int i = 0; i < 256; ++i) t[static_cast<size_t>(i)] = decode_block_scale(kFormat, static_cast<uint8_t>(i));
    return t;
  }();
  return table;
}
const std::array<float, 256>& scale_values(ScaleFormat f) {
  return f == ScaleFormat::e8m0   ? scale_values<ScaleFormat::e8m0>()
         : f == ScaleFormat::e4m3 ? scale_values<ScaleFormat::e4m3>()
                                  : scale_values<ScaleFormat::ue5m3>();
}

const std::array<float, 256>& mx_inverses(bool fixed_clip) {
  static const auto table = [] {
    std::array<std::array<float, 256>, 2> t{};
    for (size_t i = 0; i < 256; ++i) {
      t[0][i] = mx_inverse(static_cast<uint8_t>(i), false);
      t[1][i] = mx_inverse(static_cast<uint8_t>(i), true);
    }
    return t;
  }();
  return table[fixed_clip ? 1 : 0];
}

// Block loop with format and rule as compile-time constants, so that it vectorises.
template <ScaleMode... kModes>
void mx_bytes(const OperandSpec& s, const uint32_t* amax, int64_t n, uint8_t* out) {
  const auto run = [&]<ScaleMode kMode>() {
    const auto bytes = [&]<Float kFormat>() {
      for (int64_t i = 0; i < n; ++i) out[i] = mx_scale_byte(kFormat, kMode, amax[i]);
    };
    with_format(s.element, bytes, [&] {
      for (int64_t i = 0; i < n; ++i) out[i] = mx_scale_byte(MxElement(Element::int8), kMode, amax[i]);
    });
  };
  ((s.mode == kModes ? run.template operator()<kModes>() : void()), ...);
}

}  // namespace

Extent TileWorker::extent(const CopyState& state) const {
  const int64_t rows = state.transposed ? state.C : state.R, columns = state.transposed ? state.R : state.C;
  return {std::clamp<int64_t>(rows - r0_, 0, h_), std::clamp<int64_t>(columns - c0_, 0, w_)};
}

// Block layout of a copy within the tile.
GroupLayout TileWorker::groups_of(const CopyState& state, int64_t block, bool tile) const {
  const bool along = !state.transposed;
  return {tile || !along ? block : 1, tile || along ? block : 1, tile || along ? w_ / block : w_};
}

void TileWorker::load(const QuantizeOperand& p) {
  if (clean_) return;
  const int64_t rows = std::clamp<int64_t>(p.rows - r0_, 0, h_), columns = std::clamp<int64_t>(p.cols - c0_, 0, w_);
  const auto* x = static_cast<const std::byte*>(p.x) + (r0_ * p.ld + c0_) * static_cast<int64_t>(size_of(p.type));
  k_->load(x, p.type, p.ld, columns > 0 ? rows : 0, columns, h_, w_, f_.data());
  clean_ = true;
}

void TileWorker::find_amax(GroupLayout g, int64_t block) {
  if (g.height == 1) return k_->amax_along(f_.data(), h_ * w_, block, amax_.data());
  k_->amax_across(f_.data(), h_, w_, block, amax_.data());
  if (g.width == 1) return;
  for (int64_t i = 0; i < h_ / block; ++i) {
    for (int64_t j = 0; j < w_ / block; ++j) {
      uint32_t a = 0;
      for (int64_t c = 0; c < block; ++c) a = std::max(a, amax_[static_cast<size_t>(i * w_ + j * block + c)]);
      amax_[static_cast<size_t>(i * (w_ / block) + j)] = a;  // in place: this index has been read already
    }
  }
}

// Copies the entries of a group array to their output positions.
template <class T>
void TileWorker::write_groups(const CopyState& state, GroupLayout g, const T* from, T* out) const {
  if (out == nullptr) return;
  const Extent e = extent(state);
  const int64_t rows = ceil_div(e.rows, g.height), columns = ceil_div(e.columns, g.width);
  if (!state.transposed) {
    const int64_t ld = ceil_div(state.C, g.width);
    for (int64_t i = 0; i < rows; ++i) {
      std::memcpy(out + (r0_ / g.height + i) * ld + c0_ / g.width, from + i * g.ld, static_cast<size_t>(columns) * sizeof(T));
    }
  } else {
    const int64_t ld = ceil_div(state.C, g.height);
    for (int64_t j = 0; j < columns; ++j) {
      T* row = out + (c0_ / g.width + j) * ld + r0_ / g.height;
      for (int64_t i = 0; i < rows; ++i) row[i] = from[i * g.ld + j];
    }
  }
}

void TileWorker::apply_macro(const CopyState& state) {
  const GroupLayout g = groups_of(state, 128, state.spec.granularity == Granularity::tile);
  find_amax(g, 128);
  const int64_t n = h_ / g.height * g.ld;
  for (int64_t i = 0; i < n; ++i) {
    const auto at = static_cast<size_t>(i);
    bytes_[at] = macro_byte(amax_[at]);
    factor_[at] = poisoned(amax_[at]) ? quiet_nan() : inv_macro(bytes_[at]);
  }
  write_groups(state, g, bytes_.data(), state.copy->macro);
  k_->scale(f_.data(), h_, w_, factor_.data(), g.ld, log2_of(g.height), g.width == 1);
  clean_ = false;
}

// Dynamic clipping: sigma of each block, sums in pairwise order. Zeros past the copy's end change no sum.
void TileWorker::clipped_scales(const CopyState& state, GroupLayout g) {
  constexpr int64_t kLanes = 8;
  const int64_t block = g.height * g.width;  // one of the two is 1
  const Extent e = extent(state);
  const auto store = [&](int64_t i, int64_t n, double sum, double squares) {
    const auto at = static_cast<size_t>(i);
    if (poisoned(amax_[at]) || n <= 0) return;
    bytes_[at] = clip_scale_byte(static_cast<float>(std::sqrt(clip_variance(sum, squares, static_cast<int>(n)))));
  };
  const int64_t step = g.width == 1 ? w_ : 1;  // distance between consecutive elements of a block
  const int64_t beside = g.width == 1 ? 1 : block;
  for (int64_t i = 0; i < h_ / g.height * g.ld; i += kLanes) {
    const int64_t r = i / g.ld * g.height, c = i % g.ld * g.width;
    double sum[64][kLanes], squares[64][kLanes];
    for (int64_t half = 0; half < block / 2; ++half) {
      const float* a = f_.data() + r * w_ + c + 2 * half * step;
      for (int64_t l = 0; l < kLanes; ++l) {
        // With 128 / block < 8 blocks per row, lanes continue into the next row, which follows in memory.
        const double u = a[l * beside], v = a[l * beside + step];
        sum[half][l] = u + v;
        squares[half][l] = u * u + v * v;
      }
    }
    for (int64_t n = block / 4; n > 0; n /= 2) {
      for (int64_t half = 0; half < n; ++half) {
        for (int64_t l = 0; l < kLanes; ++l) {
          sum[half][l] = sum[2 * half][l] + sum[2 * half + 1][l];
          squares[half][l] = squares[2 * half][l] + squares[2 * half + 1][l];
        }
      }
    }
    for (int64_t l = 0; l < kLanes; ++l) {
      const int64_t row = (i + l) / g.ld * g.height, column = (i + l) % g.ld * g.width;
      store(i + l, std::min(block, g.width == 1 ? e.rows - row : e.columns - column), sum[0][l], squares[0][l]);
    }
  }
}

// uint4 blocks of a row: extremes over the elements inside the copy.
void TileWorker::affine_scales(const CopyState& state, GroupLayout g) {
  const bool storage = state.spec.scale == ScaleFormat::bf16;
  const Extent e = extent(state);
  const int64_t step = g.width == 1 ? w_ : 1, block = g.height * g.width;
  for (int64_t i = 0; i < h_ / g.height * g.ld; ++i) {
    const int64_t r = i / g.ld * g.height, c = i % g.ld * g.width;
    const int64_t n = std::min(block, g.width == 1 ? e.rows - r : e.columns - c);
    int32_t low = 0x7FFFFFFF, high = -low - 1;
    const float* f = f_.data() + r * w_ + c;
    for (int64_t j = 0; j < n; ++j) {
      const int32_t key = order_key(f[j * step]);
      low = std::min(low, key), high = std::max(high, key);
    }
    const auto magnitude = [](int32_t key) { return std::bit_cast<uint32_t>(from_order_key(key)) & 0x7FFFFFFFu; };
    const auto at = static_cast<size_t>(i);
    AffineScale s{0, 0, 0};
    if (n > 0) s = uint4_scale(std::max(magnitude(low), magnitude(high)), from_order_key(low), from_order_key(high), storage);
    scale_[at] = s.scale, zero_[at] = s.zero, factor_[at] = s.inv;
  }
}

void TileWorker::rotate(const CopyState& state) {
  const bool half = state.p->type == DType::bf16 && !state.spec.eden;
  k_->rotate(f_.data(), h_, w_, state.spec.hadamard, state.copy->signs, half, !state.transposed);
  clean_ = false;
}

// MS-EDEN: the block scales before their correction, in scale_, and factors; NaN in all blocks of a rotation group with a poisoned one.
void TileWorker::eden_scales(const CopyState& state, GroupLayout g) {
  find_amax(g, kEdenBlock);
  const int64_t n = h_ / g.height * g.ld, blocks = state.spec.hadamard / kEdenBlock, step = g.width == 1 ? g.ld : 1;
  const bool whole = state.outer.scale != state.outer.scale;
  for (int64_t i = 0; i < n; ++i) {
    const auto at = static_cast<size_t>(i);
    const bool bad = whole || halftone::poisoned(amax_[at]);
    scale_[at] = bad ? quiet_nan() : scale_values<ScaleFormat::e4m3>()[eden_block_scale(amax_[at], state.outer)];
    factor_[at] = bad ? quiet_nan() : eden_factor(scale_[at], state.outer);
  }
  for (int64_t i = 0; i < n; ++i) {
    if (factor_[static_cast<size_t>(i)] == factor_[static_cast<size_t>(i)]) continue;
    const int64_t first = step == 1 ? i / blocks * blocks : i / (blocks * step) * (blocks * step) + i % step;
    for (int64_t b = 0; b < blocks; ++b) factor_[static_cast<size_t>(first + b * step)] = quiet_nan();
  }
}

// MS-EDEN: the stored block scales, from the codes.
void TileWorker::correct_scales(const CopyState& state) {
  static constexpr std::array<float, 16> kValues = [] {
    std::array<float, 16> v{};
    for (uint8_t q = 0; q < 16; ++q) v[q] = decode(Float::e2m1, q);
    return v;
  }();
  constexpr int64_t kLanes = 8;  // blocks side by side
  const GroupLayout g = groups_;
  const bool across = g.width == 1;
  const int64_t n = h_ / g.height * g.ld, blocks = state.spec.hadamard / kEdenBlock, step = across ? g.ld : 1;
  static thread_local std::array<EdenSums, kGroups> sums;
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t r = i / g.ld * g.height, c = i % g.ld * g.width;
    float squares[kEdenBlock][kLanes], products[kEdenBlock][kLanes];
    for (int64_t e = 0; e < kEdenBlock; ++e) {
      for (int64_t l = 0; l < kLanes; ++l) {
        const int64_t row = across ? r + e : r, column = across ? c + l : c + l * kEdenBlock + e;
        const float y = f_[static_cast<size_t>(row * w_ + column)] * factor_[static_cast<size_t>(i + l)];
        squares[e][l] = y * y, products[e][l] = y * kValues[encoded_[row * encoded_ld_ + column] & 15];
      }
    }
    for (int64_t m = kEdenBlock / 2; m > 0; m /= 2) {
      for (int64_t e = 0; e < m; ++e) {
        for (int64_t l = 0; l < kLanes; ++l) {
          squares[e][l] = squares[2 * e][l] + squares[2 * e + 1][l];
          products[e][l] = products[2 * e][l] + products[2 * e + 1][l];
        }
      }
    }
    for (int64_t l = 0; l < kLanes; ++l) {
      const auto at = static_cast<size_t>(i + l);
      sums[at] = eden_weighted({squares[0][l], products[0][l]}, scale_[at]);
    }
  }
  const Extent e = extent(state);
  const int64_t groups = n / blocks, columns = across ? g.ld : g.ld / blocks;  // rotation groups of the tile, and beside each other
  DrawTile draws{};
  for (int64_t i = 0; i < groups; ++i) {
    const int64_t first = across ? i / columns * blocks * g.ld + i % columns : i * blocks;
    EdenSums of[128 / kEdenBlock];
    for (int64_t b = 0; b < blocks; ++b) of[b] = sums[static_cast<size_t>(first + b * step)];
    for (int64_t m = blocks / 2; m > 0; m /= 2)
      for (int64_t b = 0; b < m; ++b) of[b] = of[2 * b] + of[2 * b + 1];
    sums[static_cast<size_t>(first)].squares = eden_correction(of[0]);
  }
  for (int64_t i = 0; i < n; ++i) {
    const int64_t r = i / g.ld * g.height, c = i % g.ld * g.width;
    if (r >= e.rows || c >= e.columns) continue;
    if (c == 0) draws = draw_tile(*k_, state.copy->rounding, state.p->cols, r0_ + r, c0_, 1, e.columns, draws_.data());
    const auto at = static_cast<size_t>(i);
    const int64_t first = across ? i / (blocks * g.ld) * (blocks * g.ld) + i % g.ld : i / blocks * blocks;
    const bool bad = factor_[at] != factor_[at];
    bytes_[at] = bad ? poison_code(Float::e4m3) : eden_rounded(scale_[at], sums[static_cast<size_t>(first)].squares, draws.first[c]);
  }
}

// Replaces the scales of amax / 6 in bytes_ and factor_ by those of amax / 4 where these have the smaller error.
void TileWorker::choose_scales(const CopyState& state, GroupLayout g) {
  const OperandSpec& s = state.spec;
  const int64_t n = h_ / g.height * g.ld;
  struct Candidates {
    std::array<uint8_t, kGroups> four;
    std::array<float, kGroups> factor, per_scale, ratio;
    std::array<int32_t, kGroups> error_six, error_four;
  };
  static thread_local Candidates c;
  const auto& table = scale_values(s.scale);
  k_->fp4_scales(s.chain, s.scale, amax_.data(), round_up(n, 16), state.outer, 6, 1.5f, c.four.data(), c.factor.data());
  for (int64_t i = 0; i < n; ++i) {
    const auto at = static_cast<size_t>(i);
    c.per_scale[at] = per_scale_128(table[bytes_[at]], state.outer), c.ratio[at] = scale_ratio(table[bytes_[at]], table[c.four[at]]);
  }
  k_->choice_errors({s.choice, f_.data(), h_, w_, c.per_scale.data(), c.ratio.data(), g.ld, log2_of(g.height), log2_of(g.width),
                     c.error_six.data(), c.error_four.data()});
  for (int64_t i = 0; i < n; ++i) {
    const auto at = static_cast<size_t>(i);
    const float six = table[bytes_[at]];
    const bool anyway = four_anyway(six, amax_[at], c.per_scale[at]);
    if (!anyway && !takes_four(s.choice, six, table[c.four[at]], {c.error_six[at], c.error_four[at]})) continue;
    bytes_[at] = c.four[at], factor_[at] = c.factor[at];
  }
}

// Writes the block scales of the tile to bytes_, or to scale_ and zero_; factor_ and zero_ are the encoding parameters.
GroupLayout TileWorker::group_scales(const CopyState& state) {
  const OperandSpec& s = state.spec;
  const int64_t block = s.block;
  const GroupLayout g = groups_of(state, block, s.granularity == Granularity::tile);
  const int64_t n = h_ / g.height * g.ld;
  if (s.element == Element::uint4) {
    affine_scales(state, g);
    return g;
  }
  if (s.eden) {
    eden_scales(state, g);
    return g;
  }
  find_amax(g, block);
  if (s.scale == ScaleFormat::e8m0) {
    mx_bytes<ScaleMode::floor, ScaleMode::ceil, ScaleMode::rceil, ScaleMode::even, ScaleMode::adaptive, ScaleMode::uos>(s, amax_.data(), n,
                                                                                                                        bytes_.data());
    if (s.clip == Clip::dynamic) clipped_scales(state, g);
    const auto& table = mx_inverses(s.clip == Clip::fixed);
    for (int64_t i = 0; i < n; ++i) factor_[static_cast<size_t>(i)] = table[bytes_[static_cast<size_t>(i)]];
  } else if (has_byte_scales(s.scale)) {
    k_->fp4_scales(s.chain, s.scale, amax_.data(), round_up(n, 16), state.outer, largest_code(s.element), 1, bytes_.data(), factor_.data());
    if (s.choice != ScaleChoice::amax) choose_scales(state, g);
  } else {
    for (int64_t i = 0; i < n; ++i) {
      const auto at = static_cast<size_t>(i);
      const ScalePair pair = fp32_scale(s, amax_[at]);
      scale_[at] = pair.scale, factor_[at] = pair.inv;
    }
  }
  return g;
}

void TileWorker::write_scales(const CopyState& state) const {
  if (groups_.ld == 0) return;
  if (has_byte_scales(state.spec.scale)) return write_groups(state, groups_, bytes_.data(), state.scale_bytes);
  write_groups(state, groups_, scale_.data(), static_cast<float*>(state.copy->scales));
  if (state.spec.element == Element::uint4) write_groups(state, groups_, zero_.data(), state.copy->zeros);
}

void TileWorker::encode(const CopyState& state) {
  const OperandSpec& s = state.spec;
  load(*state.p);
  if (s.hadamard != 0) rotate(state);
  if (s.two_level == TwoLevel::macro) apply_macro(state);
  EncodeTile t{};
  t.element = s.element, t.stochastic = s.stochastic, t.f = f_.data(), t.rows = h_, t.width = w_;
  t.scaling = Scaling::product;
  if (!is_float(s.element)) t.range = int_range(s);
  if (s.granularity == Granularity::tensor || s.granularity == Granularity::row) {
    const bool one = s.granularity == Granularity::tensor;
    t.by_column = !one && state.transposed;
    t.factor = state.inv.data() + (one ? 0 : state.transposed ? c0_ : r0_);
    t.factor_ld = one || t.by_column ? 0 : 1;
    t.column_shift = log2_of(w_);
    groups_ = {};
  } else {
    groups_ = group_scales(state);
    if (!s.eden) write_scales(state);
    t.by_column = groups_.width == 1;
    t.factor = factor_.data(), t.zero = zero_.data(), t.factor_ld = groups_.ld;
    t.row_shift = log2_of(groups_.height), t.column_shift = log2_of(groups_.width);
    if (s.element == Element::uint4) t.scaling = Scaling::affine;
    if ((s.scale == ScaleFormat::e4m3 || s.scale == ScaleFormat::ue5m3) && !s.eden) {
      t.scaling = s.chain == Fp4Chain::alto ? Scaling::quotient : Scaling::clamped;
    }
  }
  if (s.stochastic) {  // elements beyond the matrix also draw: after rotation, and in uint4, they are not zero
    const auto [rows, width] = extent(state);
    const DrawTile draws = draw_tile(*k_, state.copy->rounding, state.p->cols, r0_, c0_, rows, width, draws_.data());
    t.draws = draws.first, t.draws_ld = draws.ld;
  }
  uint8_t* out = state.transposed ? nullptr : direct(state);
  t.codes = out != nullptr ? out : codes_.data(), t.codes_ld = out != nullptr ? state.C : w_;
  encoded_ = t.codes, encoded_ld_ = t.codes_ld;
  k_->encode(t);
  const int64_t n = groups_.ld == 0 ? 0 : h_ / groups_.height * groups_.ld;
  uint32_t largest = 0;
  for (int64_t i = 0; i < n; ++i) largest = std::max(largest, std::bit_cast<uint32_t>(factor_[static_cast<size_t>(i)]));
  if (state.poisoned || halftone::poisoned(largest)) poison(t);
  if (s.eden) correct_scales(state), write_scales(state);
}

// Output address if the tile's codes can be written in place, else null.
uint8_t* TileWorker::direct(const CopyState& state) const {
  const Extent e = extent(state);
  if (state.codes == nullptr || e.rows < h_ || e.columns < w_) return nullptr;
  return state.codes + (state.transposed ? c0_ * state.C + r0_ : r0_ * state.C + c0_);
}

// Codes of groups whose factor is NaN (numerics.md 2.2).
void TileWorker::poison(const EncodeTile& t) const {
  const uint8_t code = is_float(t.element) ? poison_code(float_of(t.element)) : 0;
  for (int64_t r = 0; r < t.rows; ++r) {
    const float* factor = t.factor + (r >> t.row_shift) * t.factor_ld;
    for (int64_t c = 0; c < w_; ++c) {
      const float by = factor[t.by_column ? c : c >> t.column_shift];
      if (by != by) t.codes[r * t.codes_ld + c] = code;
    }
  }
}

// Decodes scale_: the per-group multiplier of the values.
void TileWorker::decode_scales(const CopyState& state) {
  if (!has_byte_scales(state.spec.scale)) return;
  const auto& table = scale_values(state.spec.scale);
  for (int64_t i = 0; i < h_ / groups_.height * groups_.ld; ++i) scale_[static_cast<size_t>(i)] = table[bytes_[static_cast<size_t>(i)]];
}

void TileWorker::write_run(const CopyState& state, const uint8_t* codes, int64_t n, int64_t r, int64_t c, const float* scale,
                           const float* zero) {
  const QuantizedCopy& copy = *state.copy;
  const int64_t at = r * state.C + c;
  const Element element = state.spec.element;
  if (state.codes != nullptr && codes != state.codes + at) std::memcpy(state.codes + at, codes, static_cast<size_t>(n));
  if (copy.packed != nullptr) {
    uint8_t* out = copy.packed + packed_bytes(element, at);
    alignas(64) uint8_t some[kTileRow];
    switch (bits_of(element)) {
      case 4:
        k_->pack4(codes, round_up(n, 32), n % 32 == 0 ? out : some);
        if (n % 32 != 0) std::memcpy(out, some, static_cast<size_t>(n / 2));
        break;
      case 2:
        for (int64_t i = 0; i < n; i += 4) *out++ = pack2(codes[i], codes[i + 1], codes[i + 2], codes[i + 3]);
        break;
      default:
        for (int64_t i = 0; i < n; i += 4) {
          const uint32_t word = pack6(codes[i], codes[i + 1], codes[i + 2], codes[i + 3]);
          for (int j = 0; j < 3; ++j) *out++ = static_cast<uint8_t>(word >> 8 * j);
        }
    }
  }
  if (copy.form == ValueForm::bf16 || copy.form == ValueForm::f32) {
    const bool half = copy.form == ValueForm::bf16;
    const int64_t size = half ? 2 : 4;
    alignas(64) float some[kTileRow];
    auto* out = static_cast<std::byte*>(copy.values) + at * size;
    const int shift = state.spec.granularity == Granularity::block || state.spec.granularity == Granularity::tile
                          ? log2_of(state.spec.block)
                          : log2_of(kTileRow);
    k_->values({element, half, codes, round_up(n, 16), scale, zero, shift, n % 16 == 0 ? static_cast<void*>(out) : some});
    if (n % 16 != 0) std::memcpy(out, some, static_cast<size_t>(n * size));
  }
}

// Writes codes_ and the group arrays to the copy's outputs.
void TileWorker::write(const CopyState& state) {
  const OperandSpec& s = state.spec;
  const Extent e = extent(state);
  const bool valued = state.copy->form == ValueForm::bf16 || state.copy->form == ValueForm::f32;
  const bool scaled = valued && (has_byte_scales(s.scale) || s.element == Element::uint4);
  if (valued) decode_scales(state);
  const float* zeros = scaled && s.element == Element::uint4 ? zero_.data() : nullptr;
  if (!state.transposed) {
    if (encoded_ != codes_.data() && !valued && state.copy->packed == nullptr) return;
    for (int64_t r = 0; r < e.rows && e.columns > 0; ++r) {
      const int64_t group = scaled ? r / groups_.height * groups_.ld : 0;
      write_run(state, encoded_ + r * encoded_ld_, e.columns, r0_ + r, c0_, scaled ? scale_.data() + group : one_.data(),
                zeros == nullptr ? nullptr : zeros + group);
    }
    return;
  }
  if (e.rows == 0) return;
  uint8_t* out = direct(state);
  const uint8_t* turned = out != nullptr ? out : turned_.data();
  const int64_t ld = out != nullptr ? state.C : h_;
  k_->transpose(encoded_, encoded_ld_, h_, w_, const_cast<uint8_t*>(turned), ld);
  if (out != nullptr && !valued && state.copy->packed == nullptr) return;
  for (int64_t c = 0; c < e.columns; ++c) {
    float scale[128 / 16], zero[128 / 16];
    if (scaled) {
      for (int64_t i = 0; i < h_ / groups_.height; ++i) {
        const auto at = static_cast<size_t>(i * groups_.ld + c / groups_.width);
        scale[i] = scale_[at];
        if (zeros != nullptr) zero[i] = zeros[at];
      }
    }
    write_run(state, turned + c * ld, e.rows, c0_ + c, r0_, scaled ? scale : one_.data(), zeros == nullptr ? nullptr : zero);
  }
}

void TileWorker::place(const CopyState& state, int64_t rows, int64_t r0, int64_t c0) {
  r0_ = r0, c0_ = c0, clean_ = false;
  h_ = round_up(std::min(shape_.height, rows - r0), shape_.step);
  load(*state.p);
}

uint32_t TileWorker::rotated_amax(const CopyState& state, int64_t r0, int64_t c0) {
  place(state, state.transposed ? state.C : state.R, r0, c0);
  rotate(state);
  k_->amax_along(f_.data(), h_ * w_, 32, amax_.data());
  return *std::max_element(amax_.begin(), amax_.begin() + h_ * w_ / 32);
}

void TileWorker::run(const CopyState* row, const CopyState* transposed, bool shared, int64_t r0, int64_t c0) {
  int64_t rows = 0;
  if (row != nullptr) rows = row->R;
  if (transposed != nullptr) rows = std::max(rows, transposed->C);
  place(row != nullptr ? *row : *transposed, rows, r0, c0);
  const auto live = [&](const CopyState& state) {
    const Extent e = extent(state);
    return e.rows > 0 && e.columns > 0;
  };
  if (row != nullptr && live(*row)) {
    encode(*row);
    write(*row);
  }
  if (transposed == nullptr || !live(*transposed)) return;
  if (shared && row != nullptr && live(*row))
    write_scales(*transposed);
  else
    encode(*transposed);
  write(*transposed);
}

}  // namespace halftone::quantize
