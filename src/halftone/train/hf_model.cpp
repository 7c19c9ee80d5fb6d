#include "halftone/train/hf_model.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "halftone/base/error.h"
#include "halftone/checkpoint/hf.h"
#include "halftone/models/decoder_config.h"
#include "halftone/models/registry.h"

namespace halftone {

void resolve_model(JobConfig& config) {
  ModelConfig& model = config.model;
  if (model.name != kHfFlavor) {
    const DecoderTraits& traits = *family_of(model).decoder;
    const bool said = model.overrides.contains("rope_scaling") || config.checkpoint.initial_load_in_hf;
    if (traits.scales_long_rows_alone && model.rope_scaling_mode == "auto" && !said)
      model.rope_scaling_mode = config.training.seq_len > traits.rope.original_context ? "on" : "off";
    return;
  }
  const std::filesystem::path folder = model.hf_assets_path;
  const HfConfig read = read_hf_config(folder);
  OptionTable all = read.model->hyper_parameters();
  for (const auto& [name, value] : model.overrides) all[name] = value;
  model.name = read.model->family().name, model.flavor = kHfFlavor, model.overrides = std::move(all);
}

void check_matches_hf(const ModelDescription& model, const ModelDescription& file, const std::string& folder) {
  check(&model.family() == &file.family(), "{}/config.json describes {}, the model is {}; set --model.name {}", folder, file.family().name,
        model.family().name, file.family().name);
  OptionTable mine = model.hf_parameters(), theirs = file.hf_parameters();
  const auto text = [](const OptionTable& table, const std::string& name) -> std::string {
    const auto found = table.find(name);
    return found == table.end() ? "none" : std::visit([](const auto& v) { return fmt::format("{}", v); }, found->second);
  };
  // "true, rope_factor 8, ...": a scaling's switch with its members.
  const auto described = [&](const OptionTable& table, const std::string& name) {
    std::string out = text(table, name);
    for (auto member = table.begin(); name == "rope_scaling" && out != "false" && member != table.end(); ++member)
      if (member->first.starts_with("rope_") && member->first != "rope_theta" && member->first != name)
        out += fmt::format(", {} {}", member->first, text(table, member->first));
    return out;
  };
  std::vector<std::string> differences, options;
  for (const auto& [name, value] : theirs) {
    const bool missing = !mine.contains(name);  // a member of RoPE scaling, which is off here
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
