#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "halftone/data/row_sequence.h"
#include "halftone/data/stream_reader.h"

namespace halftone {

// first_fit and best_fit pack windows of so many documents, because a lane has no end. best_fit then pads about 3%.
constexpr int64_t kPackWindow = 256;

// Packs the documents of one lane, one after the other, into rows (Packing).
class LanePacker {
 public:
  using Next = std::function<std::shared_ptr<const StreamedDocument>()>;  // null: the lane's end
  // Where the next row starts: the oldest document that it needs, and what of it is used up: ids (concat, concat_documents), or rows of the
  // window that starts there.
  struct Position {
    LaneStart first;
    int64_t used = 0;
  };
  LanePacker(const RowOptions& options, Next next, Position position)
      : options_(options), next_(std::move(next)), position_(std::move(position)) {}
  // The next row; returns its filled positions, or RowFeed::kEnd behind the last (documents that do not fill one are dropped there). Error
  // if the packing drops 4,096 documents on end: a stream that repeats would never give a row.
  int64_t fill(RowView out);
  const Position& position() const { return position_; }

 private:
  using Shared = std::shared_ptr<const StreamedDocument>;
  // Pairs [first, first + n) of the document that is ids [begin, end) of what the stream gave.
  struct Part {
    Shared from;
    size_t begin = 0, end = 0;
    int64_t first = 0, n = 0;
  };
  bool pull();
  int64_t fill_concat(RowView out);
  int64_t fill_concat_documents(RowView out);
  int64_t fill_from_window(RowView out);
  bool make_window();
  void put(const Part& part, int64_t at, RowView out) const;

  RowOptions options_;
  Next next_;
  Position position_;
  Shared current_;                       // concat, concat_documents: holds position_.used
  std::vector<std::vector<Part>> rows_;  // of the window
  LaneStart behind_window_;
  int64_t rowless_ = 0;  // documents since the last row
  std::vector<int32_t> buffer_;
};

}  // namespace halftone
