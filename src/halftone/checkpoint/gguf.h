#pragma once
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "halftone/checkpoint/gguf_file.h"
#include "halftone/checkpoint/hf_codes.h"
#include "halftone/checkpoint/tensor_io.h"
#include "halftone/formats/recipe.h"
#include "halftone/models/family.h"

// Writes a model to a GGUF file.
namespace halftone {

// The type whose blocks hold codes of this quantiser as they are, except that q8_0 and q4_0 round scales to fp16; none: no type does.
std::optional<GgufType> gguf_type_of(const OperandSpec& weight);

// How a run quantised a weight for the forward product.
struct GgufTrained {
  OperandSpec spec{};
  bool bf16 = false;  // the weight rounded to bfloat16
  std::string why{};  // the checkpoint does not determine the run's codes: the reason
};

struct GgufExport {
  std::shared_ptr<const ModelDescription> model;
  GgufMetadata more{};               // further entries: the name, the tokenizer's
  std::vector<NamedTensor> tensors;  // native names and shapes, without data
  TensorSource read;
  GgufType plain = GgufType::bf16;               // of matrices that are not quantised: f32, f16 or bf16
  std::map<std::string, GgufTrained> trained{};  // by native name: weights that the run quantised
  // Type of the weights in `trained`; if there are none, of all matrices, with q8_0 for embedding and head. None: each weight has the type
  // of its training codes. All others are `plain`.
  std::optional<GgufType> codes{};
  std::function<void()> verify{};  // called before the file gets its name
};

// One of our matrices that was written as codes.
struct GgufCoded {
  std::string name;  // native
  GgufType type = GgufType::f32;
  std::string why{};    // the codes are not those of the run: the reason; else empty
  HfCodeError error{};  // against the numbers that the run multiplied with; all 0 where they are the same in the file
};
struct GgufWritten {
  int64_t bytes = 0, tensors = 0;
  std::vector<GgufCoded> coded{};
};
// Error, one line, naming the tensor, if it does not divide into blocks or leaves fp16's range, and naming the quantiser if codes that no
// type holds are to be written without `codes`.
GgufWritten write_gguf(const std::filesystem::path& path, const GgufExport& content);

}  // namespace halftone
