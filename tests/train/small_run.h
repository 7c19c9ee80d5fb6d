#pragma once
#include <ATen/Parallel.h>

#include <random>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/support.h"
#include "halftone/config/load.h"
#include "source_dir.h"

namespace halftone::testing {

constexpr int64_t kSmallRow = 32;  // tokens, one row per step

// A folder of rows that are easy to learn; rows listed in `bad` (from 1, like steps) are noise. On one thread, which is fastest here.
class SmallRuns {
 public:
  explicit SmallRuns(const std::set<int64_t>& bad = {}) {
    at::set_num_threads(1);
    std::mt19937 random(1);
    std::string bytes;
    for (int64_t i = 0; i < 100 * kSmallRow; ++i) {
      const auto id = static_cast<uint16_t>(bad.contains(i / kSmallRow + 1) ? 300 + random() % 1600 : 300 + static_cast<uint64_t>(i) % 4);
      bytes.append(reinterpret_cast<const char*>(&id), sizeof id);
    }
    write_file(folder_ / "rows.bin", bytes);
  }
  ~SmallRuns() { at::set_num_threads(threads_); }
  SmallRuns(const SmallRuns&) = delete;
  SmallRuns& operator=(const SmallRuns&) = delete;
  std::filesystem::path operator/(const std::string& name) const { return folder_ / name; }

  // A small Llama on these rows, in the folder `name`.
  LoadedConfig config(const std::string& name, const std::vector<std::string>& more) const {
    const std::filesystem::path source = source_dir();
    std::vector<std::string> args = {"--config=" + (source / "recipes/llama3_debug.toml").string(),
                                     R"(--model.overrides={"dim":32,"n_layers":1,"n_heads":2,"n_kv_heads":2,"ffn_dim":64})",
                                     "--model.hf_assets_path=" + (source / "tests/assets/tokenizer").string(),
                                     "--training.dataset=bin",
                                     "--training.dataset_path=" + (folder_ / "rows.bin").string(),
                                     "--training.local_batch_size=1",
                                     "--training.seq_len=" + std::to_string(kSmallRow - 1),
                                     "--training.dataloader.shuffle=false",
                                     "--training.device=cpu",
                                     "--optimizer.lr=1e-2",
                                     "--lr_scheduler.total_steps=100",
                                     "--debug.seed=42",
                                     "--checkpoint.enable",
                                     "--checkpoint.interval=10",
                                     "--job.dump_folder=" + (folder_ / name).string()};
    args.insert(args.end(), more.begin(), more.end());
    return load_config(args, {1});
  }

 private:
  TemporaryFolder folder_;
  const int threads_ = at::get_num_threads();
};

}  // namespace halftone::testing
