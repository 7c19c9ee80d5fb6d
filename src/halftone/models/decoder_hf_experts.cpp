#include "halftone/models/decoder_hf_experts.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "halftone/base/error.h"

namespace halftone {
namespace {

using Experts = DecoderTraits::Experts;

constexpr double kLatentEps = 1e-6;  // of the latent attention norms in transformers, whatever rms_norm_eps says

constexpr NeutralEntry kDense[] = {{"num_local_experts", "[0, 1]"}, {"num_experts", "[0, 1]"}, {"n_routed_experts", "[]"}};
constexpr NeutralEntry kQwen[] = {{"decoder_sparse_step", "[1]"}};
constexpr NeutralEntry kDeepSeek[] = {
    {"moe_layer_freq", "[1]"}, {"topk_method", R"(["noaux_tc"])"}, {"scoring_func", R"(["sigmoid", "softmax"])"}};
constexpr NeutralEntry kGptOss[] = {{"swiglu_alpha", "[1.702]"}, {"swiglu_limit", "[7]"}};

// A number that several entries may give; all entries present must agree.
int64_t one_of(const Json& root, std::initializer_list<const char*> keys, const std::string& what) {
  int64_t value = 0;
  for (const char* key : keys) {
    if (!is_set(root, key)) continue;
    const int64_t said = size_member(root, key, what);
    check(value == 0 || said == value, "{}: {} = {} contradicts {} = {}; leave the wrong one out", what, key, said, *keys.begin(), value);
    value = said;
  }
  return value > 0 ? value : size_member(root, *keys.begin(), what);  // reports that it is missing
}

bool flag_or(const Json& root, const char* key, bool otherwise, const std::string& what) {
  return is_set(root, key) ? bool_member(root, key, what) : otherwise;
}

int64_t count(const Json& root, const char* key, const std::string& what) {
  const int64_t value = is_set(root, key) ? integer_member(root, key, what) : 0;
  check(value >= 0 && value <= (int64_t{1} << 31), "{}: \"{}\" expects 0 to 2^31, found {}", what, key, value);
  return value;
}

void read_qwen(const Json& root, DecoderConfig& c, const std::string& what) {
  refuse_entries(root, kQwen, what);
  c.num_experts = one_of(root, {"num_experts", "num_local_experts"}, what);
  c.expert_ffn_dim = size_member(root, "moe_intermediate_size", what);
  c.route_norm = flag_or(root, "norm_topk_prob", false, what);
  if (const char* key = "mlp_only_layers"; is_set(root, key)) {
    const std::vector<int64_t> dense = integer_list(root[key], 10000, what + ": " + key);
    for (size_t i = 0; i < dense.size(); ++i)
      check(dense[i] == static_cast<int64_t>(i), "{}: {} = {} is not supported, expected the first layers: 0, 1, ...", what, key,
            short_text(root[key]));
    c.dense_layers = static_cast<int64_t>(dense.size());
  }
}

void read_deepseek(const Json& root, DecoderConfig& c, const std::string& what) {
  refuse_entries(root, kDeepSeek, what);
  c.num_experts = one_of(root, {"n_routed_experts", "num_local_experts", "num_experts"}, what);
  c.expert_ffn_dim = size_member(root, "moe_intermediate_size", what);
  c.shared_experts = count(root, "n_shared_experts", what), c.dense_layers = count(root, "first_k_dense_replace", what);
  c.route_score = is_set(root, "scoring_func") ? string_member(root, "scoring_func", what) : "sigmoid";
  c.route_norm = flag_or(root, "norm_topk_prob", true, what);
  c.route_scale = positive_member(root, "routed_scaling_factor", what);
  const int64_t groups = size_member(root, "n_group", what), kept = size_member(root, "topk_group", what);
  if (groups > 1) c.route_groups = groups, c.route_kept_groups = kept;
}

void read_gpt_oss(const Json& root, DecoderConfig& c, const std::string& what) {
  refuse_entries(root, kGptOss, what);
  // Without these, transformers defaults to YaRN and a theta of 150000.
  const char *rope = "rope_parameters", *theta = "rope_theta";
  check(is_set(root, "rope_scaling") || is_set(root, rope), "{}: expected rope_scaling or {}", what, rope);
  check(is_set(root, theta) || (is_set(root, rope) && is_set(root[rope], theta)), "{}: expected {}", what, theta);
  c.num_experts = one_of(root, {"num_local_experts", "num_experts"}, what);
  c.expert_ffn_dim = c.ffn_dim;
}

}  // namespace

void read_experts(const Json& root, DecoderConfig& c, const std::string& what) {
  const Experts kind = c.traits().experts;
  if (kind == Experts::none) return refuse_entries(root, kDense, what);
  (kind == Experts::qwen ? read_qwen : kind == Experts::deepseek ? read_deepseek : read_gpt_oss)(root, c, what);
  c.experts_per_token = kind == Experts::gpt_oss ? one_of(root, {"num_experts_per_tok", "experts_per_token"}, what)
                                                 : size_member(root, "num_experts_per_tok", what);
  check(c.experts_per_token <= c.num_experts, "{}: num_experts_per_tok {} is above the {} experts", what, c.experts_per_token,
        c.num_experts);
  check(c.dense_layers <= c.n_layers, "{}: {} dense layers are more than num_hidden_layers {}", what, c.dense_layers, c.n_layers);
}

void write_experts(const DecoderConfig& c, nlohmann::ordered_json& root) {
  const Experts kind = c.traits().experts;
  if (kind == Experts::none) return;
  root[kind == Experts::deepseek ? "n_routed_experts" : kind == Experts::qwen ? "num_experts" : "num_local_experts"] = c.num_experts;
  root["num_experts_per_tok"] = c.experts_per_token;
  const auto check_routing = [&](bool scores, bool groups) {
    check(scores || c.route_score == "softmax", "{} scores experts by softmax (model.overrides.route_score = {})", c.owner->hf_architecture,
          c.route_score);
    check(groups || (c.route_groups == 0 && c.route_scale == 1 && c.shared_experts == 0),
          "{} has no route_groups, route_scale and shared_experts (model.overrides)", c.owner->hf_architecture);
  };
  check_routing(kind == Experts::deepseek, kind == Experts::deepseek);
  if (kind == Experts::gpt_oss) {
    check(c.route_norm, "{} normalises its gates (model.overrides.route_norm = false)", c.owner->hf_architecture);
    root["intermediate_size"] = c.expert_ffn_dim;
    root["swiglu_limit"] = 7.0;
    return;
  }
  root["moe_intermediate_size"] = c.expert_ffn_dim;
  root["norm_topk_prob"] = c.route_norm;
  if (kind == Experts::qwen) {
    root["decoder_sparse_step"] = 1;
    root["mlp_only_layers"] = nlohmann::ordered_json::array();
    for (int64_t i = 0; i < c.dense_layers; ++i) root["mlp_only_layers"].push_back(i);
    return;
  }
  root["n_shared_experts"] = c.shared_experts, root["first_k_dense_replace"] = c.dense_layers, root["moe_layer_freq"] = 1;
  root["scoring_func"] = c.route_score, root["topk_method"] = "noaux_tc", root["routed_scaling_factor"] = c.route_scale;
  root["n_group"] = std::max<int64_t>(c.route_groups, 1), root["topk_group"] = c.route_groups > 1 ? c.route_kept_groups : 1;
  root["num_nextn_predict_layers"] = 0;
}

void read_latent(const Json& root, DecoderConfig& c, const std::string& what) {
  refuse_entries(root, std::to_array<NeutralEntry>({{"rope_interleave", "[true]"}}), what);
  check(c.n_kv_heads == c.n_heads, "{}: num_key_value_heads = {} is not supported with latent attention, expected {}", what, c.n_kv_heads,
        c.n_heads);
  c.q_lora_rank = is_set(root, "q_lora_rank") ? size_member(root, "q_lora_rank", what) : 0;
  c.kv_lora_rank = size_member(root, "kv_lora_rank", what);
  c.qk_nope_head_dim = size_member(root, "qk_nope_head_dim", what), c.qk_rope_head_dim = size_member(root, "qk_rope_head_dim", what);
  c.v_head_dim = size_member(root, "v_head_dim", what);
  if (is_set(root, "head_dim")) refuse_unless(root["head_dim"], Json::array({c.qk_rope_head_dim}), "head_dim", what);
  if (is_set(root, "qk_head_dim")) refuse_unless(root["qk_head_dim"], Json::array({c.head()}), "qk_head_dim", what);
  c.latent_norm_eps = is_set(root, "latent_norm_eps") ? positive_member(root, "latent_norm_eps", what) : kLatentEps;
}

void write_latent(const DecoderConfig& c, nlohmann::ordered_json& root) {
  root["head_dim"] = c.qk_rope_head_dim;
  root["q_lora_rank"] = c.q_lora_rank > 0 ? nlohmann::ordered_json(c.q_lora_rank) : nlohmann::ordered_json();
  root["kv_lora_rank"] = c.kv_lora_rank, root["qk_nope_head_dim"] = c.qk_nope_head_dim, root["qk_rope_head_dim"] = c.qk_rope_head_dim;
  root["v_head_dim"] = c.v_head_dim, root["rope_interleave"] = true;
  if (c.latent_eps() != kLatentEps) root["latent_norm_eps"] = c.latent_eps();  // only halftone reads it
}

}  // namespace halftone
