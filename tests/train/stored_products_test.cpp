#include "halftone/train/stored_products.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "checkpoint/hf_tensors.h"
#include "checkpoint/support.h"
#include "halftone/models/decoder_config.h"
#include "halftone/models/llama3/family.h"
#include "halftone/nn/layers.h"
#include "halftone/ops/stored_weight.h"
#include "halftone/train/run_state.h"
#include "halftone/train/saved_model.h"
#include "invariant.h"

namespace halftone::stored_products_test {
namespace {

using halftone::testing::TemporaryFolder;

constexpr int64_t kDim = 128, kHidden = 256, kVocab = 64;

// A weight's file tensors by the last word of their names; codes: one per element, [n, k].
struct Coded {
  std::map<std::string, at::Tensor> parts;
  at::Tensor codes;
};
struct Case {
  std::string name, quantization;
  std::function<Coded(int64_t n, int64_t k)> make;
  std::string said;  // of the products; empty: none
  std::string why = "";
};

at::Tensor drawn(int64_t n, int64_t k, int64_t low, int64_t high) { return at::randint(low, high, {n, k}, at::kLong); }
at::Tensor positive(int64_t n, int64_t k) { return at::rand({n, k}).mul(0.02).add(1e-3); }

std::string compressed(const std::string& format, const std::string& weights, const std::string& inputs) {
  return R"({"quant_method":"compressed-tensors","format":")" + format +
         R"(","ignore":["lm_head"],"config_groups":{"group_0":{"targets":["Linear"],"weights":{)" + weights + R"(},"input_activations":)" +
         inputs + "}}}";
}

Coded fp8(int64_t n, int64_t k, at::Tensor scales, const char* word) {
  const at::Tensor codes = at::rand({n, k}).sub(0.5).mul(900).clamp(-448, 448).to(at::kFloat8_e4m3fn);
  return {{{"weight", codes}, {word, std::move(scales)}}, codes.view(at::kByte)};
}
Coded int8(int64_t n, int64_t k) {
  const at::Tensor codes = drawn(n, k, -127, 128).to(at::kChar);
  return {{{"weight", codes}, {"weight_scale", positive(n, 1)}}, codes};
}
Coded int4(int64_t n, int64_t k, int64_t group, bool zeros) {
  const at::Tensor codes = drawn(n, k, 0, 16), places = codes.view({n, k / 8, 8});
  at::Tensor words = at::zeros({n, k / 8}, at::kLong);
  for (int64_t i = 0; i < 8; ++i) words += places.select(2, i) * (int64_t{1} << (4 * i));
  words = at::where(words >= (int64_t{1} << 31), words - (int64_t{1} << 32), words).to(at::kInt);
  Coded c{{{"weight_packed", words}, {"weight_scale", positive(n, k / group)}, {"weight_shape", at::tensor({n, k}, at::kLong)}},
          codes.sub(8).to(at::kChar)};
  if (zeros) c.parts["weight_zero_point"] = at::zeros({n / 8, k / group}, at::kInt);
  return c;
}
// 4-bit floats in blocks; the first code of a byte is the low nibble.
Coded e2m1(int64_t n, int64_t k, int64_t block, bool nv) {
  const at::Tensor codes = drawn(n, k, 0, 16), pairs = codes.view({n, k / 2, 2});
  Coded c{{{"weight_packed", (pairs.select(2, 0) + pairs.select(2, 1) * 16).to(at::kByte)}}, codes.to(at::kByte)};
  if (nv) {
    c.parts["weight_scale"] = positive(n, k / block).mul(4000).to(at::kFloat8_e4m3fn),
    c.parts["weight_global_scale"] = at::full({1}, 3001.0f);
  } else {
    c.parts["weight_scale"] = drawn(n, k / block, 115, 123).to(at::kByte);
  }
  return c;
}

const std::string kChannel8 = R"("num_bits":8,"type":"int","symmetric":true,"strategy":"channel")",
                  kFloat8 = R"("num_bits":8,"type":"float","strategy":)",
                  kTokens = R"({"num_bits":8,"type":"int","strategy":"token","dynamic":true})",
                  kOfTensor = R"({"num_bits":8,"type":"float","strategy":"tensor","dynamic":false})",
                  kFourBits = R"({"num_bits":4,"type":"float","strategy":"group","group_size":32,"dynamic":true})";

const std::vector<Case> kCases = {
    {"fp8_blocks", R"({"quant_method":"fp8","fmt":"e4m3","activation_scheme":"dynamic","weight_block_size":[128,128]})",
     [](int64_t n, int64_t k) { return fp8(n, k, positive((n + 127) / 128, (k + 127) / 128), "weight_scale_inv"); },
     "fp8_blockwise (X e4m3 1x128, W e4m3 128x128"},
    {"fp8_tokens", compressed("float-quantized", kFloat8 + "\"channel\"", kTokens),
     [](int64_t n, int64_t k) { return fp8(n, k, positive(n, 1), "weight_scale"); }, "fp8 (X e4m3 row, W e4m3 row"},
    {"fp8_tensor", compressed("float-quantized", kFloat8 + "\"tensor\"", kOfTensor),
     [](int64_t n, int64_t k) { return fp8(n, k, positive(1, 1).view({1}), "weight_scale"); }, "fp8 (X e4m3 tensor, W e4m3 tensor",
     "scales of inputs are computed, not the folder's"},
    {"int8_tokens", compressed("int-quantized", kChannel8, kTokens), int8, "int8 (X int8 row, W int8 row"},
    {"int8_alone", compressed("int-quantized", kChannel8, "null"), int8, "int8 (X bfloat16, W int8 row"},
    {"int4_groups",
     compressed("pack-quantized", R"("num_bits":4,"type":"int","symmetric":true,"strategy":"group","group_size":128)", "null"),
     [](int64_t n, int64_t k) { return int4(n, k, 128, false); }, "int4 (X bfloat16, W int4 1x128"},
    {"int4_small_groups",
     compressed("pack-quantized", R"("num_bits":4,"type":"int","symmetric":true,"strategy":"group","group_size":32)", "null"),
     [](int64_t n, int64_t k) { return int4(n, k, 32, false); }, "", "groups of 32 integers have no product"},
    {"int4_zeros",
     compressed("pack-quantized", R"("num_bits":4,"type":"int","symmetric":false,"strategy":"group","group_size":128)", "null"),
     [](int64_t n, int64_t k) { return int4(n, k, 128, true); }, "", "codes with zero points have no product"},
    {"mxfp4", compressed("mxfp4-pack-quantized", R"("num_bits":4,"type":"float","strategy":"group","group_size":32)", kFourBits),
     [](int64_t n, int64_t k) { return e2m1(n, k, 32, false); }, "mxfp4 (X e2m1 1x32 e8m0"},
    {"nvfp4", compressed("nvfp4-pack-quantized", R"("num_bits":4,"type":"float","strategy":"tensor_group","group_size":16)", kFourBits),
     [](int64_t n, int64_t k) { return e2m1(n, k, 16, true); }, "nvfp4 (X e2m1 1x16 e4m3 outer, W e2m1 1x16 e4m3 outer)"},
    {"nvfp4_alone", compressed("nvfp4-pack-quantized", R"("num_bits":4,"type":"float","strategy":"tensor_group","group_size":16)", "null"),
     [](int64_t n, int64_t k) { return e2m1(n, k, 16, true); }, "nvfp4 (X bfloat16, W e2m1 1x16 e4m3 outer"},
};

// Logits behind 20 tokens, read in chunks.
at::Tensor chunked(Engine& engine, int64_t chunk) {
  std::vector<KvCache> caches = engine.model().make_caches(1, 32);
  at::Tensor logits;
  for (int64_t at = 0; at < 20; at += chunk)
    logits = engine.model().next_token_logits(at::arange(at, std::min<int64_t>(20, at + chunk), at::kLong).unsqueeze(0), caches);
  return logits;
}

// Distance of the second logits from the first, relative.
double difference(const std::vector<at::Tensor>& logits) { return ((logits[0] - logits[1]).norm() / logits[0].norm()).item<double>(); }

class StoredProducts : public ::testing::TestWithParam<Case> {};

// The products read the file's codes, one for one, and their values are those of the file; logits differ from those of the dequantised
// weights by no more than the rounding of inputs.
TEST_P(StoredProducts, ReadTheFilesOwnCodes) {
  const Case& c = GetParam();
  at::manual_seed(7);
  DecoderConfig model(llama3::kFamily);
  model.dim = kDim, model.n_layers = 1, model.n_heads = 4, model.n_kv_heads = 2, model.ffn_dim = kHidden, model.vocab_size = kVocab;
  const HfConfig hf{.model = std::make_shared<DecoderConfig>(model), .token_ids = {}};
  nlohmann::json config = nlohmann::json::parse(write_hf_config(hf));
  config["quantization_config"] = nlohmann::json::parse(c.quantization);
  const TemporaryFolder folder;
  halftone::testing::write_file(folder / "config.json", config.dump());
  const std::string block = "model.layers.0.";
  const std::map<std::string, std::vector<int64_t>> linears{
      {block + "self_attn.q_proj", {kDim, kDim}},     {block + "self_attn.k_proj", {kDim / 2, kDim}},
      {block + "self_attn.v_proj", {kDim / 2, kDim}}, {block + "self_attn.o_proj", {kDim, kDim}},
      {block + "mlp.gate_proj", {kHidden, kDim}},     {block + "mlp.up_proj", {kHidden, kDim}},
      {block + "mlp.down_proj", {kDim, kHidden}}};
  std::vector<NamedTensor> tensors{{"model.embed_tokens.weight", at::randn({kVocab, kDim})}, {"lm_head.weight", at::randn({kVocab, kDim})}};
  for (const std::string& norm : {std::string("model.norm"), block + "input_layernorm", block + "post_attention_layernorm"})
    tensors.push_back({norm + ".weight", at::ones({kDim})});
  std::map<std::string, at::Tensor> codes;
  for (const auto& [module, shape] : linears) {
    const Coded coded = c.make(shape[0], shape[1]);
    for (const auto& [word, tensor] : coded.parts) tensors.push_back({module + "." + word, tensor.contiguous()});
    codes[module + ".weight"] = coded.codes;
  }
  write_tensors(folder / "model.safetensors", tensors, {});

  const LoadedStep step = LoadedStep::open(folder.path(), true);
  Engine::Options options;
  options.trainable = false, options.positions = 32;
  std::vector<at::Tensor> logits;
  for (const bool by_codes : {false, true}) {
    const JobConfig job = config_of(step, by_codes);
    ASSERT_EQ(job.training.mixed_precision_param, "bfloat16");
    Engine engine(job, options);
    restore_model(engine, step);
    const std::string said = multiply_as_stored(engine, step, "bfloat16", by_codes);
    if (by_codes) {
      const std::string expected = c.said.empty() ? "multiplied as bfloat16: " + c.why : "multiplied as " + c.said;
      EXPECT_NE(said.find(expected), std::string::npos) << said;
      EXPECT_NE(said.find(c.why), std::string::npos) << said;
      int64_t checked = 0;
      engine.model().for_each_module([&](nn::Module& m) {
        auto* linear = dynamic_cast<nn::Linear*>(&m);
        if (linear == nullptr || linear->weight.fqn == "output.weight") return;
        ASSERT_EQ(linear->weight.weight.stored != nullptr, !c.said.empty()) << linear->weight.fqn;
        if (c.said.empty()) return;
        const StoredWeight& stored = *linear->weight.weight.stored;
        const at::Tensor file =
            hf_to_native(linear->weight.fqn, *step.hf_config()->model, [&](const std::string& name) { return codes.at(name); }).tensor;
        EXPECT_TRUE(at::equal(stored.codes.view(at::kByte), file.contiguous().view(at::kByte))) << linear->weight.fqn;
        at::Tensor values = at::empty(file.sizes(), at::kFloat);
        step.read_into(linear->weight.fqn, values, true);
        const at::Tensor found = dequantize(stored);
        // Two factors of nvfp4 are multiplied here and divided there.
        EXPECT_TRUE(stored.outer.defined() ? at::allclose(found, values, 3e-7, 0) : at::equal(found, values)) << linear->weight.fqn;
        ++checked;
      });
      EXPECT_EQ(checked, c.said.empty() ? 0 : 7);
    } else {
      EXPECT_NE(said.find("multiplied as bfloat16: --recipe none"), std::string::npos) << said;
    }
    if (by_codes && !c.said.empty()) {
      const BatchInvariantScope invariant;
      const bool spread = c.name == "fp8_tensor" || c.name == "nvfp4";  // one scale for all rows of X
      Engine again(job, options);
      restore_model(again, step);
      if (spread) {
        EXPECT_THROW(multiply_as_stored(again, step, "bfloat16", true), Error);
      } else {
        multiply_as_stored(again, step, "bfloat16", true);
        EXPECT_TRUE(same_bits(chunked(again, 20), chunked(again, 3)));
      }
    }
    logits.push_back(chunked(engine, 20));
  }
  const double error = difference(logits);
  EXPECT_LT(error, c.said.find("X e2m1") != std::string::npos ? 0.5 : 0.1);
  EXPECT_EQ(error == 0, c.said.empty());
}

INSTANTIATE_TEST_SUITE_P(Formats, StoredProducts, ::testing::ValuesIn(kCases), [](const auto& info) { return info.param.name; });

// Every expert's own codes, in groups of their own.
TEST(StoredExperts, ReadTheirOwnCodes) {
  at::manual_seed(8);
  constexpr int64_t kD = 64, kF = 48, kE = 3, kV = 50;
  const TemporaryFolder folder;
  nlohmann::json config = nlohmann::json::parse(R"({"model_type":"qwen3_moe","hidden_size":64,"intermediate_size":96,"num_hidden_layers":1,
    "num_attention_heads":2,"num_key_value_heads":1,"head_dim":32,"vocab_size":50,"tie_word_embeddings":false,"rms_norm_eps":1e-6,"num_experts":3,
    "num_experts_per_tok":2,"moe_intermediate_size":48,"norm_topk_prob":true,"decoder_sparse_step":1,"mlp_only_layers":[],"rope_theta":1e6})");
  config["quantization_config"] = nlohmann::json::parse(compressed("int-quantized", kChannel8, kTokens));
  halftone::testing::write_file(folder / "config.json", config.dump());
  const std::string block = "model.layers.0.", heads = block + "self_attn.";
  std::vector<NamedTensor> tensors;
  for (const auto& [name, shape] : std::map<std::string, std::vector<int64_t>>{{"model.embed_tokens", {kV, kD}},
                                                                               {"lm_head", {kV, kD}},
                                                                               {heads + "q_proj", {64, kD}},
                                                                               {heads + "k_proj", {32, kD}},
                                                                               {heads + "v_proj", {32, kD}},
                                                                               {heads + "o_proj", {kD, 64}},
                                                                               {block + "mlp.gate", {kE, kD}}})
    tensors.push_back({name + ".weight", at::randn(shape).mul(0.1).to(at::kBFloat16)});
  for (const std::string& norm : {std::string("model.norm"), block + "input_layernorm", block + "post_attention_layernorm"})
    tensors.push_back({norm + ".weight", at::ones({kD}, at::kBFloat16)});
  for (const char* norm : {"q_norm", "k_norm"}) tensors.push_back({heads + norm + ".weight", at::ones({32}, at::kBFloat16)});
  std::map<std::string, at::Tensor> codes;
  for (int64_t e = 0; e < kE; ++e) {
    for (const auto& [name, shape] :
         std::map<std::string, std::vector<int64_t>>{{"gate_proj", {kF, kD}}, {"up_proj", {kF, kD}}, {"down_proj", {kD, kF}}}) {
      const std::string module = fmt::format("{}mlp.experts.{}.{}", block, e, name);
      const Coded coded = int8(shape[0], shape[1]);
      for (const auto& [word, tensor] : coded.parts) tensors.push_back({module + "." + word, tensor});
      codes[module + ".weight"] = coded.codes;
    }
  }
  write_tensors(folder / "model.safetensors", tensors, {});
  const LoadedStep step = LoadedStep::open(folder.path(), true);
  Engine::Options options;
  options.trainable = false, options.positions = 32;
  std::vector<at::Tensor> logits;
  for (const bool by_codes : {false, true}) {
    Engine engine(config_of(step, by_codes), options);
    restore_model(engine, step);
    const std::string said = multiply_as_stored(engine, step, "bfloat16", by_codes);
    EXPECT_EQ(said.find("int8 (X int8 row, W int8 row) in 1 of 6 layers") != std::string::npos, by_codes) << said;
    engine.model().for_each_parameter([&](nn::Parameter& p) {
      if (p.shape.size() != 3) return;
      ASSERT_EQ(p.weight.stored_experts.size(), by_codes ? static_cast<size_t>(kE) : 0) << p.fqn;
      if (!by_codes) return;
      const at::Tensor file = hf_to_native(p.fqn, *step.hf_config()->model, [&](const std::string& name) { return codes.at(name); }).tensor;
      at::Tensor values = at::empty(file.sizes(), at::kFloat);
      step.read_into(p.fqn, values, true);
      for (int64_t e = 0; e < kE; ++e) {
        const StoredWeight& stored = *p.weight.stored_experts[static_cast<size_t>(e)];
        EXPECT_TRUE(at::equal(stored.codes, file[e]) && at::equal(dequantize(stored), values[e])) << p.fqn << " " << e;
      }
    });
    logits.push_back(chunked(engine, 20));
  }
  const double error = difference(logits);
  EXPECT_LT(error, 0.1);
  EXPECT_GT(error, 0);
}

}  // namespace
}  // namespace halftone::stored_products_test
