#include <ATen/ops/empty.h>

#include <algorithm>
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

// A tensor of the files: one of ours, or one expert's slice of it.
struct Exported {
  NamedTensor file;  // under its name there, with that shape
  const NamedTensor* from;
  int64_t expert = -1;
  bool transposed = false;
  enum class Part { numbers, codes, scales } part = Part::numbers;
};

// Placeholder: only shape, type and device matter.
at::Tensor without_contents(at::IntArrayRef shape, at::ScalarType type, const at::Tensor& like) {
  return at::empty({}, like.options().dtype(type)).expand(shape);
}

using Part = Exported::Part;

std::vector<Exported> exported(const NamedTensor& t, const HfExport& content) {
  const ModelDescription& model = *content.config.model;
  const ModelFamily::TensorName* name = model.family().tensor(t.name);
  check(name != nullptr, "{} has no counterpart in {}", t.name, model.family().hf_architecture);
  if (name->hf.empty()) return {};
  std::vector<Exported> parts;
  const auto add = [&](const std::string& hf, const at::Tensor& tensor, int64_t expert) {
    const std::vector<HfCodedTensor> coded = coded_tensors(content.codes, model.family(), t.name, hf, tensor.sizes());
    for (const HfCodedTensor& c : coded)
      parts.push_back({{c.name, without_contents(c.shape, c.type, t.tensor)}, &t, expert, false, c.scales ? Part::scales : Part::codes});
    if (!coded.empty()) return;
    std::vector<int64_t> shape = tensor.sizes().vec();
    if (name->transposed) std::swap(shape[1], shape[2]);
    parts.push_back({{hf, without_contents(shape, stored_type(tensor, content.dtype), tensor)}, &t, expert, name->transposed});
  };
  for (int64_t e = 0; name->experts_apart() && e < t.tensor.size(0); ++e) add(*model.family().hf_name(t.name, e), t.tensor.select(0, e), e);
  if (!name->experts_apart()) add(*model.family().hf_name(t.name), t.tensor, -1);
  return parts;
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
    if (e.part == Part::numbers) bytes[e.file.tensor.scalar_type()] += e.file.tensor.nbytes();
  return std::max_element(bytes.begin(), bytes.end(), [](const auto& a, const auto& b) { return a.second < b.second; })->first;
}

}  // namespace

void write_hf(const std::filesystem::path& folder, const HfExport& content) {
  HfConfig config = content.config;
  check_hf_codes(content.codes, config.model->family());
  std::map<std::string, Exported> sources;
  std::vector<NamedTensor> tensors;
  std::vector<std::string> left_out, plain{"lm_head"};
  for (const NamedTensor& t : content.model) {
    if (config.model->tied_head() && t.name == kTiedHead) continue;
    std::vector<Exported> parts = exported(t, content);
    if (parts.empty()) left_out.push_back(t.name);
    for (Exported& e : parts) {
      tensors.push_back(e.file);
      if (const std::string& name = e.file.name; e.part == Part::numbers && e.file.tensor.dim() == 2 && name.ends_with(".weight"))
        if (std::string module = name.substr(0, name.rfind('.')); module != plain[0]) plain.push_back(std::move(module));
      sources.emplace(e.file.name, std::move(e));
    }
  }
  if (!left_out.empty())
    log_warning("{}: files of {} cannot store {} and {} others: skipped", folder.string(), config.model->family().hf_architecture,
                left_out[0], left_out.size() - 1);
  config.torch_dtype = dtype_name(content.dtype.value_or(main_type(sources)));
  std::pair<std::string, at::Tensor> expert;  // last tensor read: its rows are requested piece by piece
  const auto numbers = [&](const Exported& e, int64_t first, int64_t rows) {
    const NamedTensor& t = *e.from;
    const auto native_rows = [&](int64_t from, int64_t count) {
      return content.read ? content.read(t.name, from, count) : t.tensor.dim() == 0 ? t.tensor : t.tensor.narrow(0, from, count);
    };
    if (e.expert >= 0) {
      if (std::string name = fmt::format("{}.{}", t.name, e.expert); expert.first != name)
        expert = {std::move(name), native_rows(e.expert, 1).select(0, 0)};
      return expert.second.narrow(0, first, rows);
    }
    if (e.transposed) return native_rows(first, rows).transpose(1, 2);
    const int64_t heads = config.model->rotated_heads(t.name);
    if (heads == 0) return native_rows(first, rows);
    const int64_t width = t.tensor.size(0) / heads, head = first / width, count = (first + rows + width - 1) / width - head;
    return permute_to_hf(native_rows(head * width, count * width), count).narrow(0, first - head * width, rows);
  };
  const auto read = [&](const std::string& hf, int64_t first, int64_t rows) {
    const Exported& e = sources.at(hf);
    if (e.part == Part::numbers) return numbers(e, first, rows);
    return coded_rows(content.codes, e.part == Part::scales, first, rows, e.from->tensor.size(e.expert >= 0 ? 1 : 0),
                      [&](int64_t from, int64_t count) { return numbers(e, from, count); });
  };
  const Shards shards = shards_of(tensors, content);
  Json weight_map = Json::object();
  int64_t total = 0;
  for (const auto& [file, group] : shards) {
    for (const NamedTensor& t : group) {
      weight_map[t.name] = file;
      total += static_cast<int64_t>(t.tensor.nbytes());
    }
    const std::vector<std::string> bad = write_tensors(folder / file, group, {{"format", "pt"}}, false, std::nullopt, read).not_finite;
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
  write_text_file(folder / "config.json", write_hf_config(config, content.codes, plain));
  sync_folder(folder);
}

}  // namespace halftone
