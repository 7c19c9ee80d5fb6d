#include "halftone/train/stored_products.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <fmt/ranges.h>

#include <map>
#include <optional>

#include "halftone/formats/describe.h"
#include "halftone/formats/float_code.h"
#include "halftone/formats/support.h"
#include "halftone/nn/layers.h"
#include "halftone/ops/batch_invariant.h"
#include "halftone/ops/hardware.h"
#include "halftone/train/saved_model.h"

namespace halftone {
namespace {

using Codes = HfWeightScheme::Codes;
using ByteScale = HfWeightScheme::ByteScale;
using Inputs = HfWeightScheme::Inputs;

OperandSpec spec(Element e, Granularity g, int block = 0, ScaleFormat s = ScaleFormat::fp32) { return {e, g, block, s}; }

// Numbers or scales [N, K] of a weight, or of expert `expert` of this process: its part of them.
at::Tensor read_matrix(const LoadedStep& step, const nn::Parameter& p, int64_t expert) {
  const bool experts = p.shape.size() == 3;
  std::vector<int64_t> shape = p.whole_shape();
  if (experts) shape[0] = 1;
  at::Tensor t = at::empty(shape, at::kFloat);
  experts ? step.read_rows(p.fqn, expert + p.first()[0], t, true) : step.read_into(p.fqn, t, true);
  for (const nn::DimPart& part : p.parts)
    if (!experts || part.dim > 0) t = t.narrow(part.dim, part.first, p.shape[static_cast<size_t>(part.dim)]);
  return (experts ? t.select(0, 0) : t).contiguous();
}

at::Tensor byte_codes(Element e, const at::Tensor& values) {
  if (e == Element::e4m3) return values.to(at::kFloat8_e4m3fn).view(at::kByte);
  if (e != Element::e2m1) return values.round().to(at::kChar);
  const at::Tensor doubled = values.abs().mul(2).round().to(at::kLong);  // 0 1 2 3 4 6 8 12
  const at::Tensor code = at::tensor({0, 1, 2, 3, 4, 4, 5, 5, 6, 6, 6, 6, 7}, at::kByte).index({doubled});
  return at::where(values.signbit(), code + 8, code).to(at::kByte);
}

at::Tensor values_of(Element e, const at::Tensor& codes) {
  if (e == Element::e4m3) return codes.view(at::kFloat8_e4m3fn).to(at::kFloat);
  if (e != Element::e2m1) return codes.to(at::kFloat);
  std::vector<float> table(16);
  for (size_t i = 0; i < table.size(); ++i) table[i] = decode(Float::e2m1, static_cast<uint8_t>(i));
  return at::tensor(table).index({codes.to(at::kLong)});
}

// The weight in the form of `w`, or null where codes and scales do not have it. scales: that of every element, without the outer one.
std::shared_ptr<StoredWeight> stored_weight(const OperandSpec& w, const at::Tensor& values, const at::Tensor& scales, float global) {
  auto s = std::make_shared<StoredWeight>();
  s->spec = w;
  const int64_t n = values.size(0), k = values.size(1), width = w.block > 0 ? w.block : std::max<int64_t>(k, 1);
  const int64_t rows = w.granularity == Granularity::tile ? w.block : w.granularity == Granularity::tensor ? std::max<int64_t>(n, 1) : 1;
  const auto places = [](int64_t size, int64_t step) { return at::arange(0, size, step, at::kLong); };
  const at::Tensor grid = scales.index_select(0, places(n, rows)).index_select(1, places(k, width));
  const at::Tensor spread = grid.repeat_interleave(rows, 0).narrow(0, 0, n).repeat_interleave(width, 1).narrow(1, 0, k);
  if (!at::equal(spread, scales)) return nullptr;  // rows of a head were permuted across blocks
  const at::Tensor of_element = global == 1 ? scales : scales / global;
  s->codes = byte_codes(w.element, at::where(of_element == 0, at::zeros_like(values), values / of_element));
  if (!at::equal(values_of(w.element, s->codes) * of_element, values)) return nullptr;
  s->scales = w.scale == ScaleFormat::e4m3   ? grid.to(at::kFloat8_e4m3fn).view(at::kByte)
              : w.scale == ScaleFormat::e8m0 ? grid.to(at::kFloat8_e8m0fnu).view(at::kByte)
                                             : grid;
  if (w.granularity == Granularity::row || w.granularity == Granularity::tensor) s->scales = s->scales.flatten();
  if (w.two_level == TwoLevel::tensor) s->outer = at::full({1}, 1 / global, at::kFloat);
  return s;
}

// The kinds of a folder's weights and how many layers have each, the most frequent first.
std::string counted(const std::map<std::string, int64_t>& counts) {
  std::vector<std::pair<int64_t, std::string>> order;
  for (const auto& [what, n] : counts) order.emplace_back(-n, what);
  std::sort(order.begin(), order.end());
  int64_t all = 0;
  for (const auto& [n, what] : order) all -= n;
  std::vector<std::string> parts;
  for (const auto& [n, what] : order) parts.push_back(order.size() == 1 ? what : fmt::format("{} in {} of {} layers", what, -n, all));
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string products_text(const LinearRecipe& r, const std::string& numbers) {
  if (!r.quantized()) return numbers;
  const auto text = [&](OperandSpec s) {
    s.stored = false;  // said before
    return s.quantized() ? describe(s) : numbers;
  };
  return fmt::format("{} (X {}, W {})", r.name, text(r.x_forward), text(r.w_forward));
}

// The products, X in its form by W in the folder's own codes, of weights that a Hugging Face folder stores this way; none: there are none,
// and `why` is the reason.
std::optional<LinearRecipe> products_of(const HfWeightScheme& s, std::string& why) {
  LinearRecipe r;
  OperandSpec &w = r.w_forward, &x = r.x_forward;
  const auto none = [&](std::string reason) {
    why = std::move(reason);
    return std::nullopt;
  };
  if (!s.symmetric) return none("codes with zero points have no product");
  const bool quantized = s.inputs != Inputs::none;
  const bool tensor = s.rows == 0 && s.cols == 0, row = s.rows == 1 && s.cols == 0;
  if (s.byte_scale != ByteScale::none) {
    const bool nv = s.byte_scale == ByteScale::e4m3;
    r = s.codes == Codes::e4m3 ? *find_linear_recipe("mxfp8_e4m3") : *find_linear_recipe(nv ? "nvfp4" : "mxfp4");
    x.choice = ScaleChoice::amax;  // a folder's quantisers know no other rule
    if (s.rows > 1 || s.cols != x.block) return none(fmt::format("blocks of {} x {} have no product", s.rows, s.cols));
    w = x;
  } else if (s.codes == Codes::e4m3) {
    r.name = "fp8", r.dim_multiple = 16;
    if (tensor || row) {
      w = spec(Element::e4m3, row ? Granularity::row : Granularity::tensor);
      x = spec(Element::e4m3, s.inputs == Inputs::token ? Granularity::row : Granularity::tensor);
    } else if (s.rows == 128 && s.cols == 128) {
      r = *find_linear_recipe("fp8_blockwise");
    } else {
      return none(fmt::format("blocks of {} x {} have no product", s.rows, s.cols));
    }
  } else {
    const bool four = s.bits == 4;
    r.name = four ? "int4" : "int8", r.dim_multiple = 16;
    const Element e = four ? Element::int4 : Element::int8;
    if (four && s.rows == 1 && s.cols == 128 && !quantized) {
      w = spec(e, Granularity::block, 128);
    } else if (row || tensor) {
      w = spec(e, row ? Granularity::row : Granularity::tensor);
    } else {
      return none(fmt::format("groups of {} integers have no product", s.cols));
    }
    x = spec(Element::int8, s.inputs == Inputs::token ? Granularity::row : Granularity::tensor);
    if (quantized && four) return none("4-bit integers by 8-bit ones have no product");
    if (quantized && s.inputs != Inputs::token) return none("int8 inputs without a scale per token have no product");
  }
  if (!quantized) x = OperandSpec();
  w.stored = true;
  r.dy_dgrad = r.w_dgrad = r.dy_wgrad = r.x_wgrad = OperandSpec(), r.dge = false;
  return r;
}

// Lets the layer multiply with the folder's codes; otherwise the reason why it does not. scales: of the folder (LoadedStep::open_scales).
std::string use_codes(nn::QuantizableLayer& layer, const LoadedStep& step, const LoadedStep& scales, Hardware hardware) {
  const std::vector<nn::Parameter*> weights = layer.weights();
  std::string why;
  std::optional<LinearRecipe> recipe;
  for (const nn::Parameter* p : weights) {
    const auto as = step.stored_as(p->fqn);
    if (as.empty()) return "some experts are numbers";
    if (p->shard) return "processes share the rows of the weights";
    const std::optional<LinearRecipe> r = products_of(as[0]->scheme(), why);
    if (!r) return why;
    if (recipe && *recipe != *r) return "the weights of a layer have several forms";
    recipe = r;
    for (const int64_t size : {p->shape.back(), p->shape[p->shape.size() - 2]})
      if (size % r->dim_multiple != 0) return fmt::format("sizes are not multiples of {}", r->dim_multiple);
  }
  const bool inputs = recipe->x_forward.quantized();
  if (inputs && product_support(recipe->x_forward, recipe->w_forward, hardware).path == Path::folded)
    return "this device folds mxfp4 codes when it makes them from numbers";
  const std::string_view spread = batch_invariant() ? depends_on_batch(recipe->x_forward) : "";
  check(spread.empty(), "debug.batch_invariant: {} is {}, whose X ({}) {}; add --recipe none", weights[0]->fqn, recipe->name,
        describe(recipe->x_forward), spread);
  std::vector<std::vector<std::shared_ptr<StoredWeight>>> stored;
  for (const nn::Parameter* p : weights) {
    const auto as = step.stored_as(p->fqn);
    const bool experts = p->shape.size() == 3;
    if (experts && as.size() == 1) return "stacked experts are multiplied by their values";
    auto& of_weight = stored.emplace_back();
    for (int64_t e = 0; e < (experts ? p->shape[0] : 1); ++e) {
      const float global = as[static_cast<size_t>(experts ? e + p->first()[0] : 0)]->global_scale();
      of_weight.push_back(stored_weight(recipe->w_forward, read_matrix(step, *p, e), read_matrix(scales, *p, e), global));
      if (of_weight.back() == nullptr) return "their blocks are not those of the rows here";
    }
  }
  for (size_t i = 0; i < weights.size(); ++i) {
    Weight& w = weights[i]->weight;
    for (const auto& s : stored[i])
      for (at::Tensor* t : {&s->codes, &s->scales, &s->outer})
        if (t->defined()) *t = t->to(w.value.device());
    ++w.version;
    weights[i]->shape.size() == 3 ? void(w.stored_experts = std::move(stored[i])) : void(w.stored = std::move(stored[i][0]));
  }
  LayerRecipe of_layer;
  of_layer.linear = *recipe;
  layer.set_recipe(of_layer);
  return inputs && step.stored_as(weights[0]->fqn)[0]->scheme().calibrated ? "scales of inputs are computed, not the folder's" : "";
}

}  // namespace

std::string multiply_as_stored(Engine& engine, const LoadedStep& step, const std::string& numbers, bool codes) {
  const bool foreign = step.hf_config() != nullptr && step.hf_config()->quantization.has_value();
  std::optional<LoadedStep> scales;
  std::map<std::string, int64_t> stored, multiplied, reasons;
  if (foreign && codes) scales = LoadedStep::open_scales(step.folder());
  engine.model().for_each_module([&](nn::Module& m) {
    auto* layer = dynamic_cast<nn::QuantizableLayer*>(&m);
    if (layer == nullptr || m.class_names()[0] == "RouterGate") return;
    const bool held = foreign && step.holds_codes(layer->weights()[0]->fqn);
    if (held) {
      const std::string why = codes ? use_codes(*layer, step, *scales, hardware_of(engine.device())) : "--recipe none";
      if (!why.empty()) ++reasons[why];
    }
    ++stored[held ? step.hf_config()->quantization->method + " codes" : stored_dtype(step)];
    ++multiplied[products_text(layer->recipe(), numbers)];
  });
  if (!foreign && (multiplied.size() > 1 || stored.begin()->first != multiplied.begin()->first)) {
    const std::string& type = stored.begin()->first;
    const bool plain = multiplied.size() == 1 && multiplied.begin()->first == numbers;
    ++reasons[step.hf_config() != nullptr ? type == "float16" ? "float16 has no products here" : "--dtype"
              : codes                     ? "as the run trained"
              : plain                     ? "--recipe none"
                                          : "no other model has the run's weights"];
  }
  std::vector<std::string> why;
  for (const auto& [reason, n] : reasons) why.push_back(reason);
  return fmt::format("Weights stored as {}, multiplied as {}{}", counted(stored), counted(multiplied),
                     why.empty() ? "" : fmt::format(": {}", fmt::join(why, "; ")));
}

}  // namespace halftone
