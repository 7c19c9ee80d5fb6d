#include "halftone/data/row_feed.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace halftone {

void fill_ignored_row(RowView row, int64_t seq_len) {
  std::fill_n(row.tokens, seq_len, 0);
  std::fill_n(row.labels, seq_len, kIgnoredLabel);
  std::fill_n(row.positions, seq_len, 0);
  std::fill_n(row.doc_start, seq_len, 0);
}

nlohmann::json RowFeed::positions(RowCursor) const { return nullptr; }
void RowFeed::restore(const nlohmann::json&, RowCursor) {}

}  // namespace halftone
