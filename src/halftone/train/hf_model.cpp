#include "halftone/train/hf_model.h"

#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "halftone/base/error.h"

namespace halftone {

OptionTable overrides_from_hf(const HfLlamaConfig& hf) {
  OptionTable t = {{"dim", hf.hidden_size},
                   {"n_layers", hf.n_layers},
                   {"n_heads", hf.n_heads},
                   {"n_kv_heads", hf.n_kv_heads},
                   {"ffn_dim", hf.intermediate_size},
                   {"vocab_size", hf.vocab_size},
                   {"max_seq_len", hf.context},
                   {"rope_theta", hf.rope_theta},
                   {"norm_eps", hf.rms_norm_eps},
                   {"tied", hf.tied},
                   {"rope_scaling", hf.rope_scaling.has_value()}};
  if (hf.head_dim > 0) t["head_dim"] = hf.head_dim;
  if (hf.rope_scaling) {
    t["rope_factor"] = hf.rope_scaling->factor, t["rope_low_freq_factor"] = hf.rope_scaling->low_freq_factor;
    t["rope_high_freq_factor"] = hf.rope_scaling->high_freq_factor, t["rope_original_context"] = hf.rope_scaling->original_context;
  }
  return t;
}

HfLlamaConfig hf_config_of(const std::string& overrides_json) {
  const nlohmann::json j = nlohmann::json::parse(overrides_json);
  HfLlamaConfig c;
  c.hidden_size = j.at("dim"), c.n_layers = j.at("n_layers"), c.n_heads = j.at("n_heads"), c.n_kv_heads = j.at("n_kv_heads");
  c.head_dim = j.at("head_dim").get<int64_t>() > 0 ? j.at("head_dim").get<int64_t>() : c.hidden_size / c.n_heads;
  const int64_t ffn = j.at("ffn_dim"), multiple = j.at("multiple_of");
  const auto hidden = static_cast<int64_t>(j.at("ffn_dim_multiplier").get<double>() * static_cast<double>(8 * c.hidden_size / 3));
  c.intermediate_size = ffn > 0 ? ffn : (hidden + multiple - 1) / multiple * multiple;
  c.vocab_size = j.at("vocab_size"), c.context = j.at("max_seq_len"), c.rope_theta = j.at("rope_theta"), c.rms_norm_eps = j.at("norm_eps");
  c.tied = j.at("tied");
  if (j.at("rope_scaling").get<bool>()) {
    c.rope_scaling =
        HfRopeScaling{j.at("rope_factor"), j.at("rope_low_freq_factor"), j.at("rope_high_freq_factor"), j.at("rope_original_context")};
  }
  return c;
}

void check_matches_hf(const std::string& overrides_json, const HfLlamaConfig& file) {
  const HfLlamaConfig mine = hf_config_of(overrides_json);
  std::vector<std::string> differences;
  const auto compare = [&](const char* name, auto a, auto b) {
    if (a != b) differences.push_back(fmt::format("{} is {} in the configuration, {} in the folder", name, a, b));
  };
  compare("dim", mine.hidden_size, file.hidden_size), compare("n_layers", mine.n_layers, file.n_layers),
      compare("n_heads", mine.n_heads, file.n_heads);
  compare("n_kv_heads", mine.n_kv_heads, file.n_kv_heads), compare("ffn_dim", mine.intermediate_size, file.intermediate_size);
  compare("vocab_size", mine.vocab_size, file.vocab_size), compare("rope_theta", mine.rope_theta, file.rope_theta);
  compare("norm_eps", mine.rms_norm_eps, file.rms_norm_eps), compare("tied", mine.tied, file.tied);
  if (mine.rope_scaling != file.rope_scaling) differences.push_back("rope_scaling differs");
  check(differences.empty(), "config.json disagrees with the model: {}", fmt::join(differences, "; "));
}

}  // namespace halftone
