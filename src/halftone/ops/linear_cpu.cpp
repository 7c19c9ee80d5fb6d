#include "halftone/ops/linear_cpu.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <optional>

#include "halftone/gemm/cpu/gemm.h"
#include "halftone/ops/common.h"
#include "halftone/quantize/fp8_rowwise.h"
#include "halftone/quantize/int8.h"

namespace halftone::cpu {
namespace {

// A stretch of output columns [n0, n0 + n) computed by one product.
struct Span {
  int64_t n0 = 0, n = 0;
  size_t first = 0;  // first weight of the group
};

// Bytes of an operand's panels, cut at a span; at::empty aligns to 64 bytes.
at::Tensor byte_buffer(int64_t bytes) { return at::empty({bytes}, at::kByte); }
at::Tensor float_buffer(int64_t n) { return at::empty({n}, at::kFloat); }
const float* data_or_null(const at::Tensor& t) { return t.defined() ? t.const_data_ptr<float>() : nullptr; }

// Type in which an operand enters the product: fp8 values are exact in bf16.
DType product_type(const OperandSpec& spec, DType hp) {
  if (!spec.quantized()) return hp;
  return spec.element == Element::int8 ? DType::s8 : DType::bf16;
}

struct Prepared final : PreparedWeights {
  std::vector<Span> forward_spans, dgrad_spans;
  std::vector<at::Tensor> forward, dgrad;  // panels, one per span
  std::vector<at::Tensor> dgrad_scale;     // per span, [K]
  at::Tensor forward_scale;                // [sum N]
  bool has_dgrad = false;
};

// `first_row`: of an activation among the micro-batch's rows; a weight's draws start at its first element.
Rounding rounding(const OperandSpec& spec, const StepContext& context, const std::string& name, const char* role,
                  std::optional<int64_t> first_row = {}) {
  Rounding r;
  r.stochastic = spec.stochastic, r.step = context.step;
  if (spec.stochastic) r.key = philox_key(context.seed, name + "#" + role);
  if (first_row) r.first_row = context.first_row + *first_row;
  return r;
}

// Rows of `x` quantised for a product that contracts them: row-major codes (int8) or values (fp8 as bf16) and scales [rows].
struct Rows {
  at::Tensor values, scale;
  const void* data = nullptr;
  int64_t ld = 0;
  DType type = DType::bf16;
};

Rows quantize_rows(const at::Tensor& x, const OperandSpec& spec, const Rounding& round, void* col_panels = nullptr,
                   float* col_scale = nullptr, const Rounding& col_round = {}) {
  Rows r;
  r.type = product_type(spec, kernel_dtype(x));
  if (!spec.quantized()) {
    r.data = x.const_data_ptr(), r.ld = x.stride(0);
    return r;
  }
  const int64_t rows = x.size(0), cols = x.size(1);
  r.scale = float_buffer(rows), r.ld = cols;
  if (spec.element == Element::int8) {
    r.values = at::empty({rows, cols}, at::kChar);
    Int8Quantize p;
    p.x = x.const_data_ptr(), p.type = kernel_dtype(x), p.rows = rows, p.cols = cols, p.ld = x.stride(0);
    p.row_codes = r.values.mutable_data_ptr<int8_t>(), p.row_scale = r.scale.mutable_data_ptr<float>();
    p.col_panels = col_panels, p.col_scale = col_scale, p.row_rounding = round, p.col_rounding = col_round;
    int8_quantize(p);
  } else {
    r.values = at::empty({rows, cols}, at::kBFloat16);
    Fp8Rowwise p;
    p.x = x.const_data_ptr(), p.type = kernel_dtype(x), p.rows = rows, p.cols = cols, p.ld = x.stride(0);
    p.row_values = static_cast<bf16*>(r.values.data_ptr()), p.row_scale = r.scale.mutable_data_ptr<float>();
    p.col_panels = col_panels, p.col_scale = col_scale;
    fp8_rowwise(p);
  }
  r.data = r.values.const_data_ptr();
  return r;
}

// Panels that contract the rows of `x`, with one scale per column when quantised (undefined otherwise).
struct Columns {
  at::Tensor panels, scale;
  DType type = DType::bf16;
};

Columns quantize_columns(const at::Tensor& x, const OperandSpec& spec, const Rounding& round) {
  Columns c;
  c.type = product_type(spec, kernel_dtype(x));
  const int64_t rows = x.size(0), cols = x.size(1);
  c.panels = byte_buffer(panels_bytes(c.type, rows, cols));
  if (!spec.quantized()) {
    gemm::pack_columns(c.type, rows, cols, x.const_data_ptr(), x.stride(0), c.panels.data_ptr());
    return c;
  }
  c.scale = float_buffer(cols);
  if (spec.element == Element::int8) {
    Int8Quantize p;
    p.x = x.const_data_ptr(), p.type = kernel_dtype(x), p.rows = rows, p.cols = cols, p.ld = x.stride(0);
    p.col_panels = c.panels.data_ptr(), p.col_scale = c.scale.mutable_data_ptr<float>(), p.col_rounding = round;
    int8_quantize(p);
  } else {
    Fp8Rowwise p;
    p.x = x.const_data_ptr(), p.type = kernel_dtype(x), p.rows = rows, p.cols = cols, p.ld = x.stride(0);
    p.col_panels = c.panels.data_ptr(), p.col_scale = c.scale.mutable_data_ptr<float>();
    fp8_rowwise(p);
  }
  return c;
}

bool adjacent(const LinearGroup& group, at::Tensor Weight::*member) {
  for (size_t i = 1; i < group.weights.size(); ++i) {
    const at::Tensor &a = group.weights[i - 1]->*member, &b = group.weights[i]->*member;
    if (!a.defined() || !b.defined()) return false;
    if (static_cast<const char*>(a.const_data_ptr()) + a.nbytes() != b.const_data_ptr()) return false;
  }
  return true;
}

std::vector<Span> spans(const LinearGroup& group, bool together) {
  std::vector<Span> result;
  int64_t n0 = 0;
  for (size_t i = 0; i < group.weights.size(); ++i) {
    const int64_t n = group.weights[i]->value.size(0);
    if (together && i > 0) {
      result.front().n += n;
    } else {
      result.push_back({n0, n, i});
    }
    n0 += n;
  }
  return result;
}

// View of a span's rows across adjacent weights.
at::Tensor rows_of(const LinearGroup& group, at::Tensor Weight::*member, const Span& span) {
  const at::Tensor first = (group.weights[span.first]->*member).detach();
  return first.size(0) == span.n ? first : first.as_strided({span.n, first.size(1)}, {first.size(1), 1});
}

void prepare_forward(LinearGroup& group, Prepared& p, DType hp, const StepContext& step) {
  const LinearRecipe& r = group.recipe;
  const int64_t k = group.in_features();
  bool together = true;
  for (const Weight* w : group.weights) together = together && w->value.size(0) % kPanelColumns == 0;
  p.forward_spans = spans(group, together);
  const DType type = product_type(r.w_forward, hp);
  if (r.w_forward.quantized()) p.forward_scale = float_buffer(group.out_features());
  int64_t n0 = 0;
  for (const Span& span : p.forward_spans) p.forward.push_back(byte_buffer(panels_bytes(type, k, span.n)));
  for (size_t i = 0; i < group.weights.size(); ++i) {
    const Weight& w = *group.weights[i];
    const at::Tensor value = w.value.detach();
    const int64_t n = value.size(0);
    const Rows rows = quantize_rows(value, r.w_forward, rounding(r.w_forward, step, w.name, "w.fwd"));
    auto* out = static_cast<std::byte*>(p.forward[together ? 0 : i].data_ptr());
    if (together) out += panels_bytes(type, k, n0);
    gemm::pack_rows(type, n, k, rows.data, rows.ld, out);
    if (rows.scale.defined()) p.forward_scale.narrow(0, n0, n).copy_(rows.scale);
    n0 += n;
  }
}

void prepare_dgrad(LinearGroup& group, Prepared& p, const StepContext& step) {
  const LinearRecipe& r = group.recipe;
  p.dgrad_spans = spans(group, !r.dy_dgrad.quantized() && adjacent(group, &Weight::value));
  for (const Span& span : p.dgrad_spans) {
    const Columns c = quantize_columns(rows_of(group, &Weight::value, span), r.w_dgrad,
                                       rounding(r.w_dgrad, step, group.weights[span.first]->name, "w.dgrad"));
    p.dgrad.push_back(c.panels);
    p.dgrad_scale.push_back(c.scale);
  }
  p.has_dgrad = true;
}

Prepared& prepared(LinearGroup& group, DType hp, const StepContext& step) {
  const WeightState state = group.weight_state(step);
  auto* p = dynamic_cast<Prepared*>(group.prepared.get());  // the other path (linear_scaled.cpp) has its own
  if (p == nullptr || p->made_of != state) {
    auto fresh = std::make_shared<Prepared>();
    group.prepared.reset();  // frees the old copies first
    fresh->made_of = state;
    prepare_forward(group, *fresh, hp, step);
    group.prepared = fresh;
    p = fresh.get();
  }
  return *p;
}

struct SavedInput {
  at::Tensor x;     // [T, K] when wgrad reads it unquantised (or nothing needs a wgrad)
  Columns columns;  // panels of X by column otherwise: 1 byte per element for int8
  StepContext step;
  int64_t first_row = 0;
};

at::Tensor forward(const at::Tensor& x, LinearGroup& group, const LinearOptions& options, SavedInput& saved, bool product) {
  const LinearRecipe& r = group.recipe;
  const DType hp = kernel_dtype(x);
  const StepContext& step = options.step;
  const Prepared& p = prepared(group, hp, step);
  const std::string& name = group.weights.front()->name;
  const int64_t tokens = x.size(0), k = x.size(1), n = group.out_features(), row0 = options.first_row;
  bool trainable = false;
  for (const Weight* w : group.weights) trainable = trainable || w->trainable();
  saved.step = step, saved.first_row = row0;
  const bool both = options.keep && trainable && r.x_wgrad.quantized() && r.x_forward.quantized();
  Rows rows;
  if (both) {  // one read for the forward rows and the columns that wgrad will want
    Columns& c = saved.columns;
    c.type = product_type(r.x_wgrad, hp);
    c.panels = byte_buffer(panels_bytes(c.type, tokens, k)), c.scale = float_buffer(k);
    rows = quantize_rows(x, r.x_forward, rounding(r.x_forward, step, name, "x.fwd", row0), c.panels.data_ptr(),
                         c.scale.mutable_data_ptr<float>(), rounding(r.x_wgrad, step, name, "x.wgrad", row0));
  } else {
    rows = quantize_rows(x, r.x_forward, rounding(r.x_forward, step, name, "x.fwd", row0));
    if (options.keep && trainable && r.x_wgrad.quantized()) {
      saved.columns = quantize_columns(x, r.x_wgrad, rounding(r.x_wgrad, step, name, "x.wgrad", row0));
    } else if (options.keep) {
      saved.x = x;
    }
  }
  at::Tensor y = at::empty({product ? tokens : 0, n}, x.options().dtype(options.out));
  if (!product) return y;
  for (size_t i = 0; i < p.forward_spans.size(); ++i) {
    const Span& span = p.forward_spans[i];
    gemm::Gemm g;
    g.type = rows.type, g.m = tokens, g.n = span.n, g.k = k;
    g.a = rows.data, g.lda = rows.ld, g.b = p.forward[i].const_data_ptr();
    g.scale_m = data_or_null(rows.scale);
    if (p.forward_scale.defined()) g.scale_n = p.forward_scale.const_data_ptr<float>() + span.n0;
    g.c = static_cast<char*>(y.data_ptr()) + span.n0 * y.element_size(), g.c_type = kernel_dtype(y), g.ldc = n;
    gemm::run(g);
  }
  return y;
}

at::Tensor dgrad(const at::Tensor& dy, LinearGroup& group, const StepContext& step, int64_t first_row) {
  const LinearRecipe& r = group.recipe;
  const DType hp = kernel_dtype(dy);
  Prepared& p = prepared(group, hp, step);
  if (!p.has_dgrad) prepare_dgrad(group, p, step);
  const int64_t tokens = dy.size(0), k = group.in_features();
  at::Tensor dx = at::empty({tokens, k}, dy.options());
  for (size_t i = 0; i < p.dgrad_spans.size(); ++i) {
    const Span& span = p.dgrad_spans[i];
    const Rows rows = quantize_rows(dy.narrow(1, span.n0, span.n), r.dy_dgrad,
                                    rounding(r.dy_dgrad, step, group.weights[span.first]->name, "dy.dgrad", first_row));
    gemm::Gemm g;
    g.type = rows.type, g.m = tokens, g.n = k, g.k = span.n;
    g.a = rows.data, g.lda = rows.ld, g.b = p.dgrad[i].const_data_ptr();
    g.scale_m = data_or_null(rows.scale), g.scale_n = data_or_null(p.dgrad_scale[i]);
    g.c = dx.data_ptr(), g.c_type = hp, g.ldc = k, g.accumulate = i > 0;
    gemm::run(g);
  }
  return dx;
}

void wgrad(const SavedInput& saved, const at::Tensor& dy, LinearGroup& group) {
  const LinearRecipe& r = group.recipe;
  const StepContext& step = saved.step;
  const int64_t tokens = dy.size(0), k = group.in_features();
  if (tokens == 0) return;  // columns of no element have no scale
  const Columns x = saved.columns.panels.defined() ? saved.columns : quantize_columns(saved.x, r.x_wgrad, {});
  const bool stochastic = r.dy_wgrad.stochastic;  // the draws are keyed by each weight's own name and width
  for (const Span& span : spans(group, !stochastic && adjacent(group, &Weight::grad))) {
    if (!group.weights[span.first]->trainable()) continue;
    const Columns columns = quantize_columns(dy.narrow(1, span.n0, span.n), r.dy_wgrad,
                                             rounding(r.dy_wgrad, step, group.weights[span.first]->name, "dy.wgrad", saved.first_row));
    gemm::Gemm g;
    g.type = columns.type, g.m = span.n, g.n = k, g.k = tokens;
    g.a = columns.panels.const_data_ptr(), g.a_panels = true, g.b = x.panels.const_data_ptr();
    g.scale_m = data_or_null(columns.scale), g.scale_n = data_or_null(x.scale);
    at::Tensor grad = rows_of(group, &Weight::grad, span);
    g.c = grad.data_ptr(), g.c_type = DType::f32, g.ldc = k, g.accumulate = true;
    gemm::run(g);
  }
}

bool simple(const OperandSpec& s) {
  if (!s.quantized()) return true;
  if (s.granularity != Granularity::row || s.scale_floor != 0 || s.same_as_forward || s.stored) return false;
  return s.element == Element::int8 || (s.element == Element::e4m3 && s.scale == ScaleFormat::fp32_pow2 && !s.stochastic);
}

}  // namespace

bool takes(const at::Tensor& x, const LinearGroup& group) {
  const LinearRecipe& r = group.recipe;
  if (r.dge || r.emulate || group.has_bias()) return false;
  // Both operands of a product in one form, and unquantised ones in one dtype.
  for (const auto& [a, b] : {std::pair{&r.x_forward, &r.w_forward}, {&r.dy_dgrad, &r.w_dgrad}, {&r.dy_wgrad, &r.x_wgrad}}) {
    if (!simple(*a) || !simple(*b) || a->element != b->element) return false;
  }
  return std::all_of(group.weights.begin(), group.weights.end(),
                     [&](const Weight* w) { return !w->stored && w->value.scalar_type() == x.scalar_type(); });
}

LinearCall linear_call(const at::Tensor& x_in, LinearGroup& group, const LinearOptions& options, bool product) {
  const at::Tensor x = row_major(x_in);
  auto saved = std::make_shared<SavedInput>();
  LinearCall call;
  call.y = forward(x, group, options, *saved, product);
  if (options.keep) {
    call.backward = [saved, &group](const at::Tensor& dy_in, bool want_dx) {
      const at::Tensor dy = row_major(dy_in);
      wgrad(*saved, dy, group);
      return want_dx ? dgrad(dy, group, saved->step, saved->first_row) : at::Tensor();
    };
  }
  return call;
}

}  // namespace halftone::cpu
