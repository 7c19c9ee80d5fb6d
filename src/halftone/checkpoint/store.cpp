#include "halftone/checkpoint/store.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>

#include "halftone/base/error.h"
#include "halftone/base/log.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTemporary = ".tmp";
constexpr const char* kReplaced = ".old";
constexpr const char* kAside = ".aside";

// The number of a "step-N" folder with the given ending, in canonical form.
std::optional<int64_t> step_number(const std::string& name, std::string_view ending) {
  std::string_view text = name;
  if (!text.starts_with("step-") || !text.ends_with(ending)) return std::nullopt;
  text.remove_prefix(5);
  text.remove_suffix(ending.size());
  int64_t step = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), step);
  const bool canonical = code == std::errc{} && end == text.data() + text.size() && step >= 0 && std::to_string(step) == text;
  return canonical ? std::optional(step) : std::nullopt;
}

std::vector<int64_t> step_folders(const fs::path& folder) {
  std::vector<int64_t> steps;
  std::error_code code;
  for (fs::directory_iterator it(folder, code), end; !code && it != end; it.increment(code))
    if (const auto step = step_number(it->path().filename().string(), "")) steps.push_back(*step);
  std::sort(steps.begin(), steps.end());
  return steps;
}

void rename_or_fail(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) fail("cannot rename {} to {}: {}", from.string(), to.string(), std::strerror(errno));
}

// Puts `temporary` where `target` is, with one system call where the file system can exchange two names; elsewhere prepare() mends a
// crash between the two renames.
void publish(const fs::path& temporary, const fs::path& target) {
  std::error_code ignored;
  if (!fs::exists(target, ignored)) {
    rename_or_fail(temporary, target);
  } else if (::renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) == 0) {
    fs::remove_all(temporary, ignored);
  } else {
    const fs::path old = target.string() + kReplaced;
    rename_or_fail(target, old);
    rename_or_fail(temporary, target);
    fs::remove_all(old, ignored);
  }
}

// Runs `fill` on an empty step-N.tmp, then makes it step-N; on failure nothing of it stays.
void commit_step(const fs::path& target, const std::function<void(const fs::path&)>& fill) {
  const fs::path temporary = target.string() + kTemporary;
  std::error_code ignored;
  fs::remove_all(temporary, ignored);
  try {
    make_folder(temporary);
    fill(temporary);
    sync_folder(temporary);
    publish(temporary, target);
    sync_folder(target.parent_path());
  } catch (const Error& error) {
    fs::remove_all(temporary, ignored);
    fail("saving {} failed: {}; the checkpoints before it are untouched", target.string(), error.what());
  } catch (...) {
    fs::remove_all(temporary, ignored);
    throw;
  }
}

WrittenFile write_bytes(const fs::path& path, const std::string& text) {
  File file = File::create(path);
  file.write(text.data(), text.size());
  file.sync();
  file.close();
  return {.bytes = text.size(), .checksum = checksum_of(path)};
}

// Files `prefix`0.safetensors, ... of at most max_shard_bytes, entered into the index.
void write_group(const fs::path& folder, const std::string& prefix, const std::vector<NamedTensor>& tensors,
                 const CheckpointOptions& options, std::optional<at::ScalarType> dtype, CheckpointIndex& index) {
  size_t k = 0;
  for (const auto& group : split_into_files(tensors, options.max_shard_bytes)) {
    const std::string file = fmt::format("{}{}.safetensors", prefix, k++);
    const WrittenFile written =
        write_tensors(folder / file, group, {{"format", kCheckpointFormat}, {"step", std::to_string(index.step)}}, options.checksum, dtype);
    index.files[file] = {written.bytes, options.checksum ? std::optional(written.checksum) : std::nullopt};
    for (const NamedTensor& t : group) {
      IndexedTensor row{.dtype = file_dtype_of(stored_type(t.tensor, dtype)), .shape = t.tensor.sizes().vec()};
      row.chunks.push_back({.file = file, .offset = std::vector<int64_t>(row.shape.size(), 0), .shape = row.shape});
      check(index.tensors.emplace(t.name, std::move(row)).second, "two tensors named {}", t.name);
    }
  }
}

void write_step(const fs::path& folder, const StepState& state, const CheckpointOptions& options) {
  CheckpointIndex index{.step = state.step, .model_only = state.model_only, .world = state.world, .mesh = state.mesh};
  write_group(folder, "model-", state.model, options, state.model_dtype, index);
  if (!state.model_only) write_group(folder, "optim-", state.optim, options, std::nullopt, index);
  const auto add = [&](const std::string& name, const std::string& text) {
    const WrittenFile written = write_bytes(folder / name, text);
    index.files[name] = {written.bytes, options.checksum ? std::optional(written.checksum) : std::nullopt};
  };
  check_state_json(state.state_json, "state.json");
  add("state.json", state.state_json);
  for (const auto& [name, path] : state.copy_files) add(name, read_text(path, uint64_t{1} << 30));
  write_bytes(folder / "index.json", write_index(index));
}

StepState copy_to_host(const StepState& state) {
  StepState copy = state;
  for (auto* list : {&copy.model, &copy.optim})
    for (NamedTensor& t : *list) t.tensor = t.tensor.detach().to(at::kCPU, t.tensor.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
  return copy;
}

}  // namespace

CheckpointStore::CheckpointStore(CheckpointOptions options) : options_(std::move(options)) {}

CheckpointStore::~CheckpointStore() {
  try {
    wait();
  } catch (const std::exception& error) {
    log_line(LogLevel::error, error.what());
  }
  if (purger_.joinable()) purger_.join();
}

fs::path CheckpointStore::step_folder(int64_t step) const { return options_.folder / fmt::format("step-{}", step); }

void CheckpointStore::prepare() {
  check_writable(options_.folder);
  std::vector<fs::path> leftovers;
  for (const auto& entry : fs::directory_iterator(options_.folder)) {
    const std::string name = entry.path().filename().string();
    if (step_number(name, kTemporary)) leftovers.push_back(entry.path());
    if (const auto step = step_number(name, kReplaced)) {
      // A crash between the two renames of publish(): the older step is the only complete one.
      std::error_code ignored;
      if (fs::exists(step_folder(*step), ignored))
        leftovers.push_back(entry.path());
      else
        rename_or_fail(entry.path(), step_folder(*step));
    }
  }
  for (const fs::path& path : leftovers) {
    log_info("Removing {}, left by an interrupted run", path.string());
    std::error_code code;
    fs::remove_all(path, code);
    if (code) log_warning("cannot remove {}: {}", path.string(), code.message());
  }
}

void CheckpointStore::wait() {
  if (worker_.joinable()) worker_.join();
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void CheckpointStore::save(const StepState& state, bool synchronous) {
  wait();
  inspected_.erase(state.step);
  if (!options_.async || synchronous) return write(state);
  worker_ = std::thread([this, copy = copy_to_host(state)] {
    try {
      write(copy);
    } catch (...) {
      failure_ = std::current_exception();
    }
  });
}

void CheckpointStore::write(const StepState& state) {
  make_folder(options_.folder);
  const auto start = std::chrono::steady_clock::now();
  commit_step(step_folder(state.step), [&](const fs::path& folder) { write_step(folder, state, options_); });
  log_debug("Saved the checkpoint {} in {:.2f} seconds", step_folder(state.step).string(),
            std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  if (!state.model_only) purge_old(state.step);
}

void CheckpointStore::save_hf(int64_t step, const HfExport& content) {
  wait();
  inspected_.erase(step);
  make_folder(options_.folder);
  commit_step(step_folder(step), [&](const fs::path& folder) { write_hf(folder, content); });
}

void CheckpointStore::purge_old(int64_t newest) {
  if (options_.keep_latest_k <= 0) return;
  if (purger_.joinable()) purger_.join();  // what it deletes still would be listed as there
  std::vector<int64_t> steps = full_steps();
  std::erase(steps, newest);  // a run that went back to an older step keeps what it just wrote
  const size_t kept = static_cast<size_t>(options_.keep_latest_k - 1);
  if (steps.size() <= kept) return;
  steps.resize(steps.size() - kept);
  purger_ = std::thread([paths = [&] {
    std::vector<fs::path> list;
    for (const int64_t step : steps) list.push_back(step_folder(step));
    return list;
  }()] {
    for (const fs::path& path : paths) {
      // Renamed first: a crash in the middle leaves a .tmp folder and never half a step.
      std::error_code code;
      const fs::path doomed = path.string() + kTemporary;
      fs::rename(path, doomed, code);
      if (!code) fs::remove_all(doomed, code);
      if (code) log_warning("cannot remove the old checkpoint {}: {}", path.string(), code.message());
    }
  });
}

std::vector<int64_t> CheckpointStore::valid_steps() const {
  std::vector<int64_t> valid;
  for (const int64_t step : step_folders(options_.folder))
    if (inspect_step(step_folder(step), false).problem.empty()) valid.push_back(step);
  return valid;
}

std::vector<int64_t> CheckpointStore::full_steps() const {
  std::vector<int64_t> full;
  for (const int64_t step : step_folders(options_.folder)) {
    const StepSummary summary = inspect_step(step_folder(step), false);
    if (summary.problem.empty() && !summary.model_only) full.push_back(step);
  }
  return full;
}

bool CheckpointStore::resumable() const { return !full_steps().empty(); }

const StepSummary& CheckpointStore::inspect(int64_t step) const {
  const auto found = inspected_.find(step);
  if (found != inspected_.end()) return found->second;
  const StepSummary& summary = inspected_[step] = inspect_step(step_folder(step), options_.verify_on_load);
  if (!summary.problem.empty()) log_warning("Skipping the checkpoint {}: {}", step_folder(step).string(), summary.problem);
  return summary;
}

std::optional<int64_t> CheckpointStore::latest_valid(bool full_only, int64_t at_most) const {
  const std::vector<int64_t> steps = step_folders(options_.folder);
  bool any_valid = steps.empty();
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    if (*step > at_most) {
      any_valid = true;  // as far as anybody asks here
      continue;
    }
    const StepSummary& summary = inspect(*step);
    any_valid = any_valid || summary.problem.empty();
    if (summary.problem.empty() && !(full_only && summary.model_only)) return *step;
  }
  check(any_valid, "no valid checkpoint in {}: {}; repair it, or move the folder away to start anew", options_.folder.string(),
        steps.empty() ? "" : inspect(steps.back()).problem);
  return std::nullopt;
}

std::vector<fs::path> CheckpointStore::set_aside_after(int64_t step) {
  std::vector<fs::path> moved;
  for (const int64_t later : step_folders(options_.folder)) {
    if (later <= step) continue;
    std::error_code ignored;
    fs::path target = step_folder(later).string() + kAside;
    for (int i = 2; fs::exists(target, ignored); ++i) target = fmt::format("{}{}-{}", step_folder(later).string(), kAside, i);
    rename_or_fail(step_folder(later), target);
    inspected_.erase(later);
    moved.push_back(target);
  }
  if (!moved.empty()) sync_folder(options_.folder);
  return moved;
}

LoadedStep CheckpointStore::open(int64_t step) const {
  std::error_code ignored;
  if (!fs::exists(step_folder(step), ignored)) {
    std::string found;
    for (const int64_t other : step_folders(options_.folder)) found += fmt::format("{}{}", found.empty() ? "" : ", ", other);
    fail("no checkpoint of step {} in {}; steps there: {}", step, options_.folder.string(), found.empty() ? "none" : found);
  }
  const auto found = inspected_.find(step);
  const bool verified = found != inspected_.end() && found->second.problem.empty();
  return LoadedStep::open(step_folder(step), options_.verify_on_load && !verified);
}

std::filesystem::path resolve_checkpoint(const std::filesystem::path& path) {
  std::error_code ignored;
  if (fs::exists(path / "index.json", ignored) || HfFolder::is_hf_folder(path)) return path;
  for (const fs::path& folder : {path, path / "checkpoint"}) {
    const CheckpointStore store({.folder = folder});
    if (const auto step = store.latest_valid(false)) return store.step_folder(*step);
  }
  fail_no_checkpoint(path);
}

}  // namespace halftone
