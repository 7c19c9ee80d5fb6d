#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// What config.json of a Hugging Face folder says of weights that are stored as codes with scales (quantization_config). No torch here;
// hf_quantized.h reads the weights.
namespace halftone {

// How the weights of a group of modules are stored: value = (code - zero point) * scale.
struct HfWeightScheme {
  enum class Codes {
    e4m3,    // a byte each
    int8,    // a byte each
    e2m1,    // two in a byte, the low nibble first
    packed,  // unsigned integers of 4 or 8 bits in words of 32, from the lowest bits on; 2^(bits-1) stands for 0
  };
  // Of the scales that have one byte.
  enum class ByteScale { none, e8m0, e4m3 };
  Codes codes = Codes::e4m3;
  int bits = 8;
  bool symmetric = true;       // else there are zero points, one for a scale
  int64_t rows = 0, cols = 0;  // of the block that shares a scale; 0: all there are
  ByteScale byte_scale = ByteScale::none;
  bool stacked = false;                // of all experts in one tensor, X_blocks [E, N, K/32, 16] with X_scales [E, N, K/32]
  bool global_scale = false;           // scales are divided by weight_global_scale
  std::vector<std::string> targets{};  // names and classes of modules, "re:" and a pattern for names
};

struct HfQuantization {
  std::string method;                    // quant_method
  std::vector<HfWeightScheme> groups{};  // at least one
  // Of a folder that was opened: weights that are stored so, and scales of activations and KV caches, which are not read.
  int64_t weights = 0, activation_scales = 0;
};

// `root` is config.json's object. None without quantization_config or compression_config. Error naming key and value where weights are
// stored in a way that this build does not read; what concerns activations alone is not looked at.
std::optional<HfQuantization> parse_hf_quantization(const nlohmann::json& root, const std::string& what);

// How an export stores weights (checkpoint.export_dtype, convert --codes): as numbers; linear layers as e4m3 with a scale for 128 x 128 of
// them (DeepSeek V3); stacked experts as e2m1 with a scale for 32 (GPT-OSS).
enum class HfCodes { none, fp8_blockwise, mxfp4 };
const char* name_of(HfCodes codes);
HfCodes hf_codes_of(std::string_view name);  // none for any other name
// quantization_config of such a folder; `plain`: modules whose weights stay numbers.
nlohmann::ordered_json write_hf_quantization(HfCodes codes, const std::vector<std::string>& plain);

}  // namespace halftone
