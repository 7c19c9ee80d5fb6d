// Experts in Hugging Face folders: one tensor each, or stacked with the last dimensions swapped, unquantised or as codes.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include "checkpoint/hf_tensors.h"
#include "checkpoint/support.h"
#include "halftone/base/json_reader.h"
#include "halftone/checkpoint/loaded_step.h"
#include "halftone/formats/float_code.h"
#include "halftone/models/registry.h"

namespace halftone::hf_experts_test {
namespace {

namespace fs = std::filesystem;
using testing::expect_error;
using testing::TemporaryFolder;

constexpr int64_t kExperts = 3;
const std::string kW1 = "layers.1.moe.experts.w1", kW2 = "layers.1.moe.experts.w2";

Json deepseek() {
  return Json::parse(R"({"model_type":"deepseek_v3","hidden_size":64,"intermediate_size":96,"num_hidden_layers":2,"num_attention_heads":2,
    "vocab_size":50,"tie_word_embeddings":true,"rms_norm_eps":1e-6,"n_routed_experts":3,"num_experts_per_tok":2,"moe_intermediate_size":40,"n_shared_experts":1,
    "first_k_dense_replace":1,"n_group":1,"topk_group":1,"routed_scaling_factor":1.0,"q_lora_rank":null,"kv_lora_rank":16,
    "qk_nope_head_dim":16,"qk_rope_head_dim":8,"v_head_dim":16,"num_nextn_predict_layers":1})");
}
Json gpt_oss() {
  return Json::parse(R"({"model_type":"gpt_oss","hidden_size":64,"intermediate_size":96,"num_hidden_layers":1,"num_attention_heads":2,
    "num_key_value_heads":1,"head_dim":32,"vocab_size":50,"rms_norm_eps":1e-5,"num_local_experts":3,"num_experts_per_tok":2,
    "sliding_window":8,"rope_theta":150000,"rope_scaling":{"rope_type":"linear","factor":2.0}})");
}

std::string expert_name(int64_t e, const std::string& projection) {
  return fmt::format("model.layers.1.mlp.experts.{}.{}.weight", e, projection);
}

at::Tensor numbers(at::IntArrayRef shape, int64_t seed) { return at::randn(shape, at::detail::createCPUGenerator(seed)); }

std::map<std::string, at::Tensor> experts_apart() {
  std::map<std::string, at::Tensor> tensors;
  for (int64_t e = 0; e < kExperts; ++e) {
    tensors[expert_name(e, "gate_proj")] = numbers({40, 64}, 3 * e);
    tensors[expert_name(e, "up_proj")] = numbers({40, 64}, 3 * e + 1);
    tensors[expert_name(e, "down_proj")] = numbers({64, 40}, 3 * e + 2);
  }
  return tensors;
}

void write(const fs::path& folder, const Json& config, const std::map<std::string, at::Tensor>& tensors) {
  testing::write_file(folder / "config.json", config.dump());
  std::vector<NamedTensor> list;
  for (const auto& [name, tensor] : tensors) list.push_back({name, tensor});
  write_tensors(folder / "model.safetensors", list, {});
}

void expect_rows(const LoadedStep& step, const std::string& native, const at::Tensor& expected) {
  EXPECT_EQ(step.info(native).shape, expected.sizes().vec()) << native;
  for (int64_t first = 0; first <= expected.size(0); ++first)
    for (int64_t rows = 0; first + rows <= expected.size(0); ++rows) {
      std::vector<int64_t> shape = expected.sizes().vec();
      shape[0] = rows;
      const at::Tensor part = at::full(shape, -1, at::kFloat);
      step.read_rows(native, first, part, true);
      EXPECT_TRUE(at::equal(part, expected.narrow(0, first, rows))) << native << ": " << rows << " from " << first;
    }
}

TEST(HfExperts, AreReadAsOneTensor) {
  const TemporaryFolder folder;
  const auto tensors = experts_apart();
  write(folder.path(), deepseek(), tensors);
  const LoadedStep step = LoadedStep::open(folder.path(), true);
  EXPECT_EQ(step.model_names(), (std::vector<std::string>{kW1, kW2, "layers.1.moe.experts.w3"}));
  const auto all = [&](const std::string& projection) {
    std::vector<at::Tensor> of;
    for (int64_t e = 0; e < kExperts; ++e) of.push_back(tensors.at(expert_name(e, projection)));
    return at::stack(of);
  };
  expect_rows(step, kW1, all("gate_proj")), expect_rows(step, kW2, all("down_proj"));
  expect_rows(step, "layers.1.moe.experts.w3", all("up_proj"));
}

TEST(HfExperts, MissingAndUnexpectedOnesAreNamed) {
  const TemporaryFolder folder;
  const auto expect = [&](const std::string& what, auto&& change) {
    auto tensors = experts_apart();
    change(tensors);
    write(folder.path(), deepseek(), tensors);
    expect_error([&] { HfFolder{folder.path()}; }, what);
  };
  expect("1 tensors are missing: " + expert_name(1, "up_proj"), [](auto& t) { t.erase(expert_name(1, "up_proj")); });
  expect("1 tensors are unknown: " + expert_name(3, "up_proj"), [](auto& t) { t[expert_name(3, "up_proj")] = at::zeros({40, 64}); });
  expect("1 tensors are unknown: model.layers.1.mlp.experts.01.up_proj.weight", [](auto& t) {
    t["model.layers.1.mlp.experts.01.up_proj.weight"] = at::zeros({40, 64});
  });
  expect(expert_name(2, "up_proj") + " is F32 [40, 63], that of the first expert F32 [40, 64]", [](auto& t) {
    t[expert_name(2, "up_proj")] = at::zeros({40, 63});
  });
  expect(expert_name(2, "down_proj") + " is BF16 [64, 40], that of the first expert F32 [64, 40]", [](auto& t) {
    t[expert_name(2, "down_proj")] = at::zeros({64, 40}, at::kBFloat16);
  });
  expect(expert_name(0, "gate_proj") + " is I8, codes without", [](auto& t) {
    t[expert_name(0, "gate_proj")] = at::zeros({40, 64}, at::kChar);
  });
  write(folder.path(), deepseek(), experts_apart());
  expect_error([&] { LoadedStep::open(folder.path(), true).check_model_names({kW1}); }, "2 tensors are unknown: layers.1.moe.experts.w2");
}

// Multi-token prediction: layers after the last, which transformers does not load either.
TEST(HfExperts, LayersBehindTheLastAreCountedAndNotRead) {
  const TemporaryFolder folder;
  auto tensors = experts_apart();
  tensors["model.layers.2.eh_proj.weight"] = at::zeros({64, 128});
  tensors["model.layers.2.mlp.experts.7.up_proj.weight"] = at::zeros({40, 64});
  write(folder.path(), deepseek(), tensors);
  const LoadedStep step = LoadedStep::open(folder.path(), true);
  EXPECT_EQ(step.hf_config()->ignored_tensors, 2);
  EXPECT_EQ(step.model_names().size(), 3);
  tensors["model.layers.x.eh_proj.weight"] = at::zeros({1});
  write(folder.path(), deepseek(), tensors);
  expect_error([&] { HfFolder{folder.path()}; }, "1 tensors are unknown: model.layers.x.eh_proj.weight");
}

// Experts of several pieces, from folder to folder with and without data, in one file and in shards.
TEST(HfExperts, AreWrittenApart) {
  Json json = deepseek();
  json["moe_intermediate_size"] = 600, json["hidden_size"] = 1032;
  HfConfig config = parse_hf_config(json.dump(), "config.json", model_families());
  const std::vector<NamedTensor> model = {{kW1, numbers({kExperts, 600, 1032}, 1)},
                                          {kW2, numbers({kExperts, 1032, 600}, 2)},
                                          {"layers.1.moe.expert_bias", numbers({kExperts}, 3)},
                                          {"layers.1.moe.router.gate.weight", numbers({kExperts, 1032}, 4)}};
  std::map<std::string, at::Tensor> by_name;
  for (const NamedTensor& t : model) by_name[t.name] = t.tensor;
  for (const bool contents : {true, false})
    for (const int64_t shard : {int64_t{1} << 40, int64_t{3} << 20}) {
      const TemporaryFolder folder;
      HfExport content{.config = config, .model = model, .max_shard_bytes = shard};
      if (!contents) {
        for (NamedTensor& t : content.model) t.tensor = at::empty_like(t.tensor, at::TensorOptions().device(at::kMeta));
        content.read = [&](const std::string& name, int64_t first, int64_t rows) { return by_name.at(name).narrow(0, first, rows); };
      }
      write_hf(folder.path(), content);
      const LoadedStep step = LoadedStep::open(folder.path(), true);
      for (const NamedTensor& t : model) EXPECT_TRUE(at::equal(step.read(t.name), t.tensor)) << t.name;
      const auto index = read_hf_index(folder.path());
      EXPECT_EQ(index.has_value(), shard < (1 << 30));
      if (!index) continue;
      HfExport again = content;  // into the same shards
      again.weight_map = *index, again.max_shard_bytes = int64_t{1} << 40;
      fs::create_directories(folder / "again");
      write_hf(folder / "again", again);
      EXPECT_EQ(read_hf_index(folder / "again"), index);
    }
}

TEST(HfExperts, StackedOnesAreExchanged) {
  const TemporaryFolder folder;
  const std::string place = "model.layers.0.mlp.experts.", native = "layers.0.moe.experts.";
  const at::Tensor up = numbers({kExperts, 64, 192}, 1), down = numbers({kExperts, 96, 64}, 2), bias = numbers({kExperts, 192}, 3);
  write(folder.path(), gpt_oss(), {{place + "gate_up_proj", up}, {place + "down_proj", down}, {place + "gate_up_proj_bias", bias}});
  const LoadedStep step = LoadedStep::open(folder.path(), true);
  expect_rows(step, native + "mlp1_weight", up.transpose(1, 2)), expect_rows(step, native + "mlp2_weight", down.transpose(1, 2));
  expect_rows(step, native + "mlp1_bias", bias);
  // The selection bias is in no file: zero when read, omitted when written.
  const std::string choice = "layers.0.moe.expert_bias";
  EXPECT_TRUE(step.has(choice));
  expect_rows(step, choice, at::zeros({kExperts}));
  const std::vector<std::string> names = {native + "mlp1_weight", native + "mlp2_weight", native + "mlp1_bias", "output.weight", choice};
  expect_error([&] { step.check_model_names(names); }, "lm_head.weight");
  std::vector<NamedTensor> model = {{choice, at::ones({kExperts})}};
  for (const std::string& name : step.model_names()) model.push_back({name, step.read(name)});
  fs::create_directories(folder / "written");
  write_hf(folder / "written", {.config = *step.hf_config(), .model = model});
  const SafetensorsFile written(folder / "written/model.safetensors");
  EXPECT_EQ(written.header().tensors.size(), 3);
  EXPECT_EQ(written.at(place + "gate_up_proj").shape, up.sizes().vec());
  const LoadedStep again = LoadedStep::open(folder / "written", true);
  EXPECT_TRUE(at::equal(again.read(native + "mlp1_weight"), up.transpose(1, 2)));
}

TEST(HfExperts, Fp8BlocksOfEachExpert) {
  const TemporaryFolder folder;
  Json config = deepseek();
  config["quantization_config"] = Json::parse(R"({"quant_method":"fp8","fmt":"e4m3","weight_block_size":[16,32]})");
  auto tensors = experts_apart();
  std::vector<at::Tensor> values;
  for (int64_t e = 0; e < kExperts; ++e) {
    const at::Tensor codes = numbers({40, 64}, 20 + e).to(at::kFloat8_e4m3fn), scales = numbers({3, 2}, 30 + e).abs() + 0.1;
    tensors[expert_name(e, "gate_proj")] = codes;
    tensors[expert_name(e, "gate_proj") + "_scale_inv"] = scales;
    values.push_back(codes.to(at::kFloat) * scales.repeat_interleave(16, 0).narrow(0, 0, 40).repeat_interleave(32, 1));
  }
  tensors["model.layers.2.mlp.experts.0.gate_proj.weight_scale_inv"] = at::ones({3, 2});  // in a layer after the last
  write(folder.path(), config, tensors);
  const LoadedStep step = LoadedStep::open(folder.path(), true);
  EXPECT_EQ(step.hf_config()->quantization->weights, kExperts);
  EXPECT_EQ(step.info(kW1).dtype, FileDType::bf16);
  expect_rows(step, kW1, at::stack(values));
  EXPECT_EQ(step.info(kW2).dtype, FileDType::f32);
  auto less = tensors;
  less.erase(expert_name(1, "gate_proj"));
  write(folder.path(), config, less);
  expect_error([&] { HfFolder{folder.path()}; }, "experts.1.gate_proj.weight_scale_inv has no " + expert_name(1, "gate_proj"));
  less = tensors;
  less.erase(expert_name(1, "gate_proj")), less.erase(expert_name(1, "gate_proj") + "_scale_inv");
  write(folder.path(), config, less);
  expect_error([&] { HfFolder{folder.path()}; }, "1 tensors are missing: " + expert_name(1, "gate_proj"));
  less = tensors;
  less.erase(expert_name(1, "gate_proj") + "_scale_inv");
  write(folder.path(), config, less);
  expect_error([&] { HfFolder{folder.path()}; }, "codes without scales");
}

TEST(HfExperts, Mxfp4BlocksOfAllExperts) {
  const TemporaryFolder folder;
  Json config = gpt_oss();
  config["quantization_config"] = Json::parse(R"({"quant_method":"mxfp4","modules_to_not_convert":["lm_head"]})");
  const std::string up = "model.layers.0.mlp.experts.gate_up_proj", native = "layers.0.moe.experts.mlp1_weight";
  at::manual_seed(1);
  const at::Tensor blocks = at::randint(256, {kExperts, 192, 2, 16}, at::kByte),
                   scales = at::randint(120, 131, {kExperts, 192, 2}, at::kByte);
  at::Tensor values = at::empty({kExperts, 192, 64});
  for (int64_t row = 0; row < kExperts * 192; ++row)
    for (int64_t k = 0; k < 64; ++k) {
      const uint8_t byte = blocks.const_data_ptr<uint8_t>()[(row * 64 + k) / 2];
      const uint8_t exponent = scales.const_data_ptr<uint8_t>()[row * 2 + k / 32];
      values.mutable_data_ptr<float>()[row * 64 + k] =
          std::ldexp(decode(Float::e2m1, static_cast<uint8_t>(k % 2 == 0 ? byte & 15 : byte >> 4)), exponent - 127);
    }
  const std::map<std::string, at::Tensor> tensors = {
      {up + "_blocks", blocks}, {up + "_scales", scales}, {up + "_bias", at::zeros({kExperts, 192}, at::kBFloat16)}};
  write(folder.path(), config, tensors);
  const LoadedStep step = LoadedStep::open(folder.path(), true);
  EXPECT_EQ(step.hf_config()->quantization->weights, 1);
  EXPECT_EQ(step.model_names(), (std::vector<std::string>{"layers.0.moe.experts.mlp1_bias", native}));
  expect_rows(step, native, values);
  // The export has the values, with dimensions swapped.
  fs::create_directories(folder / "written");
  write_hf(folder / "written", {.config = *step.hf_config(), .model = {{native, step.read(native)}}, .dtype = at::kBFloat16});
  EXPECT_EQ(SafetensorsFile(folder / "written/model.safetensors").at(up).shape, (std::vector<int64_t>{kExperts, 64, 192}));
  expect_rows(LoadedStep::open(folder / "written", true), native, values);
  const auto refuse = [&](const std::string& what, const std::string& name, const at::Tensor& tensor) {
    auto changed = tensors;
    tensor.defined() ? void(changed[name] = tensor) : void(changed.erase(name));
    write(folder.path(), config, changed);
    expect_error([&] { HfFolder{folder.path()}; }, what);
  };
  refuse(up + "_blocks has no " + up + "_scales beside it", up + "_scales", {});
  refuse(up + "_scales has no " + up + "_blocks beside it", up + "_blocks", {});
  refuse("expected U8 [experts, N, K / 32, 16]", up + "_blocks", blocks.view({kExperts, 192, 32}));
  refuse("expected scales [576, 2] for", up + "_scales", scales.view({kExperts, 2, 192}));
  config["quantization_config"]["group_size"] = 16;
  refuse("quantization_config.group_size = 16 is not supported", up + "_blocks", blocks);
}

}  // namespace
}  // namespace halftone::hf_experts_test
