#include "halftone/cli/bench_layer.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>

#include "halftone/base/error.h"
#include "halftone/cli/bench_products.h"
#include "halftone/cli/bench_report.h"
#include "halftone/cli/bench_traffic.h"
#include "halftone/config/layer_recipe.h"
#include "halftone/ops/hardware.h"
#include "halftone/ops/product.h"
#include "halftone/ops/rounding_keys.h"

namespace halftone::bench {
namespace {

constexpr const char* kAten = "aten_bf16";
constexpr auto kBf16 = at::kBFloat16;

CopyRequest request(const OperandPlan& plan) {
  CopyRequest r = plan.copy;
  r.rounding.stochastic = r.spec.stochastic, r.signs = r.spec.hadamard != 0 ? 0xB5297A4Du : 0;
  if (r.spec.stochastic) r.rounding.key = philox_key(1, plan.role);
  return r;
}

}  // namespace

LayerData::LayerData(int64_t m_, int64_t n_, int64_t k_, c10::Device device)
    : m(m_),
      n(n_),
      k(k_),
      x(normal(m, k, kBf16, device)),
      w(normal(n, k, kBf16, device).mul_(0.02)),
      dy(normal(m, n, kBf16, device).mul_(1e-3)),
      dw(at::zeros({n, k}, x.options().dtype(at::kFloat))) {}

std::vector<std::string> layer_recipes() {
  std::vector<std::string> out;
  for (const LinearRecipe& r : kLinearRecipes) {
    if (!r.w_forward.stored && r.quantized()) out.emplace_back(r.name);
  }
  out.emplace_back(kAten);
  return out;
}

LinearRecipe bench_recipe(const std::string& name, const std::string& preset) {
  LinearRecipe r;
  if (name == kAten) return r.name = kAten, r;
  if (name == "none") return *find_linear_recipe("none");
  RecipeOptions options;
  options.preset = preset;
  return layer_recipe(name, options, "bench").linear;
}

BenchLayer::BenchLayer(const LinearRecipe& recipe, const LayerData& data) : data_(data) {
  weight_.name = "bench.weight", weight_.value = data.w, weight_.grad = data.dw;
  fused_.weights = {&weight_}, fused_.recipe = recipe;
}

void BenchLayer::forward() {
  ++weight_.version;
  if (fused_.recipe.name == kAten) {
    call_.y = at::mm(data_.x, data_.w.t());
    return;
  }
  LinearOptions options;
  options.keep = true, options.out = kBf16;
  call_ = linear_call(data_.x, fused_, options);
}

void BenchLayer::backward() {
  if (fused_.recipe.name == kAten) {
    at::mm(data_.dy, data_.w);
    at::mm(data_.dy.t(), data_.x);
  } else {
    call_.backward(data_.dy, true);
  }
  call_ = {};
}

std::vector<LayerPart> layer_parts(const LinearRecipe& r, const LayerData& d) {
  check(r.name != kAten, "the parts of {} are its products", kAten);
  const LinearPlan plan = plan_linear(r, {.hardware = process_hardware(d.x.device().type())});
  struct State {
    CopyRequest x_row, x_columns, w_row, w_columns, dy_row, dy_columns;
    OperandCopies x, w, dy;
    at::Tensor y, dx;
    // Reads the codes of the forward rows again (bitnet).
    bool x_again = false;
  };
  auto s = std::make_shared<State>();
  s->x_again = wgrad_reads_forward_codes(r);
  s->x_row = request(plan.forward.left), s->w_row = request(plan.forward.right);
  if (!s->x_again) s->x_columns = request(plan.wgrad.right);
  s->dy_row = request(plan.dgrad.left), s->w_columns = request(plan.dgrad.right);
  s->dy_columns = request(plan.wgrad.left);
  s->y = at::empty({d.m, d.n}, d.x.options()), s->dx = at::empty({d.m, d.k}, d.x.options());

  const auto product = [&r](const Operand& a, const Operand& b, const at::Tensor& out, int which, bool accumulate) {
    ProductOptions o;
    o.fast_accum = r.fast_accum[static_cast<size_t>(which)], o.emulate = r.emulate, o.accumulate = accumulate;
    multiply(a, b, out, o);
  };
  const auto bytes = [](const at::Tensor& x, const CopyRequest& row, const CopyRequest& columns) {
    return quantiser_bytes(x.size(0), x.size(1), 2, row.spec.quantized() ? &row : nullptr, columns.spec.quantized() ? &columns : nullptr);
  };
  const double m = static_cast<double>(d.m), n = static_cast<double>(d.n), k = static_cast<double>(d.k), flop = 2 * m * n * k;
  // A GEMM reads one byte an element for codes, else two.
  const auto width = [](const CopyRequest& q) {
    if (!q.spec.quantized() || (q.panels && panel_type(q.spec) != DType::s8)) return 2.0;
    return q.form == ValueForm::none || is_fold(q.form) ? 1.0 : 2.0;
  };
  return {
      {"quantise x", [=, &d] { s->x = quantize(d.x, &s->x_row, &s->x_columns); }, bytes(d.x, s->x_row, s->x_columns)},
      {"quantise w",
       [=, &d] {
         s->w = quantize(d.w, &s->w_row, &s->w_columns);
         s->w.row = right_operand({s->w.row}, plan.forward.units);
         s->w.transposed = right_operand({s->w.transposed}, plan.dgrad.units);
       },
       bytes(d.w, s->w_row, s->w_columns)},
      {"y = x w", [=] { product(s->x.row, s->w.row, s->y, 0, false); }, m * k * width(s->x_row) + n * k * width(s->w_row) + 2 * m * n,
       flop},
      {"quantise dy", [=, &d] { s->dy = quantize(d.dy, &s->dy_row, &s->dy_columns); }, bytes(d.dy, s->dy_row, s->dy_columns)},
      {"dx = dy w", [=] { product(s->dy.row, s->w.transposed, s->dx, 1, false); },
       m * n * width(s->dy_row) + n * k * width(s->w_columns) + 2 * m * k, flop},
      {"dw = dy x",
       [=, &d] {
         if (s->x_again) s->x.transposed = plain_operand(dequantize(s->x.row).to(kBf16), true);
         product(s->dy.transposed, s->x.transposed, d.dw, 2, true);
       },
       m * n * width(s->dy_columns) + m * k * width(s->x_columns) + 8 * n * k, flop},
  };
}

}  // namespace halftone::bench
