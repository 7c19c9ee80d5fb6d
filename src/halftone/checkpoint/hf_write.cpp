#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <mutex>
#include <ranges>
#include <set>

#include "halftone/base/error.h"
#include "halftone/base/json_reader.h"
#include "halftone/base/log.h"
#include "halftone/checkpoint/hf.h"

namespace halftone {
namespace {

constexpr const char* kTiedHead = "output.weight";

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

}  // namespace

at::Tensor permute_to_hf(const at::Tensor& weight, int64_t heads) { return swap_halves(weight, heads, true); }
at::Tensor permute_from_hf(const at::Tensor& weight, int64_t heads) { return swap_halves(weight, heads, false); }

namespace {

// A tensor of the files: one of ours, one expert's slice of it, part of its codes, or one to be copied.
struct Exported {
  NamedTensor file;  // under its name there, with that shape
  const NamedTensor* from = nullptr;
  int64_t expert = -1;
  bool transposed = false;
  std::optional<HfCodedTensor::Part> part{};
  std::vector<std::shared_ptr<HfCodedMatrix>> matrices{};  // of `part`: one, or all experts
  HfStoredTensor stored{};
  bool is_numbers() const { return !part && stored.file == nullptr; }
};

// Placeholder: only shape, type and device matter.
at::Tensor without_contents(at::IntArrayRef shape, at::ScalarType type, at::Device device) {
  return at::empty({}, at::TensorOptions().dtype(type).device(device)).expand(shape);
}

// Reads rows of our tensors; several threads may.
class Numbers {
 public:
  explicit Numbers(const HfExport& content) : content_(content) {}
  // In native order; of one expert if expert >= 0. For codes: the numbers that they are made of.
  at::Tensor native(const NamedTensor& t, int64_t expert, int64_t first, int64_t rows, bool for_codes) {
    if (expert < 0) return of_tensor(t, first, rows, for_codes);
    const std::lock_guard lock(mutex_);  // its rows are requested piece by piece
    if (std::string name = fmt::format("{}.{}", t.name, expert); expert_.first != name)
      expert_ = {std::move(name), of_tensor(t, expert, 1, for_codes).select(0, 0)};
    return expert_.second.narrow(0, first, rows);
  }
  // In the file's order.
  at::Tensor of(const Exported& e, int64_t first, int64_t rows) {
    const NamedTensor& t = *e.from;
    if (e.transposed) return native(t, e.expert, first, rows, false).transpose(1, 2);
    const int64_t heads = e.expert >= 0 ? 0 : content_.config.model->rotated_heads(t.name);
    if (heads == 0) return native(t, e.expert, first, rows, false);
    const int64_t width = t.tensor.size(0) / heads, head = first / width, count = (first + rows + width - 1) / width - head;
    return permute_to_hf(native(t, -1, head * width, count * width, false), count).narrow(0, first - head * width, rows);
  }

 private:
  at::Tensor of_tensor(const NamedTensor& t, int64_t first, int64_t rows, bool for_codes) const {
    if (!content_.read) return t.tensor.dim() == 0 ? t.tensor : t.tensor.narrow(0, first, rows);
    return (for_codes && content_.read_codes ? content_.read_codes : content_.read)(t.name, first, rows);
  }
  const HfExport& content_;
  std::mutex mutex_;
  std::pair<std::string, at::Tensor> expert_;  // the last one read
};

std::vector<Exported> exported(const NamedTensor& t, const HfExport& content, Numbers& numbers) {
  const ModelDescription& model = *content.config.model;
  const ModelFamily::TensorName* name = model.family().tensor(t.name);
  check(name != nullptr, "{} has no counterpart in {}", t.name, model.family().hf_architecture);
  if (name->hf.empty()) return {};
  std::vector<Exported> parts;
  const auto how = content.codes.find(t.name);
  const auto matrix = [&](int64_t n, int64_t k, int64_t expert) {
    HfCodeError* error = content.errors != nullptr && !how->second.trained ? &(*content.errors)[t.name] : nullptr;
    return std::make_shared<HfCodedMatrix>(
        *content.format, how->second, n, k, expert >= 0 ? 0 : model.rotated_heads(t.name),
        [&numbers, &t, expert](int64_t first, int64_t rows) { return numbers.native(t, expert, first, rows, true); }, error);
  };
  const auto add = [&](const std::string& hf, const at::Tensor& tensor, int64_t expert) {
    if (how == content.codes.end()) {
      std::vector<int64_t> shape = tensor.sizes().vec();
      if (name->transposed) std::swap(shape[1], shape[2]);
      parts.push_back({{hf, without_contents(shape, stored_type(tensor, content.dtype), tensor.device())}, &t, expert, name->transposed});
      return;
    }
    std::vector<std::shared_ptr<HfCodedMatrix>> matrices;
    const std::vector<HfCodedTensor> coded = coded_tensors(*content.format, *how->second.form, t.name, hf, tensor.sizes());
    for (int64_t e = 0; tensor.dim() == 3 && e < tensor.size(0); ++e) matrices.push_back(matrix(tensor.size(1), tensor.size(2), e));
    if (tensor.dim() == 2) matrices.push_back(matrix(tensor.size(0), tensor.size(1), expert));
    for (const HfCodedTensor& c : coded)
      parts.push_back({{c.name, without_contents(c.shape, c.type, tensor.device())}, &t, expert, false, c.part, matrices});
  };
  for (int64_t e = 0; name->experts_apart() && e < t.tensor.size(0); ++e) add(*model.family().hf_name(t.name, e), t.tensor.select(0, e), e);
  if (!name->experts_apart()) add(*model.family().hf_name(t.name), t.tensor, -1);
  return parts;
}

at::Tensor coded_rows(const Exported& e, int64_t first, int64_t rows) {
  const at::Tensor& like = e.file.tensor;
  const auto shaped = [&](at::Tensor found, std::vector<int64_t> shape) {
    if (found.scalar_type() != like.scalar_type()) found = found.contiguous().view(like.scalar_type());
    return found.reshape(shape);
  };
  if (e.matrices.size() == 1) {
    std::vector<int64_t> shape = like.sizes().vec();
    if (!shape.empty()) shape[0] = rows;
    return shaped(e.matrices[0]->rows(*e.part, first, rows), std::move(shape));
  }
  std::vector<at::Tensor> experts;
  for (int64_t i = first; i < first + rows; ++i)
    experts.push_back(shaped(e.matrices[static_cast<size_t>(i)]->rows(*e.part, 0, like.size(1)), like.sizes().slice(1).vec()));
  return at::stack(experts);
}

at::Tensor stored_rows(const Exported& e, int64_t first, int64_t rows) {
  const TensorEntry& entry = *e.stored.entry;
  std::vector<int64_t> shape = entry.shape;
  const uint64_t row_bytes = (entry.end - entry.begin) / static_cast<uint64_t>(shape.empty() ? 1 : shape[0]);
  if (!shape.empty()) shape[0] = rows;
  const at::Tensor out = at::empty(shape, at::TensorOptions().dtype(e.file.tensor.scalar_type()));
  e.stored.file->read(entry, out.mutable_data_ptr(), out.nbytes(), static_cast<uint64_t>(first) * row_bytes);
  return out;
}

using Shards = std::vector<std::pair<std::string, std::vector<NamedTensor>>>;  // name of the file, its tensors

// Shards by weight_map; empty if it does not name all tensors.
Shards mapped_shards(const std::vector<NamedTensor>& tensors, const HfExport& content) {
  const std::map<std::string, std::string> files(content.weight_map.begin(), content.weight_map.end());
  std::map<std::string, std::vector<NamedTensor>> shards;
  for (const NamedTensor& t : tensors) {
    const auto found = files.find(t.name);
    if (found == files.end()) return {};
    shards[found->second].push_back(t);
  }
  return {shards.begin(), shards.end()};
}

Shards shards_of(const std::vector<NamedTensor>& tensors, const HfExport& content) {
  if (Shards shards = mapped_shards(tensors, content); !shards.empty()) return shards;
  Shards shards;
  for (auto& group : split_into_files(tensors, content.max_shard_bytes)) shards.emplace_back("", std::move(group));
  for (size_t i = 0; i < shards.size(); ++i)
    shards[i].first = shards.size() == 1 ? "model.safetensors" : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
  return shards;
}

// The floating-point type with the most bytes.
at::ScalarType main_type(const std::map<std::string, Exported>& parts) {
  std::map<at::ScalarType, size_t> bytes{{at::kFloat, 0}};
  for (const auto& [name, e] : parts)
    if (e.is_numbers()) bytes[e.file.tensor.scalar_type()] += e.file.tensor.nbytes();
  return std::max_element(bytes.begin(), bytes.end(), [](const auto& a, const auto& b) { return a.second < b.second; })->first;
}

std::string module_of(const std::string& weight) { return weight.substr(0, weight.rfind('.')); }

// The weights that are codes, by form, with their modules in the files.
std::vector<HfFormGroup> groups_of(const HfExport& content) {
  std::vector<HfFormGroup> groups;
  const ModelFamily& family = content.config.model->family();
  for (const NamedTensor& t : content.model) {
    const auto found = content.codes.find(t.name);
    if (found == content.codes.end()) continue;
    const auto& [form, inputs] = std::pair(found->second.form, found->second.inputs);
    auto group = std::ranges::find_if(groups, [&](const HfFormGroup& g) { return g.form == form && g.inputs == inputs; });
    if (group == groups.end()) group = groups.insert(groups.end(), {form, inputs, {}});
    const int64_t experts = family.tensor(t.name)->experts_apart() ? t.tensor.size(0) : 1;
    for (int64_t e = 0; e < experts; ++e) group->modules.push_back(module_of(*family.hf_name(t.name, e)));
  }
  return groups;
}

// In the order of the files that tensors are copied from, which may have others, too.
void sort_as_stored(std::vector<NamedTensor>& tensors, const std::vector<HfStoredTensor>& stored) {
  std::map<std::string, std::pair<std::string, uint64_t>> places;
  for (const HfStoredTensor& s : stored)
    if (!places.contains(s.entry->name))  // of a file seen for the first time
      for (const TensorEntry& entry : s.file->header().tensors) places[entry.name] = {s.file->path().string(), entry.begin};
  std::ranges::stable_sort(tensors, {}, [&](const NamedTensor& t) { return places[t.name]; });
}

// The entries of a file's header that torchao's readers need.
std::map<std::string, std::string> torchao_header(const std::vector<NamedTensor>& group, const std::map<std::string, Exported>& sources,
                                                  const HfExport& content, const std::string& dtype) {
  std::map<std::string, std::string> header;
  Json names = Json::array();
  for (const NamedTensor& t : group) {
    const Exported& e = sources.at(t.name);
    std::string name = t.name;
    nlohmann::ordered_json entry{{"_type", "Tensor"}};
    if (e.part) {
      if (*e.part != HfCodedTensor::Part::codes) continue;
      const HfWeightCodes& how = content.codes.at(e.from->name);
      const auto sizes = e.from->tensor.sizes();
      name = *content.config.model->family().hf_name(e.from->name, std::max<int64_t>(e.expert, 0));
      entry = torchao_tensor(*how.form, how.inputs, sizes[sizes.size() - 2], sizes.back(), dtype);
    }
    header[name] = entry.dump();
    names.push_back(name);
  }
  header["tensor_names"] = names.dump();
  return header;
}

}  // namespace

std::map<std::string, HfWeightCodes> uniform_codes(const HfFormat& format, const HfForm& form, const ModelFamily& family,
                                                   const std::vector<NamedTensor>& model) {
  std::map<std::string, HfWeightCodes> codes;
  for (const NamedTensor& t : model)
    if (takes_codes(format, family, t.name, t.whole_shape())) codes[t.name] = {.form = &form, .spec = form.weight, .inputs = form.inputs};
  return codes;
}

void write_hf(const std::filesystem::path& folder, const HfExport& content) {
  if (content.form != nullptr) {
    HfExport all = content;
    all.form = nullptr, all.codes = uniform_codes(*content.format, *content.form, content.config.model->family(), content.model);
    return write_hf(folder, all);
  }
  HfConfig config = content.config;
  if (content.format != nullptr) check_hf_format(*content.format, config.model->family());
  Numbers numbers(content);
  std::map<std::string, Exported> sources;
  std::vector<NamedTensor> tensors;
  std::vector<std::string> left_out, plain{"lm_head"};
  const auto take = [&](Exported e) {
    tensors.push_back(e.file);
    const std::string& name = e.file.name;
    if (std::string module = module_of(name); e.is_numbers() && e.file.tensor.dim() == 2 && name.ends_with(".weight") && module != plain[0])
      plain.push_back(std::move(module));
    sources.emplace(name, std::move(e));
  };
  for (const NamedTensor& t : content.model) {
    if (config.model->tied_head() && t.name == kTiedHead) continue;
    std::vector<Exported> parts = exported(t, content, numbers);
    if (parts.empty()) left_out.push_back(t.name);
    for (Exported& e : parts) take(std::move(e));
  }
  for (const HfStoredTensor& s : content.stored)
    take({.file = {s.entry->name, without_contents(s.entry->shape, scalar_type_of(s.entry->dtype), at::kMeta)}, .stored = s});
  sort_as_stored(tensors, content.stored);
  if (!left_out.empty())
    log_warning("{}: files of {} cannot store {} and {} others: skipped", folder.string(), config.model->family().hf_architecture,
                left_out[0], left_out.size() - 1);
  config.torch_dtype = dtype_name(content.dtype.value_or(main_type(sources)));
  std::string quantization = content.quantization;
  const std::vector<HfFormGroup> groups = groups_of(content);
  const bool torchao = content.format != nullptr && content.format->layout == HfFormat::Layout::torchao;
  if (content.format != nullptr && content.stored.empty()) {
    check(!groups.empty(), "{}: no weight is left that {} holds as codes; leave the format out", folder.string(), content.format->name);
    check(groups.size() == 1 || content.format->layout == HfFormat::Layout::compressed_tensors,
          "{} holds one form of codes, this model has {} and {}; choose compressed-tensors", content.format->name, groups[0].form->name,
          groups.back().form->name);
    quantization = write_hf_quantization(*content.format, groups, plain).dump();
  }
  const auto read = [&](const std::string& hf, int64_t first, int64_t rows) {
    const Exported& e = sources.at(hf);
    return e.part ? coded_rows(e, first, rows) : e.stored.file != nullptr ? stored_rows(e, first, rows) : numbers.of(e, first, rows);
  };
  const Shards shards = shards_of(tensors, content);
  Json weight_map = Json::object();
  int64_t total = 0;
  for (const auto& [file, group] : shards) {
    for (const NamedTensor& t : group) {
      weight_map[t.name] = file;
      total += static_cast<int64_t>(t.tensor.nbytes());
    }
    std::map<std::string, std::string> header =
        torchao ? torchao_header(group, sources, content, config.torch_dtype) : std::map<std::string, std::string>();
    header["format"] = "pt";
    const std::vector<std::string> bad =
        write_tensors(folder / file, group, header, false, std::nullopt, read, content.format != nullptr).not_finite;
    check(bad.empty(), "tensor {} holds a NaN, an infinity or a value too large for {}; export float32, or an earlier step",
          bad.empty() ? "" : bad[0], config.torch_dtype);
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
  write_text_file(folder / "config.json", write_hf_config(config, quantization));
  sync_folder(folder);
}

}  // namespace halftone
