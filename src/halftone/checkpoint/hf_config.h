#pragma once
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "halftone/checkpoint/hf_quantization.h"
#include "halftone/models/family.h"

// JSON files of Hugging Face folders. No torch here; hf.h handles the tensors.
namespace halftone {

// Special tokens as in Hugging Face's files: null or absent, a number, for EOS also a list.
struct HfTokenIds {
  std::optional<int64_t> bos, pad;
  std::vector<int64_t> eos;  // text ends at any of them
  bool operator==(const HfTokenIds&) const = default;
};
HfTokenIds read_token_ids(const nlohmann::json& object, const std::string& what);
// Sets bos_token_id, eos_token_id and pad_token_id if present; a single EOS as a number.
void write_token_ids(const HfTokenIds& ids, nlohmann::ordered_json& object);

struct HfConfig {
  std::shared_ptr<const ModelDescription> model;
  std::string torch_dtype = "float32";  // of the stored weights
  HfTokenIds token_ids;
  std::optional<HfQuantization> quantization{};  // none: the weights are not quantised
  int64_t ignored_tensors = 0;                   // of an opened folder (ModelDescription::ignores)
};

// Text of a config.json of one of the families. An unknown model_type, an unsupported entry, or sizes that do not fit together are errors
// that start with `what`.
HfConfig parse_hf_config(std::string_view text, const std::string& what, std::span<const ModelFamily* const> families);
// The EOS ids of generation_config.json, which override config.json's; empty if it names none.
std::vector<int64_t> parse_generation_eos(std::string_view text, const std::string& what);
// quantization: quantization_config, JSON, of the weights that are written, or empty; config.quantization, the format read, is ignored.
std::string write_hf_config(const HfConfig& config, std::string_view quantization = {});
std::string write_generation_config(const HfTokenIds& ids);

// Names that files may contain without weights (rotary_emb.inv_freq).
bool is_ignored_hf_name(const std::string& hf);

// weight_map of model.safetensors.index.json: (tensor, file) pairs; file names without a path.
std::vector<std::pair<std::string, std::string>> parse_hf_index(std::string_view text, const std::string& what);

}  // namespace halftone
