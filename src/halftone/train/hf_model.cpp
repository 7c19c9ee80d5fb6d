#include "halftone/train/hf_model.h"

#include <fmt/ranges.h>

#include <algorithm>
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

void check_matches_hf(const std::string& overrides_json, const HfLlamaConfig& file, const std::string& folder) {
  OptionTable mine = overrides_from_hf(hf_config_of(overrides_json)), theirs = overrides_from_hf(file);
  for (OptionTable* table : {&mine, &theirs}) table->erase("max_seq_len");  // changes no result
  const auto text = [](const OptionTable& table, const std::string& name) -> std::string {
    const auto found = table.find(name);
    return found == table.end() ? "none" : std::visit([](const auto& v) { return fmt::format("{}", v); }, found->second);
  };
  // "true, rope_factor 8, ...": the members of a scaling beside its switch.
  const auto described = [&](const OptionTable& table, const std::string& name) {
    std::string out = text(table, name);
    for (auto member = table.begin(); name == "rope_scaling" && out != "false" && member != table.end(); ++member)
      if (member->first.starts_with("rope_") && member->first != "rope_theta" && member->first != name)
        out += fmt::format(", {} {}", member->first, text(table, member->first));
    return out;
  };
  std::vector<std::string> differences, options;
  for (const auto& [name, value] : theirs) {
    const bool missing = !mine.contains(name);  // a member of the RoPE scaling that is off here
    if (!missing && mine[name] == value) continue;
    differences.push_back(
        fmt::format("{} is {} in the configuration, {} in the folder", name, described(mine, name), described(theirs, name)));
    options.push_back(name == "rope_scaling" ? fmt::format("--model.rope_scaling_mode {}", value == OptionValue(true) ? "on" : "off")
                                             : fmt::format("--model.overrides.{} {}", name, text(theirs, name)));
  }
  check(differences.empty(), "{}/config.json disagrees with the model: {}; set {}", folder, fmt::join(differences, "; "),
        fmt::join(options, " "));
}

HfTokenIds exported_token_ids(HfTokenIds imported, std::optional<int32_t> bos, std::optional<int32_t> eos) {
  if (!imported.bos && bos) imported.bos = *bos;
  if (eos && std::find(imported.eos.begin(), imported.eos.end(), *eos) == imported.eos.end()) imported.eos.push_back(*eos);
  return imported;
}

}  // namespace halftone
