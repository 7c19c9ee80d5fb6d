// Models as GGUF files, from native tensors by rows: training codes as they are, rows of one tensor in two, and what is refused.
#include "halftone/checkpoint/gguf.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <map>

#include "checkpoint/support.h"
#include "halftone/checkpoint/file_io.h"
#include "halftone/checkpoint/gguf_blocks.h"
#include "halftone/checkpoint/hf_forms.h"
#include "halftone/formats/describe.h"
#include "halftone/models/registry.h"
#include "halftone/ops/operand.h"

namespace halftone::gguf_test {
namespace {

using testing::expect_error;
using testing::TemporaryFolder;

// A model with random weights, read by rows as from a checkpoint.
struct Fixture {
  explicit Fixture(const std::string& name, const OptionTable& overrides = {}, at::ScalarType type = at::kFloat) {
    ModelConfig config;
    config.name = name, config.flavor = "debugmodel", config.overrides = overrides;
    const BuiltModel built = build_model(config, 0);
    content.model = built.description;
    int64_t seed = 0;
    built.model->for_each_parameter([&](const nn::Parameter& p) {
      if (p.numel() == 0) return;
      weights[p.fqn] = at::randn(p.shape, at::detail::createCPUGenerator(static_cast<uint64_t>(++seed))).to(type);
      content.tensors.push_back({p.fqn, at::empty(p.shape, at::TensorOptions().dtype(type).device(at::kMeta))});
    });
    content.read = [this](const std::string& n, int64_t first, int64_t rows) { return weights.at(n).narrow(0, first, rows); };
  }
  // The written file's tensors as bytes.
  std::map<std::string, std::string> write() {
    const TemporaryFolder folder;
    written = write_gguf(folder.path() / "x.gguf", content);
    return parse(read_text(folder.path() / "x.gguf", uint64_t{1} << 30));
  }
  static std::map<std::string, std::string> parse(const std::string& bytes) {
    size_t at = 8;
    const auto number = [&](size_t width) {
      uint64_t n = 0;
      std::memcpy(&n, bytes.data() + at, width);
      at += width;
      return n;
    };
    const auto text = [&] {
      const uint64_t n = number(8);
      at += n;
      return bytes.substr(at - n, n);
    };
    const uint64_t tensors = number(8), entries = number(8);
    for (uint64_t i = 0; i < entries; ++i) {
      text();
      const uint64_t type = number(4);
      if (type == 8) text();
      if (type != 8) number(type == 7 ? 1 : 4);
    }
    std::vector<std::pair<std::string, uint64_t>> offsets;
    for (uint64_t i = 0; i < tensors; ++i) {
      const std::string name = text();
      for (uint64_t d = number(4); d > 0; --d) number(8);
      number(4);
      offsets.emplace_back(name, number(8));
    }
    at = (at + 31) / 32 * 32;
    std::map<std::string, std::string> out;
    for (size_t i = 0; i < offsets.size(); ++i) {
      const uint64_t end = i + 1 < offsets.size() ? offsets[i + 1].second : bytes.size() - at;
      out[offsets[i].first] = bytes.substr(at + offsets[i].second, end - offsets[i].second);
    }
    return out;
  }
  static at::Tensor numbers(const std::string& bytes, GgufType type, at::IntArrayRef shape) {
    at::Tensor out = at::empty(shape, at::kFloat);
    if (type == GgufType::f32) {
      std::memcpy(out.mutable_data_ptr(), bytes.data(), out.nbytes());
    } else {
      gguf_decode(type, reinterpret_cast<const uint8_t*>(bytes.data()), out.numel(), out.mutable_data_ptr<float>());
    }
    return out;
  }
  at::Tensor trained(const at::Tensor& x, const OperandSpec& spec) const {
    CopyRequest request{.spec = spec};
    request.codes = true;
    return dequantize(quantize(x.contiguous(), &request, nullptr).row);
  }
  // All linear layers and experts of the run.
  void train(const OperandSpec& spec, bool bf16 = false) {
    for (const auto& [name, weight] : weights)
      if (weight.dim() > 1 && !name.ends_with("bias") && name.find("router") == name.npos && name.starts_with("layers."))
        content.trained[name] = {spec, bf16};
  }
  std::map<std::string, at::Tensor> weights;
  GgufExport content;
  GgufWritten written;
};

const OptionTable kSmall{{"dim", int64_t{64}},       {"n_layers", int64_t{1}},  {"n_heads", int64_t{4}},
                         {"n_kv_heads", int64_t{4}}, {"ffn_dim", int64_t{160}}, {"vocab_size", int64_t{96}}};
OptionTable with_experts(OptionTable more) {
  OptionTable all = kSmall;
  for (const auto& [name, value] :
       OptionTable{{"num_experts", int64_t{3}}, {"experts_per_token", int64_t{2}}, {"expert_ffn_dim", int64_t{96}}, {"balance", 0.0}})
    all[name] = value;
  for (const auto& [name, value] : more) all[name] = value;
  return all;
}

TEST(Gguf, TypesHoldTheQuantisersOfRecipes) {
  const auto type_of = [](const char* scheme) { return gguf_type_of(find_linear_recipe(scheme)->w_forward); };
  EXPECT_EQ(type_of("mxfp4"), GgufType::mxfp4);  // in tiles: every row gets the scales of its tile
  EXPECT_EQ(type_of("nvfp4"), GgufType::nvfp4);
  EXPECT_EQ(type_of("int8"), GgufType::q8_0);
  EXPECT_EQ(type_of("fp8_rowwise"), std::nullopt);
  EXPECT_EQ(type_of("mxfp8_e4m3"), std::nullopt);
  OperandSpec spec = find_linear_recipe("mxfp4")->w_forward;
  spec.two_level = TwoLevel::macro;
  EXPECT_EQ(gguf_type_of(spec), std::nullopt);
  spec = find_linear_recipe("mxfp4")->w_forward, spec.hadamard = 32;
  EXPECT_EQ(gguf_type_of(spec), std::nullopt);
  EXPECT_EQ(gguf_type_of(OperandSpec{}), std::nullopt);
}

TEST(Gguf, WritesTrainingCodesAsTheyAre) {
  for (const bool bf16 : {false, true}) {
    Fixture f("llama3", kSmall);
    const OperandSpec spec = find_linear_recipe("mxfp4")->w_forward;
    f.train(spec, bf16);
    const auto file = f.write();
    const at::Tensor w = f.weights.at("layers.0.feed_forward.w2.weight");
    const at::Tensor found = Fixture::numbers(file.at("blk.0.ffn_down.weight"), GgufType::mxfp4, w.sizes());
    EXPECT_TRUE(at::equal(found, f.trained(bf16 ? w.to(at::kBFloat16) : w, spec))) << bf16;
    ASSERT_EQ(f.written.coded.size(), 7u);
    for (const GgufCoded& c : f.written.coded) {
      EXPECT_EQ(c.why, "");
      EXPECT_EQ(c.error.noise, 0);
    }
  }
}

TEST(Gguf, KeepsTheFactorOfEveryMatrixInNvfp4) {
  Fixture f("qwen3_moe", with_experts({{"head_dim", int64_t{32}}, {"dim", int64_t{128}}, {"expert_ffn_dim", int64_t{64}}}));
  const OperandSpec spec = find_linear_recipe("nvfp4")->w_forward;
  f.weights.at("layers.0.moe.experts.w2").select(0, 1).mul_(100);
  f.train(spec);
  const auto file = f.write();
  const auto expect_same = [&](const at::Tensor& numbers, float factor, const at::Tensor& w) {
    CopyRequest request{.spec = spec};
    request.codes = true;
    const Operand o = quantize(w.contiguous(), &request, nullptr).row;
    EXPECT_TRUE(at::equal(numbers, decode(o, gemm::Decode::values, at::kFloat)));
    EXPECT_EQ(factor, o.outer.item<float>());
  };
  const at::Tensor experts = f.weights.at("layers.0.moe.experts.w2"), q = f.weights.at("layers.0.attention.wq.weight");
  const at::Tensor scales = Fixture::numbers(file.at("blk.0.ffn_down_exps.scale"), GgufType::f32, {3});
  const at::Tensor numbers = Fixture::numbers(file.at("blk.0.ffn_down_exps.weight"), GgufType::nvfp4, experts.sizes());
  for (int64_t e = 0; e < 3; ++e) expect_same(numbers[e], scales[e].item<float>(), experts[e]);
  expect_same(Fixture::numbers(file.at("blk.0.attn_q.weight"), GgufType::nvfp4, q.sizes()),
              Fixture::numbers(file.at("blk.0.attn_q.scale"), GgufType::f32, {1}).item<float>(), q);
}

TEST(Gguf, RoundsTheScalesOfIntegersAndSaysSo) {
  Fixture f("llama3", kSmall);
  const OperandSpec spec = find_linear_recipe("int8")->w_forward;
  f.train(spec);
  const auto file = f.write();
  const at::Tensor w = f.weights.at("layers.0.attention.wo.weight"), wanted = f.trained(w, spec);
  const at::Tensor found = Fixture::numbers(file.at("blk.0.attn_output.weight"), GgufType::q8_0, w.sizes());
  EXPECT_LE((found - wanted).abs().max().item<float>(), wanted.abs().max().item<float>() * 0x1p-11f);
  EXPECT_FALSE(at::equal(found, wanted));
  for (const GgufCoded& c : f.written.coded) EXPECT_GT(c.error.decibels(), 60) << c.name;
  // Scales that fp16 holds add nothing: rows whose largest number is 127.
  for (auto& [name, weight] : f.weights)
    if (weight.dim() == 2) weight.clamp_(-3, 3).select(1, 0).fill_(127);
  f.write();
  for (const GgufCoded& c : f.written.coded) EXPECT_EQ(c.error.noise, 0) << c.name;
}

// Codes of a rotation are not the file's numbers: the error is that of the weights.
TEST(Gguf, MeasuresAnotherTypeAgainstWhatIsComparable) {
  Fixture rotated("llama3", kSmall);
  OperandSpec spec = find_linear_recipe("mxfp4")->w_forward;
  spec.hadamard = 32;
  rotated.train(spec);
  rotated.content.codes = GgufType::q8_0;
  rotated.write();
  ASSERT_EQ(rotated.written.coded.size(), 7u);
  for (const GgufCoded& c : rotated.written.coded) {
    EXPECT_EQ(c.why, "trained as " + describe(spec));
    EXPECT_GT(c.error.decibels(), 40) << c.name;
  }
}

TEST(Gguf, SplitsGateAndUpAndTransposesLatentKeys) {
  Fixture g("gpt_oss", with_experts({{"head_dim", int64_t{16}}, {"window", int64_t{8}}}));
  g.content.plain = GgufType::f32;
  auto file = g.write();
  const at::Tensor both = g.weights.at("layers.0.moe.experts.mlp1_weight"), bias = g.weights.at("layers.0.moe.experts.mlp1_bias");
  const at::Tensor up = both.slice(1, 1, std::nullopt, 2).contiguous(), up_bias = bias.slice(1, 1, std::nullopt, 2).contiguous();
  EXPECT_TRUE(at::equal(Fixture::numbers(file.at("blk.0.ffn_up_exps.weight"), GgufType::f32, up.sizes()), up));
  EXPECT_TRUE(at::equal(Fixture::numbers(file.at("blk.0.ffn_up_exps.bias"), GgufType::f32, up_bias.sizes()), up_bias));
  // Tiles span gate and up: scales are those of the whole matrix.
  const OperandSpec spec = find_linear_recipe("mxfp4")->w_forward;
  g.train(spec);
  file = g.write();
  for (int64_t e = 0; e < 3; ++e) {
    const at::Tensor wanted = g.trained(both[e], spec).slice(0, 1, std::nullopt, 2).contiguous();
    EXPECT_TRUE(at::equal(Fixture::numbers(file.at("blk.0.ffn_up_exps.weight"), GgufType::mxfp4, up.sizes())[e], wanted)) << e;
  }
  Fixture d("deepseek_v3", with_experts({{"shared_experts", int64_t{1}},
                                         {"q_lora_rank", int64_t{32}},
                                         {"kv_lora_rank", int64_t{32}},
                                         {"qk_nope_head_dim", int64_t{24}},
                                         {"qk_rope_head_dim", int64_t{8}},
                                         {"v_head_dim", int64_t{40}},
                                         {"dense_layers", int64_t{0}}}));
  d.train(spec);
  file = d.write();
  const at::Tensor kv = d.trained(d.weights.at("layers.0.attention.wkv_b.weight"), spec).view({4, 64, 32});
  const at::Tensor keys = kv.slice(1, 0, 24).transpose(1, 2).contiguous(), values = kv.slice(1, 24, 64).contiguous();
  EXPECT_TRUE(at::equal(Fixture::numbers(file.at("blk.0.attn_k_b.weight"), GgufType::f32, keys.sizes()), keys));
  EXPECT_TRUE(at::equal(Fixture::numbers(file.at("blk.0.attn_v_b.weight"), GgufType::mxfp4, values.sizes()), values));
}

TEST(Gguf, RefusesByName) {
  const TemporaryFolder folder;
  const auto refused = [&](Fixture& f, const std::string& part) {
    expect_error([&] { write_gguf(folder.path() / "x.gguf", f.content); }, part);
    EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  };
  Fixture f("llama3", kSmall);
  f.train(find_linear_recipe("fp8_rowwise")->w_forward);
  refused(f, "no type of GGUF holds e4m3");
  OperandSpec rotated = find_linear_recipe("mxfp4")->w_forward;
  rotated.hadamard = 32;
  f.train(rotated);
  refused(f, "(a rotation of 32 elements); choose --codes f32, f16");
  Fixture narrow("llama3", {{"dim", int64_t{48}},
                            {"n_layers", int64_t{1}},
                            {"n_heads", int64_t{3}},
                            {"n_kv_heads", int64_t{3}},
                            {"ffn_dim", int64_t{64}},
                            {"vocab_size", int64_t{96}}});
  narrow.content.codes = GgufType::q4_0;
  refused(narrow, "rows of 48 elements do not divide into the 32 of a block of q");
  Fixture large("llama3", kSmall);
  large.weights.at("layers.0.attention.wo.weight")[3][5] = 1e20f;
  large.content.codes = GgufType::q8_0;
  refused(large, "layers.0.attention.wo.weight has values too large for the fp16 scales of q8_0");
  large.content.codes = std::nullopt, large.content.plain = GgufType::f16;
  refused(large, "a value too large for f16");
  large.weights.at("layers.0.attention.wo.weight")[3][5] = std::numeric_limits<float>::quiet_NaN();
  large.content.codes = GgufType::mxfp4;
  refused(large, "layers.0.attention.wo.weight holds a NaN or an infinity");
  Fixture latent("deepseek_v3", with_experts({{"shared_experts", int64_t{1}},
                                              {"q_lora_rank", int64_t{64}},
                                              {"kv_lora_rank", int64_t{64}},
                                              {"expert_ffn_dim", int64_t{64}},
                                              {"ffn_dim", int64_t{128}},
                                              {"v_head_dim", int64_t{64}}}));
  latent.content.codes = GgufType::nvfp4;
  refused(latent, "latent attention reads no factors of nvfp4");
}

}  // namespace
}  // namespace halftone::gguf_test
