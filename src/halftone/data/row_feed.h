#pragma once
#include <compare>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "halftone/base/ignored_label.h"

namespace halftone {

class RowSequence;

// Destination of one row; each array has S elements.
struct RowView {
  int64_t* tokens;
  int64_t* labels;     // -100: ignored
  int32_t* positions;  // for RoPE: position in the row, or in the document's part of the row
  int32_t* doc_start;  // position in the row where this position's document starts (block_causal attention)
};
void fill_ignored_row(RowView row, int64_t seq_len);

// Position in the endless sequence of rows. Feeds without known epochs count in epoch 0.
struct RowCursor {
  int64_t epoch = 0, row = 0;
  auto operator<=>(const RowCursor&) const = default;
};

// The sequence of rows that a loader splits into batches: the same on every process, whatever their number. One thread at a time.
class RowFeed {
 public:
  static constexpr int64_t kEnd = -1;
  virtual ~RowFeed() = default;
  virtual int64_t seq_len() const = 0;
  // Whether rows may hold positions without a token.
  virtual bool pads() const = 0;
  virtual int64_t rows(int64_t epoch) = 0;
  // Rows of the first epoch that use nothing of the second: one pass over the data.
  virtual int64_t pass_rows() = 0;
  virtual RowCursor advance(RowCursor cursor, int64_t n) = 0;
  // Fills `out` and returns how many positions documents fill; positions behind them are padding. kEnd: there is no such row. A feed
  // without random access (!indexed()) is asked for rows in ascending order.
  virtual int64_t fill(RowCursor cursor, RowView out) = 0;
  // Digest of the data; how documents are read; everything that decides the order of rows. States of others are rejected by comparing them.
  virtual std::string digest() const = 0;
  virtual std::string made_by() const = 0;
  virtual std::string describe() const = 0;
  // "text: 2,141 files, 41.2 MB, ...": for the start of a run.
  virtual std::string summary() const = 0;
  // The feed as one with random access and known epochs; null for streams and mixtures.
  virtual const RowSequence* indexed() const { return nullptr; }

  // Streams and mixtures only:
  // Names of a mixture's sources, and the source of the row filled last.
  virtual std::vector<std::string> sources() const { return {}; }
  virtual int source() const { return 0; }
  // Positions from which the rows at and behind `boundary` follow, as far as this process knows them: the union over all processes is
  // complete. Restoring takes such a union, or what the same process said, and that boundary.
  virtual nlohmann::json positions(RowCursor boundary) const;
  virtual void restore(const nlohmann::json& positions, RowCursor boundary);
};

}  // namespace halftone
