#include "halftone/data/loader.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "halftone/base/error.h"
#include "halftone/base/log.h"
#include "halftone/data/source.h"

namespace halftone {

DataLoader::DataLoader(std::unique_ptr<RowSequence> rows, Options options) : rows_(std::move(rows)), options_(std::move(options)) {
  const Options& o = options_;
  check(o.local_batch >= 1 && o.dp_size >= 1 && o.dp_rank >= 0 && o.dp_rank < o.dp_size, "local_batch_size {}, data-parallel rank {} of {}",
        o.local_batch, o.dp_rank, o.dp_size);
  check(o.global_batch >= 1 && o.global_batch % (o.local_batch * o.dp_size) == 0,
        "global_batch_size {} is not a multiple of local_batch_size {} x data-parallel degree {}", o.global_batch, o.local_batch,
        o.dp_size);
  if (o.repeat) return;
  pass_rows_ = rows_->pass_rows();
  steps_ = o.pad_last ? (pass_rows_ + o.global_batch - 1) / o.global_batch : pass_rows_ / o.global_batch;
  if (o.max_steps >= 0) steps_ = std::min(steps_, o.max_steps);
  check(steps_ > 0,
        "{}: one pass has {} rows of {} tokens ({} tokens in {} documents), expected at least {}; lower seq_len or give more data", o.name,
        pass_rows_, rows_->options().seq_len, rows_->units(), rows_->documents(), o.pad_last ? 1 : o.global_batch);
}

DataLoader::~DataLoader() { stop(); }

bool DataLoader::pass_over(RowCursor step) const { return !options_.repeat && step.row / options_.global_batch >= steps_; }

bool DataLoader::has_next() const { return !pass_over(step_); }

RowCursor DataLoader::after(RowCursor step) {
  return options_.repeat ? rows_->advance(step, options_.global_batch) : RowCursor{0, step.row + options_.global_batch};
}

Batch DataLoader::make(RowCursor step, int64_t microbatch) {
  const int64_t B = options_.local_batch, S = rows_->options().seq_len;
  const auto wide = at::TensorOptions().dtype(at::kLong).pinned_memory(options_.pin_memory);
  const auto narrow = at::TensorOptions().dtype(at::kInt).pinned_memory(options_.pin_memory);
  Batch batch{at::empty({B, S}, wide), at::empty({B, S}, wide), at::empty({B, S}, narrow), at::empty({B, S}, narrow),
              pads() ? at::zeros({B, S}, wide.dtype(at::kBool)) : at::Tensor()};
  batch.epoch = step.epoch;
  const int64_t first = (microbatch * options_.dp_size + options_.dp_rank) * B;
  for (int64_t b = 0; b < B; ++b) {
    const RowView row{batch.tokens.mutable_data_ptr<int64_t>() + b * S, batch.labels.mutable_data_ptr<int64_t>() + b * S,
                      batch.positions.mutable_data_ptr<int32_t>() + b * S, batch.doc_start.mutable_data_ptr<int32_t>() + b * S};
    const RowCursor at{step.epoch, step.row + first + b};
    const bool beyond = !options_.repeat && at.row >= pass_rows_;
    if (beyond) fill_ignored_row(row, S);
    const int64_t filled = beyond ? 0 : rows_->fill(at, row);
    if (batch.padding.defined()) std::fill_n(batch.padding.mutable_data_ptr<bool>() + b * S + filled, S - filled, true);
    for (int64_t j = 0; j < S; ++j) {
      if (row.labels[j] < 0) continue;
      ++batch.valid_labels;
      const auto id = static_cast<size_t>(row.labels[j]);
      if (id < options_.token_bytes.size()) batch.label_bytes += options_.token_bytes[id];
    }
  }
  return batch;
}

void DataLoader::run(RowCursor step, int64_t microbatch) {
  while (!pass_over(step)) {
    {
      std::unique_lock lock(mutex_);
      emptied_.wait(lock, [&] { return stop_ || static_cast<int64_t>(queue_.size()) < options_.prefetch; });
      if (stop_) return;
    }
    Ready ready;
    try {
      ready.batch = make(step, microbatch);
      ready.next_step = after(step);
    } catch (...) {
      ready.error = std::current_exception();
    }
    const bool failed = ready.error != nullptr;
    const RowCursor next_step = ready.next_step;
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back(std::move(ready));
    }
    filled_.notify_one();
    if (failed) return;
    if (++microbatch == microbatches_per_step()) {
      microbatch = 0;
      step = next_step;
    }
  }
}

void DataLoader::stop() {
  if (thread_.joinable()) {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    emptied_.notify_all();
    thread_.join();
  }
  queue_.clear();
  stop_ = false;
}

Batch DataLoader::next() {
  check(has_next(), "{}: the pass of {} steps is over", options_.name, steps_);
  if (!thread_.joinable()) thread_ = std::thread([this, step = step_, microbatch = microbatch_] { run(step, microbatch); });
  Ready ready;
  {
    std::unique_lock lock(mutex_);
    filled_.wait(lock, [&] { return !queue_.empty(); });
    // A failure is kept, so that the next call fails again instead of blocking forever.
    if (queue_.front().error) std::rethrow_exception(queue_.front().error);
    ready = std::move(queue_.front());
    queue_.pop_front();
  }
  emptied_.notify_one();
  if (ready.batch.epoch > announced_epoch_) {
    log_line(announced_epoch_ == 0 ? LogLevel::warning : LogLevel::info,
             fmt::format("Dataset {} is being re-looped (epoch {})", options_.name, ready.batch.epoch + 1));
    announced_epoch_ = ready.batch.epoch;
  }
  if (++microbatch_ == microbatches_per_step()) {
    microbatch_ = 0;
    step_ = ready.next_step;
    rows_seen_ += options_.global_batch;
  }
  return std::move(ready.batch);
}

void DataLoader::rewind() {
  stop();
  step_ = {};
  microbatch_ = rows_seen_ = announced_epoch_ = 0;
}

nlohmann::json DataLoader::state() const {
  return {{"format", 1},
          {"source", rows_->store().digest()},
          {"documents", rows_->store().made_by()},
          {"options", rows_->describe()},
          {"epoch", step_.epoch},
          {"row", step_.row},
          {"rows_seen", rows_seen_}};
}

void DataLoader::load_state(const nlohmann::json& state) {
  std::string source, documents, options;
  RowCursor cursor;
  int64_t seen = 0;
  try {
    check(state.at("format") == 1, "format {}", state.at("format").dump());
    state.at("source").get_to(source);
    state.at("options").get_to(options);
    documents = state.value("documents", rows_->store().made_by());  // states of older builds do not say
    for (auto [key, value] : {std::pair{"epoch", &cursor.epoch}, {"row", &cursor.row}, {"rows_seen", &seen}}) {
      check(state.at(key).is_number_integer(), "{} is not an integer", key);
      state.at(key).get_to(*value);
      check(*value >= 0, "{} is {}", key, *value);
    }
  } catch (const std::exception& error) {
    fail("dataloader state of the checkpoint has another format than this program's: {}", error.what());
  }
  constexpr const char* kInstead = "or add \"dataloader\" to checkpoint.exclude_from_loading to restart the data";
  check(source == rows_->store().digest(),
        "the files of {} differ from those that the checkpoint was trained on (digest {} then, {} now): restore them, {}", options_.name,
        source, rows_->store().digest(), kInstead);
  check(documents == rows_->store().made_by(),
        "{}: documents are not read as in the checkpoint ({} then, {} now): restore the dataset's kind and its text_key, text_split or "
        "token_dtype, {}",
        options_.name, documents, rows_->store().made_by(), kInstead);
  check(options == rows_->describe(), "{}: the rows are not built as in the checkpoint ({} then, {} now): restore these settings, {}",
        options_.name, options, rows_->describe(), kInstead);
  stop();
  // The pass of a finite loader may end inside its last step.
  // One that repeats continues with the next epoch.
  const int64_t beyond = options_.repeat ? cursor.row - rows_->rows(cursor.epoch) : -1;
  check(beyond < options_.global_batch, "dataloader state of the checkpoint: row {} of epoch {}, which has {}", cursor.row, cursor.epoch,
        rows_->rows(cursor.epoch));
  if (beyond >= 0) cursor = {cursor.epoch + 1, 0};
  const bool pass_was_over = !options_.repeat && cursor.epoch > 0;  // the state of a loader that repeated
  step_ = pass_was_over ? RowCursor{0, steps_ * options_.global_batch} : cursor;
  microbatch_ = 0;
  rows_seen_ = seen;
  announced_epoch_ = cursor.epoch;
}

std::string DataLoader::summary() const {
  const Packing packing = rows_->options().packing;
  const RowUse& use = rows_->use();
  const bool tokens = packing == Packing::concat;
  const int64_t empty = rows_->store().stats().empty_documents;
  return fmt::format("{}; {} of {} documents, {}{} {} per epoch{}", rows_->store().summary(), with_commas(rows_->documents()),
                     with_commas(rows_->store().documents()), with_commas(use.used),
                     use.used == use.units ? "" : fmt::format(" of {}", with_commas(use.units)), tokens ? "tokens" : "predictions",
                     empty == 0 ? "" : fmt::format(", skipped {} empty documents", with_commas(empty)));
}

}  // namespace halftone
