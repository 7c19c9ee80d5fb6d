#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// config.json and tensor names of Hugging Face's LlamaForCausalLM. No torch here; hf.h moves the tensors.
namespace halftone {

struct HfRopeScaling {  // rope_type "llama3"
  double factor = 8, low_freq_factor = 1, high_freq_factor = 4;
  int64_t original_context = 8192;
  bool operator==(const HfRopeScaling&) const = default;
};

// Special tokens as Hugging Face's files name them: null or absent, a number, for EOS also a list.
struct HfTokenIds {
  std::optional<int64_t> bos, pad;
  std::vector<int64_t> eos;  // text ends at any of them
  bool operator==(const HfTokenIds&) const = default;
};
HfTokenIds read_token_ids(const nlohmann::json& object, const std::string& what);
// Sets bos_token_id, eos_token_id and pad_token_id where there is one; a single EOS as a number.
void write_token_ids(const HfTokenIds& ids, nlohmann::ordered_json& object);

struct HfLlamaConfig {
  int64_t hidden_size = 0, n_layers = 0, n_heads = 0, n_kv_heads = 0, head_dim = 0, intermediate_size = 0, vocab_size = 0;
  int64_t context = 131072;  // max_position_embeddings
  double rope_theta = 500000, rms_norm_eps = 1e-5;
  std::optional<HfRopeScaling> rope_scaling;
  bool tied = false;                    // tie_word_embeddings
  std::string torch_dtype = "float32";  // of the stored weights
  HfTokenIds token_ids;
};

// Accepts transformers 4 (rope_theta, rope_scaling) and 5 (rope_parameters, dtype), which must agree where both stand. Another
// model_type, an entry that this model does not honour, or sizes that do not fit together are errors that start with `what`.
HfLlamaConfig parse_hf_config(std::string_view text, const std::string& what);
// The EOS ids of generation_config.json, which count instead of config.json's; none where it names none.
std::vector<int64_t> parse_generation_eos(std::string_view text, const std::string& what);
// Written so that both transformers 4 and 5 read it.
std::string write_hf_config(const HfLlamaConfig& config);

// "model.layers.3.self_attn.q_proj.weight" <-> "layers.3.attention.wq.weight"; none for a name that the model does not have.
std::optional<std::string> hf_name_of(const std::string& native);
std::optional<std::string> native_name_of(const std::string& hf);
// Names that files may hold and that carry no weights (rotary_emb.inv_freq).
bool is_ignored_hf_name(const std::string& hf);

// weight_map of model.safetensors.index.json: (tensor, file) pairs; file names without a path.
std::vector<std::pair<std::string, std::string>> parse_hf_index(std::string_view text, const std::string& what);

}  // namespace halftone
