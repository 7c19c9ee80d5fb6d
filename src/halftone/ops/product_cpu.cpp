#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>

#include "halftone/base/error.h"
#include "halftone/base/parallel.h"
#include "halftone/gemm/cpu/gemm.h"
#include "halftone/gemm/decode.h"
#include "halftone/ops/common.h"
#include "halftone/ops/product_backends.h"

namespace halftone::cpu {
namespace {

using gemm::kScaleBlock;

at::ScalarType tensor_type(DType t) { return t == DType::s8 ? at::kChar : scalar_type(t); }

// The operand's values in the GEMM's type, [rows, k] (or [k, rows] if values_transposed).
at::Tensor values(const Operand& x, DType type, bool emulate) {
  if (!x.spec.quantized()) {
    const at::Tensor v = x.values.scalar_type() == tensor_type(type) ? x.values : x.values.to(tensor_type(type));
    return row_major(v);
  }
  if (type == DType::s8 && x.codes.defined()) return x.codes;
  const ValueForm form = type == DType::f32 ? ValueForm::f32 : ValueForm::bf16;
  if (!emulate && type != DType::s8 && x.form == form && x.values.defined()) return x.values;
  return decode(x, emulate ? gemm::Decode::everything : gemm::Decode::values, tensor_type(type));
}

// Scales outside the values: `at` points to those of row 0 and block 0; step is 0 if they do not vary along k.
struct Factors {
  at::Tensor tensor;
  int64_t step = 0;
  const float* at(int64_t block, int64_t row) const {
    return tensor.defined() ? tensor.const_data_ptr<float>() + block * step + row : nullptr;
  }
};

Factors factors(const Operand& x, bool emulate) {
  const OperandSpec& s = x.spec;
  if (!s.quantized() || emulate || s.element == Element::uint4) return {};
  const float clip = s.clip == Clip::fixed ? 4.0f / 3.0f : 1.0f;
  if (gemm::scaled_by_block(s)) {
    at::Tensor out = at::empty({ceil_div(x.k, kScaleBlock), x.rows}, at::kFloat);
    gemm::block_scales(view(x), x.rows, x.k, out.mutable_data_ptr<float>());
    if (clip != 1) out.mul_(clip);
    return {out, x.rows};
  }
  if (s.granularity == Granularity::row) return {x.scales};
  float factor = clip;
  if (s.granularity == Granularity::tensor) factor = x.scales.item<float>();
  if (s.two_level == TwoLevel::tensor) factor = x.outer.item<float>();
  if (factor == 1) return {};
  return {at::full({x.rows}, factor, at::kFloat)};
}

// Concatenates the siblings' panels; for per-block sums, the panels of every block.
at::Tensor right_panels(const std::vector<Operand>& siblings, DType type, bool blocks, bool emulate) {
  const int64_t k = siblings.front().k, width = blocks ? kScaleBlock : std::max<int64_t>(k, 1);
  const auto bytes = [&](const Operand& b, int64_t i) { return panels_bytes(type, std::min(width, k - i * width), b.rows); };
  int64_t total = 0;
  for (const Operand& b : siblings) {
    for (int64_t i = 0; i < ceil_div(k, width); ++i) total += bytes(b, i);
  }
  const at::Device device = (siblings.front().values.defined() ? siblings.front().values : siblings.front().scales).device();
  const at::Tensor panels = at::empty({total}, at::TensorOptions().device(device).dtype(at::kByte));
  if (device.is_meta()) return panels;
  auto* out = static_cast<char*>(panels.data_ptr());
  for (const Operand& b : siblings) {
    const at::Tensor v = values(b, type, emulate);
    const auto* from = static_cast<const char*>(v.const_data_ptr());
    for (int64_t i = 0; i < ceil_div(k, width); out += bytes(b, i++)) {
      const int64_t n = std::min(width, k - i * width), first = i * width * v.element_size();
      b.values_transposed ? gemm::pack_columns(type, n, b.rows, from + first * v.stride(0), v.stride(0), out)
                          : gemm::pack_rows(type, b.rows, n, from + first, v.stride(0), out);
    }
  }
  return panels;
}

// out (+)= the finished sums of some rows, rounded to out's type.
template <class T>
void write_sums(const float* sums, int64_t rows, int64_t n, T* out, int64_t ld, bool accumulate) {
  for (int64_t i = 0; i < rows; ++i) {
    const float* from = sums + i * n;
    T* to = out + i * ld;
    if (accumulate) {
      for (int64_t j = 0; j < n; ++j) to[j] = T(from[j] + to_float(to[j]));
    } else {
      for (int64_t j = 0; j < n; ++j) to[j] = T(from[j]);
    }
  }
}

// Sum over blocks of 128 of k: every partial product is scaled while its rows of the sum stay in the cache. Threads split the rows.
void run_blocks(const gemm::Gemm& g, const Factors& fa, const Factors& fb) {
  constexpr int64_t kSumsInCache = int64_t{1} << 18;
  const int64_t blocks = ceil_div(g.k, kScaleBlock), bytes = panels_bytes(g.type, kScaleBlock, g.n), size = size_of(g.type);
  const bool direct = g.c_type == DType::f32;
  const int64_t most = std::clamp<int64_t>(kSumsInCache / std::max<int64_t>(g.n, 1) / 32 * 32, 64, 1024);
  const int64_t chunk = std::min(most, round_up(ceil_div(g.m, max_threads()), 32));
  const auto rows_of = [&](int64_t r) {
    const int64_t rows = std::min(chunk, g.m - r);
    auto* out = static_cast<std::byte*>(g.c) + r * g.ldc * static_cast<int64_t>(size_of(g.c_type));
    std::vector<float> sums(direct ? 0 : static_cast<size_t>(rows * g.n));
    for (int64_t i = 0; i < blocks; ++i) {
      gemm::Gemm part = g;
      part.m = rows, part.k = std::min(kScaleBlock, g.k - i * kScaleBlock);
      part.a = static_cast<const char*>(g.a) + (r * g.lda + i * kScaleBlock) * size;
      part.b = static_cast<const char*>(g.b) + i * bytes;
      part.scale_m = fa.at(i, r), part.scale_n = fb.at(i, 0);
      part.bias = i == 0 ? g.bias : nullptr;
      part.c = direct ? static_cast<void*>(out) : sums.data(), part.c_type = DType::f32, part.ldc = direct ? g.ldc : g.n;
      part.accumulate = i > 0 || (direct && g.accumulate);
      gemm::run(part);
    }
    if (!direct) write_sums(sums.data(), rows, g.n, reinterpret_cast<bf16*>(out), g.ldc, g.accumulate);
  };
  parallel_for(ceil_div(g.m, chunk), 1, [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) rows_of(c * chunk);
  });
}

}  // namespace

void multiply(const Operand& a, const Operand& b, const at::Tensor& out, const ProductOptions& options) {
  DType numbers = DType::bf16;
  for (const Operand* x : {&a, &b}) {
    if (!x->spec.quantized() && x->values.defined() && x->values.scalar_type() == at::kFloat) numbers = DType::f32;
  }
  const bool prepared = b.panels.defined();
  const UnitInput units = unit_input(a.spec, b.spec, numbers, options.emulate,
                                     Hardware::cpu_v3);  // the same on all CPUs
  gemm::Gemm g;
  g.type = prepared ? b.panel_type : units.type;
  g.m = a.rows, g.n = b.rows, g.k = a.k;
  const at::Tensor panels = prepared ? b.panels : right_panels({b}, g.type, units.blocks, options.emulate);
  at::Tensor left = a.panels.defined() ? a.panels : values(a, g.type, options.emulate);
  if (a.panels.defined()) {
    check(a.panel_type == g.type, "product of {} by {}: panels of {}", a, b, static_cast<int>(g.type));
    g.a_panels = true;
  } else if (a.values_transposed && units.blocks) {  // run_blocks reads rows
    left = left.t().contiguous(), g.lda = left.stride(0);
  } else if (a.values_transposed) {  // the GEMM reads panels of the transposed matrix
    const at::Tensor packed = at::empty({panels_bytes(g.type, a.k, a.rows)}, at::kByte);
    gemm::pack_columns(g.type, a.k, a.rows, left.const_data_ptr(), left.stride(0), packed.data_ptr());
    left = packed, g.a_panels = true;
  } else {
    g.lda = left.stride(0);
  }
  g.a = left.const_data_ptr(), g.b = panels.const_data_ptr();
  const Factors fa = factors(a, options.emulate), fb = factors(b, options.emulate);
  g.bias = options.bias.defined() ? options.bias.const_data_ptr<float>() : nullptr;
  g.accumulate = options.accumulate && !options.overwrite;
  g.c = out.data_ptr(), g.c_type = kernel_dtype(out), g.ldc = out.stride(0);
  if (units.blocks) return run_blocks(g, fa, fb);
  g.scale_m = fa.at(0, 0), g.scale_n = fb.at(0, 0);
  gemm::run(g);
}

Operand right_operand(const std::vector<Operand>& siblings, const UnitInput& units) {
  Operand b = siblings.front();
  b.panel_type = units.type, b.panels = right_panels(siblings, units.type, units.blocks, units.path == Path::dequantized);
  if (siblings.size() > 1) {
    b.rows = 0;
    std::vector<at::Tensor> scales;
    for (const Operand& s : siblings) {
      check(!units.blocks && b.rows % kPanelColumns == 0 && s.spec == b.spec &&
                (!s.spec.quantized() || s.spec.granularity == Granularity::row),
            "product: {} does not join others side by side", s);
      b.rows += s.rows, scales.push_back(s.scales);
    }
    if (b.scales.defined()) b.scales = at::cat(scales);
  }
  b.values_transposed = false;
  b.codes.reset(), b.packed.reset(), b.values.reset();
  return b;
}

}  // namespace halftone::cpu
