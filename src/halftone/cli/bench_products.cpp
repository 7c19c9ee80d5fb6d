#include "halftone/cli/bench_products.h"

#include <ATen/Context.h>
#include <ATen/ops/_int_mm.h>
#include <ATen/ops/_scaled_mm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>

#include <algorithm>

#include "halftone/base/error.h"
#include "halftone/ops/common.h"
#include "halftone/ops/hardware.h"
#include "halftone/ops/product.h"

namespace halftone::bench {
namespace {

std::vector<ProductFormat> make_formats() {
  const auto ours = [](const char* name, const char* meaning, const char* recipe, bool fast = false) {
    const LinearRecipe r = *find_linear_recipe(recipe);
    return ProductFormat{name, meaning, r.x_forward, r.w_forward, fast};
  };
  const auto aten = [](const char* name, const char* meaning, Reference r, bool fast = false) {
    return ProductFormat{name, meaning, {}, {}, fast, r, r == Reference::tf32 ? at::kFloat : at::kBFloat16};
  };
  const LinearRecipe blockwise = *find_linear_recipe("fp8_blockwise");
  std::vector<ProductFormat> out = {
      {"bf16", "bfloat16, the reference of the ratios", {}, {}},
      {"fp32", "float32", {}, {}, false, Reference::none, at::kFloat},
      ours("fp8_tensor", "e4m3, one scale a tensor", "fp8_tensorwise"),
      ours("fp8_tensor_fast", "the same, fast accumulation", "fp8_tensorwise", true),
      ours("fp8_row", "e4m3, a scale a row of A and of B", "fp8_rowwise"),
      ours("fp8_row_fast", "the same, fast accumulation", "fp8_rowwise", true),
      ours("fp8_1x128_128x128", "e4m3, 1x128 blocks of A, 128x128 of B", "fp8_blockwise"),
      {"fp8_1x128_1x128", "e4m3, 1x128 blocks of both", blockwise.dy_wgrad, blockwise.x_wgrad},
      ours("int8", "int8, row and column scales applied", "int8"),
      ours("int4", "int4 through int8 units, likewise", "int4"),
      ours("mxfp8", "e4m3, e8m0 scales of 1x32 and 32x32", "mxfp8_e4m3"),
      ours("mxfp4", "e2m1, e8m0 scales of 1x32 and 32x32", "mxfp4"),
      ours("mxfp4_fast", "the same, fast accumulation", "mxfp4", true),
      ours("nvfp4", "e2m1, e4m3 scales of 1x16 and 16x16, outer scale", "nvfp4"),
      ours("amdfp4", "e2m1, ue5m3 scales of 1x16 and 16x16, outer scale", "amdfp4"),
      ours("int8_weight", "bf16 by int8 rows", "int8_weight"),
      ours("bitnet", "int8 rows by ternary", "bitnet"),
      aten("aten_bf16", "at::mm", Reference::mm),
      aten("aten_tf32", "at::mm of float32 with TF32", Reference::tf32),
      aten("aten_fp8_tensor_fast", "at::_scaled_mm, one scale a tensor", Reference::fp8_tensor, true),
      aten("aten_fp8_row", "at::_scaled_mm, a scale a row", Reference::fp8_row),
      aten("aten_fp8_row_fast", "the same, fast accumulation", Reference::fp8_row, true),
      aten("aten_fp8_1x128_128x128", "at::_scaled_mm, 1x128 blocks of A, 128x128 of B", Reference::fp8_block_tile),
      aten("aten_fp8_1x128_1x128", "at::_scaled_mm, 1x128 blocks of both", Reference::fp8_block_block),
      aten("aten_int8", "at::_int_mm: int32 out, nothing scaled", Reference::int_mm),
  };
  for (ProductFormat& f : out) f.a.stochastic = f.b.stochastic = false, f.a.stored = f.b.stored = false;
  return out;
}

// Enough sets of operands that none is still in a cache when it is used again.
int64_t sets(double bytes, c10::Device device) {
  const double cached = device.is_cpu() ? double{64 << 20} : double{128 << 20};
  return std::clamp<int64_t>(static_cast<int64_t>(cached / bytes) + 1, 1, device.is_cpu() ? 16 : 64);
}

double bytes_of(const at::Tensor& t) { return t.defined() ? static_cast<double>(t.nbytes()) : 0; }
double bytes_of(const Operand& o) { return bytes_of(o.codes) + bytes_of(o.values) + bytes_of(o.panels) + bytes_of(o.scales); }

Operand operand(const at::Tensor& x, bool transposed, const OperandSpec& spec, const OperandSpec& other, at::ScalarType hp) {
  const CopyRequest r = copy_request(spec, other, hp == at::kFloat ? DType::f32 : DType::bf16,
                                     transposed ? CopyUse::columns : CopyUse::rows, false, process_hardware(x.device().type()));
  const OperandCopies copies = quantize(x, transposed ? nullptr : &r, transposed ? &r : nullptr);
  return transposed ? copies.transposed : copies.row;
}

Case our_case(const ProductFormat& f, int64_t m, int64_t n, int64_t k, const Layout& layout, c10::Device device) {
  struct State {
    std::vector<Operand> a, b;
    std::vector<at::Tensor> out;
  };
  auto s = std::make_shared<State>();
  for (int64_t i = 0, count = 1; i < count; ++i) {
    const at::Tensor x = layout.a_transposed ? normal(k, m, f.hp, device) : normal(m, k, f.hp, device);
    const at::Tensor w = layout.b_transposed ? normal(k, n, f.hp, device) : normal(n, k, f.hp, device);
    s->a.push_back(operand(x, layout.a_transposed, f.a, f.b, f.hp));
    const UnitInput units = unit_input(f.a, f.b, kernel_dtype(x), false, process_hardware(device.type()));
    s->b.push_back(right_operand({operand(w, layout.b_transposed, f.b, f.a, f.hp)}, units));
    s->out.push_back(at::empty({m, n}, x.options()));
    if (i == 0) count = sets(bytes_of(s->a[0]) + bytes_of(s->b[0]) + bytes_of(s->out[0]), device);
  }
  ProductOptions options;
  options.fast_accum = f.fast;
  const std::string a = form_text(s->a[0]), b = form_text(s->b[0]);
  const bool moved = (layout.a_transposed && f.a.quantized()) || (layout.b_transposed && f.b.quantized());
  const auto multiply_set = [s, options](int64_t turn) {
    const auto i = static_cast<size_t>(turn) % s->a.size();
    multiply(s->a[i], s->b[i], s->out[i], options);
  };
  return {.keys = {}, .parts = {multiply_set}, .reads = (a == b ? a : a + " by " + b) + (moved ? "; transposed by the quantiser" : "")};
}

Case aten_case(const ProductFormat& f, int64_t m, int64_t n, int64_t k, const Layout& layout, c10::Device device) {
  const bool fp8 = f.reference >= Reference::fp8_tensor && f.reference <= Reference::fp8_block_block;
  if (fp8 && (layout.a_transposed || layout.b_transposed)) return {.keys = {}, .parts = {}, .absent = "at::_scaled_mm takes TN only"};
  if (device.is_cpu() && (fp8 || f.reference == Reference::tf32)) return {.keys = {}, .parts = {}, .absent = "CUDA only"};
  struct State {
    std::vector<at::Tensor> a, b;
    at::Tensor scale_a, scale_b;
  };
  auto s = std::make_shared<State>();
  const auto type = f.reference == Reference::int_mm ? at::kChar : fp8 ? at::kFloat8_e4m3fn : f.hp;
  const auto draw = [&](int64_t rows, int64_t cols) {
    if (type == at::kChar) return at::randint(-127, 128, {rows, cols}, at::TensorOptions().device(device).dtype(at::kChar));
    at::Tensor t = normal(rows, cols, f.hp, device);
    return fp8 ? t.mul_(100).clamp_(-448, 448).to(type) : t;  // like quantized codes
  };
  const int64_t count = sets(static_cast<double>((m + n) * k * static_cast<int64_t>(c10::elementSize(type)) + m * n * 2), device);
  for (int64_t i = 0; i < count; ++i) {
    s->a.push_back(layout.a_transposed ? draw(k, m).t() : draw(m, k));
    s->b.push_back(layout.b_transposed ? draw(k, n) : draw(n, k).t());
  }
  // Scales in the layouts that at::_scaled_mm asks for: those of 1x128 blocks lie block by block, those of tiles row by row.
  const auto scale = [&](int64_t rows, int64_t cols) {
    return at::full({rows, cols}, 0.01, at::TensorOptions().device(device).dtype(at::kFloat));
  };
  const int64_t blocks = (k + 127) / 128;
  if (f.reference == Reference::fp8_tensor) s->scale_a = scale(1, 1).squeeze(), s->scale_b = scale(1, 1).squeeze();
  if (f.reference == Reference::fp8_row) s->scale_a = scale(m, 1), s->scale_b = scale(1, n);
  if (f.reference > Reference::fp8_row) s->scale_a = scale(blocks, m).t();
  if (f.reference == Reference::fp8_block_block) s->scale_b = scale(blocks, n);
  if (f.reference == Reference::fp8_block_tile) s->scale_b = scale((n + 127) / 128, blocks).t();
  const auto multiply_set = [s, f, fp8](int64_t turn) {
    const auto i = static_cast<size_t>(turn) % s->a.size();
    if (fp8) {
      at::_scaled_mm(s->a[i], s->b[i], s->scale_a, s->scale_b, {}, {}, at::kBFloat16, f.fast);
    } else if (f.reference == Reference::int_mm) {
      at::_int_mm(s->a[i], s->b[i]);
    } else {
      if (f.reference == Reference::tf32) at::globalContext().setAllowTF32CuBLAS(true);
      at::mm(s->a[i], s->b[i]);
      if (f.reference == Reference::tf32) at::globalContext().setAllowTF32CuBLAS(false);
    }
  };
  return {.keys = {}, .parts = {multiply_set}, .reads = fp8 ? "codes" : "plain values"};
}

}  // namespace

const std::vector<ProductFormat>& product_formats() {
  static const std::vector<ProductFormat> kFormats = make_formats();
  return kFormats;
}

Case product_case(const ProductFormat& f, int64_t m, int64_t n, int64_t k, const Layout& layout, c10::Device device) {
  Case c = f.reference == Reference::none ? our_case(f, m, n, k, layout, device) : aten_case(f, m, n, k, layout, device);
  c.work = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  try {
    for (const Part& part : c.parts) part(0);
  } catch (const std::exception& e) {  // a layout or size that the library does not support
    std::string reason = e.what();
    reason = reason.substr(0, reason.find('\n'));
    std::replace(reason.begin(), reason.end(), ',', ';');
    c.parts.clear(), c.reads.clear(), c.absent = reason;
  }
  return c;
}

}  // namespace halftone::bench
