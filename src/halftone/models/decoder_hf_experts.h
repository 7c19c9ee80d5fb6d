#pragma once
#include "halftone/models/decoder_config.h"
#include "halftone/models/hf_reader.h"

// config.json entries for experts and latent attention, in each family's spelling.
namespace halftone {

void read_experts(const Json& root, DecoderConfig& c, const std::string& what);
void write_experts(const DecoderConfig& c, nlohmann::ordered_json& root);
void read_latent(const Json& root, DecoderConfig& c, const std::string& what);
void write_latent(const DecoderConfig& c, nlohmann::ordered_json& root);

}  // namespace halftone
