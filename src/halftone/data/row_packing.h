#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "halftone/data/row_feed.h"

namespace halftone {

struct RowOptions;

// Pairs [first, first + n) of a document, as a part of a row.
struct PackedPart {
  int64_t document, first, n;
};
using PackedRow = std::vector<PackedPart>;

// Rows of at most S pairs from documents of `lengths` pairs, in their order, for the packings whose rows end with a document (first_fit,
// best_fit, none). cuttable[i]: document i may be split over rows (text, not a conversation); empty: all may.
std::vector<PackedRow> pack_rows(std::span<const int64_t> lengths, const std::vector<bool>& cuttable, const RowOptions& options);

// Pairs of consecutive ids at positions [at, at + ids.size() - 1) of a row, as one document. learned: by id, whether it has a loss; empty:
// all have.
void put_pairs(std::span<const int32_t> ids, std::span<const uint8_t> learned, int64_t at, RowView out);
// A row of concat from S + 1 ids. Without an EOS id, nonzero out.doc_start marks the starts of documents.
void put_concat(std::span<const int32_t> ids, const RowOptions& options, RowView out);
// Sets the positions and pads from `filled` on; returns `filled`.
int64_t finish_row(int64_t filled, bool document_positions, int64_t seq_len, RowView out);

// Why concat refuses conversations.
inline constexpr const char* kConcatOfChats =
    "dataloader.packing = \"concat\" cuts documents at every EOS, and each turn of a conversation ends with one; set packing = "
    "\"best_fit\" "
    "(or first_fit, concat_documents, none)";

}  // namespace halftone
