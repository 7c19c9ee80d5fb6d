#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "halftone/data/epoch_plan.h"
#include "halftone/data/row_feed.h"
#include "halftone/data/token_store.h"

namespace halftone {

// How documents become rows of S tokens (platform.md 6.2).
//   concat            documents one after the other, cut every S+1 tokens: w; inputs w[:-1], labels w[1:]
//   concat_documents  each document d gives the pairs (d[:-1], d[1:]); one after the other, cut every S pairs
//   first_fit         the pairs of whole documents into rows: the oldest of `bins` open rows with room takes the document;
//                     when none has, the oldest is closed and a new one opened. Documents of more than S pairs are dropped
//   best_fit          the pairs of whole documents into rows, best fit decreasing (best_fit.h) in windows of kBestFitWindow documents.
//                     Text of more than S pairs gives full rows and a rest; other documents (masked: conversations) are truncated
//   none              one document per row, cut or padded
// Pairs whose second token has no loss get the label -100. The packings with whole documents leave out documents without a loss on any of
// their first S pairs; concat refuses masked documents.
// Padding: token 0, label -100, position 0.
enum class Packing { concat, concat_documents, first_fit, best_fit, none };
constexpr int64_t kBestFitWindow = 16384;  // enough that chats of any lengths leave less than 1% of S = 2048 empty
Packing parse_packing(const std::string& name);
// Whether a row ends with a document, so that padding may follow.
inline bool ends_with_document(Packing packing) { return packing != Packing::concat && packing != Packing::concat_documents; }

struct RowOptions {
  Packing packing = Packing::concat;
  int64_t seq_len = 2048;
  int64_t bins = 8;
  std::optional<bool> document_positions;  // none: all but concat
  bool shuffle = false;                    // the documents, before they are packed
  bool shuffle_rows = false;               // the packed rows of an epoch
  uint64_t seed = 42;
  double holdout = 0;             // share of the documents, selected by their hash, that is held out for validation
  bool held_out = false;          // this sequence is the held-out share instead of the rest
  std::optional<int32_t> eos_id;  // concat: ends a document for doc_start
};

// How the first epoch uses the documents, in predictions that have a loss (concat: in tokens).
struct RowUse {
  int64_t units = 0, used = 0;      // available; used in rows
  int64_t places = 0;               // places of rows that hold a token, with a loss or without
  int64_t longer_documents = 0;     // longer than a row: first_fit drops them, none and best_fit (masked ones only) truncate them
  int64_t unlearned_documents = 0;  // nothing with a loss within seq_len
  int64_t rows = 0, pass_rows = 0;
};

// The rows of a corpus: a pure function of (corpus, options), so every process sees the same sequence and can start at
// any row. With concat the stream of tokens runs on from epoch to epoch (a row belongs to the epoch in which it starts);
// the other packings start each epoch with a fresh row. One thread at a time.
class RowSequence : public RowFeed {
 public:
  // Error if the selected documents do not fill one row.
  RowSequence(std::shared_ptr<const TokenStore> store, RowOptions options);
  RowSequence(const RowSequence&) = delete;
  RowSequence& operator=(const RowSequence&) = delete;
  int64_t rows(int64_t epoch) override;
  // Rows of the first epoch that use nothing of the second: one pass over the data.
  int64_t pass_rows() override;
  RowCursor advance(RowCursor cursor, int64_t n) override;
  int64_t fill(RowCursor cursor, RowView out) override;
  bool pads() const override { return ends_with_document(options_.packing); }
  // Documents on this side of the holdout.
  int64_t documents() const { return documents_; }
  // Tokens (concat), documents (none) or predictions of an epoch.
  int64_t units() const { return units_; }
  const RowUse& use() const { return use_; }
  const TokenStore& store() const { return *store_; }
  const RowOptions& options() const { return options_; }
  int64_t seq_len() const override { return options_.seq_len; }
  std::string digest() const override { return store_->digest(); }
  std::string made_by() const override { return store_->made_by(); }
  std::string describe() const override;
  std::string summary() const override;
  const RowSequence* indexed() const override { return this; }

 private:
  struct Part {
    int64_t document, first;  // from its pair `first` on, to its end or that of a row
  };
  struct Packed {
    std::vector<Part> parts;
    std::vector<int64_t> row_begin = {0};  // row r: parts[row_begin[r] .. row_begin[r + 1])
  };
  struct Epoch {
    int64_t number = -1;
    std::unique_ptr<EpochPlan> plan;
    std::unique_ptr<Packed> packed;  // first_fit, best_fit
  };

  bool included(int64_t document) const;
  bool packs() const { return options_.packing == Packing::first_fit || options_.packing == Packing::best_fit; }
  int64_t pairs(int64_t document) const { return std::max<int64_t>(0, store_->length(document) - 1); }
  // Whether one of the first n pairs has a loss; whether all have.
  bool learns(int64_t document, int64_t n) const;
  bool masked(int64_t document) const;
  int64_t weight(int64_t document) const;
  void measure_use();
  Epoch& epoch(int64_t number);
  std::unique_ptr<Packed> pack(const EpochPlan& plan) const;
  // The packed row at a position of the epoch.
  RowCursor packed(RowCursor cursor);
  int64_t fill_concat(RowCursor cursor, RowView out);
  int64_t fill_concat_documents(RowCursor cursor, RowView out);
  int64_t fill_packed(RowCursor cursor, RowView out);
  int64_t fill_single(RowCursor cursor, RowView out);
  // Pairs [first, first + n) of a document to row places [at, at + n).
  void put_pairs(int64_t document, int64_t first, int64_t n, int64_t at, RowView out);

  std::shared_ptr<const TokenStore> store_;
  RowOptions options_;
  uint64_t threshold_ = 0;
  int64_t documents_ = 0, units_ = 0;
  RowUse use_;
  Epoch cache_[2];  // a batch alternates between at most two epochs
  std::vector<int32_t> buffer_;
  std::vector<uint8_t> loss_;
};

}  // namespace halftone
