#include "halftone/data/row_packing.h"

#include <algorithm>

#include "halftone/data/best_fit.h"
#include "halftone/data/row_sequence.h"

namespace halftone {
namespace {

// The oldest of `bins` open rows with room takes the document; when none has, the oldest is closed. Longer documents are dropped.
std::vector<PackedRow> first_fit(std::span<const int64_t> lengths, int64_t S, int64_t bins) {
  struct Bin {
    int64_t used = 0;
    PackedRow row;
  };
  std::vector<PackedRow> rows;
  std::vector<Bin> open;  // oldest first
  const auto close_oldest = [&] {
    rows.push_back(std::move(open.front().row));
    open.erase(open.begin());
  };
  for (size_t i = 0; i < lengths.size(); ++i) {
    const int64_t n = lengths[i];
    if (n == 0 || n > S) continue;
    auto bin = std::find_if(open.begin(), open.end(), [&](const Bin& b) { return b.used + n <= S; });
    if (bin == open.end()) {
      if (static_cast<int64_t>(open.size()) == bins) close_oldest();
      bin = open.insert(open.end(), Bin{});
    }
    bin->used += n;
    bin->row.push_back({static_cast<int64_t>(i), 0, n});
  }
  while (!open.empty()) close_oldest();
  return rows;
}

// Documents longer than a row become full rows and a rest, or are truncated if they must not be cut.
std::vector<PackedRow> best_fit(std::span<const int64_t> lengths, const std::vector<bool>& cuttable, int64_t S) {
  PackedRow parts;
  for (size_t i = 0; i < lengths.size(); ++i) {
    const int64_t end = cuttable.empty() || cuttable[i] ? lengths[i] : std::min(lengths[i], S);
    for (int64_t first = 0; first < end; first += S) parts.push_back({static_cast<int64_t>(i), first, std::min(S, end - first)});
  }
  std::vector<int64_t> sizes;
  for (const PackedPart& part : parts) sizes.push_back(part.n);
  const BinRows bins = best_fit_decreasing(sizes, S);
  std::vector<PackedRow> rows(bins.row_begin.size() - 1);
  for (size_t r = 0; r < rows.size(); ++r)
    for (int64_t k = bins.row_begin[r]; k < bins.row_begin[r + 1]; ++k)
      rows[r].push_back(parts[static_cast<size_t>(bins.items[static_cast<size_t>(k)])]);
  return rows;
}

}  // namespace

std::vector<PackedRow> pack_rows(std::span<const int64_t> lengths, const std::vector<bool>& cuttable, const RowOptions& options) {
  if (options.packing == Packing::best_fit) return best_fit(lengths, cuttable, options.seq_len);
  if (options.packing == Packing::first_fit) return first_fit(lengths, options.seq_len, options.bins);
  std::vector<PackedRow> rows;  // none: a document a row, truncated
  for (size_t i = 0; i < lengths.size(); ++i) rows.push_back({{static_cast<int64_t>(i), 0, std::min(lengths[i], options.seq_len)}});
  return rows;
}

void put_pairs(std::span<const int32_t> ids, std::span<const uint8_t> learned, int64_t at, RowView out) {
  for (size_t k = 0; k + 1 < ids.size(); ++k) {
    const int64_t j = at + static_cast<int64_t>(k);
    out.tokens[j] = ids[k];
    out.labels[j] = learned.empty() || learned[k + 1] != 0 ? ids[k + 1] : kIgnoredLabel;
    out.doc_start[j] = static_cast<int32_t>(at);
  }
}

void put_concat(std::span<const int32_t> ids, const RowOptions& options, RowView out) {
  int32_t start = 0;
  for (int64_t j = 0; j < options.seq_len; ++j) {
    const auto k = static_cast<size_t>(j);
    if (options.eos_id ? j > 0 && ids[k - 1] == *options.eos_id : out.doc_start[j] != 0) start = static_cast<int32_t>(j);
    out.doc_start[j] = start;
    out.tokens[j] = ids[k];
    out.labels[j] = ids[k + 1];
  }
}

int64_t finish_row(int64_t filled, bool document_positions, int64_t seq_len, RowView out) {
  for (int64_t j = 0; j < filled; ++j) out.positions[j] = static_cast<int32_t>(document_positions ? j - out.doc_start[j] : j);
  for (int64_t j = filled; j < seq_len; ++j) {
    out.tokens[j] = 0;
    out.labels[j] = kIgnoredLabel;
    out.positions[j] = 0;
    out.doc_start[j] = static_cast<int32_t>(filled);
  }
  return filled;
}

}  // namespace halftone
