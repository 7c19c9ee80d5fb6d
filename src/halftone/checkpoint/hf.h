#pragma once
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "halftone/checkpoint/hf_codes.h"
#include "halftone/checkpoint/hf_config.h"
#include "halftone/checkpoint/hf_quantized.h"
#include "halftone/checkpoint/tensor_io.h"

// Weights in Hugging Face's layout. If a family rotates adjacent pairs here and halves there, rows are permuted within each head: file ->
// native [H, 2, d/2, D] -> transpose(1, 2). Experts, which are one tensor here, are one tensor each there, or stacked with their last two
// dimensions swapped (ModelFamily::TensorName).
namespace halftone {

// Rows of a projection [H * d, ...], or of its bias [H * d], for H heads.
at::Tensor permute_to_hf(const at::Tensor& weight, int64_t heads);
at::Tensor permute_from_hf(const at::Tensor& weight, int64_t heads);

// A tensor of a file, to be copied.
struct HfStoredTensor {
  const SafetensorsFile* file;
  const TensorEntry* entry;
};

struct HfExport {
  HfConfig config;
  std::vector<NamedTensor> model;                        // native names; without a tied head
  TensorSource read{};                                   // if set, the tensors of `model` have no data (device meta), and this reads them
  std::optional<at::ScalarType> dtype = at::kFloat;      // for floating-point tensors; none: each keeps its own
  const HfForm* form = nullptr;                          // of every weight that `format` takes, unless `codes` says more
  const HfFormat* format = nullptr;                      // holds weights as codes; null: all are numbers
  std::map<std::string, HfWeightCodes> codes{};          // weights to write as codes, by native name; with `format`
  TensorSource read_codes{};                             // if set, the numbers that codes are made of; else `read`
  std::map<std::string, HfCodeError>* errors = nullptr;  // set for the weights whose codes are not the trained ones
  std::vector<HfStoredTensor> stored{};                  // written as they are
  std::string quantization{};                            // of config.json, JSON, that describes them
  int64_t max_shard_bytes = int64_t{5} << 30;
  std::vector<std::pair<std::string, std::string>> weight_map{};  // name in the file, file: of a model.safetensors.index.json; see below
  std::function<void()> verify{};                                 // if set, called when the weights are written: an Error aborts the export
  std::vector<std::pair<std::string, std::filesystem::path>> copy_files{};  // name in the folder, file to copy: the tokenizer's
};
// Every weight that the format takes, in the same form.
std::map<std::string, HfWeightCodes> uniform_codes(const HfFormat& format, const HfForm& form, const ModelFamily& family,
                                                   const std::vector<NamedTensor>& model);
// Writes model.safetensors (or shards with model.safetensors.index.json), config.json, generation_config.json and the copies into
// `folder`, which must not contain other weights; files are fsynced. A weight_map with all the names assigns tensors to files; otherwise
// their sizes do.
void write_hf(const std::filesystem::path& folder, const HfExport& content);

// config.json of a folder. Error if there is none.
HfConfig read_hf_config(const std::filesystem::path& folder);
// weight_map of its model.safetensors.index.json: (tensor, file) pairs; empty without this file.
inline constexpr const char* kHfIndex = "model.safetensors.index.json";
std::optional<std::vector<std::pair<std::string, std::string>>> read_hf_index(const std::filesystem::path& folder);

// A folder with config.json and *.safetensors of one of the families, read under native names.
class HfFolder {
 public:
  explicit HfFolder(const std::filesystem::path& folder);
  static bool is_hf_folder(const std::filesystem::path& folder);
  const HfConfig& config() const { return config_; }
  std::vector<std::string> names() const;  // native names
  // "output.weight" of a tied folder exists too, read from the embedding.
  bool has(const std::string& native) const;
  TensorInfo info(const std::string& native) const;  // for weights stored as codes: that of their values, bf16
  // Reads as many rows as `out` has, starting at `first_row`; codes are decoded. Error naming a tensor that contains a NaN or an
  // infinity.
  void read_rows(const std::string& native, int64_t first_row, at::Tensor out, bool cast) const;
  // Error unless tie_word_embeddings of config.json matches the weights: tied with no head or a copy of the embedding, or untied with a
  // head.
  void check_head() const;
  // The tensors that hold weights as codes, and scales of activations and caches.
  const std::vector<HfStoredTensor>& stored() const { return stored_; }
  bool holds_codes(const std::string& native) const;  // of this tensor, or of an expert's
  // How a weight is stored, one of each expert if they are apart; empty: as numbers, or experts differ.
  std::vector<const HfQuantizedWeight*> stored_as(const std::string& native) const;
  // From here on read_rows gives the scale of every element of weights stored as codes (HfQuantizedWeight::read).
  void read_scales() { scales_ = true; }

 private:
  struct Source {
    const SafetensorsFile* file = nullptr;
    const TensorEntry* entry = nullptr;
    std::shared_ptr<const HfQuantizedWeight> quantized{};  // null: plain numbers
    TensorInfo info() const;                               // for codes: that of their values
  };
  using Sources = std::vector<Source>;  // one, or one per expert
  void add(const std::string& native, int64_t expert, Source source);
  void add_quantized(std::map<std::string, HfQuantizedWeight::Parts>& modules);
  void check_experts() const;
  void check_plain(const Source& source) const;
  const Sources& sources(const std::string& native) const;
  void read_source(const Source& from, const std::string& native, int64_t first_row, at::Tensor out, bool cast) const;
  bool absent(const std::string& native) const;  // in all files: the tensor is zero
  std::filesystem::path folder_;
  HfConfig config_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, Sources> tensors_;
  std::vector<HfStoredTensor> stored_;
  bool scales_ = false;
};

}  // namespace halftone
