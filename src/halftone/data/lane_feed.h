#pragma once
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "halftone/data/lane_packer.h"
#include "halftone/data/mixture.h"
#include "halftone/data/row_feed.h"

namespace halftone {

// One data set as rows by lane: each lane is a sequence of its own.
class LaneRows {
 public:
  virtual ~LaneRows() = default;
  // The next row of a lane: its filled positions, or RowFeed::kEnd.
  virtual int64_t fill(int64_t lane, RowView out) = 0;
  virtual bool pads() const = 0;
  virtual std::string digest() const = 0;
  virtual std::string made_by() const = 0;
  virtual std::string summary() const = 0;
  // Where the lane's next row starts; rows: those that fill() has returned.
  virtual nlohmann::json position(int64_t lane, int64_t rows) const = 0;
  // Restarts every lane: at the given positions, others at their beginning. Error if one is not what position() returns. `owned`: lanes of
  // which fill() is asked for rows.
  virtual void restart(const std::map<int64_t, nlohmann::json>& positions, const std::map<int64_t, int64_t>& rows,
                       const std::vector<bool>& owned) = 0;
};

// A streamed data set (stream_reader.h).
std::unique_ptr<LaneRows> stream_rows(std::shared_ptr<const DocumentSource> source, TextCodec codec, const RowOptions& rows,
                                      const StreamOptions& options);
// Every lanes-th row of an indexed one; ends behind `epochs` epochs if > 0.
std::unique_ptr<LaneRows> indexed_rows(std::unique_ptr<RowSequence> rows, int64_t lanes, int64_t epochs);

// Lanes in which a process has rows: those of its share of every step (loader.h) from row `first` on.
std::vector<bool> lanes_of(int64_t lanes, int64_t local_batch, int64_t global_batch, int64_t dp_rank, int64_t dp_size, int64_t first = 0);

// Row r is the next row of lane r mod lanes, drawn from one of the sources (mixture.h) with the weights of its step. The draw, and so the
// order of rows, depends on nothing but the options, whatever the number of processes. A source that has ended in a lane is left out of
// that lane's draws.
class LaneFeed : public RowFeed {
 public:
  struct Source {
    std::string name;
    WeightSchedule weight;
    std::string encoding;   // digest of the tokenizer and of the options of its texts
    int64_t row_limit = 0;  // > 0: rows that are drawn at most
    std::unique_ptr<LaneRows> rows;
  };
  struct Options {
    int64_t lanes = 64, seq_len = 2048;
    int64_t local_batch = 1, global_batch = 1, dp_rank = 0, dp_size = 1;  // as the loader's
    uint64_t seed = 42;
    std::string described;  // everything else that decides the order
    bool mixture = false;   // false: one source without a name
    std::string tokenizer;  // digest
  };
  LaneFeed(std::vector<Source> sources, Options options);
  int64_t seq_len() const override { return options_.seq_len; }
  bool pads() const override;
  int64_t rows(int64_t) override { return INT64_MAX; }
  int64_t pass_rows() override { return INT64_MAX; }
  RowCursor advance(RowCursor cursor, int64_t n) override { return {0, cursor.row + n}; }
  int64_t fill(RowCursor cursor, RowView out) override;
  std::string digest() const override;
  std::string made_by() const override;
  std::string describe() const override;
  std::string summary() const override;
  std::vector<std::string> sources() const override;
  int source() const override { return last_source_; }
  nlohmann::json positions(RowCursor boundary) const override;
  void restore(const nlohmann::json& positions, RowCursor boundary) override;

 private:
  struct Lane {
    int64_t rows = 0;
    std::vector<int64_t> drawn;  // rows by source
    std::vector<bool> ended;
  };
  std::vector<bool> owned(int64_t first) const;
  int64_t rows_before(int64_t lane, int64_t row) const;
  int64_t produce(int64_t lane, RowView out);
  std::string differences(const nlohmann::json& saved) const;

  std::vector<Source> sources_;
  Options options_;
  std::vector<Lane> lanes_;
  int last_source_ = 0;
  std::vector<int64_t> wide_;  // a row that belongs to another process
  std::vector<int32_t> narrow_;
};

}  // namespace halftone
