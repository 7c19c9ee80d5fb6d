// config.json of Hugging Face's decoders: published ones are accepted with their authors' meaning; entries that a family does not
// support, that have no effect or that contradict each other are errors that name key and value.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "checkpoint/support.h"
#include "halftone/models/registry.h"

namespace halftone {
namespace {

using nlohmann::json;

std::shared_ptr<ModelDescription> read(const json& config) {
  for (const ModelFamily* family : model_families())
    if (family->hf_type == config.at("model_type").get<std::string>()) return family->read_hf(*family, config, "config.json");
  throw std::out_of_range(config.dump());
}

struct Published {
  const char *name, *config;  // the file's entries, including those irrelevant to the model
  const char* family;
  OptionTable expected;  // some of the hyper-parameters
  int64_t parameters;    // as stated on its page
};
std::ostream& operator<<(std::ostream& out, const Published& p) { return out << p.name; }

OptionTable sizes(int64_t dim, int64_t layers, int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t ffn) {
  return {{"dim", dim}, {"n_layers", layers}, {"n_heads", heads}, {"n_kv_heads", kv_heads}, {"head_dim", head_dim}, {"ffn_dim", ffn}};
}
OptionTable with(OptionTable table, const OptionTable& more) {
  table.insert(more.begin(), more.end());
  return table;
}
OptionTable rest(double theta, double eps, bool tied, int64_t window, int64_t context, bool scaled = false) {
  return {{"rope_theta", theta}, {"norm_eps", eps},         {"tied", tied},          {"window", window}, {"max_seq_len", context},
          {"mlp_bias", false},   {"attention_bias", false}, {"rope_scaling", scaled}};
}

OptionTable experts(int64_t number, int64_t per_token, int64_t ffn, int64_t shared, int64_t dense) {
  return {{"num_experts", number}, {"experts_per_token", per_token}, {"expert_ffn_dim", ffn},
          {"route_norm", true},    {"shared_experts", shared},       {"dense_layers", dense}};
}

const Published kPublished[] = {
    {"Llama_2_7b",
     R"({"architectures":["LlamaForCausalLM"],"bos_token_id":1,"eos_token_id":2,"hidden_act":"silu","hidden_size":4096,
         "initializer_range":0.02,"intermediate_size":11008,"max_position_embeddings":4096,"model_type":"llama","num_attention_heads":32,
         "num_hidden_layers":32,"num_key_value_heads":32,"pretraining_tp":1,"rms_norm_eps":1e-05,"rope_scaling":null,
         "tie_word_embeddings":false,"torch_dtype":"float16","transformers_version":"4.31.0.dev0","use_cache":true,"vocab_size":32000})",
     "llama3", with(sizes(4096, 32, 32, 32, 128, 11008), rest(1e4, 1e-5, false, 0, 4096)), 6'738'415'616},
    {"Llama_3_2_1B",
     R"({"architectures":["LlamaForCausalLM"],"attention_bias":false,"attention_dropout":0.0,"bos_token_id":128000,"eos_token_id":128001,
         "head_dim":64,"hidden_act":"silu","hidden_size":2048,"initializer_range":0.02,"intermediate_size":8192,
         "max_position_embeddings":131072,"mlp_bias":false,"model_type":"llama","num_attention_heads":32,"num_hidden_layers":16,
         "num_key_value_heads":8,"pretraining_tp":1,"rms_norm_eps":1e-05,
         "rope_scaling":{"factor":32.0,"high_freq_factor":4.0,"low_freq_factor":1.0,"original_max_position_embeddings":8192,
                         "rope_type":"llama3"},
         "rope_theta":500000.0,"tie_word_embeddings":true,"torch_dtype":"bfloat16","transformers_version":"4.45.0.dev0","use_cache":true,
         "vocab_size":128256})",
     "llama3",
     with(with(sizes(2048, 16, 32, 8, 64, 8192), rest(5e5, 1e-5, true, 0, 131072, true)), {{"rope_type", std::string("llama3")},
                                                                                           {"rope_factor", 32.0},
                                                                                           {"rope_low_freq_factor", 1.0},
                                                                                           {"rope_high_freq_factor", 4.0},
                                                                                           {"rope_original_context", int64_t{8192}}}),
     1'235'814'400},
    {"SmolLM2_135M",
     R"({"architectures":["LlamaForCausalLM"],"attention_bias":false,"attention_dropout":0.0,"bos_token_id":0,"eos_token_id":0,
         "hidden_act":"silu","hidden_size":576,"initializer_range":0.041666666666666664,"intermediate_size":1536,"is_llama_config":true,
         "max_position_embeddings":8192,"model_type":"llama","num_attention_heads":9,"num_hidden_layers":30,"num_key_value_heads":3,
         "pretraining_tp":1,"rms_norm_eps":1e-05,"rope_interleaved":false,"rope_scaling":null,"rope_theta":100000,
         "tie_word_embeddings":true,"torch_dtype":"bfloat16","transformers_version":"4.40.1","use_cache":true,"vocab_size":49152})",
     "llama3", with(sizes(576, 30, 9, 3, 64, 1536), rest(1e5, 1e-5, true, 0, 8192)), 134'515'008},
    {"Mistral_7B_v0_1",
     R"({"architectures":["MistralForCausalLM"],"bos_token_id":1,"eos_token_id":2,"hidden_act":"silu","hidden_size":4096,
         "initializer_range":0.02,"intermediate_size":14336,"max_position_embeddings":32768,"model_type":"mistral",
         "num_attention_heads":32,"num_hidden_layers":32,"num_key_value_heads":8,"rms_norm_eps":1e-05,"rope_theta":10000.0,
         "sliding_window":4096,"tie_word_embeddings":false,"torch_dtype":"bfloat16","transformers_version":"4.34.0.dev0",
         "use_cache":true,"vocab_size":32000})",
     "mistral", with(sizes(4096, 32, 32, 8, 128, 14336), rest(1e4, 1e-5, false, 4096, 32768)), 7'241'732'096},
    {"Mistral_7B_v0_3",
     R"({"architectures":["MistralForCausalLM"],"attention_dropout":0.0,"bos_token_id":1,"eos_token_id":2,"hidden_act":"silu",
         "hidden_size":4096,"initializer_range":0.02,"intermediate_size":14336,"max_position_embeddings":32768,"model_type":"mistral",
         "num_attention_heads":32,"num_hidden_layers":32,"num_key_value_heads":8,"rms_norm_eps":1e-05,"rope_theta":1000000.0,
         "sliding_window":null,"tie_word_embeddings":false,"torch_dtype":"bfloat16","transformers_version":"4.42.0.dev0",
         "use_cache":true,"vocab_size":32768})",
     "mistral", with(sizes(4096, 32, 32, 8, 128, 14336), rest(1e6, 1e-5, false, 0, 32768)), 7'248'023'552},
    {"Qwen2_5_7B",
     R"({"architectures":["Qwen2ForCausalLM"],"attention_dropout":0.0,"bos_token_id":151643,"eos_token_id":151643,"hidden_act":"silu",
         "hidden_size":3584,"initializer_range":0.02,"intermediate_size":18944,"max_position_embeddings":131072,"max_window_layers":28,
         "model_type":"qwen2","num_attention_heads":28,"num_hidden_layers":28,"num_key_value_heads":4,"rms_norm_eps":1e-06,
         "rope_theta":1000000.0,"sliding_window":131072,"tie_word_embeddings":false,"torch_dtype":"bfloat16",
         "transformers_version":"4.40.1","use_cache":true,"use_mrope":false,"use_sliding_window":false,"vocab_size":152064})",
     "qwen2", with(sizes(3584, 28, 28, 4, 128, 18944), rest(1e6, 1e-6, false, 0, 131072)), 7'615'616'512},
    {"Qwen2_5_0_5B",
     R"({"architectures":["Qwen2ForCausalLM"],"attention_dropout":0.0,"bos_token_id":151643,"eos_token_id":151643,"hidden_act":"silu",
         "hidden_size":896,"initializer_range":0.02,"intermediate_size":4864,"max_position_embeddings":32768,"max_window_layers":24,
         "model_type":"qwen2","num_attention_heads":14,"num_hidden_layers":24,"num_key_value_heads":2,"rms_norm_eps":1e-06,
         "rope_theta":1000000.0,"sliding_window":32768,"tie_word_embeddings":true,"torch_dtype":"bfloat16",
         "transformers_version":"4.40.1","use_cache":true,"use_mrope":false,"use_sliding_window":false,"vocab_size":151936})",
     "qwen2", with(sizes(896, 24, 14, 2, 64, 4864), rest(1e6, 1e-6, true, 0, 32768)), 494'032'768},
    {"Qwen3_8B",
     R"({"architectures":["Qwen3ForCausalLM"],"attention_bias":false,"attention_dropout":0.0,"bos_token_id":151643,
         "eos_token_id":151645,"head_dim":128,"hidden_act":"silu","hidden_size":4096,"initializer_range":0.02,"intermediate_size":12288,
         "max_position_embeddings":40960,"max_window_layers":36,"model_type":"qwen3","num_attention_heads":32,"num_hidden_layers":36,
         "num_key_value_heads":8,"rms_norm_eps":1e-06,"rope_scaling":null,"rope_theta":1000000,"sliding_window":null,
         "tie_word_embeddings":false,"torch_dtype":"bfloat16","transformers_version":"4.51.0","use_cache":true,
         "use_sliding_window":false,"vocab_size":151936})",
     "qwen3", with(sizes(4096, 36, 32, 8, 128, 12288), rest(1e6, 1e-6, false, 0, 40960)), 8'190'735'360},
    {"Qwen3_30B_A3B",
     R"({"architectures":["Qwen3MoeForCausalLM"],"attention_bias":false,"attention_dropout":0.0,"bos_token_id":151643,
         "decoder_sparse_step":1,"eos_token_id":151645,"head_dim":128,"hidden_act":"silu","hidden_size":2048,"initializer_range":0.02,
         "intermediate_size":6144,"max_position_embeddings":40960,"max_window_layers":48,"mlp_only_layers":[],"model_type":"qwen3_moe",
         "moe_intermediate_size":768,"norm_topk_prob":true,"num_attention_heads":32,"num_experts":128,"num_experts_per_tok":8,
         "num_hidden_layers":48,"num_key_value_heads":4,"output_router_logits":false,"rms_norm_eps":1e-06,"rope_scaling":null,
         "rope_theta":1000000.0,"router_aux_loss_coef":0.001,"sliding_window":null,"tie_word_embeddings":false,"torch_dtype":"bfloat16",
         "transformers_version":"4.51.0","use_cache":true,"use_sliding_window":false,"vocab_size":151936})",
     "qwen3_moe", with(with(sizes(2048, 48, 32, 4, 128, 6144), rest(1e6, 1e-6, false, 0, 40960)), experts(128, 8, 768, 0, 0)),
     30'532'122'624},
    {"DeepSeek_V3",
     R"({"architectures":["DeepseekV3ForCausalLM"],"attention_bias":false,"attention_dropout":0.0,"bos_token_id":0,"eos_token_id":1,
         "ep_size":1,"first_k_dense_replace":3,"hidden_act":"silu","hidden_size":7168,"initializer_range":0.02,"intermediate_size":18432,
         "kv_lora_rank":512,"max_position_embeddings":163840,"model_type":"deepseek_v3","moe_intermediate_size":2048,"moe_layer_freq":1,
         "n_group":8,"n_routed_experts":256,"n_shared_experts":1,"norm_topk_prob":true,"num_attention_heads":128,
         "num_experts_per_tok":8,"num_hidden_layers":61,"num_key_value_heads":128,"num_nextn_predict_layers":1,"q_lora_rank":1536,
         "qk_nope_head_dim":128,"qk_rope_head_dim":64,"rms_norm_eps":1e-06,
         "rope_scaling":{"beta_fast":32,"beta_slow":1,"factor":40,"mscale":1.0,"mscale_all_dim":1.0,
                         "original_max_position_embeddings":4096,"type":"yarn"},
         "rope_theta":10000,"routed_scaling_factor":2.5,"scoring_func":"sigmoid","tie_word_embeddings":false,"topk_group":4,
         "topk_method":"noaux_tc","torch_dtype":"bfloat16","transformers_version":"4.33.1","use_cache":true,"v_head_dim":128,
         "vocab_size":129280})",
     "deepseek_v3",
     with(with(experts(256, 8, 2048, 1, 3), rest(1e4, 1e-6, false, 0, 163840, true)), {{"route_score", std::string("sigmoid")},
                                                                                       {"route_scale", 2.5},
                                                                                       {"route_groups", int64_t{8}},
                                                                                       {"route_kept_groups", int64_t{4}},
                                                                                       {"q_lora_rank", int64_t{1536}},
                                                                                       {"kv_lora_rank", int64_t{512}},
                                                                                       {"mscale", 1.0},
                                                                                       {"rope_attention_factor", 1.0},
                                                                                       {"latent_norm_eps", 1e-6}}),
     671'026'404'352},
    {"Moonlight_16B_A3B",
     R"({"architectures":["DeepseekV3ForCausalLM"],"attention_bias":false,"first_k_dense_replace":1,"hidden_act":"silu",
         "hidden_size":2048,"intermediate_size":11264,"kv_lora_rank":512,"max_position_embeddings":8192,"model_type":"deepseek_v3",
         "moe_intermediate_size":1408,"n_group":1,"n_routed_experts":64,"n_shared_experts":2,"norm_topk_prob":true,
         "num_attention_heads":16,"num_experts_per_tok":6,"num_hidden_layers":27,"num_key_value_heads":16,"num_nextn_predict_layers":0,
         "q_lora_rank":null,"qk_nope_head_dim":128,"qk_rope_head_dim":64,"rms_norm_eps":1e-05,"rope_theta":50000.0,
         "routed_scaling_factor":2.446,"scoring_func":"sigmoid","tie_word_embeddings":false,"topk_group":1,"topk_method":"noaux_tc",
         "v_head_dim":128,"vocab_size":163840})",
     "deepseek_v3",
     with(with(experts(64, 6, 1408, 2, 1), rest(5e4, 1e-5, false, 0, 8192)),
          {{"route_groups", int64_t{0}}, {"q_lora_rank", int64_t{0}}, {"latent_norm_eps", 1e-6}}),
     15'960'108'544},
    {"GPT_OSS_20b",
     R"({"architectures":["GptOssForCausalLM"],"attention_bias":true,"attention_dropout":0.0,"eos_token_id":200002,"experts_per_token":4,
         "head_dim":64,"hidden_act":"silu","hidden_size":2880,"initial_context_length":4096,"initializer_range":0.02,
         "intermediate_size":2880,"max_position_embeddings":131072,"model_type":"gpt_oss","num_attention_heads":64,
         "num_experts_per_tok":4,"num_hidden_layers":24,"num_key_value_heads":8,"num_local_experts":32,"output_router_logits":false,
         "pad_token_id":199999,"rms_norm_eps":1e-05,
         "rope_scaling":{"beta_fast":32.0,"beta_slow":1.0,"factor":32.0,"original_max_position_embeddings":4096,"rope_type":"yarn",
                         "truncate":false},
         "rope_theta":150000,"router_aux_loss_coef":0.9,"sliding_window":128,"swiglu_limit":7.0,"tie_word_embeddings":false,
         "transformers_version":"4.55.0.dev0","use_cache":true,"vocab_size":201088})",
     "gpt_oss",
     with(with(with(sizes(2880, 24, 64, 8, 64, 2880), experts(32, 4, 2880, 0, 0)), rest(150000, 1e-5, false, 128, 131072, true)),
          {{"window_layers", std::string("wf")}, {"rope_truncate", false}, {"rope_attention_factor", 0.1 * std::log(32.0) + 1}}),
     20'914'757'184},
};

class PublishedConfig : public ::testing::TestWithParam<Published> {};

TEST_P(PublishedConfig, IsReadAsItsAuthorsMeantIt) {
  const Published& p = GetParam();
  const auto description = read(json::parse(p.config));
  EXPECT_EQ(description->family().name, p.family);
  const OptionTable found = description->hyper_parameters();
  for (const auto& [name, value] : p.expected) EXPECT_EQ(found.at(name), value) << name;
  ModelConfig config;
  config.name = p.family, config.overrides = found;
  EXPECT_EQ(build_model(config, 0).model->size().parameters, p.parameters);
}
INSTANTIATE_TEST_SUITE_P(All, PublishedConfig, ::testing::ValuesIn(kPublished), [](const auto& info) { return info.param.name; });

// A small model of a family with more entries.
json with_entries(const std::string& type, const std::string& more) {
  json config = json::parse(R"({"hidden_size":64,"num_hidden_layers":3,"num_attention_heads":4,"num_key_value_heads":2,
                                "intermediate_size":96,"vocab_size":100,"rms_norm_eps":1e-6,"max_position_embeddings":256})");
  config["model_type"] = type;
  config.update(json::parse("{" + more + "}"));
  return config;
}

struct Refused {
  const char *type, *entries, *part;  // of the message, after "config.json: "
};

TEST(ModelConfigFile, EntriesThatAreNotHonouredNameKeyAndValue) {
  for (const Refused& r : {
           Refused{"llama", R"("rope_scaling":{"rope_type":"longrope","factor":4.0})", R"(rope_scaling.rope_type = "longrope" is not)"},
           Refused{"llama", R"("rope_scaling":{"type":"su","factor":4.0})", R"(rope_scaling.type = "su" is not supported)"},
           Refused{"qwen2", R"("rope_scaling":{"type":"mrope","mrope_section":[16,24,24]})", R"(rope_scaling.type = "mrope" is not)"},
           Refused{"llama", R"("partial_rotary_factor":0.5)", "partial_rotary_factor = 0.5 is not supported, expected 1"},
           Refused{"qwen3", R"("rope_parameters":{"rope_theta":1e6,"partial_rotary_factor":0.5})",
                   "rope_parameters.partial_rotary_factor = 0.5 is not"},
           Refused{"llama", R"("rope_interleaved":true)", "rope_interleaved = true is not supported"},
           Refused{"qwen2", R"("use_mrope":true)", "use_mrope = true is not supported"},
           Refused{"llama", R"("hidden_act":"gelu")", R"(hidden_act = "gelu" is not supported, expected "silu")"},
           Refused{"mistral", R"("hidden_act":"gelu_pytorch_tanh")", R"(hidden_act = "gelu_pytorch_tanh" is not supported)"},
           Refused{"mistral", R"("attention_bias":true)", "attention_bias = true is not supported, expected false"},
           Refused{"mistral", R"("mlp_bias":true)", "mlp_bias = true is not supported, expected false"},
           Refused{"qwen2", R"("attention_bias":false)", "attention_bias = false is not supported, expected true"},
           Refused{"qwen2", R"("mlp_bias":true)", "mlp_bias = true is not supported, expected false"},
           Refused{"qwen3", R"("mlp_bias":true)", "mlp_bias = true is not supported, expected false"},
           Refused{"llama", R"("sliding_window":32)", "sliding_window = 32 is not supported"},
           Refused{"llama", R"("use_qk_norm":true)", "use_qk_norm = true is not supported, expected false"},
           Refused{"qwen3", R"("num_experts":64)", "num_experts = 64 is not supported"},
           Refused{"mistral", R"("num_local_experts":8)", "num_local_experts = 8 is not supported"},
       }) {
    SCOPED_TRACE(r.entries);
    testing::expect_error([&] { read(with_entries(r.type, r.entries)); }, std::string("config.json: ") + r.part);
  }
}

TEST(ModelConfigFile, ExpertsThatAreNotHonouredNameKeyAndValue) {
  const std::string rope = R"("rope_parameters":{"rope_type":"default","rope_theta":1e4})";
  const std::map<std::string, std::string> whole = {
      {"qwen3_moe", R"("num_experts":8,"num_experts_per_tok":2,"moe_intermediate_size":16)"},
      {"deepseek_v3", R"("n_routed_experts":8,"num_experts_per_tok":2,"moe_intermediate_size":16,"n_group":1,"topk_group":1,
                         "routed_scaling_factor":1.0,"kv_lora_rank":16,"qk_nope_head_dim":16,"qk_rope_head_dim":8,"v_head_dim":16,
                         "num_key_value_heads":4)"},
      {"gpt_oss", R"("num_local_experts":8,"num_experts_per_tok":2,)" + rope}};
  const auto config = [&](const std::string& type, const std::string& more) {
    json all = with_entries(type, whole.at(type));
    all.update(json::parse("{" + more + "}"));
    return all;
  };
  for (const auto& [type, entries] : whole) EXPECT_EQ(std::get<int64_t>(read(config(type, ""))->hyper_parameters().at("num_experts")), 8);
  for (const Refused& r : {
           Refused{"qwen3_moe", R"("decoder_sparse_step":2)", "decoder_sparse_step = 2 is not supported, expected 1"},
           Refused{"qwen3_moe", R"("mlp_only_layers":[1])", "mlp_only_layers = [1] is not supported, expected the first layers"},
           Refused{"qwen3_moe", R"("num_local_experts":4)", "num_local_experts = 4 contradicts num_experts = 8"},
           Refused{"qwen3_moe", R"("num_experts_per_tok":9)", "num_experts_per_tok 9 is above the 8 experts"},
           Refused{"qwen3_moe", R"("num_experts":null)", R"("num_experts" expects a non-negative integer, found null)"},
           Refused{"deepseek_v3", R"("moe_layer_freq":2)", "moe_layer_freq = 2 is not supported"},
           Refused{"deepseek_v3", R"("topk_method":"greedy")", R"(topk_method = "greedy" is not supported)"},
           Refused{"deepseek_v3", R"("scoring_func":"relu")", R"(scoring_func = "relu" is not supported)"},
           Refused{"deepseek_v3", R"("rope_interleave":false)", "rope_interleave = false is not supported, expected true"},
           Refused{"deepseek_v3", R"("num_key_value_heads":2)", "num_key_value_heads = 2 is not supported with latent attention"},
           Refused{"deepseek_v3", R"("head_dim":24)", "head_dim = 24 is not supported, expected 8"},
           Refused{"deepseek_v3", R"("attention_bias":true)", "attention_bias = true is not supported, expected false"},
           Refused{"deepseek_v3", R"("first_k_dense_replace":4)", "4 dense layers are more than num_hidden_layers 3"},
           Refused{"gpt_oss", R"("swiglu_limit":5.0)", "swiglu_limit = 5.0 is not supported, expected 7"},
           Refused{"gpt_oss", R"("swiglu_alpha":1.0)", "swiglu_alpha = 1.0 is not supported"},
           Refused{"gpt_oss", R"("attention_bias":false)", "attention_bias = false is not supported, expected true"},
           Refused{"gpt_oss", R"("experts_per_token":3)", "experts_per_token = 3 contradicts num_experts_per_tok = 2"},
           Refused{"gpt_oss", R"("rope_parameters":null)", "expected rope_scaling or rope_parameters"},
           Refused{"gpt_oss", R"("rope_parameters":{"rope_type":"default"})", "expected rope_theta"},
       }) {
    SCOPED_TRACE(r.entries);
    testing::expect_error([&] { read(config(r.type, r.entries)); }, std::string("config.json: ") + r.part);
  }
  const auto layers = [&](const std::string& more) {
    const OptionTable table = read(config("gpt_oss", more))->hyper_parameters();
    return std::get<int64_t>(table.at("window")) == 0 ? "f" : std::get<std::string>(table.at("window_layers"));
  };
  EXPECT_EQ(layers(R"("sliding_window":32)"), "wf") << "where layer_types does not stand";
  EXPECT_EQ(layers(R"("sliding_window":32,"layer_types":["full_attention","sliding_attention","full_attention"])"), "fw");
  EXPECT_EQ(layers(R"("sliding_window":null)"), "f");
}

// As transformers has it: alone it scales the scores, and the angles' magnitude is YaRN's.
TEST(ModelConfigFile, LatentAttentionScalesScoresByMscaleAllDim) {
  const auto with_rope = [](const std::string& rope) {
    json config = with_entries("deepseek_v3",
                               R"("n_routed_experts":8,"num_experts_per_tok":2,"moe_intermediate_size":16,"kv_lora_rank":16,
                                  "qk_nope_head_dim":16,"qk_rope_head_dim":8,"v_head_dim":16,"num_key_value_heads":4,"n_group":1,
                                  "topk_group":1,"routed_scaling_factor":1.0)");
    config["rope_scaling"] = json::parse(rope);
    return config;
  };
  const OptionTable alone = read(with_rope(R"({"rope_type":"yarn","factor":4.0,"mscale_all_dim":0.707})"))->hyper_parameters();
  EXPECT_EQ(alone.at("mscale"), OptionValue(0.707));
  EXPECT_DOUBLE_EQ(std::get<double>(alone.at("rope_attention_factor")), 0.1 * std::log(4.0) + 1);
  testing::expect_error([&] { read(with_rope(R"({"rope_type":"yarn","factor":4.0,"mscale":0.707})")); }, "mscale has no effect without");
  testing::expect_error([&] { read(with_rope(R"({"rope_type":"linear","factor":4.0,"mscale_all_dim":0.707})")); },
                        R"(rope_scaling.mscale_all_dim scales scores, which is supported with rope_type "yarn" alone, found "linear")");
}

TEST(ModelConfigFile, RopeThatContradictsItselfIsRefused) {
  for (const Refused& r : {
           Refused{"llama", R"("rope_theta":1e4,"rope_parameters":{"rope_type":"default","rope_theta":5e5})",
                   "rope_parameters.rope_theta = 500000 contradicts rope_theta = 10000"},
           Refused{"qwen3", R"("rope_scaling":{"type":"linear","factor":2},"rope_parameters":{"rope_type":"linear","factor":4})",
                   "rope_parameters (rope_type linear, factor 4) contradicts rope_scaling (rope_type linear, factor 2)"},
           Refused{"mistral", R"("rope_scaling":{"type":"dynamic","factor":2},"rope_parameters":{"rope_type":"default"})",
                   "rope_parameters (rope_type default) contradicts rope_scaling (rope_type dynamic"},
           Refused{"qwen2", R"("rope_scaling":{"type":"yarn","rope_type":"linear","factor":2})",
                   R"(rope_scaling.type = "yarn" contradicts rope_scaling.rope_type = "linear")"},
           Refused{"llama", R"("rope_scaling":{"rope_type":"linear","factor":2.0,"beta_fast":32})",
                   R"(rope_scaling.beta_fast = 32 has no effect with rope_type "linear")"},
           Refused{"llama", R"("rope_scaling":{"rope_type":"linear","factor":2.0,"original_max_position_embeddings":64})",
                   R"(rope_scaling.original_max_position_embeddings = 64 has no effect with rope_type "linear")"},
           Refused{"llama", R"("rope_scaling":{"rope_type":"yarn","factor":2.0,"low_freq_factor":1})",
                   R"(rope_scaling.low_freq_factor = 1 has no effect with rope_type "yarn")"},
           Refused{"llama", R"("rope_scaling":{"factor":2.0})", R"(rope_scaling.factor = 2.0 has no effect with rope_type "default")"},
           Refused{"llama", R"("rope_scaling":{"rope_type":"linear"})", R"(rope_scaling: the field "factor" is missing)"},
           Refused{"llama", R"("rope_scaling":{"rope_type":"linear","factor":0})", R"(rope_scaling: "factor" expects a positive number)"},
           Refused{"llama", R"("rope_scaling":{"rope_type":"yarn","factor":4,"beta_fast":1,"beta_slow":32})",
                   "beta_fast 1 must be above beta_slow 32"},
           Refused{"llama", R"("rope_scaling":{"rope_type":"yarn","factor":4,"mscale":0.7})", "rope_scaling: mscale has no effect without"},
           Refused{"llama", R"("rope_scaling":{"rope_type":"yarn","factor":4,"mscale_all_dim":0.7})",
                   "rope_scaling: mscale_all_dim has no effect without mscale"},
           Refused{"llama", R"("rope_scaling":{"rope_type":"linear","factor":4,"mscale_all_dim":0.7})",
                   R"(rope_scaling.mscale_all_dim = 0.7 has no effect with rope_type "linear")"},
           Refused{"llama", R"("rope_parameters":{"full_attention":{"rope_type":"default"}})", "rope_parameters.full_attention = {"},
       }) {
    SCOPED_TRACE(r.entries);
    testing::expect_error([&] { read(with_entries(r.type, r.entries)); }, r.part);
  }
}

// {one letter per layer, window size}
std::pair<std::string, int64_t> windows(const std::string& type, const std::string& entries) {
  const auto config = read(with_entries(type, entries));
  const OptionTable table = config->hyper_parameters();
  const auto window = std::get<int64_t>(table.at("window"));
  const std::string period = std::get<std::string>(table.at("window_layers"));
  std::string layers;
  for (size_t i = 0; i < 3; ++i) layers += window > 0 ? period[i % period.size()] : 'f';
  return {layers, window};
}

TEST(ModelConfigFile, WindowsAreThoseOfTheirLayers) {
  using Windows = std::pair<std::string, int64_t>;
  EXPECT_EQ(windows("mistral", R"("sliding_window":32)"), Windows("www", 32));
  EXPECT_EQ(windows("mistral", R"("sliding_window":null)"), Windows("fff", 0));
  for (const char* type : {"qwen2", "qwen3"}) {
    EXPECT_EQ(windows(type, R"("use_sliding_window":false,"sliding_window":32,"max_window_layers":1)"), Windows("fff", 0));
    EXPECT_EQ(windows(type, R"("sliding_window":32,"max_window_layers":1)"), Windows("fff", 0)) << "off where it is not said";
    EXPECT_EQ(windows(type, R"("use_sliding_window":true,"sliding_window":null)"), Windows("fff", 0));
    EXPECT_EQ(windows(type, R"("use_sliding_window":true,"sliding_window":32,"max_window_layers":1)"), Windows("fww", 32));
    EXPECT_EQ(windows(type, R"("use_sliding_window":true,"sliding_window":32,"max_window_layers":0)"), Windows("www", 32));
    EXPECT_EQ(windows(type, R"("use_sliding_window":true,"sliding_window":32,"max_window_layers":3)"), Windows("fff", 0));
    EXPECT_EQ(windows(type, R"("use_sliding_window":true,"sliding_window":32)"), Windows("fff", 0)) << "from layer 28 on";
    EXPECT_EQ(windows(type, R"("use_sliding_window":true,"sliding_window":32,
                               "layer_types":["sliding_attention","full_attention","sliding_attention"])"),
              Windows("wfw", 32));
    for (const Refused& r : {
             Refused{type, R"("use_sliding_window":false,"layer_types":["full_attention","full_attention","sliding_attention"])",
                     R"(layer_types[2] = "sliding_attention" is not supported, expected "full_attention")"},
             Refused{type, R"("layer_types":["full_attention"])", "layer_types expects a list of num_hidden_layers = 3 names"},
             Refused{type, R"("layer_types":["full_attention","linear_attention","full_attention"])",
                     R"(layer_types[1] = "linear_attention" is not supported)"},
             Refused{type, R"("use_sliding_window":true,"sliding_window":0)", R"("sliding_window" expects 1 to 2^31, found 0)"},
             Refused{type, R"("use_sliding_window":true,"sliding_window":32,"max_window_layers":-1)", R"("max_window_layers")"},
         }) {
      SCOPED_TRACE(r.entries);
      testing::expect_error([&] { read(with_entries(r.type, r.entries)); }, std::string("config.json: ") + r.part);
    }
  }
  testing::expect_error(
      [] { read(with_entries("mistral", R"("sliding_window":32,"layer_types":["full_attention","full_attention","full_attention"])")); },
      R"(layer_types = ["full_attention")");
}

// A scaling's entries give the frequencies of its settings.
TEST(ModelConfigFile, RopeScalingReachesTheHyperParameters) {
  const auto expect = [](const std::string& entries, const OptionTable& expected) {
    const OptionTable found = read(with_entries("qwen2", entries))->hyper_parameters();
    for (const auto& [name, value] : expected) EXPECT_EQ(found.at(name), value) << entries << ": " << name;
  };
  const OptionValue yarn = std::string("yarn");
  expect(R"("rope_scaling":{"type":"yarn","factor":4.0,"original_max_position_embeddings":64})",
         {{"rope_scaling", true},
          {"rope_type", yarn},
          {"rope_factor", 4.0},
          {"rope_original_context", int64_t{64}},
          {"rope_beta_fast", 32.0},
          {"rope_beta_slow", 1.0},
          {"rope_attention_factor", 0.1 * std::log(4.0) + 1},
          {"rope_truncate", true}});
  expect(R"("rope_parameters":{"rope_theta":7e3,"rope_type":"yarn","factor":4.0,"attention_factor":0.5,"beta_fast":16,"beta_slow":2,
                               "truncate":false})",
         {{"rope_theta", 7e3},
          {"rope_type", yarn},
          {"rope_attention_factor", 0.5},
          {"rope_original_context", int64_t{256}},
          {"rope_beta_fast", 16.0},
          {"rope_beta_slow", 2.0},
          {"rope_truncate", false}});
  expect(R"("rope_scaling":{"rope_type":"linear","factor":3})", {{"rope_type", std::string("linear")}, {"rope_factor", 3.0}});
  expect(R"("rope_scaling":{"rope_type":"dynamic","factor":2})",
         {{"rope_type", std::string("dynamic")}, {"rope_factor", 2.0}, {"rope_original_context", int64_t{256}}});
}

}  // namespace
}  // namespace halftone
