#include "halftone/checkpoint/step_writer.h"

#include <ATen/ops/empty.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <set>
#include <thread>

#include "halftone/base/error.h"
#include "halftone/base/ranges.h"
#include "halftone/checkpoint/discard.h"
#include "halftone/checkpoint/loaded_step.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;

fs::path temporary_of(const fs::path& target) { return target.string() + kTemporary; }

// Moves `temporary` to `target`, with one system call if the file system can exchange two names; otherwise CheckpointStore::prepare
// repairs a crash between the two renames. Once `target` is the new step, the name of `temporary` is free: other ranks may start their
// next save.
void publish(const fs::path& temporary, const fs::path& target) {
  sync_folder(temporary);
  std::error_code ignored;
  if (!fs::exists(target, ignored)) {
    rename_or_fail(temporary, target);
  } else {
    const fs::path old = target.string() + kReplaced;
    if (fs::exists(old, ignored)) discard(old);
    rename_or_fail(temporary, old);
    if (::renameat2(AT_FDCWD, old.c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) != 0) {
      rename_or_fail(old, temporary);
      rename_or_fail(target, old);
      rename_or_fail(temporary, target);
    }
    discard(old);
  }
  sync_folder(target.parent_path());
}

// Runs `fill` on step-N.tmp. On failure deletes it, unless other ranks write there too: then it stays until the next start.
void fill_temporary(const fs::path& target, const CheckpointOptions& options, const std::function<void(const fs::path&)>& fill) {
  const fs::path temporary = temporary_of(target);
  const auto clear = [&] {
    std::error_code ignored;
    if (options.ranks.world == 1) fs::remove_all(temporary, ignored);
  };
  clear();
  try {
    make_folder(temporary);
    fill(temporary);
  } catch (const Error& error) {
    clear();
    fail("saving {} failed: {}; earlier checkpoints are untouched", target.string(), error.what());
  } catch (...) {
    clear();
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

// Writes files `prefix`0.safetensors, ... of at most max_shard_bytes and adds them to the index.
void write_group(const fs::path& folder, const std::string& prefix, std::vector<NamedTensor> tensors, const CheckpointOptions& options,
                 std::optional<at::ScalarType> dtype, const TensorSource& source, CheckpointIndex& index) {
  // An empty part of a tensor with rows is not a chunk.
  std::erase_if(tensors,
                [](const NamedTensor& t) { return t.tensor.defined() && t.tensor.numel() == 0 && !t.shape.empty() && t.shape[0] > 0; });
  size_t k = 0;
  for (const auto& group : split_into_files(tensors, options.max_shard_bytes, dtype)) {
    const std::string file = fmt::format("{}{}.safetensors", prefix, k++);
    const WrittenTensors written = write_tensors(
        folder / file, group, {{"format", kCheckpointFormat}, {"step", std::to_string(index.step)}}, options.checksum, dtype, source);
    index.files[file] = {written.bytes, options.checksum ? std::optional(written.checksum) : std::nullopt};
    for (const NamedTensor& t : group) {
      IndexedTensor row{.dtype = file_dtype_of(stored_type(t.tensor, dtype)), .shape = t.whole_shape()};
      row.chunks.push_back({.file = file, .offset = std::vector<int64_t>(row.shape.size(), 0), .shape = t.tensor.sizes().vec()});
      if (!t.offset.empty()) row.chunks[0].offset = t.offset;
      check(index.tensors.emplace(t.name, std::move(row)).second, "two tensors named {}", t.name);
    }
    for (const std::string& name : written.not_finite) index.tensors.at(name).finite = false;
  }
}

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  std::error_code code;
  for (fs::directory_iterator it(folder, code), end; !code && it != end; it.increment(code)) names.insert(it->path().filename().string());
  return names;
}

// Asks until `there` is true. After the limit it calls `late`, which throws, with what is known of silent ranks: until then a rank may
// pause. Error when the job ends.
void wait_for(const std::function<bool()>& there, const std::vector<int64_t>& whom, std::chrono::milliseconds limit,
              const CheckpointOptions& options, const std::function<void(const std::string& silent)>& late) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kLongest{250};
  constexpr std::chrono::seconds kBetweenLooks{1};
  const Clock::time_point end = Clock::now() + limit;
  Clock::time_point look = Clock::now() + kBetweenLooks;
  std::string silent;
  for (std::chrono::milliseconds pause{1}; !there(); pause = std::min(2 * pause, kLongest)) {
    check(!options.ranks.ending(), "the job is ending, not waiting for other ranks");
    if (Clock::now() >= end) return late(silent.empty() ? "" : fmt::format(" ({})", silent));
    if (Clock::now() >= look) {
      silent = options.ranks.silent(whom);
      look = Clock::now() + kBetweenLooks;
    }
    std::this_thread::sleep_for(pause);
  }
}

double seconds(std::chrono::milliseconds time) { return static_cast<double>(time.count()) / 1e3; }

std::string part_name(int64_t rank) { return fmt::format("part-{}.json", rank); }

void publish_part(const fs::path& folder, const CheckpointIndex& index, int64_t rank) {
  const fs::path path = folder / part_name(rank);
  write_bytes(temporary_of(path), write_index(index));
  sync_folder(folder);  // makes this rank's file names durable before the manifest lists them
  rename_or_fail(temporary_of(path), path);
}

// Rank 0: merges the other ranks' manifests into the index.
void merge_parts(const fs::path& folder, CheckpointIndex& index, const CheckpointOptions& options) {
  std::vector<int64_t> missing;
  const auto complete = [&] {
    const std::set<std::string> names = names_in(folder);
    missing.clear();
    for (int64_t rank = 1; rank < options.ranks.world; ++rank)
      if (!names.contains(part_name(rank))) missing.push_back(rank);
    return missing.empty();
  };
  wait_for(complete, missing, options.timeout, options, [&](const std::string& silent) {
    fail("after {:g} s the parts of rank{} {} are missing{}; if they need more time, raise checkpoint.save_timeout_seconds",
         seconds(options.timeout), missing.size() == 1 ? "" : "s", ranges_text(missing), silent);
  });
  for (int64_t rank = 1; rank < options.ranks.world; ++rank) {
    const fs::path path = folder / part_name(rank);
    merge_part(index, parse_index(read_text(path, kMaxIndexBytes), path.string(), true), path.string());
    std::error_code ignored;
    fs::remove(path, ignored);
  }
}

ino_t number_of(const fs::path& folder) {
  struct stat info {};
  return ::stat(folder.c_str(), &info) == 0 ? info.st_ino : 0;
}

// Other ranks: until `target` is the folder that they have written into. Rank 0 may speak first, which knows what is missing.
void wait_for_rank_0(const fs::path& target, ino_t folder, const CheckpointOptions& options) {
  const auto done = [&] { return names_in(target.parent_path()).contains(target.filename()) && number_of(target) == folder; };
  const auto limit = options.timeout + std::min<std::chrono::milliseconds>(options.timeout, std::chrono::seconds(5));
  wait_for(done, {0}, limit, options, [&](const std::string& silent) {
    fail("after {:g} s rank 0 has not completed it{}; if it needs more time, raise checkpoint.save_timeout_seconds", seconds(limit),
         silent);
  });
}

// Each rank writes its part into the folder `parts` of step-N.tmp, then rank 0 the files that complete the step. `complete` gets the path
// of step-N.tmp and the step before it is published.
void write_parts(const fs::path& target, const char* parts, const StepState& state, const CheckpointOptions& options,
                 const std::function<void(const fs::path&, const LoadedStep&)>& complete) {
  fill_temporary(target, options, [&](const fs::path& temporary) {
    const fs::path folder = temporary / parts;
    make_folder(folder);
    const CheckpointRanks& ranks = options.ranks;
    CheckpointIndex index{.step = state.step, .model_only = state.model_only, .world = ranks.world, .mesh = ranks.mesh};
    const std::string own = ranks.world > 1 ? fmt::format("{}-", ranks.rank) : "";
    write_group(folder, "model-" + own, state.model, options, state.model_dtype, state.read, index);
    if (!state.model_only) write_group(folder, "optim-" + own, state.optim, options, std::nullopt, {}, index);
    if (ranks.rank != 0) {
      const ino_t number = number_of(temporary);
      publish_part(folder, index, ranks.rank);
      return wait_for_rank_0(target, number, options);
    }
    const auto add = [&](const std::string& name, const std::string& text) {
      const WrittenFile written = write_bytes(folder / name, text);
      index.files[name] = {written.bytes, options.checksum ? std::optional(written.checksum) : std::nullopt};
    };
    check_state_json(state.state_json, "state.json");
    add("state.json", state.state_json);
    for (const auto& [name, path] : state.copy_files) add(name, read_text(path, uint64_t{1} << 30));
    if (ranks.world > 1) merge_parts(folder, index, options);
    write_bytes(folder / "index.json", write_index(index));
    complete(temporary, LoadedStep::open(folder, false));  // checksums were computed while writing
    publish(temporary, target);
  });
}

}  // namespace

void rename_or_fail(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) fail("cannot rename {} to {}: {}", from.string(), to.string(), std::strerror(errno));
}

std::optional<std::string> write_step(const fs::path& target, const StepState& state, const CheckpointOptions& options) {
  std::optional<std::string> not_finite;
  write_parts(target, "", state, options, [&](const fs::path&, const LoadedStep& step) {
    if (const std::string* name = step.not_finite()) not_finite = *name;
  });
  return not_finite;
}

void write_hf_step(const fs::path& target, int64_t step, const HfExport& content, const CheckpointOptions& options) {
  if (options.ranks.world == 1) {
    return fill_temporary(target, options, [&](const fs::path& folder) {
      write_hf(folder, content);
      publish(folder, target);
    });
  }
  constexpr const char* kParts = "parts";
  const StepState state{.step = step,
                        .model_only = true,
                        .model = content.model,
                        // Codes are made from the original weights.
                        .model_dtype = content.format == nullptr ? content.dtype : std::nullopt};
  write_parts(target, kParts, state, options, [&](const fs::path& folder, const LoadedStep& native) {
    HfExport whole = content;
    whole.read = [&](const std::string& name, int64_t first, int64_t rows) { return native.read(name, first, rows); };
    whole.model.clear();
    for (const std::string& name : native.model_names()) {
      const TensorInfo info = native.info(name);
      whole.model.push_back({name, at::empty(info.shape, at::TensorOptions().dtype(scalar_type_of(info.dtype)).device(at::kMeta))});
    }
    write_hf(folder, whole);
    if (!discard(folder / kParts, fs::path(target.string() + '.' + kParts))) fs::remove_all(folder / kParts);
  });
}

}  // namespace halftone
