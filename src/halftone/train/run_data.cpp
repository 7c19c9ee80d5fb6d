#include "halftone/train/run_data.h"

#include "halftone/base/error.h"
#include "halftone/base/log.h"
#include "halftone/base/stopwatch.h"
#include "halftone/train/batches.h"

namespace halftone {

int64_t rows_per_step(const TrainingConfig& config, int64_t processes) {
  const int64_t pass = config.local_batch_size * processes, rows = config.global_batch_size > 0 ? config.global_batch_size : pass;
  check(rows % pass == 0, "training.global_batch_size = {} is not a multiple of training.local_batch_size = {}{}", rows,
        config.local_batch_size, processes == 1 ? "" : fmt::format(" times {} data-parallel ranks", processes));
  return rows;
}

RunData::RunData(const JobConfig& config, const Tokenizer& tokenizer, const Engine& engine, const Processes& processes) : engine_(engine) {
  const int64_t rank = processes.data_rank(), ranks = processes.data_ranks();
  const bool pinned = !engine.device().is_cpu();
  loader_ = make_training_loader(config, tokenizer, rows_per_step(config.training, ranks), rank, ranks, pinned);
  if (config.validation.enable) validation_ = make_validation_loader(config, tokenizer, rank, ranks, pinned);
  first_rows_ = loader_->state();
  sources_ = loader_->feed().sources();
  const std::string& packing = config.training.dataloader.packing;
  if (packing != "concat" && packing != "none" && !engine.built().block_causal)
    log_info("Packing {}: the documents of a row attend to each other; model.attn_mask_type = \"block_causal\" keeps them apart", packing);
}

std::vector<std::pair<std::string, std::string>> RunData::contents() const {
  const auto content = [](const DataLoader& loader) { return "digest " + loader.feed().digest(); };
  std::vector<std::pair<std::string, std::string>> all{{"training data (training.dataset_path)", content(*loader_)}};
  if (validation_) all.emplace_back("validation data (validation.dataset_path)", content(*validation_));
  return all;
}

std::optional<std::vector<MicroBatch>> RunData::next_step(const std::function<bool()>& stops) {
  std::vector<MicroBatch> batches;
  const Stopwatch wait;
  while (batches.empty()) {
    rows_ = loader_->next_step();
    const bool left_out = left_out_.contains(rows_);
    for (int64_t a = 0; a < loader_->microbatches_per_step(); ++a) {
      if (!loader_->wait([&] { return stops() && waits_for_server(); })) {
        wait_of_step_ = wait.seconds();
        return std::nullopt;
      }
      if (!loader_->has_next()) {
        log_warning("Ran out of data; last step was canceled.");
        wait_of_step_ = wait.seconds();
        return std::nullopt;
      }
      const Batch batch = loader_->next();
      if (left_out) continue;
      for (MicroBatch& m : to_device(batch, engine_, first_token(*loader_, a, batch))) batches.push_back(std::move(m));
    }
    wait_.batches += loader_->microbatches_per_step();
    if (left_out) log_warning("skipped the rows of a step, from row {} of epoch {} on", rows_.row, rows_.epoch);
  }
  wait_of_step_ = wait.seconds();
  wait_.seconds += wait_of_step_;
  return batches;
}

}  // namespace halftone
