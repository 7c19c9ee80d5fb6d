#include "halftone/data/loader.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "halftone/base/error.h"
#include "halftone/base/log.h"
#include "halftone/data/source.h"

namespace halftone {

DataLoader::DataLoader(std::unique_ptr<RowFeed> feed, Options options) : feed_(std::move(feed)), options_(std::move(options)) {
  const Options& o = options_;
  check(o.local_batch >= 1 && o.dp_size >= 1 && o.dp_rank >= 0 && o.dp_rank < o.dp_size, "local_batch_size {}, data-parallel rank {} of {}",
        o.local_batch, o.dp_rank, o.dp_size);
  check(o.global_batch >= 1 && o.global_batch % (o.local_batch * o.dp_size) == 0,
        "global_batch_size {} is not a multiple of local_batch_size {} x data-parallel degree {}", o.global_batch, o.local_batch,
        o.dp_size);
  if (feed_->indexed() == nullptr) {
    check(o.repeat, "{}: a stream or a mixture has no known length: end the run by training.steps, or a source by epochs or tokens",
          o.name);
    positions_ = feed_->positions({});
  }
  if (o.repeat) return;
  pass_rows_ = feed_->pass_rows();
  steps_ = o.pad_last ? (pass_rows_ + o.global_batch - 1) / o.global_batch : pass_rows_ / o.global_batch;
  if (o.max_steps >= 0) steps_ = std::min(steps_, o.max_steps);
  check(steps_ > 0,
        "{}: one pass has {} rows of {} tokens ({} tokens in {} documents), expected at least {}; lower seq_len or give more data", o.name,
        pass_rows_, feed_->seq_len(), rows().units(), rows().documents(), o.pad_last ? 1 : o.global_batch);
}

const RowSequence& DataLoader::rows() const {
  const RowSequence* indexed = feed_->indexed();
  check(indexed != nullptr, "{}: a stream or a mixture has no index", options_.name);
  return *indexed;
}

DataLoader::~DataLoader() { stop(); }

bool DataLoader::pass_over(RowCursor step) const { return !options_.repeat && step.row / options_.global_batch >= steps_; }

bool DataLoader::has_next() {
  if (pass_over(step_)) return false;
  if (feed_->indexed() != nullptr) return true;
  start();
  std::unique_lock lock(mutex_);
  const Ready& ready = front(lock);
  return ready.error != nullptr || !ready.end;
}

RowCursor DataLoader::after(RowCursor step) {
  return options_.repeat ? feed_->advance(step, options_.global_batch) : RowCursor{0, step.row + options_.global_batch};
}

std::optional<Batch> DataLoader::make(RowCursor step, int64_t microbatch) {
  const int64_t B = options_.local_batch, S = feed_->seq_len();
  const auto wide = at::TensorOptions().dtype(at::kLong).pinned_memory(options_.pin_memory);
  const auto narrow = at::TensorOptions().dtype(at::kInt).pinned_memory(options_.pin_memory);
  Batch batch;
  batch.tokens = at::empty({B, S}, wide), batch.labels = at::empty({B, S}, wide);
  batch.positions = at::empty({B, S}, narrow), batch.doc_start = at::empty({B, S}, narrow);
  if (pads()) batch.padding = at::zeros({B, S}, wide.dtype(at::kBool));
  batch.epoch = step.epoch;
  const bool mixture = !feed_->sources().empty();
  const int64_t first = (microbatch * options_.dp_size + options_.dp_rank) * B;
  for (int64_t b = 0; b < B; ++b) {
    const RowView row{batch.tokens.mutable_data_ptr<int64_t>() + b * S, batch.labels.mutable_data_ptr<int64_t>() + b * S,
                      batch.positions.mutable_data_ptr<int32_t>() + b * S, batch.doc_start.mutable_data_ptr<int32_t>() + b * S};
    const RowCursor at{step.epoch, step.row + first + b};
    const bool beyond = !options_.repeat && at.row >= pass_rows_;
    if (beyond) fill_ignored_row(row, S);
    const int64_t filled = beyond ? 0 : feed_->fill(at, row);
    if (filled == RowFeed::kEnd) return std::nullopt;
    if (mixture) batch.sources.push_back(feed_->source());
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
      std::optional<Batch> batch = make(step, microbatch);
      ready.end = !batch;
      if (batch) ready.batch = std::move(*batch);
      ready.next_step = after(step);
      if (!ready.end && microbatch + 1 == microbatches_per_step()) ready.positions = feed_->positions(ready.next_step);
    } catch (...) {
      ready.error = std::current_exception();
    }
    const bool over = ready.error != nullptr || ready.end;
    const RowCursor next_step = ready.next_step;
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back(std::move(ready));
    }
    filled_.notify_one();
    if (over) return;
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

void DataLoader::start() {
  if (!thread_.joinable()) thread_ = std::thread([this, step = step_, microbatch = microbatch_] { run(step, microbatch); });
}

const DataLoader::Ready& DataLoader::front(std::unique_lock<std::mutex>& lock) {
  filled_.wait(lock, [&] { return !queue_.empty(); });
  return queue_.front();
}

bool DataLoader::wait(const std::function<bool()>& give_up) {
  if (pass_over(step_)) return true;
  start();
  std::unique_lock lock(mutex_);
  while (!filled_.wait_for(lock, std::chrono::milliseconds(200), [&] { return !queue_.empty(); })) {
    if (give_up()) return false;
  }
  return true;
}

Batch DataLoader::next() {
  check(has_next(), "{}: the pass of {} steps is over", options_.name, steps_);
  start();
  Ready ready;
  {
    std::unique_lock lock(mutex_);
    // A failure is kept, so that the next call fails again instead of blocking forever.
    if (const std::exception_ptr& error = front(lock).error) std::rethrow_exception(error);
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
    positions_ = std::move(ready.positions);
    rows_seen_ += options_.global_batch;
  }
  return std::move(ready.batch);
}

void DataLoader::rewind() {
  check(feed_->indexed() != nullptr, "{}: a stream or a mixture does not rewind", options_.name);
  stop();
  step_ = {};
  microbatch_ = rows_seen_ = announced_epoch_ = 0;
}

nlohmann::json DataLoader::state() const {
  nlohmann::json state = {
      {"format", 1},          {"source", feed_->digest()}, {"documents", feed_->made_by()}, {"options", feed_->describe()},
      {"epoch", step_.epoch}, {"row", step_.row},          {"rows_seen", rows_seen_}};
  if (feed_->indexed() == nullptr) state["positions"] = positions_;
  return state;
}

nlohmann::json merge_states(const std::vector<std::string>& states) {
  nlohmann::json merged = nlohmann::json::parse(states.at(0));
  if (!merged.contains("positions")) return merged;
  for (const std::string& state : states) merged["positions"].merge_patch(nlohmann::json::parse(state).at("positions"));
  return merged;
}

void DataLoader::load_state(const nlohmann::json& state) {
  std::string source, documents, options;
  RowCursor cursor;
  int64_t seen = 0;
  try {
    check(state.at("format") == 1, "format {}", state.at("format").dump());
    state.at("source").get_to(source);
    state.at("options").get_to(options);
    documents = state.value("documents", feed_->made_by());  // states of older builds do not say
    for (auto [key, value] : {std::pair{"epoch", &cursor.epoch}, {"row", &cursor.row}, {"rows_seen", &seen}}) {
      check(state.at(key).is_number_integer(), "{} is not an integer", key);
      state.at(key).get_to(*value);
      check(*value >= 0, "{} is {}", key, *value);
    }
  } catch (const std::exception& error) {
    fail("dataloader state of the checkpoint has another format than this program's: {}", error.what());
  }
  constexpr const char* kInstead = "or add \"dataloader\" to checkpoint.exclude_from_loading to restart the data";
  const bool lanes = feed_->indexed() == nullptr;
  check(lanes == state.contains("positions"),
        "{}: the checkpoint's data were {}, this run's are {}: restore dataloader.read and training.sources, {}", options_.name,
        lanes ? "indexed" : "streamed or a mixture", lanes ? "streamed or a mixture" : "indexed", kInstead);
  if (lanes) source = feed_->digest(), documents = feed_->made_by();  // each source is compared by restore()
  check(source == feed_->digest(),
        "the files of {} differ from those that the checkpoint was trained on (digest {} then, {} now): restore them, {}", options_.name,
        source, feed_->digest(), kInstead);
  check(documents == feed_->made_by(),
        "{}: documents are not read as in the checkpoint ({} then, {} now): restore the dataset's kind and its text_key, text_split or "
        "token_dtype, {}",
        options_.name, documents, feed_->made_by(), kInstead);
  check(options == feed_->describe(), "{}: the rows are not built as in the checkpoint ({} then, {} now): restore these settings, {}",
        options_.name, options, feed_->describe(), kInstead);
  stop();
  if (lanes) {
    feed_->restore(state["positions"], cursor);
    positions_ = state["positions"];
  }
  // The pass of a finite loader may end inside its last step.
  // One that repeats continues with the next epoch.
  const int64_t beyond = options_.repeat ? cursor.row - feed_->rows(cursor.epoch) : -1;
  check(beyond < options_.global_batch, "dataloader state of the checkpoint: row {} of epoch {}, which has {}", cursor.row, cursor.epoch,
        feed_->rows(cursor.epoch));
  if (beyond >= 0) cursor = {cursor.epoch + 1, 0};
  const bool pass_was_over = !options_.repeat && cursor.epoch > 0;  // the state of a loader that repeated
  step_ = pass_was_over ? RowCursor{0, steps_ * options_.global_batch} : cursor;
  microbatch_ = 0;
  rows_seen_ = seen;
  announced_epoch_ = cursor.epoch;
}

}  // namespace halftone
