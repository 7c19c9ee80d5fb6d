#include "halftone/checkpoint/hf.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>

#include <algorithm>

#include "halftone/base/error.h"
#include "halftone/base/json_reader.h"
#include "halftone/models/registry.h"

namespace halftone {
namespace {

constexpr uint64_t kMaxJsonBytes = uint64_t{256} << 20;
constexpr const char* kEmbedding = "tok_embeddings.weight";
constexpr const char* kHead = "output.weight";

at::Tensor swap_halves(const at::Tensor& weight, int64_t heads, bool to_hf) {
  check(weight.dim() == 2 && heads > 0 && weight.size(0) % (2 * heads) == 0,
        "a projection of shape {} does not split into {} heads of even width", shape_text(weight.sizes().vec()), heads);
  const int64_t half = weight.size(0) / heads / 2;
  const at::Tensor grouped = to_hf ? weight.reshape({heads, half, 2, weight.size(1)}) : weight.reshape({heads, 2, half, weight.size(1)});
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

NamedTensor native_to_hf(const NamedTensor& tensor, const ModelDescription& model) {
  const int64_t heads = model.rotated_heads(tensor.name);
  return {hf_name_of(tensor.name, model), heads ? permute_to_hf(tensor.tensor, heads) : tensor.tensor};
}

NamedTensor hf_to_native(const NamedTensor& tensor, const ModelDescription& model) {
  const auto name = model.family().native_name(tensor.name);
  check(name.has_value(), "{} is no tensor of {}", tensor.name, model.family().hf_architecture);
  const int64_t heads = model.rotated_heads(*name);
  return {*name, heads ? permute_from_hf(tensor.tensor, heads) : tensor.tensor};
}

void write_hf(const std::filesystem::path& folder, const HfExport& content) {
  HfConfig config = content.config;
  config.torch_dtype = dtype_name(content.dtype);
  std::vector<NamedTensor> native;
  for (const NamedTensor& t : content.model)
    if (!(config.model->tied_head() && t.name == kHead)) native.push_back(t);
  const std::map<std::string, std::string> metadata{{"format", "pt"}};
  const auto shards = split_into_files(native, content.max_shard_bytes);
  Json weight_map = Json::object();
  int64_t total = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string file =
        shards.size() == 1 ? "model.safetensors" : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    std::vector<NamedTensor> tensors;
    std::map<std::string, const NamedTensor*> sources;  // by the file's names
    for (const NamedTensor& t : shards[i]) {
      const std::string name = hf_name_of(t.name, *config.model);
      tensors.push_back({name, t.tensor});
      sources[name] = &t;
      weight_map[name] = file;
      total += t.tensor.numel() * static_cast<int64_t>(c10::elementSize(content.dtype));
    }
    write_tensors(folder / file, tensors, metadata, false, content.dtype, [&](const NamedTensor& t) {
      const NamedTensor& native = *sources.at(t.name);
      return native_to_hf({native.name, content.read ? content.read(native.name) : native.tensor}, *config.model).tensor;
    });
  }
  if (shards.size() > 1) {
    const Json index{{"metadata", {{"total_size", total}}}, {"weight_map", weight_map}};
    write_text_file(folder / "model.safetensors.index.json", index.dump(2) + "\n");
  }
  for (const auto& [name, path] : content.copy_files) copy_into(path, folder / name);
  write_text_file(folder / "config.json", write_hf_config(config));
  sync_folder(folder);
}

HfConfig read_hf_config(const std::filesystem::path& folder) {
  const auto path = folder / "config.json";
  return parse_hf_config(read_text(path, kMaxJsonBytes), path.string(), model_families());
}

bool HfFolder::is_hf_folder(const std::filesystem::path& folder) {
  std::error_code ignored;
  return std::filesystem::exists(folder / "config.json", ignored) &&
         (std::filesystem::exists(folder / "model.safetensors", ignored) ||
          std::filesystem::exists(folder / "model.safetensors.index.json", ignored));
}

HfFolder::HfFolder(const std::filesystem::path& folder) : folder_(folder) {
  config_ = read_hf_config(folder);
  const ModelFamily& family = config_.model->family();
  std::error_code ignored;
  if (const auto path = folder / "generation_config.json"; std::filesystem::exists(path, ignored)) {
    const std::vector<int64_t> eos = parse_generation_eos(read_text(path, kMaxJsonBytes), path.string());
    if (!eos.empty()) config_.token_ids.eos = eos;
  }
  const auto index_path = folder / "model.safetensors.index.json";
  std::vector<std::string> names{"model.safetensors"};
  std::vector<std::pair<std::string, std::string>> weight_map;
  if (std::filesystem::exists(index_path, ignored)) {
    weight_map = parse_hf_index(read_text(index_path, kMaxJsonBytes), index_path.string());
    names.clear();
    for (const auto& [tensor, file] : weight_map) names.push_back(file);
    std::sort(names.begin(), names.end());
    names.erase(std::unique(names.begin(), names.end()), names.end());
  }
  std::vector<std::string> unknown;
  for (const std::string& name : names) {
    files_.emplace_back(folder / name);
    for (const TensorEntry& entry : files_.back().header().tensors) {
      if (is_ignored_hf_name(entry.name)) continue;
      if (const auto native = family.native_name(entry.name)) {
        check(tensors_.emplace(*native, Source{files_.size() - 1, entry.name}).second, "{}: tensor {} is in two files", folder.string(),
              entry.name);
      } else {
        unknown.push_back(entry.name);
      }
    }
  }
  check_same_names({}, unknown, folder.string());
  for (const auto& [tensor, file] : weight_map)
    check(is_ignored_hf_name(tensor) || tensors_.contains(family.native_name(tensor).value_or("")),
          "{}: tensor {} is listed in {} but missing there", index_path.string(), tensor, file);
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
    const Source& from = tensors_.at(native);
    const TensorEntry& entry = files_[from.file].at(from.hf_name);
    at::Tensor out = at::empty(entry.shape, at::TensorOptions().dtype(scalar_type_of(entry.dtype)));
    read_tensor(files_[from.file], entry, out, false);
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
  const TensorEntry& entry = files_[from.file].at(from.hf_name);
  return {entry.dtype, entry.shape};
}

void HfFolder::read_rows(const std::string& native, int64_t first_row, at::Tensor out, bool cast) const {
  const Source& from = source(native);
  const TensorEntry& entry = files_[from.file].at(from.hf_name);
  const int64_t heads = config_.model->rotated_heads(native);
  if (heads == 0 || out.numel() == 0) return read_tensor(files_[from.file], entry, out, cast, first_row);
  // Rows keep their place among those of a head: whole heads are read.
  check(entry.shape[0] % heads == 0, "{}: tensor {} of shape {} does not split into {} heads", files_[from.file].path().string(),
        entry.name, shape_text(entry.shape), heads);
  const int64_t width = entry.shape[0] / heads, rows = out.size(0), first_head = first_row / width;
  const int64_t count = (first_row + rows + width - 1) / width - first_head;
  std::vector<int64_t> shape = entry.shape;
  shape[0] = count * width;
  const at::Tensor whole = at::empty(shape, out.options());
  read_tensor(files_[from.file], entry, whole, cast, first_head * width);
  out.copy_(permute_from_hf(whole, count).narrow(0, first_row - first_head * width, rows));
}

}  // namespace halftone
