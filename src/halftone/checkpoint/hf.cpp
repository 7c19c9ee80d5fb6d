#include "halftone/checkpoint/hf.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>

#include <algorithm>
#include <functional>
#include <set>

#include "halftone/base/error.h"
#include "halftone/base/json_reader.h"
#include "halftone/models/registry.h"

namespace halftone {
namespace {

constexpr uint64_t kMaxJsonBytes = uint64_t{256} << 20;
constexpr const char* kEmbedding = "tok_embeddings.weight";
constexpr const char* kHead = "output.weight";

at::Tensor swap_halves(const at::Tensor& weight, int64_t heads, bool to_hf) {
  check((weight.dim() == 1 || weight.dim() == 2) && heads > 0 && weight.size(0) % (2 * heads) == 0,
        "a projection of shape {} does not split into {} heads of even width", shape_text(weight.sizes().vec()), heads);
  const int64_t half = weight.size(0) / heads / 2;
  const at::Tensor grouped = to_hf ? weight.reshape({heads, half, 2, -1}) : weight.reshape({heads, 2, half, -1});
  return grouped.transpose(1, 2).reshape(weight.sizes());
}

void write_text_file(const std::filesystem::path& path, const std::string& text) {
  File file = File::create(path);
  file.write(text.data(), text.size());
  file.sync();
  file.close();
}

void copy_into(const std::filesystem::path& from, const std::filesystem::path& to) {
  write_text_file(to, read_text(from, uint64_t{1} << 30));
}

std::string dtype_name(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return "float32";
    case at::kBFloat16:
      return "bfloat16";
    case at::kHalf:
      return "float16";
    default:
      fail("expected an export type of float32, bfloat16 or float16, found {}", c10::toString(type));
  }
}

std::string hf_name_of(const std::string& native, const ModelDescription& model) {
  const auto name = model.family().hf_name(native);
  check(name.has_value(), "{} has no counterpart in {}", native, model.family().hf_architecture);
  return *name;
}

}  // namespace

at::Tensor permute_to_hf(const at::Tensor& weight, int64_t heads) { return swap_halves(weight, heads, true); }
at::Tensor permute_from_hf(const at::Tensor& weight, int64_t heads) { return swap_halves(weight, heads, false); }

namespace {

using Shards = std::vector<std::pair<std::string, std::vector<NamedTensor>>>;  // name of the file, its tensors under native names

// As weight_map says; none where that does not have all of them.
Shards mapped_shards(const std::vector<NamedTensor>& native, const HfExport& content) {
  const std::map<std::string, std::string> files(content.weight_map.begin(), content.weight_map.end());
  std::map<std::string, std::vector<NamedTensor>> shards;
  for (const NamedTensor& t : native) {
    const auto found = files.find(hf_name_of(t.name, *content.config.model));
    if (found == files.end()) return {};
    shards[found->second].push_back(t);
  }
  return {shards.begin(), shards.end()};
}

Shards shards_of(const std::vector<NamedTensor>& native, const HfExport& content) {
  if (Shards shards = mapped_shards(native, content); !shards.empty()) return shards;
  Shards shards;
  for (auto& tensors : split_into_files(native, content.max_shard_bytes, content.dtype)) shards.emplace_back("", std::move(tensors));
  for (size_t i = 0; i < shards.size(); ++i)
    shards[i].first = shards.size() == 1 ? "model.safetensors" : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
  return shards;
}

// The type that most bytes have.
at::ScalarType main_type(const std::vector<NamedTensor>& tensors) {
  std::map<at::ScalarType, size_t> bytes{{at::kFloat, 0}};
  for (const NamedTensor& t : tensors) bytes[t.tensor.scalar_type()] += t.tensor.nbytes();
  return std::max_element(bytes.begin(), bytes.end(), [](const auto& a, const auto& b) { return a.second < b.second; })->first;
}

}  // namespace

void write_hf(const std::filesystem::path& folder, const HfExport& content) {
  HfConfig config = content.config;
  std::map<std::string, const NamedTensor*> sources;  // by the file's names
  std::vector<NamedTensor> native;
  for (const NamedTensor& t : content.model) {
    if (config.model->tied_head() && t.name == kHead) continue;
    native.push_back(t);
    sources[hf_name_of(t.name, *config.model)] = &t;
  }
  config.torch_dtype = dtype_name(content.dtype.value_or(main_type(native)));
  const auto read = [&](const std::string& hf, int64_t first, int64_t rows) {
    const NamedTensor& t = *sources.at(hf);
    const auto native_rows = [&](int64_t from, int64_t count) {
      return content.read ? content.read(t.name, from, count) : t.tensor.dim() == 0 ? t.tensor : t.tensor.narrow(0, from, count);
    };
    const int64_t heads = config.model->rotated_heads(t.name);
    if (heads == 0) return native_rows(first, rows);
    const int64_t width = t.tensor.size(0) / heads, head = first / width, count = (first + rows + width - 1) / width - head;
    return permute_to_hf(native_rows(head * width, count * width), count).narrow(0, first - head * width, rows);
  };
  const Shards shards = shards_of(native, content);
  Json weight_map = Json::object();
  int64_t total = 0;
  for (const auto& [file, group] : shards) {
    std::vector<NamedTensor> tensors;
    for (const NamedTensor& t : group) {
      tensors.push_back({hf_name_of(t.name, *config.model), t.tensor});
      weight_map[tensors.back().name] = file;
      total += t.tensor.numel() * static_cast<int64_t>(c10::elementSize(stored_type(t.tensor, content.dtype)));
    }
    write_tensors(folder / file, tensors, {{"format", "pt"}}, false, content.dtype, read);
  }
  if (shards.size() != 1 || shards[0].first != "model.safetensors") {
    const Json index{{"metadata", {{"total_size", total}}}, {"weight_map", weight_map}};
    write_text_file(folder / kHfIndex, index.dump(2) + "\n");
  }
  if (content.verify) content.verify();
  std::set<std::string> copied;
  for (const auto& [name, path] : content.copy_files) copy_into(path, folder / name), copied.insert(name);
  if (!copied.contains("generation_config.json") && config.token_ids != HfTokenIds{})
    write_text_file(folder / "generation_config.json", write_generation_config(config.token_ids));
  write_text_file(folder / "config.json", write_hf_config(config));
  sync_folder(folder);
}

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
  for (const std::string& name : names) files_.emplace_back(folder / name);  // whose places are final now
  std::vector<std::string> unknown;
  std::set<std::string> seen;
  std::map<std::string, HfQuantizedWeight::Parts> modules;  // what config.json's quantization_config is about
  for (size_t i = 0; i < files_.size(); ++i) {
    for (const TensorEntry& entry : files_[i].header().tensors) {
      if (is_ignored_hf_name(entry.name)) continue;
      check(seen.insert(entry.name).second, "{}: tensor {} is in two files", folder.string(), entry.name);
      const size_t dot = entry.name.rfind('.');
      const std::string word = entry.name.substr(dot + 1);  // all of a name without a dot
      if (config_.quantization && dot != std::string::npos && hf_part_of(word) != HfPart::plain) {
        if (hf_part_of(word) == HfPart::quantized)
          modules[entry.name.substr(0, dot)][word] = {&files_[i], &entry};
        else
          ++config_.quantization->activation_scales;
      } else if (const auto native = family.native_name(entry.name)) {
        tensors_.emplace(*native, Source{i, entry.name});
      } else {
        unknown.push_back(entry.name);
      }
    }
  }
  add_quantized(modules);
  check_same_names({}, unknown, folder.string());
  for (const auto& [native, from] : tensors_) {
    const TensorEntry& entry = files_[from.file].at(from.hf_name);
    check(
        from.quantized || is_castable(scalar_type_of(entry.dtype)), "{}: tensor {} is {}, codes without {}; it is not read as numbers",
        files_[from.file].path().string(), entry.name, name_of(entry.dtype),
        config_.quantization ? "scales (weight_scale, weight_scale_inv)" : "a quantization_config in config.json that says what they mean");
  }
  if (!weight_map) return;
  for (const auto& [tensor, file] : *weight_map)
    check(is_ignored_hf_name(tensor) || seen.contains(tensor), "{}: tensor {} is listed in {} but missing there",
          (folder / kHfIndex).string(), tensor, file);
}

void HfFolder::add_quantized(std::map<std::string, HfQuantizedWeight::Parts>& modules) {
  for (auto& [module, parts] : modules) {
    const std::string weight = module + ".weight";
    const auto native = config_.model->family().native_name(weight);
    const std::string& first = parts.begin()->second.entry->name;
    check(native.has_value(), "{} does not fit this model: tensor {} is unknown", folder_.string(), first);
    auto found = tensors_.find(*native);
    if (found != tensors_.end()) {
      const SafetensorsFile& file = files_[found->second.file];
      parts["weight"] = {&file, &file.at(weight)};
    } else {
      const auto codes = parts.find("weight_packed");
      check(codes != parts.end(), "{}: tensor {} has no {} beside it", folder_.string(), first, weight);
      const auto file = static_cast<size_t>(codes->second.file - files_.data());
      found = tensors_.emplace(*native, Source{file, codes->second.entry->name}).first;
    }
    found->second.quantized =
        std::make_shared<HfQuantizedWeight>(module, scheme_of(*config_.quantization, module, folder_.string()), parts);
    ++config_.quantization->weights;
  }
}

std::vector<std::string> HfFolder::names() const {
  std::vector<std::string> names;
  for (const auto& [name, source] : tensors_) names.push_back(name);
  return names;
}

bool HfFolder::has(const std::string& native) const {
  return tensors_.contains(native) || (config_.model->tied_head() && native == kHead && tensors_.contains(kEmbedding));
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

const HfFolder::Source& HfFolder::source(const std::string& native) const {
  const ModelFamily& family = config_.model->family();
  check(has(native), "{}: no tensor for {} ({})", folder_.string(), native,
        family.hf_name(native).value_or(fmt::format("no name in {}", family.hf_architecture)));
  const auto found = tensors_.find(native);
  return found != tensors_.end() ? found->second : tensors_.at(kEmbedding);
}

TensorInfo HfFolder::info(const std::string& native) const {
  const Source& from = source(native);
  if (from.quantized) return {FileDType::bf16, from.quantized->shape()};
  const TensorEntry& entry = files_[from.file].at(from.hf_name);
  return {entry.dtype, entry.shape};
}

void HfFolder::read_rows(const std::string& native, int64_t first_row, at::Tensor out, bool cast) const {
  const Source& from = source(native);
  const SafetensorsFile& file = files_[from.file];
  const TensorEntry& entry = file.at(from.hf_name);
  const TensorInfo whole = info(native);
  const at::ScalarType type = scalar_type_of(whole.dtype);
  check(out.scalar_type() == type || (cast && is_castable(type) && is_castable(out.scalar_type())),
        "{}: tensor {} has type {}, expected {}", file.path().string(), entry.name, name_of(whole.dtype), c10::toString(out.scalar_type()));
  if (out.numel() == 0) return;
  const int64_t heads = out.dim() == 0 ? 0 : config_.model->rotated_heads(native);
  RowSource rows{.type = from.quantized ? at::kFloat : type, .read = {}};
  if (heads > 0) {
    check(whole.shape[0] % heads == 0, "{}: tensor {} of shape {} does not split into {} heads", file.path().string(), entry.name,
          shape_text(whole.shape), heads);
    rows.unit = whole.shape[0] / heads;
    const int64_t head = first_row / rows.unit, count = (first_row + out.size(0) + rows.unit - 1) / rows.unit - head;
    if (count * rows.unit != out.size(0)) {  // rows keep their place among those of a head: whole heads are read
      std::vector<int64_t> shape = out.sizes().vec();
      shape[0] = count * rows.unit;
      const at::Tensor of_heads = at::empty(shape, out.options());
      read_rows(native, head * rows.unit, of_heads, cast);
      out.copy_(of_heads.narrow(0, first_row - head * rows.unit, out.size(0)));
      return;
    }
    rows.arrange = [&](const at::Tensor& t) { return permute_from_hf(t, t.size(0) / rows.unit); };
  }
  const uint64_t row_bytes = (entry.end - entry.begin) / static_cast<uint64_t>(entry.shape.empty() ? 1 : entry.shape[0]);
  if (!from.quantized && out.dim() > 0)
    file.will_read(entry, static_cast<uint64_t>(out.size(0)) * row_bytes, static_cast<uint64_t>(first_row) * row_bytes);
  rows.read = [&](int64_t first, int64_t count, void* data) {
    if (from.quantized) return from.quantized->read(first_row + first, count, static_cast<float*>(data));
    file.read(entry, data, static_cast<uint64_t>(count) * row_bytes, static_cast<uint64_t>(first_row + first) * row_bytes);
  };
  check(fill_rows(out, rows), "{}: tensor {} holds a NaN or an infinity; the file is damaged, or of a run that diverged",
        file.path().string(), entry.name);
}

}  // namespace halftone
