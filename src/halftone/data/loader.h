#pragma once
#include <ATen/core/Tensor.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "halftone/config/job_config.h"
#include "halftone/data/row_feed.h"
#include "halftone/data/row_sequence.h"
#include "halftone/data/text_codec.h"
#include "halftone/storage/byte_file.h"

namespace halftone {

class Tokenizer;

// Rows of one micro-batch of one data-parallel rank; [B, S], in host memory (pinned on request).
struct Batch {
  at::Tensor tokens;     // int64
  at::Tensor labels;     // int64, -100: ignored
  at::Tensor positions;  // int32, for RoPE
  at::Tensor doc_start;  // int32, place in the row where the document of this place starts
  at::Tensor padding;    // bool: no token, behind a row's last document; undefined where the loader never pads
  int64_t valid_labels = 0;
  int64_t label_bytes = 0;       // bytes of text of the valid labels; for bits per byte
  int64_t epoch = 0;             // of the first row of its step
  std::vector<int64_t> sources;  // of each row, in RowFeed::sources(); empty for a single data set
};

// Splits the global sequence of rows into steps of `global_batch` rows and returns this rank's micro-batches, prepared by a background
// thread: micro-batch a of a step on rank r is rows [(a * dp_size + r) * local_batch, + local_batch).
class DataLoader {
 public:
  struct Options {
    std::string name = "dataset";  // for messages
    int64_t local_batch = 1, global_batch = 1, dp_rank = 0, dp_size = 1;
    int64_t prefetch = 2;    // batches prepared ahead
    bool repeat = true;      // false: one pass
    bool pad_last = false;   // one pass: pads the last step with ignored rows instead of dropping its rows
    int64_t max_steps = -1;  // ends one pass after this many steps
    bool pin_memory = false;
    std::vector<int32_t> token_bytes;  // bytes of text of each id
  };
  // Error when global_batch is not a multiple of local_batch * dp_size, or one pass has no step.
  DataLoader(std::unique_ptr<RowFeed> feed, Options options);
  ~DataLoader();
  DataLoader(const DataLoader&) = delete;
  DataLoader& operator=(const DataLoader&) = delete;

  int64_t microbatches_per_step() const { return options_.global_batch / (options_.local_batch * options_.dp_size); }
  // Steps of one pass, the same on every rank; -1 when it repeats.
  int64_t steps_per_pass() const { return steps_; }
  // Whether next() has a batch. A stream is asked for it, which may block.
  bool has_next();
  // Whether its batches carry `padding`, with or without a place of it.
  bool pads() const { return feed_->pads() || (!options_.repeat && steps_ * options_.global_batch > pass_rows_); }
  // Where the step after the last complete one starts.
  RowCursor next_step() const { return step_; }
  // Returns when next() will not block, or false when `give_up`, which is asked five times a second, is true before.
  bool wait(const std::function<bool()>& give_up);
  // The next micro-batch. Blocks until it is ready; rethrows failures of the thread. Error at the end of one pass.
  Batch next();
  // Restarts at the first row: a validation pass sees the same rows every time.
  void rewind();

  // Start of the step after the last complete one, with the data's digests and options. The same on every rank, except for "positions" of
  // streams and mixtures, of which each rank knows its own part (merge_states).
  nlohmann::json state() const;
  // Resumes there, on any number of ranks and any batch size. Error if data or row options differ from the state's.
  void load_state(const nlohmann::json& state);

  const RowFeed& feed() const { return *feed_; }
  // The feed of an indexed data set.
  const RowSequence& rows() const;
  const Options& options() const { return options_; }
  std::string summary() const { return feed_->summary(); }

 private:
  struct Ready {
    Batch batch;
    RowCursor next_step;       // start of the step after the batch's step
    nlohmann::json positions;  // of the feed there, with the last batch of a step
    std::exception_ptr error;
    bool end = false;  // no batch: the feed is exhausted
  };
  void start();
  const Ready& front(std::unique_lock<std::mutex>& lock);
  bool pass_over(RowCursor step) const;
  RowCursor after(RowCursor step);
  std::optional<Batch> make(RowCursor step, int64_t microbatch);
  void run(RowCursor step, int64_t microbatch);
  void stop();

  std::unique_ptr<RowFeed> feed_;  // owned by the thread while it runs
  Options options_;
  int64_t steps_ = -1, pass_rows_ = 0;
  // For the batch that next() returns next: its step's first row, its position in the step, rows of the complete steps before.
  RowCursor step_;
  int64_t microbatch_ = 0, rows_seen_ = 0, announced_epoch_ = 0;
  nlohmann::json positions_;  // of the feed at step_

  std::thread thread_;
  std::mutex mutex_;
  std::condition_variable filled_, emptied_;
  std::deque<Ready> queue_;
  bool stop_ = false;
};

// The state of a run from the states of its ranks: the first, with the positions of all.
nlohmann::json merge_states(const std::vector<std::string>& states);

// Ids of training documents as config.training.dataloader asks (add_bos, add_eos; unset: if the tokenizer has one).
TextCodec make_text_codec(const Tokenizer& tokenizer, const DataloaderConfig& config);

// How remote files are read, of [data].
StorageOptions storage_options(const JobConfig& config);

// Folder of the token indices: $HALFTONE_CACHE, else <job.dump_folder>/cache.
std::string token_cache_folder(const JobConfig& config);

// Opens config.training's dataset (less the share validation.holdout), logs its summary and returns its loader.
// `global_batch`: rows per optimizer step.
std::unique_ptr<DataLoader> make_training_loader(const JobConfig& config, const Tokenizer& tokenizer, int64_t global_batch, int64_t dp_rank,
                                                 int64_t dp_size, bool pin_memory = false);

// One pass over validation's rows, config.validation.steps steps at most: of the held-out training documents when
// validation.holdout > 0, else of validation.dataset. A step is local_batch_size rows of every rank; the last one is filled
// with ignored rows.
std::unique_ptr<DataLoader> make_validation_loader(const JobConfig& config, const Tokenizer& tokenizer, int64_t dp_rank, int64_t dp_size,
                                                   bool pin_memory = false);

}  // namespace halftone
