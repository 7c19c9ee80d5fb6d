#include "halftone/checkpoint/hf_codes.h"

#include <ATen/ops/clamp.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "halftone/base/error.h"
#include "halftone/checkpoint/hf.h"
#include "halftone/checkpoint/tensor_io.h"
#include "halftone/ops/operand.h"

namespace halftone {
namespace {

using Layout = HfFormat::Layout;
using Part = HfCodedTensor::Part;

constexpr int64_t kUnitRows = 128;  // rows of any block divide it

// The largest number that is written. Above it codes times their scale leave float32 (MXFP4: 4 * 2^126) or, as readers take the values,
// bfloat16.
double largest(const HfForm& form) { return form.weight.element == Element::e2m1 ? 6 * 0x1p125 : 255 * 0x1p120; }

// Whether codes are two in a byte; whether bytes are 32-bit words with unsigned integers.
bool is_packed(const HfForm& form, Layout layout) { return form.bits() == 4 && !(form.integers() && layout == Layout::torchao); }
bool has_words(const HfForm& form, Layout layout) { return layout == Layout::compressed_tensors && form.layer == "pack-quantized"; }

int64_t ceil_of(int64_t n, int64_t block) { return (n + block - 1) / block; }

// Largest absolute value of x, contiguous bf16 or fp32, as bits of fp32: as quantize() takes it.
uint32_t amax_bits(const at::Tensor& x) {
  const int64_t count = x.numel();
  const auto most = [&]<class Bits>(const Bits* values) {
    constexpr auto kMagnitude = static_cast<Bits>(static_cast<Bits>(-1) >> 1);
    Bits largest = 0;
    for (int64_t i = 0; i < count; ++i) largest = std::max(largest, static_cast<Bits>(values[i] & kMagnitude));
    return uint32_t{largest};
  };
  if (x.scalar_type() == at::kFloat) return most(static_cast<const uint32_t*>(x.const_data_ptr()));
  return most(static_cast<const uint16_t*>(x.const_data_ptr())) << 16;
}

// The numbers as the quantisers take them.
at::Tensor quantizable(const at::Tensor& stored, bool bf16) {
  at::Tensor x = stored.detach().to(at::kCPU);
  if (bf16) x = x.to(at::kBFloat16);
  return (x.scalar_type() == at::kBFloat16 ? x : x.to(at::kFloat)).contiguous();
}

// Sums of squares of x and of x - y, in eight lanes.
HfCodeError squares(const float* x, const float* y, int64_t count) {
  constexpr int kLanes = 8;
  HfCodeError sums;
  for (int64_t begin = 0; begin < count; begin += 4096) {
    std::array<float, kLanes> signal{}, noise{};
    const int64_t end = std::min(count, begin + 4096);
    int64_t i = begin;
    for (; i + kLanes <= end; i += kLanes)
      for (int l = 0; l < kLanes; ++l) {
        const float d = x[i + l] - y[i + l];
        signal[l] += x[i + l] * x[i + l], noise[l] += d * d;
      }
    for (; i < end; ++i) signal[0] += x[i] * x[i], noise[0] += (x[i] - y[i]) * (x[i] - y[i]);
    for (int l = 0; l < kLanes; ++l) sums.signal += signal[l], sums.noise += noise[l];
  }
  return sums;
}

}  // namespace

double HfCodeError::decibels() const { return noise == 0 ? std::numeric_limits<double>::infinity() : 10 * std::log10(signal / noise); }

bool takes_codes(const HfFormat& format, const ModelFamily& family, const std::string& native, at::IntArrayRef shape) {
  const ModelFamily::TensorName* name = family.tensor(native);
  if (name == nullptr || name->hf.empty()) return false;
  if (format.stacked) return name->transposed;
  return shape.size() == (name->experts_apart() ? 3 : 2) && native != "tok_embeddings.weight" && native != "output.weight" &&
         !native.ends_with(".router.gate.weight");
}

std::vector<HfCodedTensor> coded_tensors(const HfFormat& format, const HfForm& form, const std::string& native, const std::string& hf,
                                         at::IntArrayRef shape) {
  const Layout layout = format.layout;
  const int64_t n = shape[shape.size() - 2], k = shape.back(), columns = form.tiles() ? 1 : std::max(form.columns(), 1);
  check(k % columns == 0, "{}: its {} columns are not a multiple of the {} that share a scale; leave {} out", native, k, columns,
        form.name);
  const int64_t in_word = has_words(form, layout) ? 32 / form.bits() : is_packed(form, layout) ? 2 : 1;
  check(k % in_word == 0, "{}: its {} columns do not fill words of {} codes; leave {} out", native, k, in_word, form.name);
  const bool mx = form.weight.scale == ScaleFormat::e8m0, outer = form.weight.two_level == TwoLevel::tensor;
  if (layout == Layout::stacked_blocks)
    return {{hf + "_blocks", {shape[0], n, k / columns, columns / 2}, at::kByte, Part::codes},
            {hf + "_scales", {shape[0], n, k / columns}, at::kByte, Part::scales}};
  const at::ScalarType codes = has_words(form, layout)   ? at::kInt
                               : is_packed(form, layout) ? at::kByte
                               : form.integers()         ? at::kChar
                                                         : at::kFloat8_e4m3fn;
  const at::ScalarType scales = mx ? layout == Layout::torchao ? at::kFloat8_e8m0fnu : at::kByte : outer ? at::kFloat8_e4m3fn : at::kFloat;
  std::vector<int64_t> grid = {n, form.columns() > 0 ? ceil_of(k, form.columns()) : 1};
  if (form.tiles()) grid[0] = ceil_of(n, form.weight.block);
  if (form.weight.granularity == Granularity::tensor) grid[0] = 1;
  const std::vector<int64_t> whole{n, k / in_word};
  if (layout == Layout::torchao) {
    const size_t dot = hf.rfind('.') + 1;
    const std::string name = hf.substr(0, dot) + "_" + hf.substr(dot) + "_";
    std::vector<HfCodedTensor> parts{{name + "qdata", whole, codes, Part::codes}, {name + "scale", grid, scales, Part::scales}};
    if (outer) parts.push_back({name + "per_tensor_scale", {}, at::kFloat, Part::outer});
    if (form.weight.element == Element::int4) parts.push_back({name + "zero_point", grid, at::kChar, Part::zeros});
    return parts;
  }
  if (layout == Layout::inverse_scales) return {{hf, whole, codes, Part::codes}, {hf + "_scale_inv", grid, scales, Part::scales}};
  if (form.weight.granularity == Granularity::tensor) grid = {1};
  std::vector<HfCodedTensor> parts{{in_word > 1 ? hf + "_packed" : hf, whole, codes, Part::codes},
                                   {hf + "_scale", grid, scales, Part::scales}};
  if (outer) parts.push_back({hf + "_global_scale", {1}, at::kFloat, Part::outer});
  if (has_words(form, layout)) parts.push_back({hf + "_shape", {2}, at::kLong, Part::sizes});
  return parts;
}

HfCodedMatrix::HfCodedMatrix(const HfFormat& format, const HfWeightCodes& how, int64_t n, int64_t k, int64_t heads, Rows native,
                             HfCodeError* error)
    : layout_(format.layout),
      how_(how),
      n_(n),
      k_(k),
      heads_(heads),
      unit_(kUnitRows),
      native_(std::move(native)),
      error_(how.trained ? nullptr : error) {
  if (heads_ > 0) {
    const int64_t width = n_ / heads_;
    unit_ = std::lcm(kUnitRows, width);
    // Heads within blocks of rows: their permutation changes no block.
    arrange_first_ = how_.form->tiles() && kUnitRows % width != 0;
  }
  encoded_.resize(static_cast<size_t>(ceil_of(n_, unit_)));
  missing_ = static_cast<int64_t>(encoded_.size());
}

void HfCodedMatrix::find_amax() {
  if (how_.spec.granularity != Granularity::tensor && how_.spec.two_level != TwoLevel::tensor) return;
  uint32_t most = 0;
  const int64_t step = unit_ * std::max<int64_t>(1, (int64_t{1} << 19) / std::max<int64_t>(1, unit_ * k_));
  for (int64_t first = 0; first < n_; first += step) {
    most = std::max(most, amax_bits(quantizable(native_(first, std::min(step, n_ - first)), how_.bf16)));
  }
  if (!how_.trained) most = std::min(most, std::bit_cast<uint32_t>(static_cast<float>(largest(*how_.form))));
  amax_ = at::full({1}, static_cast<int64_t>(most), at::TensorOptions().dtype(at::kInt));
}

at::Tensor HfCodedMatrix::arranged(const at::Tensor& rows) const {
  return heads_ == 0 ? rows : permute_to_hf(rows, rows.size(0) / (n_ / heads_));
}

void HfCodedMatrix::add_error(const at::Tensor& x, const Operand& codes, int64_t first) {
  constexpr int64_t kSampled = 8;  // pieces of which one is measured
  const int64_t rows = x.numel() / std::max<int64_t>(k_, 1);
  if (error_ == nullptr || rows == 0 || first / rows % kSampled != 0) return;
  {
    const std::lock_guard lock(mutex_);
    if (encoded_[static_cast<size_t>(first / unit_)]) return;
  }
  const at::Tensor numbers = x.to(at::kFloat), values = dequantize(codes);
  const HfCodeError sums = squares(numbers.const_data_ptr<float>(), values.const_data_ptr<float>(), numbers.numel());
  const std::lock_guard lock(mutex_);
  error_->signal += sums.signal, error_->noise += sums.noise;
}

HfCodedMatrix::Piece HfCodedMatrix::encode(int64_t first, int64_t rows) {
  std::call_once(amax_once_, [&] { find_amax(); });  // here, so that the file is read from the disk once
  const HfForm& form = *how_.form;
  at::Tensor x = quantizable(native_(first, rows), how_.bf16);
  if (amax_bits(x) > std::bit_cast<uint32_t>(static_cast<float>(largest(form)))) {
    check(is_finite(file_dtype_of(x.scalar_type()), x.const_data_ptr(), x.nbytes()),
          "a weight that is to be written as codes holds a NaN or an infinity; export an earlier step");
    if (!how_.trained) x = at::clamp(x, -largest(form), largest(form));
  }
  if (arrange_first_) x = arranged(x);
  CopyRequest request{.spec = how_.spec};
  (is_packed(form, layout_) ? request.packed : request.codes) = true;
  const int64_t columns = form.group > 0 ? form.group : k_;
  const Operand o = quantize(x.view({-1, columns}), &request, nullptr, amax_).row;
  add_error(x, o, first);
  Piece piece;
  piece.codes = (request.packed ? o.packed : o.codes).view({rows, -1});
  piece.outer = o.outer;
  piece.scales =
      how_.spec.granularity == Granularity::tensor ? o.scales.view({1, 1}) : o.scales.view({-1, o.scales.numel() / o.scales.size(0)});
  if (form.group > 0) piece.scales = piece.scales.view({rows, -1});
  if (how_.spec.granularity == Granularity::tile && !form.tiles())  // every row gets the scales of its block
    piece.scales = piece.scales.repeat_interleave(how_.spec.block, 0).narrow(0, 0, rows);
  if (heads_ > 0 && !arrange_first_) {
    piece.codes = arranged(piece.codes);
    if (piece.scales.size(0) == rows && !form.tiles() && how_.spec.granularity != Granularity::tensor)
      piece.scales = arranged(piece.scales);
  }
  if (has_words(form, layout_)) {  // two's complement -> 2^(bits - 1) represents 0
    piece.codes = piece.codes.contiguous();
    auto* bytes = static_cast<uint8_t*>(piece.codes.mutable_data_ptr());
    const uint8_t flip = form.bits() == 4 ? 0x88 : 0x80;
    for (int64_t i = 0; i < piece.codes.numel(); ++i) bytes[i] ^= flip;
  }
  return piece;
}

// Rows of a file tensor that has one for `per` of the matrix.
HfCodedMatrix::Piece HfCodedMatrix::around(int64_t first, int64_t rows, int64_t per) {
  const int64_t begin = first * per / unit_ * unit_, end = std::min(n_, ceil_of((first + rows) * per, unit_) * unit_);
  Piece piece = encode(begin, end - begin);
  const bool whole = how_.spec.granularity == Granularity::tensor;
  if (per == 1) piece.codes = piece.codes.narrow(0, first - begin, rows);
  const int64_t of_scales = how_.form->tiles() ? how_.form->weight.block : 1;
  {
    const std::lock_guard lock(mutex_);
    if (!whole) {
      if (!scales_.defined()) {
        scales_ = at::empty({ceil_of(n_, of_scales), piece.scales.size(1)}, piece.scales.options());
        unread_ = scales_.size(0);
      }
      scales_.narrow(0, begin / of_scales, piece.scales.size(0)).copy_(piece.scales);
    }
    for (int64_t u = begin / unit_; u < ceil_of(end, unit_); ++u) {
      missing_ -= encoded_[static_cast<size_t>(u)] ? 0 : 1;
      encoded_[static_cast<size_t>(u)] = true;
    }
  }
  if (!whole) piece.scales = piece.scales.narrow(0, first * per / of_scales - begin / of_scales, per == 1 && of_scales > 1 ? 0 : rows);
  return piece;
}

at::Tensor HfCodedMatrix::rows(Part part, int64_t first, int64_t rows) {
  const int64_t block = how_.form->tiles() ? how_.form->weight.block : 1;
  switch (part) {
    case Part::codes:
      return around(first, rows, 1).codes;
    case Part::scales: {
      if (how_.spec.granularity == Granularity::tensor) return around(0, 1, 1).scales;
      {
        const std::lock_guard lock(mutex_);
        if (missing_ == 0 && scales_.defined()) {
          const at::Tensor found = scales_.narrow(0, first, rows);
          unread_ -= rows;
          if (unread_ <= 0) scales_.reset();
          return found;
        }
      }
      return around(first, rows, block).scales;
    }
    case Part::outer: {
      const at::Tensor outer = around(0, 1, 1).outer;
      if (!outer.defined()) return at::full({1}, 1.0, at::kFloat);
      return layout_ == Layout::compressed_tensors ? outer.reciprocal() : outer;
    }
    case Part::sizes: {
      const at::Tensor sizes = at::empty({2}, at::kLong);
      sizes.mutable_data_ptr<int64_t>()[0] = n_, sizes.mutable_data_ptr<int64_t>()[1] = k_;
      return sizes;
    }
    case Part::zeros:
      return at::zeros({rows, how_.form->group > 0 ? k_ / how_.form->group : 1}, at::kChar);
  }
  return {};
}

}  // namespace halftone
