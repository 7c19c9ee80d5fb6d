#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// Parses how a Hugging Face folder stores weights as codes with scales (quantization_config of config.json). No torch here;
// hf_quantized.h reads the weights.
namespace halftone {

// How the weights of a group of modules are stored: value = (code - zero point) * scale.
struct HfWeightScheme {
  enum class Codes {
    e4m3,    // one byte each
    int8,    // one byte each
    e2m1,    // two per byte, the low nibble first
    packed,  // unsigned 4- or 8-bit integers in 32-bit words, lowest bits first; 2^(bits-1) represents 0
  };
  // Type of one-byte scales.
  enum class ByteScale { none, e8m0, e4m3 };
  Codes codes = Codes::e4m3;
  int bits = 8;
  bool symmetric = true;       // false: there is one zero point per scale
  int64_t rows = 0, cols = 0;  // of the block that shares a scale; 0: the full extent
  ByteScale byte_scale = ByteScale::none;
  bool stacked = false;       // all experts in one tensor, X_blocks [E, N, K/32, 16] with X_scales [E, N, K/32]
  bool global_scale = false;  // scales are divided by weight_global_scale
  // How the inputs of these modules are quantised, by what they share a scale.
  enum class Inputs { none, token, tensor, group };
  Inputs inputs = Inputs::none;
  bool calibrated = false;             // the folder has the scales of inputs
  std::vector<std::string> targets{};  // names and classes of modules, or "re:" and a pattern for names
};

struct HfQuantization {
  std::string method;                    // quant_method
  std::vector<HfWeightScheme> groups{};  // at least one
  // For an opened folder: number of weights stored this way, and of scales of activations and KV caches, which are not read.
  int64_t weights = 0, activation_scales = 0;
};

// `root` is config.json's object. None without quantization_config or compression_config. Error naming key and value for weight storage
// that this build cannot read; entries that only concern activations are ignored.
std::optional<HfQuantization> parse_hf_quantization(const nlohmann::json& root, const std::string& what);

}  // namespace halftone
