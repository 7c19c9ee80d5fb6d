#pragma once
#include <string>

#include "halftone/fused/rope.h"
#include "halftone/models/hf_reader.h"

// RoPE in config.json: transformers 4 (rope_theta, rope_scaling) and 5 (rope_parameters), which must agree if both are present.
namespace halftone {

RopeScaling::Type rope_type_named(const std::string& name);  // "llama3", ...; Error listing the names
std::string name_of(RopeScaling::Type type);                 // none: "default"
double yarn_attention_factor(double factor);                 // 0.1 ln(factor) + 1, or 1 up to factor 1

struct HfRope {
  double theta = 10000;  // transformers' default
  RopeScaling scaling;
  double mscale_all_dim = 0;  // with YaRN, if present; latent attention scales its scores by it
  bool operator==(const HfRope&) const = default;
};
// An entry that is not honoured, has no effect or contradicts another is an Error that starts with `what` and names key and value.
// `latent`: of a model with latent attention, whose scores mscale_all_dim scales.
HfRope read_hf_rope(const Json& config, const std::string& what, bool latent);
// Both spellings, into an object that has max_position_embeddings.
void write_hf_rope(const HfRope& rope, nlohmann::ordered_json& config);

}  // namespace halftone
