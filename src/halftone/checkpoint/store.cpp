#include "halftone/checkpoint/store.h"

#include <algorithm>
#include <charconv>
#include <chrono>

#include "halftone/base/error.h"
#include "halftone/base/log.h"
#include "halftone/checkpoint/discard.h"
#include "halftone/checkpoint/file_io.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;

constexpr const char* kAside = ".aside";

bool is_writable(const fs::path& folder) {
  try {
    check_writable(folder);
    return true;
  } catch (const Error&) {
    return false;
  }
}

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

}  // namespace

CheckpointStore::CheckpointStore(CheckpointOptions options) : options_(std::move(options)) {
  options_.ranks.ending = [this, ending = options_.ranks.ending] { return abandoned_ || ending(); };
}

CheckpointStore::~CheckpointStore() {
  abandoned_ = std::uncaught_exceptions() > 0;
  try {
    wait();
  } catch (const std::exception& error) {
    log_line(LogLevel::error, error.what());
  }
}

fs::path CheckpointStore::step_folder(int64_t step) const { return options_.folder / fmt::format("step-{}", step); }

void CheckpointStore::prepare() {
  make_folder(options_.folder);
  if (first()) remove_step_leftovers(options_.folder);
  options_.ranks.agree(0);  // a barrier: no rank writes here earlier
  check_writable(options_.folder);
}

void remove_step_leftovers(const fs::path& folder) {
  std::vector<fs::path> leftovers;
  std::error_code ignored, unlinked;
  for (fs::directory_iterator it(folder, ignored), end; !ignored && it != end; it.increment(ignored)) {
    const fs::path& path = it->path();
    const std::string name = path.filename().string();
    if (step_number(name, kTemporary) || is_discarded(name)) leftovers.push_back(path);
    if (name.starts_with(kWritableProbe)) fs::remove(path, unlinked);
    if (const auto step = step_number(name, kReplaced)) {
      // A crash between the two renames of publish(): the older step is the only complete one.
      const fs::path target = folder / fmt::format("step-{}", *step);
      std::error_code absent;
      if (fs::exists(target, absent))
        leftovers.push_back(path);
      else
        rename_or_fail(path, target);
    }
  }
  for (const fs::path& path : leftovers)
    if (discard(path)) log_info("Removing {}, left by an interrupted run", path.string());
  if (leftovers.empty()) return;
  // On a nearly full disk the run needs their space, so it waits; otherwise deletion runs in the background.
  constexpr uint64_t kEnough = uint64_t{1} << 30;
  const fs::space_info space = fs::space(folder, ignored);
  if (ignored || space.available < kEnough || !is_writable(folder)) finish_discards(std::chrono::hours(24));
}

void CheckpointStore::wait() {
  if (worker_.joinable()) worker_.join();
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void CheckpointStore::save(const StepState& state, bool synchronous) {
  wait();
  inspected_.erase(state.step);
  std::optional<StepState> copy;
  if (options_.async && !synchronous) copy = copies_.copy(state);
  if (!copy) return write(state);
  worker_ = std::thread([this, copy = std::move(*copy)] {
    try {
      copies_.wait();
      write(copy);
    } catch (...) {
      failure_ = std::current_exception();
    }
  });
}

void CheckpointStore::write(const StepState& state) {
  make_folder(options_.folder);
  const auto start = std::chrono::steady_clock::now();
  const std::optional<std::string> not_finite = write_step(step_folder(state.step), state, options_);
  if (!first()) return;
  log_debug("Saved the checkpoint {} in {:.2f} seconds", step_folder(state.step).string(),
            std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  if (not_finite) {
    log_warning("{}: tensor {} holds a NaN or an infinity; no run will resume from this step, and no older step is deleted",
                step_folder(state.step).string(), *not_finite);
  } else if (!state.model_only) {
    purge_old(state.step);
  }
}

void CheckpointStore::reserve(const StepState& like) {
  if (options_.async) copies_.reserve(like);
}

void CheckpointStore::save_hf(int64_t step, const HfExport& content) {
  wait();
  inspected_.erase(step);
  make_folder(options_.folder);
  write_hf_step(step_folder(step), step, content, options_);
}

void CheckpointStore::purge_old(int64_t newest) {
  if (options_.keep_latest_k <= 0) return;
  std::vector<int64_t> steps = full_steps();
  std::erase(steps, newest);  // a run rolled back to an older step keeps the step it just wrote
  const size_t kept = static_cast<size_t>(options_.keep_latest_k - 1);
  if (steps.size() <= kept) return;
  steps.resize(steps.size() - kept);
  for (const int64_t step : steps) discard(step_folder(step));
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
  const CheckpointRanks& ranks = options_.ranks;
  StepSummary& summary = inspected_[step] = inspect_step(step_folder(step), {options_.verify_on_load, ranks.rank, ranks.world});
  const std::vector<std::string> problems = ranks.said(summary.problem);
  const auto found_by = std::find_if(problems.begin(), problems.end(), [](const std::string& problem) { return !problem.empty(); });
  if (found_by != problems.end()) {
    const int64_t rank = found_by - problems.begin();
    summary.problem = rank == 0 ? *found_by : fmt::format("{} (found by rank {})", *found_by, rank);
  }
  if (!summary.problem.empty()) log_warning("Skipping the checkpoint {}: {}", step_folder(step).string(), summary.problem);
  return summary;
}

std::optional<int64_t> CheckpointStore::latest_valid(bool full_only, int64_t at_most) const {
  constexpr int64_t kNone = -1;
  const CheckpointRanks& ranks = options_.ranks;
  std::vector<int64_t> steps = step_folders(options_.folder);  // rank 0's count
  bool any_valid = steps.empty() || steps.back() > at_most;    // within the limit of the request
  std::erase_if(steps, [&](int64_t step) { return step > at_most; });
  std::string problem;  // of the newest
  for (int64_t step; (step = ranks.agree(steps.empty() ? kNone : steps.back())) != kNone;) {
    if (!steps.empty()) steps.pop_back();
    const StepSummary& summary = inspect(step);
    any_valid = any_valid || summary.problem.empty();
    if (problem.empty()) problem = summary.problem;
    if (summary.problem.empty() && !(full_only && summary.model_only)) return step;
  }
  check(ranks.agree(any_valid) != 0, "no valid checkpoint in {}: {}; repair it, or move the folder away to start over",
        options_.folder.string(), problem);
  return std::nullopt;
}

std::vector<fs::path> CheckpointStore::set_aside_after(int64_t step) {
  std::erase_if(inspected_, [&](const auto& entry) { return entry.first > step; });
  options_.ranks.all(true);  // from here on no rank reads what is renamed
  std::vector<fs::path> moved;
  if (!first()) return moved;
  for (const int64_t later : step_folders(options_.folder)) {
    if (later <= step) continue;
    std::error_code ignored;
    fs::path target = step_folder(later).string() + kAside;
    for (int i = 2; fs::exists(target, ignored); ++i) target = fmt::format("{}{}-{}", step_folder(later).string(), kAside, i);
    rename_or_fail(step_folder(later), target);
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
  return LoadedStep::open(step_folder(step), {options_.verify_on_load && !verified, options_.ranks.rank, options_.ranks.world});
}

std::filesystem::path resolve_checkpoint(const std::filesystem::path& path, const CheckpointRanks& ranks) {
  std::error_code ignored;
  if (fs::exists(path / "index.json", ignored) || HfFolder::is_hf_folder(path)) return path;
  for (const fs::path& folder : {path, path / "checkpoint"}) {
    const CheckpointStore store({.folder = folder, .ranks = ranks});
    if (const auto step = store.latest_valid(false)) return store.step_folder(*step);
  }
  fail_no_checkpoint(path);
}

}  // namespace halftone
