// Weights written as codes with scales: every byte against scalar rules, and the values that reading returns.
#include "halftone/checkpoint/hf_codes.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "checkpoint/support.h"
#include "halftone/base/json_reader.h"
#include "halftone/checkpoint/hf.h"
#include "halftone/checkpoint/loaded_step.h"
#include "halftone/formats/fp8_scale.h"
#include "halftone/formats/mx_scale.h"
#include "halftone/formats/packing.h"
#include "halftone/models/registry.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;
using testing::expect_error;
using testing::TemporaryFolder;

at::Tensor numbers(at::IntArrayRef shape, int64_t seed) { return at::randn(shape, at::detail::createCPUGenerator(seed)); }
at::Tensor below(int64_t high, at::IntArrayRef shape, int64_t seed) {
  return at::randint(high, shape, at::detail::createCPUGenerator(seed), at::kByte);
}

HfConfig config_of(const char* text) { return parse_hf_config(text, "config.json", model_families()); }
HfConfig gpt_oss() {
  return config_of(R"({"model_type":"gpt_oss","hidden_size":64,"intermediate_size":96,"num_hidden_layers":1,"num_attention_heads":2,
    "num_key_value_heads":1,"head_dim":32,"vocab_size":50,"rms_norm_eps":1e-5,"num_local_experts":3,"num_experts_per_tok":2,
    "sliding_window":8,"rope_theta":150000,"rope_scaling":{"rope_type":"linear","factor":2.0}})");
}
HfConfig llama() {
  return config_of(R"({"model_type":"llama","hidden_size":200,"intermediate_size":300,"num_hidden_layers":1,"num_attention_heads":4,
    "num_key_value_heads":2,"head_dim":152,"vocab_size":50,"rms_norm_eps":1e-5,"rope_theta":10000.0,"tie_word_embeddings":false})");
}
HfConfig qwen3_moe() {
  return config_of(R"({"model_type":"qwen3_moe","hidden_size":200,"intermediate_size":300,"num_hidden_layers":1,"num_attention_heads":4,
    "num_key_value_heads":2,"head_dim":64,"vocab_size":50,"rms_norm_eps":1e-6,"num_experts":3,"num_experts_per_tok":2,
    "moe_intermediate_size":136,"norm_topk_prob":true,"rope_theta":10000.0,"tie_word_embeddings":false})");
}

at::Tensor stored(const SafetensorsFile& file, const std::string& name) {
  const TensorEntry& entry = file.at(name);
  const at::Tensor out = at::empty(entry.shape, at::TensorOptions().dtype(scalar_type_of(entry.dtype)));
  file.read(entry, out.mutable_data_ptr(), out.nbytes());
  return out;
}

const HfForm &kMxfp4 = *find_hf_form("mxfp4"), &kFp8 = *find_hf_form("fp8_blockwise");

std::string quantization(const std::vector<std::string>& plain) {
  return write_hf_quantization(*find_hf_format("gpt-oss-mxfp4"), {}, plain).dump();
}

// The model as tensors, or as shapes with a source of rows.
HfExport content(const HfConfig& config, const HfForm& form, const std::vector<NamedTensor>& model, bool contents = true) {
  HfExport e{.config = config, .model = model, .dtype = std::nullopt, .form = &form, .format = single_format(form.name)};
  if (contents) return e;
  for (NamedTensor& t : e.model) t.tensor = at::empty_like(t.tensor, at::TensorOptions().device(at::kMeta));
  e.read = [&model](const std::string& name, int64_t first, int64_t rows) {
    for (const NamedTensor& t : model)
      if (t.name == name) return t.tensor.narrow(0, first, rows);
    return at::Tensor();
  };
  return e;
}

const std::string kExperts = "model.layers.0.mlp.experts.", kNative = "layers.0.moe.experts.";

// Codes and scales of blocks whose largest code is `top` or the one below it.
struct Mxfp4 {
  at::Tensor blocks, scales;
  Mxfp4(at::IntArrayRef shape, uint8_t top, int64_t seed) {
    std::vector<int64_t> of_blocks = shape.vec();
    of_blocks.push_back(16);
    blocks = below(256, of_blocks, seed), scales = below(240, shape, seed + 1) + 5;
    for (int64_t b = 0; b < scales.numel(); ++b) {
      uint8_t* bytes = blocks.mutable_data_ptr<uint8_t>() + b * 16;
      for (int i = 0; i < 16; ++i) {
        const auto cut = [&](uint8_t code) { return static_cast<uint8_t>((code & 8) | std::min<int>(code & 7, top)); };
        bytes[i] = pack4(cut(unpack4(bytes[i], 0)), cut(unpack4(bytes[i], 1)));
      }
      bytes[b % 16] = pack4(static_cast<uint8_t>((b % 3 == 0 ? 8 : 0) | (b % 2 == 0 ? top : top - 1)), unpack4(bytes[b % 16], 1));
    }
  }
};

// Numbers up to float32's largest are written so that they can be read: rounded to nearest, the scale or the code would leave float32 or
// bfloat16.
TEST(HfCodes, TheLargestNumbersAreReadBack) {
  constexpr float kMost = std::numeric_limits<float>::max();
  for (const auto& [codes, most] : {std::pair{&kMxfp4, 6 * 0x1p125f}, {&kFp8, 255 * 0x1p120f}})
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16})
      for (const float number : {3e38f, kMost, 1.75f * 0x1p127f, most, 2e38f}) {
        SCOPED_TRACE(fmt::format("{} {} {}", codes->name, c10::toString(type), number));
        const TemporaryFolder folder;
        const HfConfig config = codes == &kMxfp4 ? gpt_oss() : config_of(R"({"model_type":"llama","hidden_size":64,
          "intermediate_size":136,"num_hidden_layers":1,"num_attention_heads":2,"vocab_size":50,"rms_norm_eps":1e-5})");
        std::vector<NamedTensor> model;
        ModelConfig of_folder;
        of_folder.name = config.model->family().name, of_folder.overrides = config.model->hyper_parameters();
        build_model(of_folder, 0).model->for_each_parameter([&](const nn::Parameter& p) {
          model.push_back({p.fqn, at::ones(p.shape, type)});
        });
        const std::string name = codes == &kMxfp4 ? kNative + "mlp2_weight" : "layers.0.feed_forward.w2.weight";
        const auto t = std::find_if(model.begin(), model.end(), [&](const NamedTensor& m) { return m.name == name; });
        ASSERT_NE(t, model.end());
        t->tensor.view({-1})[3].fill_(std::min(number, type == at::kBFloat16 ? 255 * 0x1p120f : kMost));
        t->tensor.view({-1})[4].fill_(-number / 4);
        write_hf(folder.path(), content(config, *codes, model));
        const at::Tensor read = LoadedStep::open(folder.path(), true).read(name).to(at::kFloat).view({-1});
        EXPECT_TRUE(at::isfinite(read).all().item<bool>());
        const float found = read[3].item<float>(), wanted = std::min(number, most);
        EXPECT_NEAR(found / wanted, 1, codes == &kMxfp4 ? 0.2 : 0.01);
        EXPECT_NEAR(read[4].item<float>() / (-number / 4), 1, codes == &kMxfp4 ? 0.3 : 0.07);
      }
}

TEST(HfCodes, Mxfp4FoldersComeBackByteForByte) {
  const TemporaryFolder folder;
  Mxfp4 up({3, 192, 2}, 7, 1), down({3, 64, 3}, 7, 3);
  up.blocks.select(0, 1).fill_(0x08), up.scales.select(0, 1).fill_(0);  // zeros of both signs
  const at::Tensor bias = numbers({3, 192}, 5).to(at::kBFloat16);
  HfConfig config = gpt_oss();
  testing::write_file(folder / "config.json", write_hf_config(config, quantization({"lm_head"})));
  const std::vector<NamedTensor> tensors = {{kExperts + "gate_up_proj_blocks", up.blocks},
                                            {kExperts + "gate_up_proj_scales", up.scales},
                                            {kExperts + "down_proj_blocks", down.blocks},
                                            {kExperts + "down_proj_scales", down.scales},
                                            {kExperts + "gate_up_proj_bias", bias}};
  write_tensors(folder / "model.safetensors", tensors, {});
  const LoadedStep read = LoadedStep::open(folder.path(), true);
  std::vector<NamedTensor> model;
  for (const std::string& name : read.model_names()) model.push_back({name, read.read(name)});
  ASSERT_EQ(model.size(), 3);
  for (const bool contents : {true, false})
    for (const at::ScalarType type : {at::kBFloat16, at::kFloat}) {
      const fs::path out = folder / fmt::format("{}_{}", contents, c10::toString(type));
      fs::create_directories(out);
      std::vector<NamedTensor> of_type = model;
      for (NamedTensor& t : of_type) t.tensor = t.name == kNative + "mlp1_bias" ? t.tensor : t.tensor.to(type);
      write_hf(out, content(config, kMxfp4, of_type, contents));
      const SafetensorsFile file(out / "model.safetensors");
      EXPECT_EQ(file.header().tensors.size(), tensors.size());
      for (const NamedTensor& t : tensors) EXPECT_TRUE(at::equal(stored(file, t.name), t.tensor)) << t.name;
      const Json json = parse_json(testing::read_file(out / "config.json"), "config.json");
      EXPECT_EQ(json["quantization_config"]["quant_method"], "mxfp4");
      EXPECT_EQ(json["dtype"], "bfloat16");  // of the numbers
    }
}

// Blocks that another rule encoded with smaller codes: the same values at a different scale.
TEST(HfCodes, Mxfp4KeepsNumbersThatAreCodesAlready) {
  for (const uint8_t top : {5, 3, 2}) {
    const TemporaryFolder folder;
    const Mxfp4 up({3, 192, 2}, top, 10 + top);
    testing::write_file(folder / "config.json", write_hf_config(gpt_oss(), quantization({})));
    write_tensors(folder / "model.safetensors",
                  {{kExperts + "gate_up_proj_blocks", up.blocks}, {kExperts + "gate_up_proj_scales", up.scales}}, {});
    const at::Tensor values = LoadedStep::open(folder.path(), true).read(kNative + "mlp1_weight");
    fs::create_directories(folder / "again");
    write_hf(folder / "again", content(gpt_oss(), kMxfp4, {{kNative + "mlp1_weight", values}}));
    EXPECT_TRUE(at::equal(LoadedStep::open(folder / "again", true).read(kNative + "mlp1_weight"), values)) << int{top};
    EXPECT_FALSE(at::equal(stored(SafetensorsFile(folder / "again/model.safetensors"), kExperts + "gate_up_proj_scales"), up.scales));
  }
}

TEST(HfCodes, Mxfp4OfTrainedWeightsFollowsTheRule) {
  const TemporaryFolder folder;
  const at::Tensor w = numbers({3, 192, 64}, 20) * at::exp2(numbers({3, 192, 1}, 21) * 8);
  write_hf(folder.path(), content(gpt_oss(), kMxfp4, {{kNative + "mlp1_weight", w}}));
  const SafetensorsFile file(folder / "model.safetensors");
  const at::Tensor blocks = stored(file, kExperts + "gate_up_proj_blocks"), scales = stored(file, kExperts + "gate_up_proj_scales");
  EXPECT_EQ(blocks.sizes(), (at::IntArrayRef{3, 192, 2, 16}));
  EXPECT_EQ(scales.sizes(), (at::IntArrayRef{3, 192, 2}));
  for (int64_t b = 0; b < scales.numel(); ++b) {
    const float* x = w.const_data_ptr<float>() + b * 32;
    float amax = 0;
    for (int i = 0; i < 32; ++i) amax = std::max(amax, std::abs(x[i]));
    const uint8_t byte = mx_scale_byte(Float::e2m1, ScaleMode::even, std::bit_cast<uint32_t>(amax));
    ASSERT_EQ(scales.const_data_ptr<uint8_t>()[b], byte) << b;
    for (int i = 0; i < 32; ++i)
      ASSERT_EQ(unpack4(blocks.const_data_ptr<uint8_t>()[b * 16 + i / 2], i), encode(Float::e2m1, x[i] * mx_inverse(byte)))
          << b << " " << i;
  }
}

// Checks the file's codes and scales of a weight in file order.
void expect_fp8(const SafetensorsFile& file, const std::string& module, const at::Tensor& w) {
  const at::Tensor codes = stored(file, module + ".weight"), scales = stored(file, module + ".weight_scale_inv"), x = w.to(at::kFloat);
  ASSERT_EQ(codes.scalar_type(), at::kFloat8_e4m3fn) << module;
  ASSERT_EQ(scales.scalar_type(), at::kFloat) << module;
  const int64_t n = w.size(0), k = w.size(1), across = (k + 127) / 128;
  ASSERT_EQ(scales.sizes(), (at::IntArrayRef{(n + 127) / 128, across})) << module;
  for (int64_t b = 0; b < scales.numel(); ++b) {
    const int64_t r = b / across * 128, c = b % across * 128;
    const at::Tensor block = x.narrow(0, r, std::min<int64_t>(128, n - r)).narrow(1, c, std::min<int64_t>(128, k - c));
    const ScalePair pair = fp8_scale(Float::e4m3, false, std::bit_cast<uint32_t>(block.abs().max().item<float>()));
    ASSERT_EQ(scales.const_data_ptr<float>()[b], pair.scale) << module << " " << b;
    for (int64_t i = 0; i < block.size(0); ++i)
      for (int64_t j = 0; j < block.size(1); ++j)
        ASSERT_EQ(static_cast<const uint8_t*>(codes.const_data_ptr())[(r + i) * k + c + j],
                  encode(Float::e4m3, x.const_data_ptr<float>()[(r + i) * k + c + j] * pair.inv))
            << module << " " << b;
  }
}

TEST(HfCodes, Fp8BlocksOfLinearLayers) {
  // Rows of q and k are permuted; 608 rows are several pieces.
  const at::Tensor wq = numbers({608, 200}, 1), wk = numbers({304, 200}, 2).to(at::kBFloat16), w2 = numbers({200, 300}, 3) * 1e-3;
  const std::vector<NamedTensor> model = {{"layers.0.attention.wq.weight", wq},
                                          {"layers.0.attention.wk.weight", wk},
                                          {"layers.0.feed_forward.w2.weight", w2},
                                          {"layers.0.ffn_norm.weight", numbers({200}, 4)},
                                          {"tok_embeddings.weight", numbers({50, 200}, 5)},
                                          {"output.weight", numbers({50, 200}, 6)}};
  for (const bool contents : {true, false}) {
    const TemporaryFolder folder;
    write_hf(folder.path(), content(llama(), kFp8, model, contents));
    const SafetensorsFile file(folder / "model.safetensors");
    EXPECT_EQ(file.header().tensors.size(), 9);
    expect_fp8(file, "model.layers.0.self_attn.q_proj", permute_to_hf(wq, 4));
    expect_fp8(file, "model.layers.0.self_attn.k_proj", permute_to_hf(wk, 2));
    expect_fp8(file, "model.layers.0.mlp.down_proj", w2);
    const Json json = parse_json(testing::read_file(folder / "config.json"), "config.json")["quantization_config"];
    EXPECT_EQ(json["modules_to_not_convert"], Json::parse(R"(["lm_head","model.embed_tokens"])"));
    const LoadedStep step = LoadedStep::open(folder.path(), true);
    EXPECT_EQ(step.hf_config()->quantization->weights, 3);
    EXPECT_LT((step.read("layers.0.attention.wq.weight").to(at::kFloat) - wq).norm().item<double>(), 0.04 * wq.norm().item<double>());
    EXPECT_TRUE(at::equal(step.read("output.weight"), model[5].tensor));
    // The same names in different shards.
    fs::create_directories(folder / "shards");
    HfExport small = content(llama(), kFp8, model, contents);
    small.max_shard_bytes = 100'000;
    write_hf(folder / "shards", small);
    EXPECT_GT(read_hf_index(folder / "shards")->size(), 8);
    EXPECT_TRUE(at::equal(LoadedStep::open(folder / "shards", true).read("layers.0.attention.wk.weight"),
                          step.read("layers.0.attention.wk.weight")));
  }
}

TEST(HfCodes, Fp8BlocksOfExperts) {
  const TemporaryFolder folder;
  const at::Tensor w1 = numbers({3, 136, 200}, 1), gate = numbers({3, 200}, 2);
  HfExport experts = content(qwen3_moe(), kFp8, {{kNative + "w1", w1}, {"layers.0.moe.router.gate.weight", gate}});
  experts.dtype = at::kBFloat16;  // floating-point weights; scales keep their type
  write_hf(folder.path(), experts);
  const SafetensorsFile file(folder / "model.safetensors");
  for (int64_t e = 0; e < 3; ++e) expect_fp8(file, fmt::format("model.layers.0.mlp.experts.{}.gate_proj", e), w1.select(0, e));
  EXPECT_TRUE(at::equal(stored(file, "model.layers.0.mlp.gate.weight"), gate.to(at::kBFloat16)));
  const Json json = parse_json(testing::read_file(folder / "config.json"), "config.json")["quantization_config"];
  EXPECT_EQ(json["modules_to_not_convert"], Json::parse(R"(["lm_head","model.layers.0.mlp.gate"])"));
}

TEST(HfCodes, OthersAreRefused) {
  const TemporaryFolder folder;
  const NamedTensor up{kNative + "mlp1_weight", numbers({3, 192, 64}, 1)};
  expect_error([&] { write_hf(folder.path(), content(gpt_oss(), kFp8, {up})); }, "choose gpt-oss-mxfp4");
  expect_error([&] { write_hf(folder.path(), content(llama(), kMxfp4, {})); }, "choose compressed-tensors, torchao or deepseek-fp8");
  expect_error(
      [&] {
        write_hf(folder.path(), content(gpt_oss(), kMxfp4, {{up.name, numbers({3, 192, 48}, 1)}}));
      },
      "48 columns are not a multiple of the 32");
  up.tensor.view({-1})[7] = std::numeric_limits<float>::quiet_NaN();
  expect_error([&] { write_hf(folder.path(), content(gpt_oss(), kMxfp4, {up})); }, "holds a NaN");
}

}  // namespace
}  // namespace halftone
