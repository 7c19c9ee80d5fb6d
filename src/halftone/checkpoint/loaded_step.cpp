#include "halftone/checkpoint/loaded_step.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <set>

#include "halftone/base/error.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxStateBytes = uint64_t{1} << 30;
constexpr const char* kOptimPrefix = "optim.";
constexpr size_t kKeptOpen = 256;  // files of a step kept open: a process usually may open 1024

CheckpointIndex read_index(const fs::path& folder) {
  const fs::path path = folder / "index.json";
  CheckpointIndex index = parse_index(read_text(path, kMaxIndexBytes), path.string());
  std::string name = folder.filename().string();
  if (name.ends_with(".tmp")) name.resize(name.size() - 4);  // before it is published
  check(!name.starts_with("step-") || name == fmt::format("step-{}", index.step), "{}: it belongs to step {}", path.string(), index.step);
  return index;
}

// Names of the files that `verify` assigns to this rank.
std::set<std::string> share_of(const CheckpointIndex& index, const Verify& verify) {
  std::set<std::string> share;
  for (int64_t i = 0; const auto& [name, file] : index.files)
    if (i++ % verify.world == verify.rank) share.insert(name);
  return share;
}

void check_checksum(const fs::path& path, const IndexedFile& file) {
  if (!file.checksum) return;
  const uint64_t checksum = checksum_of(path);
  check(checksum == *file.checksum, "{} has the checksum {:016x}, index.json says {:016x}: the file is damaged", path.string(), checksum,
        *file.checksum);
}

void check_files(const fs::path& folder, const CheckpointIndex& index, const Verify& verify) {
  for (const std::string& name : share_of(index, verify)) {
    const IndexedFile& file = index.files.at(name);
    const fs::path path = folder / name;
    const uint64_t bytes = File::open_read(path).size();
    check(bytes == file.bytes, "{} has {} bytes, index.json says {}: the file is {}", path.string(), bytes, file.bytes,
          bytes < file.bytes ? "truncated" : "not the one that was saved");
    if (verify.checksums) check_checksum(path, file);
  }
}

}  // namespace

StepSummary inspect_step(const fs::path& step_folder, const Verify& verify) {
  StepSummary summary;
  try {
    std::error_code ignored;
    if (!fs::exists(step_folder / "index.json", ignored) && HfFolder::is_hf_folder(step_folder)) {
      HfFolder{step_folder};  // reads every header
      summary.model_only = true;
    } else {
      const CheckpointIndex index = read_index(step_folder);
      summary.model_only = index.model_only;
      const std::string* tensor = first_not_finite(index);
      check(tensor == nullptr, "tensor {} holds a NaN or an infinity", tensor ? *tensor : "");
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

LoadedStep LoadedStep::open(const fs::path& step_folder, const Verify& verify) {
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
  const std::set<std::string> share = share_of(step.index_, verify);
  for (const auto& [name, tensor] : step.index_.tensors)
    for (const TensorChunk& chunk : tensor.chunks)
      if (share.contains(chunk.file)) step.entry_of(name, tensor, chunk);
  return step;
}

LoadedStep LoadedStep::open_scales(const fs::path& folder) {
  LoadedStep step = open(folder, false);
  if (step.hf_) step.hf_->read_scales();
  return step;
}

const SafetensorsFile& LoadedStep::file(const std::string& name) const {
  const auto found = files_.find(name);
  if (found != files_.end()) return found->second;
  return files_.emplace(name, SafetensorsFile(folder_ / name, files_.size() < kKeptOpen)).first->second;
}

const TensorEntry& LoadedStep::entry_of(const std::string& name, const IndexedTensor& tensor, const TensorChunk& chunk) const {
  const SafetensorsFile& from = file(chunk.file);
  const TensorEntry& entry = from.at(chunk_name(name, tensor, chunk));
  check(entry.dtype == tensor.dtype && entry.shape == chunk.shape, "{}: tensor {} is {} {}, index.json says {} {}", from.path().string(),
        entry.name, name_of(entry.dtype), shape_text(entry.shape), name_of(tensor.dtype), shape_text(chunk.shape));
  return entry;
}

std::string LoadedStep::digest() const {
  if (!hf_) return fmt::format("{:016x}", checksum_of(folder_ / "index.json"));
  std::map<std::string, uint64_t> files;
  for (const auto& entry : fs::directory_iterator(folder_)) {
    const std::string name = entry.path().filename().string();
    if (name == "config.json" || name == kHfIndex || name.ends_with(".safetensors")) files[name] = sampled_checksum_of(entry.path());
  }
  std::string text;
  for (const auto& [name, checksum] : files) text += fmt::format("{} {:016x}\n", name, checksum);
  return fmt::format("{:016x}", checksum_of_text(text));
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
  const TensorInfo expected = info(name);
  check(out.sizes() == at::IntArrayRef(expected.shape), "{}: tensor {} has shape {}, expected {}", folder_.string(), name,
        shape_text(expected.shape), shape_text(out.sizes().vec()));
  read_rows(name, 0, std::move(out), cast);
}

void LoadedStep::read_rows(const std::string& name, int64_t first_row, at::Tensor out, bool cast) const {
  const TensorInfo whole = info(name);
  std::vector<int64_t> shape = whole.shape;
  const int64_t rows = out.dim() == 0 ? 1 : out.size(0);
  if (!shape.empty() && out.dim() > 0 && first_row >= 0 && first_row <= shape[0] && rows <= shape[0] - first_row) shape[0] = rows;
  check(out.sizes() == at::IntArrayRef(shape), "{}: tensor {} has shape {}, expected one that holds {} from row {} on", folder_.string(),
        name, shape_text(whole.shape), shape_text(out.sizes().vec()), first_row);
  out = out.detach();
  if (hf_) return hf_->read_rows(name, first_row, out, cast);
  const IndexedTensor& tensor = index_.tensors.at(name);
  for (const TensorChunk& chunk : tensor.chunks) {
    at::Tensor part = out;
    int64_t first = 0;  // row of the chunk
    if (!chunk.shape.empty()) {
      const int64_t begin = std::max(first_row, chunk.offset[0]), end = std::min(first_row + rows, chunk.offset[0] + chunk.shape[0]);
      if (begin >= end) continue;
      first = begin - chunk.offset[0];
      part = part.narrow(0, begin - first_row, end - begin);
    }
    for (size_t d = 1; d < chunk.shape.size(); ++d) part = part.narrow(static_cast<int64_t>(d), chunk.offset[d], chunk.shape[d]);
    read_tensor(file(chunk.file), entry_of(name, tensor, chunk), part, cast, first);
  }
}

void LoadedStep::read_part(const std::string& name, const std::vector<int64_t>& offset, at::Tensor out, bool cast) const {
  if (offset.empty()) return read_into(name, std::move(out), cast);
  std::vector<int64_t> shape = info(name).shape;
  if (shape.size() != offset.size() || out.dim() != static_cast<int64_t>(shape.size()) ||
      std::equal(shape.begin() + 1, shape.end(), out.sizes().begin() + 1))
    return read_rows(name, offset[0], std::move(out), cast);
  // Full rows, a few MiB at a time.
  constexpr int64_t kElements = 16 << 20;
  int64_t row = 1;
  for (size_t d = 1; d < shape.size(); ++d) row *= shape[d];
  const int64_t step = std::max<int64_t>(1, kElements / std::max<int64_t>(row, 1));
  for (int64_t r = 0; r < out.size(0); r += step) {
    shape[0] = std::min(step, out.size(0) - r);
    at::Tensor rows = at::empty(shape, at::TensorOptions().dtype(out.scalar_type()));
    read_rows(name, offset[0] + r, rows, cast);
    for (int64_t d = 1; d < out.dim(); ++d) rows = rows.narrow(d, offset[static_cast<size_t>(d)], out.size(d));
    out.detach().narrow(0, r, shape[0]).copy_(rows);
  }
}

at::Tensor LoadedStep::read(const std::string& name) const {
  const TensorInfo tensor = info(name);
  at::Tensor out = at::empty(tensor.shape, at::TensorOptions().dtype(scalar_type_of(tensor.dtype)));
  read_into(name, out);
  return out;
}

at::Tensor LoadedStep::read(const std::string& name, int64_t first_row, int64_t rows) const {
  TensorInfo tensor = info(name);
  if (!tensor.shape.empty()) tensor.shape[0] = rows;
  at::Tensor out = at::empty(tensor.shape, at::TensorOptions().dtype(scalar_type_of(tensor.dtype)));
  read_rows(name, first_row, out);
  return out;
}

void LoadedStep::verify_model() const {
  std::set<std::string> files;
  for (const auto& [name, tensor] : index_.tensors)
    for (const TensorChunk& chunk : tensor.chunks)
      if (!name.starts_with(kOptimPrefix)) files.insert(chunk.file);
  for (const std::string& name : files) check_checksum(folder_ / name, index_.files.at(name));
}

void LoadedStep::check_model_names(const std::vector<std::string>& expected, bool part) const {
  std::vector<std::string> found = model_names();
  // Tied models: the head may be missing in the file or in the model.
  const bool wanted = std::find(expected.begin(), expected.end(), "output.weight") != expected.end();
  if (hf_) hf_->check_head();
  if (hf_ && hf_->config().model->tied_head()) {
    std::erase(found, "output.weight");
    if (wanted) found.push_back("output.weight");
  }
  if (part) std::erase_if(found, [&](const auto& name) { return std::find(expected.begin(), expected.end(), name) == expected.end(); });
  if (!hf_) return check_same_names(expected, found, folder_.string());
  // Lists names as they are in the files, where they have a name there.
  const auto both = [&](const std::vector<std::string>& names) {
    std::vector<std::string> all;
    for (const std::string& name : names) {
      const auto hf = hf_->config().model->family().hf_name(name);
      if (!hf || !hf->empty()) all.push_back(hf ? fmt::format("{} ({})", name, *hf) : name);
    }
    return all;
  };
  check_same_names(both(expected), both(found), folder_.string());
}

}  // namespace halftone
