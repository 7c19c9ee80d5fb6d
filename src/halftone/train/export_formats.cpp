#include "halftone/train/export_formats.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <future>
#include <nlohmann/json.hpp>

#include "halftone/base/error.h"
#include "halftone/base/log.h"
#include "halftone/checkpoint/step_writer.h"
#include "halftone/formats/describe.h"
#include "halftone/train/gguf_export.h"
#include "halftone/train/trained_codes.h"

namespace halftone {
namespace {

std::string listed(std::string_view words) {
  std::string text(words);
  for (size_t at = 0; (at = text.find(' ', at)) != std::string::npos; at += 2) text.replace(at, 1, ", ");
  return text;
}

// Whether rows that share a scale in training are rows of other blocks in the file.
bool splits_blocks(const HfForm& form, int64_t rows, int64_t heads) {
  return form.tiles() && heads > 0 && form.weight.block % (rows / heads) != 0;
}

// The form of a weight's training codes, of those that the format holds.
const HfForm* form_of(const HfFormat& format, const TrainedCodes::Weight& trained) {
  const HfForm* found = nullptr;
  for (const HfForm& form : hf_forms())
    if (format.holds(form) && has_form(trained.weight, form) && (found == nullptr || form.inputs == trained.input.quantized()))
      found = &form;
  return found;
}

std::map<std::string, HfWeightCodes> plan_codes(const HfFormat& format, const ExportInput& in, const TrainedCodes& trained) {
  const HfForm* wanted = find_hf_form(format.single() && in.codes.empty() ? format.codes : std::string_view(in.codes));
  check(in.codes.empty() || wanted != nullptr, "--codes {}: unknown, expected {}", in.codes, listed(format.codes));
  if (wanted != nullptr) {
    check(wanted->refused.empty(), "--codes {}: {}", wanted->name, wanted->refused);
    check(format.holds(*wanted), "--codes {}: {} holds {}", wanted->name, format.name, listed(format.codes));
  }
  std::map<std::string, HfWeightCodes> codes;
  for (const NamedTensor& t : in.tensors) {
    if (!takes_codes(format, in.model->family(), t.name, t.tensor.sizes())) continue;
    const auto found = trained.weights.find(t.name);
    HfWeightCodes how{.form = wanted};
    if (found != trained.weights.end()) {
      const TrainedCodes::Weight& run = found->second;
      if (wanted == nullptr) {
        const std::string objection = objection_to(run.weight);
        how.form = form_of(format, run);
        check(how.form != nullptr, "{}: {} has no place for {} of {} ({}); choose the codes to write: --codes {}", t.name, format.name,
              objection.empty() ? "the codes" : objection, run.scheme, describe(run.weight), listed(format.codes));
      }
      how.why = has_form(run.weight, *how.form) ? lost_codes(trained, in.step, t.name) : fmt::format("trained as {}", describe(run.weight));
      if (how.why.empty() && splits_blocks(*how.form, t.tensor.size(0), in.model->rotated_heads(t.name)))
        how.why = "its file has the rows of a head in another order, across blocks";
      how.trained = how.why.empty();
      how.inputs = how.form->inputs && (run.input.quantized() || !how.trained);
      if (how.trained) how.spec = run.weight, how.bf16 = trained.bf16;
    } else {
      if (!trained.weights.empty()) continue;  // the recipe left it in the compute dtype
      check(wanted != nullptr, "--format {}: {} was not trained in codes; choose those to write: --codes {}", format.name, t.name,
            listed(format.codes));
      const bool coded = in.step.hf_folder() != nullptr && in.step.hf_folder()->holds_codes(t.name);
      how.why = coded ? "read from other codes" : "not trained in codes", how.inputs = how.form->inputs;
    }
    if (!how.trained) how.spec = how.form->weight;
    codes[t.name] = how;
  }
  check(!codes.empty(), "--format {}: the model has no weight that it holds as codes{}", format.name,
        trained.weights.empty() ? "" : " and that the recipe quantised; leave --format out");
  return codes;
}

void report(const std::map<std::string, HfWeightCodes>& codes, const std::map<std::string, HfCodeError>& errors) {
  std::vector<AddedError> added;
  for (const auto& [name, error] : errors) added.push_back({name, error.decibels(), codes.at(name).form->name, codes.at(name).why});
  report_codes(std::ranges::count_if(codes, [](const auto& c) { return c.second.trained; }), codes.size(), std::move(added));
}

HfExport content_of(const ExportInput& in) {
  HfExport content;
  content.config.model = in.model, content.config.token_ids = in.token_ids;
  content.model = in.tensors, content.read = in.read, content.read_codes = in.read_stored, content.dtype = std::nullopt;
  content.max_shard_bytes = in.max_shard_bytes > 0 ? in.max_shard_bytes : kDefaultShardBytes;
  content.copy_files = in.copy_files;
  // The shards of the Hugging Face folder that a converted step came from.
  if (auto shards = read_hf_index(in.step.folder()); shards && in.max_shard_bytes == 0) content.weight_map = std::move(*shards);
  return content;
}

void write(const ExportInput& in, HfExport& content) {
  // Concurrently with the conversion, which reads the same bytes; awaited before the folder gets its name.
  std::future<void> verified = std::async(std::launch::async, [&] { in.step.verify_model(); });
  content.verify = [&] { verified.get(); };
  write_hf_step(in.to, 0, content, {});
}

// The codes of a folder of the same method, and what its config.json says of them.
void copy_codes(const ExportInput& in, HfExport& content) {
  const HfFolder& folder = *in.step.hf_folder();
  content.stored = folder.stored();
  std::erase_if(content.model, [&](const NamedTensor& t) { return folder.holds_codes(t.name); });
  const nlohmann::ordered_json config = nlohmann::ordered_json::parse(read_text(in.step.folder() / "config.json", uint64_t{256} << 20));
  for (const char* key : {"compression_config", "quantization_config"})
    if (config.contains(key)) content.quantization = config[key].dump();
  log_info("{} weights are copied in the codes that {} has", folder.config().quantization->weights, in.step.folder().string());
}

void write_codes(const ExportFormat& row, const ExportInput& in) {
  const HfFormat& format = *find_hf_format(row.name);
  check_hf_format(format, in.model->family());
  HfExport content = content_of(in);
  content.format = &format;
  const HfConfig* source = in.step.hf_config();
  if (source != nullptr && source->quantization && source->quantization->method == format.method && in.codes.empty()) {
    copy_codes(in, content);
    return write(in, content);
  }
  std::map<std::string, HfCodeError> errors;
  content.codes = plan_codes(format, in, trained_codes(in.step)), content.errors = &errors;
  write(in, content);
  report(content.codes, errors);
}

}  // namespace

std::span<const ExportFormat> export_formats() {
  static const std::vector<ExportFormat> formats = [] {
    std::vector<ExportFormat> rows;
    for (const HfFormat& format : hf_formats()) rows.push_back({format.name, format.codes, write_codes});
    rows.push_back({"gguf", "f32 f16 bf16 q8_0 q4_0 mxfp4 nvfp4", write_gguf_file, true});
    return rows;
  }();
  return formats;
}

const ExportFormat& find_export_format(std::string_view name) {
  const auto found = std::ranges::find(export_formats(), name, &ExportFormat::name);
  std::vector<std::string_view> names;
  for (const ExportFormat& format : export_formats()) names.push_back(format.name);
  check(found != export_formats().end(), "--format {}: unknown, expected {}", name, fmt::join(names, ", "));
  return *found;
}

void write_numbers(const ExportInput& in) {
  HfExport content = content_of(in);
  write(in, content);
}

}  // namespace halftone
