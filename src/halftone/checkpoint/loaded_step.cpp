#include "halftone/checkpoint/loaded_step.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "halftone/base/error.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxStateBytes = uint64_t{1} << 30;
constexpr const char* kOptimPrefix = "optim.";

CheckpointIndex read_index(const fs::path& folder) {
  const fs::path path = folder / "index.json";
  CheckpointIndex index = parse_index(read_text(path, kMaxIndexBytes), path.string());
  const std::string name = folder.filename().string();
  check(!name.starts_with("step-") || name == fmt::format("step-{}", index.step), "{}: it belongs to step {}", path.string(), index.step);
  return index;
}

void check_files(const fs::path& folder, const CheckpointIndex& index, bool verify) {
  for (const auto& [name, file] : index.files) {
    const fs::path path = folder / name;
    const uint64_t bytes = File::open_read(path).size();
    check(bytes == file.bytes, "{} has {} bytes, index.json says {}: the file is {}", path.string(), bytes, file.bytes,
          bytes < file.bytes ? "truncated" : "not the one that was saved");
    if (!verify || !file.checksum) continue;
    const uint64_t checksum = checksum_of(path);
    check(checksum == *file.checksum, "{} has the checksum {:016x}, index.json says {:016x}: the file is damaged", path.string(), checksum,
          *file.checksum);
  }
}

}  // namespace

StepSummary inspect_step(const fs::path& step_folder, bool verify) {
  StepSummary summary;
  try {
    std::error_code ignored;
    if (!fs::exists(step_folder / "index.json", ignored) && HfFolder::is_hf_folder(step_folder)) {
      HfFolder{step_folder};  // reads every header
      summary.model_only = true;
    } else {
      const CheckpointIndex index = read_index(step_folder);
      summary.model_only = index.model_only;
      check_files(step_folder, index, verify);
    }
  } catch (const Error& error) {
    summary.problem = error.what();
  }
  return summary;
}

void fail_no_checkpoint(const fs::path& path) {
  std::error_code code;
  check(fs::is_directory(path, code), "no checkpoint at {}: there is no such folder", path.string());
  for (fs::directory_iterator it(path, code), end; !code && it != end; it.increment(code))
    check(it->path().extension() != ".distcp" && it->path().filename() != ".metadata",
          "{} is a DCP folder of PyTorch; convert it with python -m halftone.dcp to-halftone {} OUT (docs/checkpoints.md)", path.string(),
          path.string());
  fail("no checkpoint in {}: expected index.json of a step, or config.json and model.safetensors of Hugging Face's layout", path.string());
}

LoadedStep LoadedStep::open(const fs::path& step_folder, bool verify) {
  LoadedStep step;
  step.folder_ = step_folder;
  std::error_code ignored;
  if (!fs::exists(step_folder / "index.json", ignored) && HfFolder::is_hf_folder(step_folder)) {
    step.hf_ = std::make_unique<HfFolder>(step_folder);
    step.index_.model_only = true;
    return step;
  }
  if (!fs::exists(step_folder / "index.json", ignored)) fail_no_checkpoint(step_folder);
  step.index_ = read_index(step_folder);
  check_files(step_folder, step.index_, verify);
  if (step.index_.files.contains("state.json")) {
    step.state_json_ = read_text(step_folder / "state.json", kMaxStateBytes);
    check_state_json(step.state_json_, (step_folder / "state.json").string());
  }
  for (const auto& [name, tensor] : step.index_.tensors)
    for (const TensorChunk& chunk : tensor.chunks) {
      auto file = step.files_.find(chunk.file);
      if (file == step.files_.end()) file = step.files_.emplace(chunk.file, SafetensorsFile(step_folder / chunk.file)).first;
      const TensorEntry& entry = file->second.at(chunk_name(name, tensor, chunk));
      check(entry.dtype == tensor.dtype && entry.shape == chunk.shape, "{}: tensor {} is {} {}, index.json says {} {}",
            file->second.path().string(), entry.name, name_of(entry.dtype), shape_text(entry.shape), name_of(tensor.dtype),
            shape_text(chunk.shape));
    }
  return step;
}

int64_t LoadedStep::step() const { return index_.step; }
bool LoadedStep::model_only() const { return index_.model_only; }

std::vector<std::string> LoadedStep::model_names() const {
  if (hf_) return hf_->names();
  std::vector<std::string> names;
  for (const auto& [name, tensor] : index_.tensors)
    if (!name.starts_with(kOptimPrefix)) names.push_back(name);
  return names;
}

std::vector<std::string> LoadedStep::optim_names() const {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : index_.tensors)
    if (name.starts_with(kOptimPrefix)) names.push_back(name);
  return names;
}

bool LoadedStep::has(const std::string& name) const { return hf_ ? hf_->has(name) : index_.tensors.contains(name); }

TensorInfo LoadedStep::info(const std::string& name) const {
  if (hf_) return hf_->info(name);
  check(has(name), "{}: no tensor named {}", folder_.string(), name);
  const IndexedTensor& tensor = index_.tensors.at(name);
  return {tensor.dtype, tensor.shape};
}

void LoadedStep::read_into(const std::string& name, at::Tensor out, bool cast) const {
  if (hf_) return hf_->read_into(name, out, cast);
  const TensorInfo expected = info(name);
  check(out.sizes() == at::IntArrayRef(expected.shape), "{}: tensor {} has shape {}, expected {}", folder_.string(), name,
        shape_text(expected.shape), shape_text(out.sizes().vec()));
  const IndexedTensor& tensor = index_.tensors.at(name);
  for (const TensorChunk& chunk : tensor.chunks) {
    at::Tensor part = out.detach();
    for (size_t d = 0; d < chunk.shape.size(); ++d) part = part.narrow(static_cast<int64_t>(d), chunk.offset[d], chunk.shape[d]);
    const SafetensorsFile& file = files_.at(chunk.file);
    read_tensor(file, file.at(chunk_name(name, tensor, chunk)), part, cast);
  }
}

at::Tensor LoadedStep::read(const std::string& name) const {
  const TensorInfo tensor = info(name);
  at::Tensor out = at::empty(tensor.shape, at::TensorOptions().dtype(scalar_type_of(tensor.dtype)));
  read_into(name, out);
  return out;
}

void LoadedStep::check_model_names(const std::vector<std::string>& expected) const {
  std::vector<std::string> found = model_names();
  // Tied models: the head may be absent from the file or from the model.
  const bool wanted = std::find(expected.begin(), expected.end(), "output.weight") != expected.end();
  if (hf_) hf_->check_head();
  if (hf_ && hf_->config().model->tied_head()) {
    std::erase(found, "output.weight");
    if (wanted) found.push_back("output.weight");
  }
  check_same_names(expected, found, folder_.string());
}

}  // namespace halftone
