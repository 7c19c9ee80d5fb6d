#include "halftone/train/gguf_export.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <future>

#include "halftone/base/error.h"
#include "halftone/base/log.h"
#include "halftone/checkpoint/gguf.h"
#include "halftone/data/chat_setup.h"
#include "halftone/data/tokenizer.h"
#include "halftone/data/tokenizer_gguf.h"
#include "halftone/train/saved_model.h"
#include "halftone/train/trained_codes.h"

namespace halftone {
namespace {

GgufType type_named(std::string_view name) {
  std::vector<std::string_view> names;
  for (const GgufTypeRow& row : gguf_types()) {
    if (row.name == name) return row.type;
    names.push_back(row.name);
  }
  fail("--codes {}: unknown, expected {}", name, fmt::join(names, ", "));
}

// How the run quantised its weights; of a Hugging Face folder, those that it has in blocks that ggml knows too.
std::map<std::string, GgufTrained> trained_weights(const ExportInput& in, const TrainedCodes& run) {
  std::map<std::string, GgufTrained> weights;
  for (const auto& [name, trained] : run.weights) weights[name] = {trained.weight, run.bf16, lost_codes(run, in.step, name)};
  const HfFolder* folder = in.step.hf_folder();
  if (folder == nullptr) return weights;
  for (const NamedTensor& t : in.tensors) {
    const std::vector<const HfQuantizedWeight*> stored = folder->stored_as(t.name);
    const bool mx = std::ranges::all_of(stored, [](const HfQuantizedWeight* w) {
      const HfWeightScheme& s = w->scheme();
      return s.codes == HfWeightScheme::Codes::e2m1 && s.byte_scale == HfWeightScheme::ByteScale::e8m0 && s.cols == 32;
    });
    if (mx && !stored.empty()) weights[t.name] = {find_hf_form("mxfp4")->weight};
  }
  return weights;
}

void add_tokenizer(const ExportInput& in, int64_t vocab_size, GgufMetadata& out) {
  const auto add = [&](const char* key, GgufValue value) { out.emplace_back(std::string("tokenizer.ggml.") + key, std::move(value)); };
  const auto found = std::ranges::find_if(in.copy_files, [](const auto& file) { return file.first != "generation_config.json"; });
  if (found == in.copy_files.end()) {
    log_info("{}: {} has no tokenizer, and so has the file", in.to.string(), in.step.folder().string());
    return add("model", std::string("no_vocab"));
  }
  const std::filesystem::path folder = found->second.parent_path();
  const Tokenizer tokenizer = Tokenizer::load(folder);
  GgufTokenizer t = gguf_tokenizer(parse_tokenizer_json(tokenizer.tokenizer_json(), tokenizer.tokenizer_config_json()), vocab_size);
  add("model", t.model), add("pre", t.pre);
  add("tokens", std::move(t.tokens)), add("token_type", std::move(t.types)), add("merges", std::move(t.merges));
  add("add_bos_token", t.add_bos), add("add_eos_token", t.add_eos);
  const auto add_id = [&](const char* key, std::optional<int64_t> id) {
    if (id) add(key, static_cast<uint32_t>(*id));
  };
  // Text ends at any of several ids: the tokenizer's own, and the next one as the end of a turn. Without an entry llama.cpp takes id 11.
  std::vector<int64_t> ends = in.token_ids.eos;
  if (const auto own = tokenizer.eos_id()) std::erase(ends, *own), ends.insert(ends.begin(), *own);
  add_id("bos_token_id", in.token_ids.bos ? in.token_ids.bos : std::optional<int64_t>(tokenizer.bos_id()));
  add_id("eos_token_id", ends.empty() ? std::nullopt : std::optional(ends[0]));
  add_id("eot_token_id", ends.size() < 2 ? std::nullopt : std::optional(ends[1]));
  add_id("padding_token_id", in.token_ids.pad);
  if (std::optional<std::string> text = tokenizer_chat_template(folder.string()))
    out.emplace_back("tokenizer.chat_template", std::move(*text));
}

void report(const GgufWritten& written) {
  if (written.coded.empty()) return;
  std::vector<AddedError> added;
  for (const GgufCoded& c : written.coded)
    if (c.error.noise > 0)
      added.push_back({c.name, c.error.decibels(), row_of(c.type).name, c.why.empty() ? "scales rounded to fp16" : c.why});
  report_codes(std::ranges::count_if(written.coded, [](const GgufCoded& c) { return c.why.empty(); }), written.coded.size(),
               std::move(added));
}

}  // namespace

void write_gguf_file(const ExportFormat&, const ExportInput& in) {
  const TrainedCodes run = trained_codes(in.step);
  GgufExport content{.model = in.model, .tensors = in.tensors, .read = in.read_stored};
  // Weights that are not quantised: by --dtype, else as the run multiplied with them, else as they are stored.
  const std::string stored = stored_dtype(in.step);
  const at::ScalarType plain = in.dtype                           ? *in.dtype
                               : run.bf16 || stored == "bfloat16" ? at::kBFloat16
                               : stored == "float16"              ? at::kHalf
                                                                  : at::kFloat;
  content.plain = plain == at::kBFloat16 ? GgufType::bf16 : plain == at::kHalf ? GgufType::f16 : GgufType::f32;
  content.trained = trained_weights(in, run);
  if (!in.codes.empty()) content.codes = type_named(in.codes);
  content.more.emplace_back("general.name", in.to.stem().string());
  const auto sizes = in.model->hyper_parameters();
  add_tokenizer(in, std::get<int64_t>(sizes.at("vocab_size")), content.more);
  std::future<void> verified = std::async(std::launch::async, [&] { in.step.verify_model(); });
  content.verify = [&] { verified.get(); };
  report(write_gguf(in.to, content));
  if (content.codes && row_of(*content.codes).block == 1 && !content.trained.empty())
    log_info("{} weights that training multiplied with in codes are numbers in the file: {}", content.trained.size(), in.codes);
}

}  // namespace halftone
