// links: checkpoint_formats
// seeds: tests/fuzz/seeds/checkpoint_json
// dict: { } [ ] " : , "files" "tensors" "chunks" "offset" "shape" "file" "bytes" "xxh3_64" "finite" true false "weight_map" "llama" "qwen2"
// dict: "qwen3" "mistral" "yarn" 9223372036854775807 -1
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <string_view>

#include "halftone/base/error.h"
#include "halftone/checkpoint/hf_config.h"
#include "halftone/checkpoint/index.h"
#include "halftone/models/deepseek_v3/family.h"
#include "halftone/models/gpt_oss/family.h"
#include "halftone/models/llama3/family.h"
#include "halftone/models/mistral/family.h"
#include "halftone/models/qwen3/family.h"

const halftone::ModelFamily* const kFamilies[] = {&halftone::llama3::kFamily, &halftone::mistral::kFamily, &halftone::qwen3::kQwen2,
                                                  &halftone::qwen3::kFamily,  &halftone::qwen3::kMoe,      &halftone::deepseek_v3::kFamily,
                                                  &halftone::gpt_oss::kFamily};

// The JSON files of a checkpoint: any input yields a value that can be written and read again, or an Error.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace halftone;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto attempt = [](const std::function<void()>& action) {
    try {
      action();
    } catch (const Error&) {}
  };
  attempt([&] {
    const CheckpointIndex index = parse_index(text, "x");
    if (!(parse_index(write_index(index), "x") == index)) std::abort();
    for (const auto& [name, tensor] : index.tensors)
      for (const TensorChunk& chunk : tensor.chunks)
        if (chunk_name(name, tensor, chunk).size() < name.size()) std::abort();
  });
  attempt([&] {  // the manifest of a rank, merged as rank 0 does
    const CheckpointIndex part = parse_index(text, "x", true);
    if (!(parse_index(write_index(part), "x", true) == part)) std::abort();
    CheckpointIndex index{.step = part.step, .model_only = part.model_only, .world = part.world};
    merge_part(index, part, "x");
    parse_index(write_index(index), "x");
  });
  attempt([&] { check_state_json(text, "x"); });
  attempt([&] {
    const HfConfig config = parse_hf_config(text, "x", kFamilies);
    if (parse_hf_config(write_hf_config(config), "x", kFamilies).model->hyper_parameters() != config.model->hyper_parameters())
      std::abort();
  });
  attempt([&] {
    for (const auto& [tensor, file] : parse_hf_index(text, "x"))
      for (const ModelFamily* family : kFamilies) {
        int64_t expert = 0;
        if (const auto native = family->native_name(tensor, &expert); native && family->hf_name(*native, expert) != tensor) std::abort();
      }
  });
  return 0;
}
