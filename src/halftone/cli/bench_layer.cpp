#include "halftone/cli/bench_layer.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>

#include "halftone/base/dtype.h"
#include "halftone/config/layer_recipe.h"
#include "halftone/ops/hardware.h"
#include "halftone/ops/operand.h"
#include "halftone/ops/product.h"
#include "halftone/ops/rounding_keys.h"
#include "halftone/quantize/operand_shape.h"
#include "halftone/quantize/statistics_pass.h"

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

// Bytes written for one copy [rows, k].
double bytes_written(const CopyRequest& r, int64_t rows, int64_t k) {
  const double n = static_cast<double>(rows) * static_cast<double>(k);
  double bytes = (r.codes ? n : 0) + (r.packed ? n / 2 : 0) + (r.panels ? n * static_cast<double>(size_of(panel_type(r.spec))) : 0);
  if (is_fold(r.form)) return bytes + n + 4.0 * static_cast<double>(r.form == ValueForm::fold_e4m3 ? rows : 1);
  if (r.form != ValueForm::none) bytes += n * (r.form == ValueForm::f32 ? 4 : 2);
  const bool byte_scales = has_byte_scales(r.spec.scale);
  if (r.form != ValueForm::none && byte_scales) return bytes;
  const BlockShape b = block_shape(r.spec, rows, k);
  return bytes + static_cast<double>((rows + b.rows - 1) / b.rows * ((k + b.cols - 1) / b.cols)) * (byte_scales ? 1 : 4);
}

// Bytes an element of a GEMM's operand: one for codes, else two.
double operand_width(const CopyRequest& q) {
  if (!q.spec.quantized() || (q.panels && panel_type(q.spec) != DType::s8)) return 2.0;
  return q.form == ValueForm::none || is_fold(q.form) ? 1.0 : 2.0;
}

}  // namespace

double quantiser_bytes(int64_t rows, int64_t cols, double element_size, const CopyRequest* row, const CopyRequest* transposed) {
  if (row == nullptr && transposed == nullptr) return 0;
  const bool twice = (row != nullptr && needs_statistics_pass(row->spec, row->form, false)) ||
                     (transposed != nullptr && needs_statistics_pass(transposed->spec, transposed->form, true));
  const double read = static_cast<double>(rows) * static_cast<double>(cols) * element_size * (twice ? 2 : 1);
  return read + (row != nullptr ? bytes_written(*row, rows, cols) : 0) +
         (transposed != nullptr ? bytes_written(*transposed, cols, rows) : 0);
}

LayerData::LayerData(int64_t m_, int64_t n_, int64_t k_, c10::Device device)
    : m(m_),
      n(n_),
      k(k_),
      x(normal(m, k, kBf16, device)),
      w(normal(n, k, kBf16, device).mul_(0.02)),
      dy(normal(m, n, kBf16, device).mul_(1e-3)),
      dw(at::zeros({n, k}, x.options().dtype(at::kFloat))) {}

Words layer_recipes() {
  Words out;
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

std::vector<LinearRecipe> bench_recipes(const Words& names, const std::string& preset) {
  std::vector<LinearRecipe> list = {bench_recipe("none", preset)};
  for (const std::string& name : names) list.push_back(bench_recipe(name, preset));
  return list;
}

Parts layer_work(const LinearRecipe& recipe, const LayerData& d) {
  if (recipe.name == kAten) {
    return {[&d](int64_t) { at::mm(d.x, d.w.t()); },
            [&d](int64_t) {
              at::mm(d.dy, d.w);
              at::mm(d.dy.t(), d.x);
            }};
  }
  struct State {
    Weight weight;
    FusedLinears fused;
    LinearCall call;
  };
  auto s = std::make_shared<State>();
  s->weight.name = "bench.weight", s->weight.value = d.w, s->weight.grad = d.dw;
  s->fused.weights = {&s->weight}, s->fused.recipe = recipe;
  return {[s, &d](int64_t) {
            ++s->weight.version;
            LinearOptions options;
            options.keep = true, options.out = kBf16;
            s->call = linear_call(d.x, s->fused, options);
          },
          [s, &d](int64_t) {
            s->call.backward(d.dy, true);
            s->call = {};
          }};
}

std::vector<LayerPart> layer_parts(const LinearRecipe& r, const LayerData& d) {
  struct Operands {  // of a matrix
    CopyRequest row, columns;
    OperandCopies copies;
  };
  struct State {
    LinearPlan plan;
    Operands of[3];  // by Matrix
    Operands& operator[](Matrix m) { return of[static_cast<size_t>(m)]; }
    const CopyRequest& request(const OperandPlan& p) { return p.columns ? (*this)[p.matrix].columns : (*this)[p.matrix].row; }
    const Operand& operand(const OperandPlan& p) { return p.columns ? (*this)[p.matrix].copies.transposed : (*this)[p.matrix].copies.row; }
  };
  auto s = std::make_shared<State>();
  s->plan = plan_linear(r, {.hardware = process_hardware(d.x.device().type())});
  const LinearPlan& plan = s->plan;
  const bool x_again = wgrad_reads_forward_codes(r);  // bitnet
  for (const ProductPlan* p : {&plan.forward, &plan.dgrad, &plan.wgrad}) {
    for (const OperandPlan* o : {&p->left, &p->right}) {
      if (o != &plan.wgrad.right || !x_again) (o->columns ? (*s)[o->matrix].columns : (*s)[o->matrix].row) = request(*o);
    }
  }
  std::vector<LayerPart> parts;
  const auto quantiser = [&](const char* name, Matrix matrix, const at::Tensor& t) {
    const Operands& o = (*s)[matrix];
    const auto run = [s, matrix, &t](int64_t) {
      Operands& of = (*s)[matrix];
      of.copies = quantize(t, &of.row, &of.columns);
      if (matrix != Matrix::w) return;
      of.copies.row = right_operand({of.copies.row}, s->plan.forward.units);
      of.copies.transposed = right_operand({of.copies.transposed}, s->plan.dgrad.units);
    };
    parts.push_back({name, run,
                     quantiser_bytes(t.size(0), t.size(1), 2, o.row.spec.quantized() ? &o.row : nullptr,
                                     o.columns.spec.quantized() ? &o.columns : nullptr)});
  };
  const auto product = [&](const char* name, const ProductPlan& p, int64_t left, int64_t right, const at::Tensor& out) {
    ProductOptions options;
    options.fast_accum = p.fast_accum, options.emulate = p.emulate, options.accumulate = p.product == LinearProduct::wgrad;
    const auto run = [s, &p, out, options, again = x_again && options.accumulate](int64_t) {
      OperandCopies& x = (*s)[Matrix::x].copies;
      if (again) x.transposed = plain_operand(dequantize(x.row).to(kBf16), true);
      multiply(s->operand(p.left), s->operand(p.right), out, options);
    };
    const double bytes = static_cast<double>(left) * operand_width(s->request(p.left)) +
                         static_cast<double>(right) * operand_width(s->request(p.right)) +
                         static_cast<double>(out.numel()) * (options.accumulate ? 8 : 2);
    parts.push_back({name, run, bytes, 2.0 * static_cast<double>(d.m) * static_cast<double>(d.n) * static_cast<double>(d.k)});
  };
  const int64_t x = d.m * d.k, w = d.n * d.k, dy = d.m * d.n;
  quantiser("quantise x", Matrix::x, d.x), quantiser("quantise w", Matrix::w, d.w);
  product("y = x w", plan.forward, x, w, at::empty({d.m, d.n}, d.x.options()));
  quantiser("quantise dy", Matrix::dy, d.dy);
  product("dx = dy w", plan.dgrad, dy, w, at::empty({d.m, d.k}, d.x.options()));
  product("dw = dy x", plan.wgrad, dy, x, d.dw);
  return parts;
}

std::vector<std::vector<double>> time_layer_parts(const Bench& bench, const std::vector<LinearRecipe>& recipes, const LayerData& data,
                                                  double turn) {
  std::vector<Parts> works;
  for (const LinearRecipe& r : recipes) {
    works.emplace_back();
    for (const LayerPart& p : layer_parts(r, data)) works.back().push_back(p.run);
  }
  return time_in_turns(bench.device, works, {bench.rounds, turn});
}

}  // namespace halftone::bench
