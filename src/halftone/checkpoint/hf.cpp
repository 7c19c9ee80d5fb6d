#include "halftone/checkpoint/hf.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>

#include <algorithm>
#include <set>

#include "halftone/base/error.h"
#include "halftone/base/json_reader.h"
#include "halftone/models/registry.h"

namespace halftone {
namespace {

constexpr uint64_t kMaxJsonBytes = uint64_t{256} << 20;
constexpr const char* kEmbedding = "tok_embeddings.weight";
constexpr const char* kHead = "output.weight";

}  // namespace

HfConfig read_hf_config(const std::filesystem::path& folder) {
  const auto path = folder / "config.json";
  return parse_hf_config(read_text(path, kMaxJsonBytes), path.string(), model_families());
}

std::optional<std::vector<std::pair<std::string, std::string>>> read_hf_index(const std::filesystem::path& folder) {
  const auto path = folder / kHfIndex;
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return std::nullopt;
  return parse_hf_index(read_text(path, kMaxJsonBytes), path.string());
}

bool HfFolder::is_hf_folder(const std::filesystem::path& folder) {
  std::error_code ignored;
  return std::filesystem::exists(folder / "config.json", ignored) &&
         (std::filesystem::exists(folder / "model.safetensors", ignored) || std::filesystem::exists(folder / kHfIndex, ignored));
}

HfFolder::HfFolder(const std::filesystem::path& folder) : folder_(folder) {
  config_ = read_hf_config(folder);
  const ModelFamily& family = config_.model->family();
  std::error_code ignored;
  if (const auto path = folder / "generation_config.json"; std::filesystem::exists(path, ignored)) {
    const std::vector<int64_t> eos = parse_generation_eos(read_text(path, kMaxJsonBytes), path.string());
    if (!eos.empty()) config_.token_ids.eos = eos;
  }
  std::vector<std::string> names{"model.safetensors"};
  const auto weight_map = read_hf_index(folder);
  if (weight_map) {
    names.clear();
    for (const auto& [tensor, file] : *weight_map) names.push_back(file);
    std::sort(names.begin(), names.end());
    names.erase(std::unique(names.begin(), names.end()), names.end());
  }
  for (const std::string& name : names) files_.emplace_back(folder / name);  // pointers to files_ are valid from here on
  std::vector<std::string> unknown;
  std::set<std::string> seen;
  std::map<std::string, HfQuantizedWeight::Parts> modules;  // modules covered by config.json's quantization_config
  const auto is_ignored = [&](const std::string& name) { return is_ignored_hf_name(name) || config_.model->ignores(name); };
  for (const SafetensorsFile& file : files_) {
    for (const TensorEntry& entry : file.header().tensors) {
      config_.ignored_tensors += config_.model->ignores(entry.name);
      if (is_ignored(entry.name)) continue;
      check(seen.insert(entry.name).second, "{}: tensor {} appears in two files", folder.string(), entry.name);
      const auto [module, word] = hf_module_of(entry.name, config_.quantization);
      int64_t expert = 0;
      if (!module.empty() && hf_part_of(word) == HfPart::quantized) {
        modules[module][word] = {&file, &entry}, stored_.push_back({&file, &entry});
      } else if (!module.empty() && hf_part_of(word) == HfPart::activation) {
        ++config_.quantization->activation_scales, stored_.push_back({&file, &entry});
      } else if (const auto native = family.native_name(entry.name, &expert);
                 native && expert < std::max<int64_t>(config_.model->experts(), 1)) {
        add(*native, expert, {&file, &entry});
      } else {
        unknown.push_back(entry.name);
      }
    }
  }
  add_quantized(modules);
  check_same_names({}, unknown, folder.string());
  check_experts();
  if (!weight_map) return;
  for (const auto& [tensor, file] : *weight_map)
    check(is_ignored(tensor) || seen.contains(tensor), "{}: tensor {} is listed in {} but missing there", (folder / kHfIndex).string(),
          tensor, file);
}

void HfFolder::add(const std::string& native, int64_t expert, Source source) {
  Sources& all = tensors_[native];
  const bool apart = config_.model->family().tensor(native)->experts_apart();
  all.resize(apart ? static_cast<size_t>(config_.model->experts()) : 1);
  all[static_cast<size_t>(expert)] = std::move(source);
}

void HfFolder::add_quantized(std::map<std::string, HfQuantizedWeight::Parts>& modules) {
  for (auto& [module, parts] : modules) {
    const HfWeightScheme& scheme = scheme_of(*config_.quantization, module, folder_.string());
    const std::string weight = scheme.stacked ? module : module + ".weight";
    int64_t expert = 0;
    const auto native = config_.model->family().native_name(weight, &expert);
    const std::string& first = parts.begin()->second.entry->name;
    check(native && expert < std::max<int64_t>(config_.model->experts(), 1), "{} does not fit this model: tensor {} is unknown",
          folder_.string(), first);
    Source from;
    if (const auto found = tensors_.find(*native); found != tensors_.end()) from = found->second[static_cast<size_t>(expert)];
    if (from.entry != nullptr) {
      parts["weight"] = {from.file, from.entry}, stored_.push_back({from.file, from.entry});
    } else {
      const auto codes = parts.find("weight_packed");
      check(codes != parts.end(), "{}: tensor {} has no {} beside it", folder_.string(), first,
            scheme.stacked ? module + "_blocks" : weight);
      from.file = codes->second.file, from.entry = codes->second.entry;
    }
    from.quantized = std::make_shared<HfQuantizedWeight>(module, scheme, parts);
    add(*native, expert, std::move(from));
    ++config_.quantization->weights;
  }
}

// Checks that every expert is present and that all are alike.
void HfFolder::check_experts() const {
  for (const auto& [native, sources] : tensors_) {
    std::vector<std::string> missing;
    for (size_t e = 0; e < sources.size(); ++e)
      if (sources[e].entry == nullptr) missing.push_back(*config_.model->family().hf_name(native, static_cast<int64_t>(e)));
    check_same_names(missing, {}, folder_.string());
    const TensorInfo first = sources[0].info();
    for (const Source& source : sources) {
      check_plain(source);
      const TensorInfo info = source.info();
      check(info.dtype == first.dtype && info.shape == first.shape, "{}: tensor {} is {} {}, that of the first expert {} {}",
            source.file->path().string(), source.entry->name, name_of(info.dtype), shape_text(info.shape), name_of(first.dtype),
            shape_text(first.shape));
    }
  }
}

void HfFolder::check_plain(const Source& from) const {
  check(from.quantized || is_castable(scalar_type_of(from.entry->dtype)), "{}: tensor {} is {}, codes without {}; it cannot be dequantised",
        from.file->path().string(), from.entry->name, name_of(from.entry->dtype),
        config_.quantization ? "scales (weight_scale, weight_scale_inv)" : "a quantization_config in config.json that describes them");
}

std::vector<std::string> HfFolder::names() const {
  std::vector<std::string> names;
  for (const auto& [name, source] : tensors_) names.push_back(name);
  return names;
}

bool HfFolder::absent(const std::string& native) const {
  const ModelFamily::TensorName* name = config_.model->family().tensor(native);
  return name != nullptr && name->hf.empty();
}

bool HfFolder::has(const std::string& native) const {
  return tensors_.contains(native) || absent(native) || (config_.model->tied_head() && native == kHead && tensors_.contains(kEmbedding));
}

bool HfFolder::holds_codes(const std::string& native) const {
  const auto found = tensors_.find(native);
  return found != tensors_.end() && std::ranges::any_of(found->second, [](const Source& source) { return source.quantized != nullptr; });
}

std::vector<const HfQuantizedWeight*> HfFolder::stored_as(const std::string& native) const {
  std::vector<const HfQuantizedWeight*> all;
  const auto found = tensors_.find(native);
  if (found == tensors_.end() || !holds_codes(native)) return all;
  for (const Source& source : found->second) all.push_back(source.quantized.get());
  return std::ranges::find(all, nullptr) == all.end() ? all : std::vector<const HfQuantizedWeight*>();
}

void HfFolder::check_head() const {
  const auto path = folder_ / "config.json";
  const bool head = tensors_.contains(kHead);
  check(head || config_.model->tied_head(),
        "{}: tie_word_embeddings = false, and the weights have no lm_head.weight; set it to true where the head is tied", path.string());
  if (!config_.model->tied_head() || !head || !tensors_.contains(kEmbedding)) return;
  const auto stored = [&](const char* native) {
    const TensorInfo as = info(native);
    at::Tensor out = at::empty(as.shape, at::TensorOptions().dtype(scalar_type_of(as.dtype)));
    read_rows(native, 0, out, false);
    return out;
  };
  const at::Tensor embedding = stored(kEmbedding), own = stored(kHead);
  check(embedding.sizes() == own.sizes() && embedding.scalar_type() == own.scalar_type() && at::equal(embedding, own),
        "{}: tie_word_embeddings = true, but lm_head.weight differs from model.embed_tokens.weight; set it to false, or leave the head out",
        path.string());
}

const HfFolder::Sources& HfFolder::sources(const std::string& native) const {
  const ModelFamily& family = config_.model->family();
  check(has(native), "{}: no tensor for {} ({})", folder_.string(), native,
        family.hf_name(native).value_or(fmt::format("no name in {}", family.hf_architecture)));
  const auto found = tensors_.find(native);
  return found != tensors_.end() ? found->second : tensors_.at(kEmbedding);
}

TensorInfo HfFolder::Source::info() const {
  return quantized ? TensorInfo{FileDType::bf16, quantized->shape()} : TensorInfo{entry->dtype, entry->shape};
}

TensorInfo HfFolder::info(const std::string& native) const {
  if (absent(native)) return {FileDType::f32, {config_.model->experts()}};
  const Sources& from = sources(native);
  TensorInfo info = from[0].info();
  const ModelFamily::TensorName& name = *config_.model->family().tensor(native);
  if (name.experts_apart()) info.shape.insert(info.shape.begin(), config_.model->experts());
  if (name.transposed && !from[0].quantized && info.shape.size() == 3) std::swap(info.shape[1], info.shape[2]);
  return info;
}

void HfFolder::read_rows(const std::string& native, int64_t first_row, at::Tensor out, bool cast) const {
  if (absent(native)) {
    out.detach().zero_();
    return;
  }
  const Sources& from = sources(native);
  if (!config_.model->family().tensor(native)->experts_apart()) return read_source(from[0], native, first_row, std::move(out), cast);
  for (int64_t i = 0; i < out.size(0); ++i) read_source(from[static_cast<size_t>(first_row + i)], native, 0, out.select(0, i), cast);
}

void HfFolder::read_source(const Source& from, const std::string& native, int64_t first_row, at::Tensor out, bool cast) const {
  const SafetensorsFile& file = *from.file;
  const TensorEntry& entry = *from.entry;
  const TensorInfo whole = from.info();
  const at::ScalarType type = scalar_type_of(whole.dtype);
  check(out.scalar_type() == type || (cast && is_castable(type) && is_castable(out.scalar_type())),
        "{}: tensor {} has type {}, expected {}", file.path().string(), entry.name, name_of(whole.dtype), c10::toString(out.scalar_type()));
  if (out.numel() == 0) return;
  const int64_t heads = out.dim() == 0 ? 0 : config_.model->rotated_heads(native);
  RowReader rows{.type = from.quantized ? at::kFloat : type, .read = {}};
  if (heads > 0) {
    check(whole.shape[0] % heads == 0, "{}: tensor {} of shape {} does not split into {} heads", file.path().string(), entry.name,
          shape_text(whole.shape), heads);
    rows.unit = whole.shape[0] / heads;
    const int64_t head = first_row / rows.unit, count = (first_row + out.size(0) + rows.unit - 1) / rows.unit - head;
    if (count * rows.unit != out.size(0)) {  // rows are permuted within a head: reads full heads
      std::vector<int64_t> shape = out.sizes().vec();
      shape[0] = count * rows.unit;
      const at::Tensor of_heads = at::empty(shape, out.options());
      read_rows(native, head * rows.unit, of_heads, cast);
      out.copy_(of_heads.narrow(0, first_row - head * rows.unit, out.size(0)));
      return;
    }
    rows.arrange = [&](const at::Tensor& t) { return permute_from_hf(t, t.size(0) / rows.unit); };
  }
  if (config_.model->family().tensor(native)->transposed && !from.quantized)
    rows.arrange = [](const at::Tensor& t) { return t.view({t.size(0), t.size(2), t.size(1)}).transpose(1, 2); };
  const uint64_t row_bytes = (entry.end - entry.begin) / static_cast<uint64_t>(entry.shape.empty() ? 1 : entry.shape[0]);
  const int64_t of_row = from.quantized && whole.shape.size() == 3 ? whole.shape[1] : 1;  // rows of codes
  if (!from.quantized && out.dim() > 0)
    file.will_read(entry, static_cast<uint64_t>(out.size(0)) * row_bytes, static_cast<uint64_t>(first_row) * row_bytes);
  rows.read = [&](int64_t first, int64_t count, void* data) {
    if (from.quantized) return from.quantized->read((first_row + first) * of_row, count * of_row, static_cast<float*>(data), scales_);
    file.read(entry, data, static_cast<uint64_t>(count) * row_bytes, static_cast<uint64_t>(first_row + first) * row_bytes);
  };
  check(fill_rows(out, rows), "{}: tensor {} holds a NaN or an infinity; the file is damaged, or of a run that diverged",
        file.path().string(), entry.name);
}

}  // namespace halftone
