#include "halftone/checkpoint/hf.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "checkpoint/support.h"
#include "halftone/checkpoint/json_reader.h"
#include "halftone/checkpoint/store.h"
#include "source_dir.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;
using testing::expect_error;
using testing::TemporaryFolder;

HfLlamaConfig small_config(bool tied) {
  HfLlamaConfig config;
  config.hidden_size = 8;
  config.n_layers = 1;
  config.n_heads = 2;
  config.n_kv_heads = 1;
  config.head_dim = 4;
  config.intermediate_size = 12;
  config.vocab_size = 10;
  config.tied = tied;
  config.rope_scaling = HfRopeScaling{.factor = 32};
  config.bos_token_id = 1;
  return config;
}

std::vector<NamedTensor> small_model(bool tied) {
  const std::vector<std::pair<std::string, std::vector<int64_t>>> shapes{
      {"tok_embeddings.weight", {10, 8}},           {"norm.weight", {8}},
      {"layers.0.attention_norm.weight", {8}},      {"layers.0.ffn_norm.weight", {8}},
      {"layers.0.attention.wq.weight", {8, 8}},     {"layers.0.attention.wk.weight", {4, 8}},
      {"layers.0.attention.wv.weight", {4, 8}},     {"layers.0.attention.wo.weight", {8, 8}},
      {"layers.0.feed_forward.w1.weight", {12, 8}}, {"layers.0.feed_forward.w2.weight", {8, 12}},
      {"layers.0.feed_forward.w3.weight", {12, 8}}};
  std::vector<NamedTensor> model;
  float start = 0;
  for (const auto& [name, shape] : shapes) {
    int64_t n = 1;
    for (const int64_t extent : shape) n *= extent;
    model.push_back({name, (at::arange(n, at::kFloat) + start++ * 1000).reshape(shape)});
  }
  if (!tied) model.push_back({"output.weight", model[0].tensor * 2});
  return model;
}

TEST(HfNames, BothWays) {
  for (const NamedTensor& t : small_model(false)) EXPECT_EQ(native_name_of(hf_name_of(t.name).value()), t.name);
  EXPECT_EQ(hf_name_of("layers.12.feed_forward.w3.weight"), "model.layers.12.mlp.up_proj.weight");
  for (const char* name : {"model.layers.x.mlp.up_proj.weight", "model.layers.01.mlp.up_proj.weight", "model.layers..mlp.up_proj.weight",
                           "model.layers.1.mlp.up_proj.bias", "layers.1.mlp.up_proj.weight", ""})
    EXPECT_EQ(native_name_of(name), std::nullopt) << name;
}

TEST(HfPermutation, SwapsHalvesAndPairsInsideEachHead) {
  // Two heads of width 4: file rows (first half, second half) 0 1 | 2 3 become native pairs 0 2 1 3.
  const at::Tensor rows = at::arange(8, at::kFloat).reshape({8, 1});
  const at::Tensor native = permute_from_hf(rows, 2);
  const std::vector<float> expected{0, 2, 1, 3, 4, 6, 5, 7};
  for (int64_t i = 0; i < 8; ++i) EXPECT_EQ(native[i][0].item<float>(), expected[static_cast<size_t>(i)]);
  EXPECT_TRUE(at::equal(permute_to_hf(native, 2), rows));
  expect_error([&] { permute_to_hf(rows, 3); }, "does not split into 3 heads");
}

TEST(HfFolder, RoundTripInOneFileAndInShards) {
  for (const bool tied : {false, true})
    for (const int64_t shard_bytes : {int64_t{1} << 30, int64_t{400}}) {
      SCOPED_TRACE(fmt::format("tied {} shards of {}", tied, shard_bytes));
      const TemporaryFolder folder;
      testing::write_file(folder / "tokenizer.json", "{}");
      CheckpointStore store({.folder = folder / "checkpoint"});
      store.prepare();
      store.save_hf(9, {.config = small_config(tied),
                        .model = small_model(tied),
                        .dtype = at::kFloat,
                        .max_shard_bytes = shard_bytes,
                        .copy_files = {{"tokenizer.json", folder / "tokenizer.json"}}});
      EXPECT_EQ(fs::exists(store.step_folder(9) / "model.safetensors"), shard_bytes > 1000);
      EXPECT_TRUE(fs::exists(store.step_folder(9) / "tokenizer.json"));
      EXPECT_EQ(store.latest_valid(false), 9);  // such a folder is a valid step, of the model alone
      EXPECT_EQ(store.latest_valid(true), std::nullopt);
      const LoadedStep loaded = store.open(9);
      EXPECT_TRUE(loaded.model_only());
      ASSERT_NE(loaded.hf_config(), nullptr);
      EXPECT_EQ(loaded.hf_config()->rope_scaling->factor, 32);
      std::vector<std::string> names;
      for (const NamedTensor& t : small_model(tied)) {
        EXPECT_TRUE(at::equal(loaded.read(t.name), t.tensor)) << t.name;
        names.push_back(t.name);
      }
      loaded.check_model_names(names);
      EXPECT_EQ(loaded.has("output.weight"), true);
      if (tied) {
        EXPECT_TRUE(at::equal(loaded.read("output.weight"), small_model(true)[0].tensor));  // filled from the embedding
        names.push_back("output.weight");
        loaded.check_model_names(names);
      }
      at::Tensor half = at::empty({8, 8}, at::kBFloat16);
      loaded.read_into("layers.0.attention.wq.weight", half, true);
      EXPECT_TRUE(at::equal(half, small_model(tied)[4].tensor.to(at::kBFloat16)));
    }
}

TEST(HfFolder, MissingAndUnknownTensors) {
  const TemporaryFolder folder;
  auto model = small_model(false);
  model.pop_back();
  write_hf(folder.path(), {.config = small_config(false), .model = model});
  std::vector<std::string> names;
  for (const NamedTensor& t : small_model(false)) names.push_back(t.name);
  expect_error([&] { LoadedStep::open(folder.path(), true).check_model_names(names); }, "1 tensors are missing: output.weight");
  write_tensors(folder / "model.safetensors", {{"model.layers.0.self_attn.q_proj.bias", model[0].tensor}}, {});
  expect_error([&] { HfFolder{folder.path()}; }, "1 tensors are unknown: model.layers.0.self_attn.q_proj.bias");
  testing::write_file(folder / "model.safetensors.index.json", R"({"weight_map": {"lm_head.weight": "../x.safetensors"}})");
  expect_error([&] { HfFolder{folder.path()}; }, "not the name of a safetensors file");
  testing::write_file(folder / "model.safetensors.index.json", R"({"weight_map": {"lm_head.weight": "absent.safetensors"}})");
  expect_error([&] { HfFolder{folder.path()}; }, "No such file");
}

TEST(HfFolder, ReadsTheModelsOfTransformers) {
  for (const char* name : {"llama_untied", "llama_tied"}) {
    SCOPED_TRACE(name);
    const fs::path folder = fs::path(source_dir()) / "tests/golden" / name;
    const LoadedStep loaded = LoadedStep::open(folder, true);
    const HfLlamaConfig& config = *loaded.hf_config();
    EXPECT_EQ(config.tied, std::string(name) == "llama_tied");
    const TensorInfo wk = loaded.info("layers.0.attention.wk.weight");
    EXPECT_EQ(wk.shape, (std::vector<int64_t>{config.n_kv_heads * config.head_dim, config.hidden_size}));
    // Exporting what was read gives the file's tensors back.
    const SafetensorsFile file(folder / "model.safetensors");
    for (const std::string& native : loaded.model_names()) {
      const NamedTensor hf = native_to_hf({native, loaded.read(native)}, config.n_heads, config.n_kv_heads);
      at::Tensor stored = at::empty(hf.tensor.sizes(), hf.tensor.options());
      read_tensor(file, file.at(hf.name), stored, false);
      EXPECT_TRUE(at::equal(stored, hf.tensor)) << native;
      EXPECT_TRUE(at::equal(hf_to_native(hf, config.n_heads, config.n_kv_heads).tensor, loaded.read(native)));
    }
  }
}

TEST(HfConfig, BothTransformersVersions) {
  const std::string common =
      R"("model_type":"llama","hidden_size":64,"num_hidden_layers":2,"num_attention_heads":4,"intermediate_size":96,"vocab_size":100)";
  const std::string scaling =
      R"("rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":8192)";
  for (const std::string& rope :
       {R"("rope_theta":500000.0,"rope_scaling":{)" + scaling + "}", R"("rope_parameters":{"rope_theta":500000.0,)" + scaling + "}"}) {
    const HfLlamaConfig config = parse_hf_config("{" + common + "," + rope + "}", "config.json");
    EXPECT_EQ(config.rope_theta, 500000);
    EXPECT_EQ(config.rope_scaling, HfRopeScaling{});
    EXPECT_EQ(config.n_kv_heads, 4);
    EXPECT_EQ(config.head_dim, 16);
  }
  EXPECT_EQ(parse_hf_config("{" + common + R"(,"rope_scaling":null,"eos_token_id":[7,8]})", "config.json").eos_token_id, 7);
  const auto refused = [&](const std::string& extra, const std::string& part) {
    expect_error([&] { parse_hf_config("{" + common + "," + extra + "}", "config.json"); }, part);
  };
  refused(R"("rope_scaling":{"rope_type":"yarn"})", "rope_type \"yarn\" is not supported");
  refused(R"("attention_bias":true)", "attention_bias = true is not supported");
  refused(R"("num_key_value_heads":3)", "no multiple of 3 key-value heads");
  refused(R"("head_dim":0)", "\"head_dim\" expects 1 to 2^31");
  refused(R"("head_dim":5)", "must be even");
  refused(R"("rms_norm_eps":0)", "expects a positive number");
  expect_error([] { parse_hf_config(R"({"model_type":"qwen3"})", "config.json"); }, "\"qwen3\" is not supported, expected llama");
  expect_error([] { parse_hf_config(R"({"model_type":"llama"})", "config.json"); }, "\"hidden_size\" is missing");
}

TEST(HfConfig, RoundTrip) {
  const HfLlamaConfig config = small_config(true);
  const HfLlamaConfig again = parse_hf_config(write_hf_config(config), "config.json");
  EXPECT_EQ(again.head_dim, config.head_dim);
  EXPECT_EQ(again.rope_scaling, config.rope_scaling);
  EXPECT_EQ(again.rope_theta, config.rope_theta);
  EXPECT_EQ(again.tied, config.tied);
  EXPECT_EQ(again.bos_token_id, config.bos_token_id);
  EXPECT_EQ(again.context, config.context);
}

}  // namespace
}  // namespace halftone
