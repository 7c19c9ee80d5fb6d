#include "halftone/config/quantize_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "halftone/formats/recipe.h"

namespace halftone {
namespace {

using Names = std::vector<std::string_view>;

struct Column {
  std::string_view option;
  Names schemes;
};

const std::vector<Column>& columns() {
  static const Names fp4 = {"mxfp4", "nvfp4", "amdfp4"}, blocks = {"mx*", "nvfp4", "amdfp4"}, integers = {"int8", "int4"};
  static const std::vector<Column> table = {
      {"use_2dblock_x", blocks},
      {"use_2dblock_w", blocks},
      {"use_hadamard", fp4},
      {"use_sr_grad", {"fp8_blockwise", "mx*", "nvfp4", "amdfp4", "int8", "int4"}},
      {"use_dge", fp4},
      {"two_level_scaling", fp4},
      {"clip_mode", {"mxfp4"}},
      {"use_uos", {"mxfp4"}},
      {"lora_rank", blocks},
      {"deosc_step", fp4},
      {"deosc_period", fp4},
      {"deosc_ratio", fp4},
      {"deosc_log_freq", fp4},
      {"scale_mode", {"mx*"}},
      {"style", {"nvfp4"}},
      {"wgrad_hp", {"mxfp8_*", "mxfp4", "nvfp4", "amdfp4", "fp8_rowwise"}},
      {"output", integers},
      {"grad_input", integers},
      {"grad_weight", integers},
      {"stochastic_rounding", integers},
      {"activation", {"int8_weight"}},
      {"fast_accum", {"fp8_tensorwise", "fp8_rowwise", "fp8_rowwise_with_gw_hp"}},
      {"round_scales_to_power_of_2", {"fp8_*"}},
  };
  return table;
}

}  // namespace

const Names& quantize_schemes() {
  static const Names names = [] {
    Names all;
    for (const LinearRecipe& r : kLinearRecipes) all.push_back(r.name);
    all.insert(all.begin() + 1, "bf16");  // behind none
    return all;
  }();
  return names;
}

Names schemes_with(std::string_view option) {
  for (const Column& c : columns()) {
    if (c.option == option) return c.schemes;
  }
  return {};
}

bool option_belongs(std::string_view option, std::string_view scheme) {
  const Names schemes = schemes_with(option);
  return schemes.empty() || std::any_of(schemes.begin(), schemes.end(), [&](std::string_view s) {
           return s.ends_with('*') ? scheme.starts_with(s.substr(0, s.size() - 1)) : scheme == s;
         });
}

const Names& placed_options() {
  static const Names names = [] {
    Names all;
    for (const Column& c : columns()) all.push_back(c.option);
    return all;
  }();
  return names;
}

Names schemes_of(const QuantizeScheme& scheme) {
  Names names;
  for (const auto& [name, targets] : scheme.table) names.push_back(name);
  if (names.empty()) names.push_back(scheme.name);
  return names;
}

std::string attention_refusal(std::string_view attention) {
  if (attention == "bf16") return "";
  return fmt::format("quantize.attention: this build computes attention in the compute dtype; leave it at bf16, found {}", attention);
}

bool is_run_option(std::string_view option) {
  static constexpr std::array<std::string_view, 6> kRun = {"emulate",         "skip_first_layers",      "skip_last_layers",
                                                           "fsdp_all_gather", "fsdp_precompute_scales", "group_align"};
  return std::find(kRun.begin(), kRun.end(), option) != kRun.end();
}

}  // namespace halftone
