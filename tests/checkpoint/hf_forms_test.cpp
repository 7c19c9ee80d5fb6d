// Forms of codes: every row against the quantiser of training, byte for byte, and against what config.json says of it.
#include "halftone/checkpoint/hf_forms.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "checkpoint/support.h"
#include "halftone/checkpoint/hf.h"
#include "halftone/checkpoint/loaded_step.h"
#include "halftone/models/registry.h"
#include "halftone/ops/operand.h"

namespace halftone::hf_forms_test {
namespace {

using Codes = HfWeightScheme::Codes;
using testing::expect_error;
using testing::TemporaryFolder;

HfConfig llama() {
  return parse_hf_config(R"({"model_type":"llama","hidden_size":256,"intermediate_size":384,"num_hidden_layers":1,"num_attention_heads":4,
    "num_key_value_heads":2,"head_dim":64,"vocab_size":50,"rms_norm_eps":1e-5,"rope_theta":10000.0,"tie_word_embeddings":false})",
                         "config.json", model_families());
}

at::Tensor stored(const SafetensorsFile& file, const std::string& name) {
  const TensorEntry& entry = file.at(name);
  const at::Tensor out = at::empty(entry.shape, at::TensorOptions().dtype(scalar_type_of(entry.dtype)));
  file.read(entry, out.mutable_data_ptr(), out.nbytes());
  return out;
}
at::Tensor bytes(const at::Tensor& t) { return t.contiguous().view({-1}).view(at::kByte); }

const HfFormat& format(const char* name) { return *find_hf_format(name); }

struct Expected {
  const char* form;
  Codes codes;
  int bits;
  int64_t rows, cols;  // of a block of scales; 0: all
};
constexpr std::array kExpected = {Expected{"fp8_tensorwise", Codes::e4m3, 8, 0, 0},
                                  Expected{"fp8_rowwise", Codes::e4m3, 8, 1, 0},
                                  Expected{"fp8_blockwise", Codes::e4m3, 8, 128, 128},
                                  Expected{"int8", Codes::int8, 8, 1, 0},
                                  Expected{"int8_weight", Codes::packed, 8, 1, 0},
                                  Expected{"int4", Codes::packed, 4, 1, 0},
                                  Expected{"int4_g32", Codes::packed, 4, 1, 32},
                                  Expected{"int4_g128", Codes::packed, 4, 1, 128},
                                  Expected{"mxfp8", Codes::e4m3, 8, 1, 32},
                                  Expected{"mxfp4", Codes::e2m1, 4, 1, 32},
                                  Expected{"nvfp4", Codes::e2m1, 4, 1, 16}};

TEST(HfForms, ConfigurationsSayWhatTheWeightsAre) {
  std::string names;
  for (const Expected& e : kExpected) {
    names += fmt::format("{}{}", names.empty() ? "" : " ", e.form);
    for (const bool inputs : {false, true}) {
      const nlohmann::json root{
          {"quantization_config",
           nlohmann::json::parse(
               write_hf_quantization(format("compressed-tensors"), {{find_hf_form(e.form), inputs, {}}}, {"lm_head"}).dump())}};
      const HfWeightScheme scheme = parse_hf_quantization(root, "config.json")->groups.at(0);
      EXPECT_EQ(scheme.codes, e.codes) << e.form;
      EXPECT_EQ(scheme.bits, e.bits) << e.form;
      EXPECT_EQ(scheme.rows, e.rows) << e.form;
      EXPECT_EQ(scheme.cols, e.cols) << e.form;
      const nlohmann::json& group = root["quantization_config"]["config_groups"]["group_0"];
      EXPECT_EQ(group["input_activations"].is_null(), !inputs) << e.form;
      EXPECT_TRUE(!inputs || group["input_activations"]["dynamic"] == true) << e.form;
    }
  }
  EXPECT_EQ(names, kLinearForms);
  // Several forms: modules by name.
  const auto two = write_hf_quantization(format("compressed-tensors"),
                                         {{find_hf_form("int8"), true, {"a.b"}}, {find_hf_form("mxfp4"), false, {"a.c", "a.d"}}}, {});
  EXPECT_EQ(two["format"], "mixed-precision");
  EXPECT_EQ(two["config_groups"]["group_1"]["targets"], nlohmann::json::parse(R"(["a.c","a.d"])"));
}

// A quantiser of training, and the form that its codes have.
struct Trained {
  const char* form;
  OperandSpec spec;
};
OperandSpec with(OperandSpec spec, auto change) {
  change(spec);
  return spec;
}
std::vector<Trained> trained() {
  const auto mx = [](Granularity g, Element e, ScaleMode mode) {
    return with(detail::blocks(g, e, 32, ScaleFormat::e8m0), [&](OperandSpec& s) { s.mode = mode; });
  };
  const OperandSpec nv = detail::block(Element::e2m1, 16, ScaleFormat::e4m3), square = detail::tile(Element::e2m1, 16, ScaleFormat::e4m3);
  return {{"fp8_tensorwise", detail::kTensor8},
          {"fp8_tensorwise", detail::kTensor8Pow2},
          {"fp8_rowwise", detail::kRow8},
          {"fp8_blockwise", detail::tile(Element::e4m3, 128, ScaleFormat::fp32)},
          {"int8", detail::rows(Element::int8)},
          {"int8_weight", detail::rows(Element::int8)},
          {"int4", detail::rows(Element::int4)},
          {"mxfp8", mx(Granularity::block, Element::e4m3, ScaleMode::rceil)},
          {"mxfp8", mx(Granularity::tile, Element::e4m3, ScaleMode::floor)},
          {"mxfp4", mx(Granularity::block, Element::e2m1, ScaleMode::adaptive)},
          {"mxfp4", mx(Granularity::tile, Element::e2m1, ScaleMode::uos)},
          {"nvfp4", nv},
          {"nvfp4", square},
          {"nvfp4", with(square, [](OperandSpec& s) { s.chain = Fp4Chain::torchao; })},
          {"nvfp4", with(square, [](OperandSpec& s) { s.two_level = TwoLevel::none; })},
          {"nvfp4", with(nv, [](OperandSpec& s) { s.choice = ScaleChoice::squared; })}};
}

// Writes wq (rows permuted within heads) and w2; returns the file.
SafetensorsFile write(const TemporaryFolder& folder, const HfFormat& to, const Trained& t, const std::vector<NamedTensor>& model) {
  HfExport content{.config = llama(), .model = model, .dtype = std::nullopt, .format = &to};
  for (const NamedTensor& w : model)
    content.codes[w.name] = {.form = find_hf_form(t.form), .spec = t.spec, .inputs = false, .trained = true, .bf16 = true};
  for (NamedTensor& w : content.model) w.tensor = at::empty_like(w.tensor, at::TensorOptions().device(at::kMeta));
  content.read = [&model](const std::string& name, int64_t first, int64_t rows) {
    return (name == model[0].name ? model[0] : model[1]).tensor.narrow(0, first, rows);
  };
  write_hf(folder.path(), content);
  return SafetensorsFile(folder / "model.safetensors");
}

TEST(HfForms, TrainingCodesAreWrittenAsTheyAreAndReadBack) {
  const auto numbers = [](at::IntArrayRef shape, int64_t seed) { return at::randn(shape, at::detail::createCPUGenerator(seed)) * 0.1; };
  const std::vector<NamedTensor> model = {{"layers.0.attention.wq.weight", numbers({256, 256}, 1)},
                                          {"layers.0.feed_forward.w2.weight", numbers({256, 384}, 2)}};
  const std::array<std::string, 2> modules = {"model.layers.0.self_attn.q_proj.", "model.layers.0.mlp.down_proj."};
  for (const Trained& t : trained()) {
    const HfForm& form = *find_hf_form(t.form);
    ASSERT_TRUE(has_form(t.spec, form)) << t.form;
    const TemporaryFolder folder, again;
    const SafetensorsFile file = write(folder, format("compressed-tensors"), t, model), other = write(again, format("torchao"), t, model);
    const LoadedStep step = LoadedStep::open(folder.path(), true);
    for (size_t i = 0; i < 2; ++i) {
      SCOPED_TRACE(fmt::format("{} {}", t.form, model[i].name));
      const auto in_file = [&](const at::Tensor& rows) { return i == 0 ? permute_to_hf(rows, 4) : rows; };
      CopyRequest request{.spec = t.spec};
      (form.bits() == 4 ? request.packed : request.codes) = true;
      const Operand o = quantize(model[i].tensor.to(at::kBFloat16), &request, nullptr).row;
      at::Tensor codes = in_file((form.bits() == 4 ? o.packed : o.codes).view({256, -1}));
      const bool words = form.layer == "pack-quantized";
      EXPECT_TRUE(at::equal(bytes(stored(other, modules[i] + "_weight_qdata")), bytes(codes)) || form.integers());
      if (words) codes = at::bitwise_xor(codes, form.bits() == 4 ? 0x88 : 0x80);
      EXPECT_TRUE(at::equal(bytes(stored(file, modules[i] + (words || form.bits() == 4 ? "weight_packed" : "weight"))), bytes(codes)));
      at::Tensor scales = o.scales;
      if (t.spec.granularity == Granularity::tile && !form.tiles()) scales = scales.repeat_interleave(t.spec.block, 0);
      if (scales.size(0) == 256) scales = in_file(scales.view({256, -1}));
      EXPECT_TRUE(at::equal(bytes(stored(file, modules[i] + "weight_scale")), bytes(scales)));
      EXPECT_TRUE(at::equal(bytes(stored(other, modules[i] + "_weight_scale")), bytes(scales)));
      const at::Tensor values = dequantize(o), read = step.read(model[i].name, 0, 256).to(at::kFloat);
      if (form.weight.two_level == TwoLevel::tensor) {
        const at::Tensor outer = o.outer.defined() ? o.outer : at::ones({1});
        EXPECT_TRUE(at::equal(stored(other, modules[i] + "_weight_per_tensor_scale").view({1}), outer));
        EXPECT_TRUE(at::equal(stored(file, modules[i] + "weight_global_scale"), outer.reciprocal()));
      }
      EXPECT_TRUE(at::equal(read, values.to(at::kBFloat16).to(at::kFloat)) || form.weight.two_level == TwoLevel::tensor);
      EXPECT_TRUE(at::allclose(read, values, 0x1p-8, 0));
    }
  }
}

TEST(HfForms, WhatHasNoFormIsNamed) {
  const OperandSpec mxfp4 = detail::block(Element::e2m1, 32, ScaleFormat::e8m0);
  const HfForm& form = *find_hf_form("mxfp4");
  EXPECT_TRUE(has_form(mxfp4, form));
  const auto objection = [&](auto change) {
    const OperandSpec changed = with(mxfp4, change);
    EXPECT_FALSE(has_form(changed, form));
    return objection_to(changed);
  };
  EXPECT_EQ(objection([](OperandSpec& s) { s.hadamard = 32; }), "a rotation of 32 elements");
  EXPECT_EQ(objection([](OperandSpec& s) { s.two_level = TwoLevel::macro; }), "factors of macro blocks");
  EXPECT_EQ(objection([](OperandSpec& s) { s.stochastic = true; }), "codes that are drawn anew in every step");
  EXPECT_EQ(objection([](OperandSpec& s) { s.clip = Clip::fixed; }), "clipped blocks");
  for (const OperandSpec& other : {detail::tensor(Element::e5m2), detail::block(Element::e5m2, 32, ScaleFormat::e8m0),
                                   detail::block(Element::int8, 32, ScaleFormat::e8m0), detail::block(Element::int4, 16, ScaleFormat::e4m3),
                                   detail::block(Element::e2m1, 16, ScaleFormat::ue5m3),
                                   detail::block(Element::uint4, 32, ScaleFormat::fp32), detail::tensor(Element::ternary)})
    for (const HfForm& any : hf_forms()) EXPECT_FALSE(has_form(other, any)) << any.name;
  EXPECT_FALSE(find_hf_form("int8_static")->refused.empty());
  for (const HfFormat& f : hf_formats()) EXPECT_FALSE(f.holds(*find_hf_form("int8_static"))) << f.name;
  EXPECT_EQ(single_format("fp8_blockwise"), &format("deepseek-fp8"));
  EXPECT_EQ(single_format("int8"), nullptr);
}

TEST(HfForms, ShapesThatDoNotFitAreRefused) {
  const auto parts = [](const char* form, int64_t k) {
    return coded_tensors(format("compressed-tensors"), *find_hf_form(form), "layers.0.x", "model.x.weight", {4, k});
  };
  EXPECT_EQ(parts("nvfp4", 48).size(), 3);
  expect_error([&] { parts("nvfp4", 40); }, "layers.0.x: its 40 columns are not a multiple of the 16 that share a scale; leave nvfp4 out");
  expect_error([&] { parts("int4", 12); }, "its 12 columns do not fill words of 8 codes");
  expect_error([&] { parts("int4_g128", 192); }, "not a multiple of the 128");
}

// One error for the folder, and no folder: a form that torchao's configuration cannot mix.
TEST(HfForms, TorchaoHoldsOneForm) {
  const TemporaryFolder folder;
  const std::vector<NamedTensor> model = {{"layers.0.attention.wo.weight", at::ones({256, 256})},
                                          {"layers.0.feed_forward.w2.weight", at::ones({256, 384})}};
  HfExport content{.config = llama(), .model = model, .dtype = std::nullopt, .format = &format("torchao")};
  const char* forms[] = {"int8", "mxfp4"};
  for (size_t i = 0; i < 2; ++i) content.codes[model[i].name] = {.form = find_hf_form(forms[i]), .spec = find_hf_form(forms[i])->weight};
  expect_error([&] { write_hf(folder.path(), content); }, "torchao holds one form of codes, this model has int8 and mxfp4");
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  content.format = &format("compressed-tensors");
  write_hf(folder.path(), content);
  EXPECT_EQ(LoadedStep::open(folder.path(), true).hf_config()->quantization->weights, 2);
}

}  // namespace
}  // namespace halftone::hf_forms_test
