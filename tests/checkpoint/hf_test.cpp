#include "halftone/checkpoint/hf.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "checkpoint/hf_tensors.h"
#include "checkpoint/ranks.h"
#include "checkpoint/support.h"
#include "halftone/base/json_reader.h"
#include "halftone/checkpoint/discard.h"
#include "halftone/checkpoint/store.h"
#include "halftone/models/decoder_config.h"
#include "halftone/models/llama3/family.h"
#include "halftone/models/registry.h"
#include "source_dir.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;
using testing::expect_error;
using testing::TemporaryFolder;

const ModelFamily& family = llama3::kFamily;

HfConfig small_config(bool tied) {
  DecoderConfig model(llama3::kFamily);
  model.dim = 8, model.n_layers = 1, model.n_heads = 2, model.n_kv_heads = 1, model.ffn_dim = 12, model.vocab_size = 10;
  model.tied = tied, model.rope_scaling = true, model.rope_factor = 32;
  return {.model = std::make_shared<DecoderConfig>(model), .token_ids = {.bos = 1, .pad = {}, .eos = {7, 8}}};
}

HfConfig parsed_text(const std::string& text) { return parse_hf_config(text, "config.json", model_families()); }
const DecoderConfig& hyper(const HfConfig& config) { return dynamic_cast<const DecoderConfig&>(*config.model); }

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
  for (const NamedTensor& t : small_model(false)) EXPECT_EQ(family.native_name(family.hf_name(t.name).value()), t.name);
  EXPECT_EQ(family.hf_name("layers.12.feed_forward.w3.weight"), "model.layers.12.mlp.up_proj.weight");
  for (const char* name : {"model.layers.x.mlp.up_proj.weight", "model.layers.01.mlp.up_proj.weight", "model.layers..mlp.up_proj.weight",
                           "model.layers.1.mlp.up_proj.scale", "layers.1.mlp.up_proj.weight", ""})
    EXPECT_EQ(family.native_name(name), std::nullopt) << name;
}

TEST(HfPermutation, SwapsHalvesAndPairsInsideEachHead) {
  // Two heads of width 4: file rows (first half, second half) 0 1 | 2 3 become native pairs 0 2 1 3.
  const at::Tensor rows = at::arange(8, at::kFloat).reshape({8, 1});
  const at::Tensor native = permute_from_hf(rows, 2);
  const std::vector<float> expected{0, 2, 1, 3, 4, 6, 5, 7};
  for (int64_t i = 0; i < 8; ++i) EXPECT_EQ(native[i][0].item<float>(), expected[static_cast<size_t>(i)]);
  EXPECT_TRUE(at::equal(permute_to_hf(native, 2), rows));
  const at::Tensor bias = at::arange(8, at::kFloat);
  EXPECT_TRUE(at::equal(permute_from_hf(bias, 2), native.view({8})));
  EXPECT_TRUE(at::equal(permute_to_hf(native.view({8}), 2), bias));
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
      EXPECT_EQ(store.latest_valid(false), 9);  // such a folder is a valid step, model only
      EXPECT_EQ(store.latest_valid(true), std::nullopt);
      const LoadedStep loaded = store.open(9);
      EXPECT_TRUE(loaded.model_only());
      ASSERT_NE(loaded.hf_config(), nullptr);
      EXPECT_EQ(hyper(*loaded.hf_config()).rope_factor, 32);
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

TEST(HfFolder, ReadsRowsOfRotatedHeads) {
  const TemporaryFolder folder;
  write_hf(folder.path(), {.config = small_config(false), .model = small_model(false)});
  const LoadedStep loaded = LoadedStep::open(folder.path(), true);
  for (const NamedTensor& t : small_model(false))
    for (int64_t first = 0; first < t.tensor.size(0); ++first)
      for (int64_t rows = 0; first + rows <= t.tensor.size(0); ++rows) {
        const at::Tensor wanted = t.tensor.narrow(0, first, rows), found = at::empty(wanted.sizes(), at::kFloat);
        loaded.read_rows(t.name, first, found);
        EXPECT_TRUE(at::equal(found, wanted)) << t.name << ": " << rows << " from " << first;
      }
}

// Tensors of several pieces, whose heads (of 80 rows) do not end at piece boundaries, from folder to folder without data.
TEST(HfFolder, PiecesOfTensorsFromFolderToFolder) {
  const TemporaryFolder folder;
  HfConfig config = small_config(false);
  DecoderConfig model = hyper(config);
  model.dim = 1280, model.n_heads = 16, model.n_kv_heads = 8, model.ffn_dim = 16;
  config.model = std::make_shared<DecoderConfig>(model);
  std::vector<NamedTensor> tensors;
  for (const NamedTensor& t : small_model(false)) {
    const bool kv = t.name.ends_with("wk.weight") || t.name.ends_with("wv.weight");
    std::vector<int64_t> shape = t.tensor.sizes().vec();
    for (int64_t& extent : shape) extent = extent == 8 ? 1280 : extent == 4 ? 640 : extent == 12 ? 16 : extent;
    tensors.push_back({t.name, (at::arange(shape.size() > 1 ? shape[0] * shape[1] : shape[0], at::kFloat) + (kv ? 3 : 0)).reshape(shape)});
  }
  const auto empty = [](const LoadedStep& step) {
    std::vector<NamedTensor> list;
    for (const std::string& name : step.model_names())
      list.push_back({name, at::empty(step.info(name).shape, at::TensorOptions().dtype(at::kFloat).device(at::kMeta))});
    return list;
  };
  const auto reader = [](const LoadedStep& step) {
    return [&step](const std::string& name, int64_t first, int64_t rows) { return step.read(name, first, rows); };
  };
  fs::create_directories(folder / "first"), fs::create_directories(folder / "second");
  write_hf(folder / "first", {.config = config, .model = tensors});
  const LoadedStep first = LoadedStep::open(folder / "first", true);
  write_step(folder / "step", {.model_only = true, .model = empty(first), .read = reader(first)}, {});
  const LoadedStep step = LoadedStep::open(folder / "step", true);
  for (const NamedTensor& t : tensors) EXPECT_TRUE(at::equal(step.read(t.name), t.tensor)) << t.name;
  write_hf(folder / "second", {.config = config, .model = empty(step), .read = reader(step)});
  const SafetensorsFile one(folder / "first/model.safetensors"), two(folder / "second/model.safetensors");
  for (const TensorEntry& entry : one.header().tensors) {
    const at::Tensor a = at::empty(entry.shape, at::kFloat), b = at::empty(entry.shape, at::kFloat);
    read_tensor(one, entry, a, false), read_tensor(two, two.at(entry.name), b, false);
    EXPECT_TRUE(at::equal(a, b)) << entry.name;
  }
  const auto broken = [](const std::string& name, int64_t, int64_t) -> at::Tensor { fail("no {}", name); };
  expect_error([&] { write_step(folder / "none", {.model_only = true, .model = empty(first), .read = broken}, {}); }, "failed: no ");
  EXPECT_FALSE(fs::exists(folder / "none") || fs::exists(folder / "none.tmp"));
}

TEST(HfFolder, ManyRanksWriteWhatOneDoes) {
  for (const bool tied : {false, true}) {
    const TemporaryFolder folder;
    const auto save = [&](const std::string& name, int64_t world) {
      testing::Job(world).run([&](const CheckpointRanks& ranks) {
        CheckpointStore store({.folder = folder / name, .ranks = ranks});
        store.prepare();
        HfExport content{.config = small_config(tied), .model = {}, .dtype = at::kFloat, .max_shard_bytes = 400};
        for (const NamedTensor& t : small_model(tied))
          content.model.push_back(testing::shard_of(t.name, t.tensor, ranks.rank, ranks.world));
        for (int i = 0; i < 2; ++i) store.save_hf(9, content);  // the second replaces the first
        EXPECT_EQ(store.latest_valid(false), 9);
      });
    };
    save("one", 1), save("many", 3);
    EXPECT_TRUE(finish_discards(std::chrono::minutes(1)));  // the replaced steps
    const fs::path one = folder / "one/step-9", many = folder / "many/step-9";
    EXPECT_EQ(testing::read_file(many / "config.json"), testing::read_file(one / "config.json"));
    for (const auto& entry : fs::directory_iterator(folder / "many")) EXPECT_EQ(entry.path(), many);
    for (const auto& entry : fs::directory_iterator(many)) EXPECT_TRUE(entry.is_regular_file()) << entry.path();
    const LoadedStep loaded = LoadedStep::open(many, true);
    for (const NamedTensor& t : small_model(tied)) EXPECT_TRUE(at::equal(loaded.read(t.name), t.tensor)) << t.name;
  }
}

TEST(HfFolder, MissingAndUnknownTensors) {
  const TemporaryFolder folder;
  auto model = small_model(false);
  model.pop_back();
  write_hf(folder.path(), {.config = small_config(false), .model = model});
  std::vector<std::string> names;
  for (const NamedTensor& t : small_model(false)) names.push_back(t.name);
  expect_error([&] { LoadedStep::open(folder.path(), true).check_model_names(names); },
               "tie_word_embeddings = false, and the weights have no lm_head.weight");
  const std::vector<std::string> less(names.begin() + 1, names.end());
  model = small_model(false);
  write_hf(folder.path(), {.config = small_config(false), .model = model});
  expect_error([&] { LoadedStep::open(folder.path(), true).check_model_names(less); }, "1 tensors are unknown: tok_embeddings.weight");
  write_tensors(folder / "model.safetensors", {{"model.layers.0.self_attn.q_proj.scale", model[0].tensor}}, {});
  expect_error([&] { HfFolder{folder.path()}; }, "1 tensors are unknown: model.layers.0.self_attn.q_proj.scale");
  testing::write_file(folder / "model.safetensors.index.json", R"({"weight_map": {"lm_head.weight": "../x.safetensors"}})");
  expect_error([&] { HfFolder{folder.path()}; }, "not the name of a safetensors file");
  testing::write_file(folder / "model.safetensors.index.json", R"({"weight_map": {"lm_head.weight": "absent.safetensors"}})");
  expect_error([&] { HfFolder{folder.path()}; }, "No such file");
}

TEST(HfFolder, ReadsTheModelsOfTransformers) {
  for (const char* name : {"llama_untied", "llama_tied", "qwen3_moe", "deepseek_v3", "gpt_oss"}) {
    SCOPED_TRACE(name);
    const fs::path folder = fs::path(source_dir()) / "tests/golden" / name;
    const LoadedStep loaded = LoadedStep::open(folder, true);
    const DecoderConfig& config = hyper(*loaded.hf_config());
    EXPECT_EQ(config.tied, std::string(name) == "llama_tied" || std::string(name) == "qwen3_moe");
    if (!config.latent()) {
      const TensorInfo wk = loaded.info("layers.0.attention.wk.weight");
      EXPECT_EQ(wk.shape, (std::vector<int64_t>{config.n_kv_heads * config.head_dim, config.dim}));
    }
    if (config.num_experts > 0) {
      const TensorInfo w2 = loaded.info(config.traits().clamped ? "layers.1.moe.experts.mlp2_weight" : "layers.1.moe.experts.w2");
      EXPECT_EQ(w2.shape, (std::vector<int64_t>{config.num_experts, config.dim, config.expert_ffn_dim}));
    }
    // Exporting what was read reproduces the file's tensors.
    const SafetensorsFile file(folder / "model.safetensors");
    for (const std::string& native : loaded.model_names()) {
      const auto stored = [&](const std::string& hf) {
        const TensorEntry& entry = file.at(hf);
        at::Tensor out = at::empty(entry.shape, scalar_type_of(entry.dtype));
        read_tensor(file, entry, out, false);
        return out;
      };
      for (const NamedTensor& hf : native_to_hf({native, loaded.read(native)}, config))
        EXPECT_TRUE(at::equal(stored(hf.name), hf.tensor)) << hf.name;
      EXPECT_TRUE(at::equal(hf_to_native(native, config, stored).tensor, loaded.read(native))) << native;
    }
  }
}

const std::string kCommon =
    R"("model_type":"llama","hidden_size":64,"num_hidden_layers":2,"num_attention_heads":4,"intermediate_size":96,"vocab_size":100)";
HfConfig parsed(const std::string& more) { return parsed_text("{" + kCommon + "," + more + "}"); }

TEST(HfFolder, HeadsThatAreNotTiedAsTheConfigurationSays) {
  const TemporaryFolder folder;
  std::vector<std::string> names;
  for (const NamedTensor& t : small_model(true)) names.push_back(t.name);
  const auto with_head = [&](const at::Tensor& head) {
    std::vector<NamedTensor> model = small_model(true);
    model.push_back({"output.weight", head});
    write_hf(folder.path(), {.config = small_config(false), .model = model});
    testing::write_file(folder / "config.json", write_hf_config(small_config(true)));
    LoadedStep::open(folder.path(), true).check_model_names(names);
  };
  const at::Tensor embedding = small_model(true)[0].tensor;
  EXPECT_NO_THROW(with_head(embedding));
  expect_error([&] { with_head(embedding * 2); }, "config.json: tie_word_embeddings = true, but lm_head.weight differs");
}

// Null, absent, a number, a list: all forms in Hugging Face's files.
TEST(HfConfig, TokenIdsInEveryForm) {
  const std::string others =
      R"("rope_scaling":null,"head_dim":null,"num_key_value_heads":null,"torch_dtype":null,"tie_word_embeddings":null,)";
  const auto ids = [&](const std::string& more) { return parsed(others + more).token_ids; };
  EXPECT_EQ(ids(R"("bos_token_id":null,"eos_token_id":null,"pad_token_id":null)"), HfTokenIds{});
  EXPECT_EQ(ids(R"("pad_token_id":-1)"), HfTokenIds{});
  EXPECT_EQ(ids(R"("bos_token_id":1,"eos_token_id":2,"pad_token_id":0)"), (HfTokenIds{1, 0, {2}}));
  EXPECT_EQ(ids(R"("eos_token_id":[7,8])"), (HfTokenIds{{}, {}, {7, 8}}));
  EXPECT_EQ(ids(R"("eos_token_id":[])"), HfTokenIds{});
  expect_error([&] { ids(R"("eos_token_id":"</s>")"); }, "\"eos_token_id\" expects a non-negative integer");
  const TemporaryFolder folder;
  write_hf(folder.path(), {.config = small_config(false), .model = small_model(false)});
  EXPECT_EQ(HfFolder(folder.path()).config().token_ids.eos, (std::vector<int64_t>{7, 8})) << "a list stays one";
  for (const auto& [text, eos] : {std::pair{R"({"eos_token_id": [3, 4, 5]})", std::vector<int64_t>{3, 4, 5}},
                                  {R"({"eos_token_id": 6})", {6}},
                                  {R"({"eos_token_id": null, "temperature": 0.6})", {7, 8}}}) {
    testing::write_file(folder / "generation_config.json", text);
    EXPECT_EQ(HfFolder(folder.path()).config().token_ids.eos, eos) << text;
  }
  testing::write_file(folder / "generation_config.json", "[]");
  expect_error([&] { HfFolder{folder.path()}; }, "generation_config.json: expected an object");
}

TEST(HfConfig, EntriesThatAreNotHonouredAreRefused) {
  const auto refused = [](const std::string& entry, const std::string& part) {
    expect_error([&] { parsed(entry); }, "config.json: " + part);
  };
  for (
      const char* entry :
      {R"("attention_bias":false,"mlp_bias":null,"hidden_act":"silu","sliding_window":null,"partial_rotary_factor":1.0,"pretraining_tp":1)",
       R"("layer_types":["full_attention","full_attention"],"quantization_config":null,"attention_dropout":0.0)",
       R"("architectures":["LlamaForCausalLM"],"use_cache":true,"transformers_version":"5.0","initializer_range":0.1,"unheard_of":3)"}) {
    EXPECT_NO_THROW(parsed(entry)) << entry;
  }
  EXPECT_TRUE(hyper(parsed(R"("attention_bias":true)")).attention_bias);
  EXPECT_TRUE(hyper(parsed(R"("mlp_bias":true)")).mlp_bias);
  refused(R"("hidden_act":"gelu")", "hidden_act = \"gelu\" is not supported, expected \"silu\" or \"swish\"");
  refused(R"("sliding_window":4096)", "sliding_window = 4096 is not supported, expected null or no such entry");
  refused(R"("partial_rotary_factor":0.5)", "partial_rotary_factor = 0.5 is not supported, expected 1");
  refused(R"("pretraining_tp":2)", "pretraining_tp = 2 is not supported, expected 1");
  refused(R"("logits_scaling":8)", "logits_scaling = 8 is not supported, expected 1");
  refused(R"("attention_dropout":0.1)", "attention_dropout = 0.1 is not supported, expected 0");
  refused(R"("layer_types":["full_attention","sliding_attention"])", "layer_types = [\"full_attention\"");
  refused(R"("quantization_config":{"quant_method":"gptq"})", "quantization_config.quant_method = \"gptq\" is not supported");
}

TEST(HfConfig, RopeEntriesMustAgree) {
  const auto refused = [](const std::string& entry, const std::string& part) {
    expect_error([&] { parsed(entry); }, "config.json: " + part);
  };
  const std::string scaled =
      R"("rope_type":"llama3","factor":8,"low_freq_factor":1,"high_freq_factor":4,"original_max_position_embeddings":64)";
  EXPECT_EQ(hyper(parsed(R"("rope_theta":5e5,"rope_parameters":{"rope_type":"default","rope_theta":500000})")).rope_theta, 5e5);
  EXPECT_EQ(hyper(parsed(R"("rope_scaling":{)" + scaled + R"(},"rope_parameters":{"rope_theta":1e4,)" + scaled + "}")).rope_factor, 8);
  EXPECT_EQ(hyper(parsed(R"("use_cache":true)")).rope_theta, 10000);
  EXPECT_EQ(hyper(parsed(R"("use_cache":true)")).norm_eps, 1e-6) << "transformers' default";
  EXPECT_EQ(hyper(parsed(R"("rope_parameters":{"rope_theta":7.0,"partial_rotary_factor":1.0,"factor":null})")).rope_theta, 7);
  refused(R"("rope_theta":10000.0,"rope_parameters":{"rope_type":"default","rope_theta":500000.0})",
          "rope_parameters.rope_theta = 500000 contradicts rope_theta = 10000");
  refused(R"("rope_scaling":{)" + scaled + R"(},"rope_parameters":{"rope_type":"default","rope_theta":1e4})",
          "rope_parameters (rope_type default) contradicts rope_scaling (rope_type llama3, factor 8,");
  refused(R"("rope_scaling":{"type":"default",)" + scaled + "}",
          "rope_scaling.type = \"default\" contradicts rope_scaling.rope_type = \"llama3\"");
  refused(R"("rope_scaling":{"rope_type":"longrope","factor":4})",
          "rope_scaling.rope_type = \"longrope\" is not supported, expected \"default\" or \"linear\" or");
  refused(R"("rope_scaling":{"rope_type":"yarn","factor":4})", "rope_scaling: yarn needs original_max_position_embeddings");
  refused(R"("max_position_embeddings":64,"rope_scaling":{"rope_type":"linear","factor":4,"beta_fast":32})",
          "rope_scaling.beta_fast = 32 has no effect with rope_type \"linear\"");
  const DecoderConfig yarn = hyper(parsed(R"("rope_scaling":{"type":"yarn","factor":4.0,"original_max_position_embeddings":64})"));
  EXPECT_EQ(yarn.rope_type, "yarn");
  EXPECT_DOUBLE_EQ(yarn.rope_attention_factor, 0.1 * std::log(4.0) + 1);
  EXPECT_EQ(hyper(parsed(R"("max_position_embeddings":64,"rope_scaling":{"type":"dynamic","factor":2.0})")).rope_original_context, 64);
  refused(R"("rope_scaling":{"factor":4.0})", "rope_scaling.factor = 4.0 has no effect with rope_type \"default\"");
  refused(R"("rope_scaling":{"rope_type":"llama3","factor":4})", "rope_scaling: the field \"low_freq_factor\" is missing");
  refused(R"("rope_scaling":{"attention_factor":2,)" + scaled + "}",
          "rope_scaling.attention_factor = 2 has no effect with rope_type \"llama3\"");
  refused(R"("rope_parameters":{"full_attention":{"rope_type":"default"}})",
          "rope_parameters.full_attention = {\"rope_type\":\"default\"} is not supported");
  refused(R"("rope_parameters":{"rope_theta":1e4,"partial_rotary_factor":0.5})",
          "rope_parameters.partial_rotary_factor = 0.5 is not supported, expected 1");
  refused(R"("rope_scaling":8)", "rope_scaling = 8 is not supported, expected an object with rope_type");
  refused(R"("original_max_position_embeddings":64)", "original_max_position_embeddings = 64 has no effect beside rope_type default");
}

TEST(HfConfig, BothTransformersVersions) {
  const std::string common = kCommon;
  const std::string scaling =
      R"("rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":8192)";
  for (const std::string& rope :
       {R"("rope_theta":500000.0,"rope_scaling":{)" + scaling + "}", R"("rope_parameters":{"rope_theta":500000.0,)" + scaling + "}"}) {
    const HfConfig read = parsed_text("{" + common + "," + rope + "}");
    const DecoderConfig& config = hyper(read);
    EXPECT_EQ(config.rope_theta, 500000);
    EXPECT_TRUE(config.rope_scaling && config.rope_factor == 8 && config.rope_low_freq_factor == 1 && config.rope_high_freq_factor == 4 &&
                config.rope_original_context == 8192);
    EXPECT_EQ(config.n_kv_heads, 4);
    EXPECT_EQ(config.head_dim, 16);
  }
  const auto refused = [&](const std::string& extra, const std::string& part) {
    expect_error([&] { parsed_text("{" + common + "," + extra + "}"); }, part);
  };
  refused(R"("num_key_value_heads":3)", "not a multiple of 3 key-value heads");
  refused(R"("head_dim":0)", "\"head_dim\" expects 1 to 2^31");
  refused(R"("head_dim":5)", "must be even");
  refused(R"("rms_norm_eps":0)", "expects a positive number");
  expect_error([] { parsed_text(R"({"model_type":"falcon"})"); },
               "\"falcon\" is not supported, expected llama or mistral or qwen2 or qwen3");
  expect_error([] { parsed_text(R"({"model_type":"llama"})"); }, "\"hidden_size\" is missing");
}

TEST(HfConfig, RoundTrip) {
  const HfConfig config = small_config(true), again = parsed_text(write_hf_config(config));
  EXPECT_EQ(again.model->hf_parameters(), config.model->hf_parameters());
  EXPECT_EQ(hyper(again).max_seq_len, hyper(config).max_seq_len);
  EXPECT_EQ(again.token_ids, config.token_ids);
}

}  // namespace
}  // namespace halftone
