#include "halftone/data/lane_packer.h"

#include <algorithm>

#include "halftone/base/error.h"
#include "halftone/data/row_packing.h"

namespace halftone {

namespace {

constexpr int64_t kMostRowless = 4096;

}  // namespace

bool LanePacker::pull() {
  current_ = next_();
  if (current_ == nullptr) return false;
  const bool resumed = current_->ordinal == position_.first.ordinal;
  position_ = {{current_->block, current_->ordinal}, resumed ? position_.used : 0};
  return true;
}

int64_t LanePacker::fill(RowView out) {
  switch (options_.packing) {
    case Packing::concat:
      return fill_concat(out);
    case Packing::concat_documents:
      return fill_concat_documents(out);
    default:
      return fill_from_window(out);
  }
}

int64_t LanePacker::fill_concat(RowView out) {
  const int64_t S = options_.seq_len, want = S + 1;
  buffer_.resize(static_cast<size_t>(want));
  std::fill_n(out.doc_start, S, 0);
  for (int64_t at = 0; at < want;) {
    if (current_ == nullptr && !pull()) return RowFeed::kEnd;
    check(current_->learned.empty(), "{}", kConcatOfChats);
    const int64_t n = std::min<int64_t>(want - at, static_cast<int64_t>(current_->ids.size()) - position_.used);
    std::copy_n(current_->ids.begin() + position_.used, n, buffer_.begin() + at);
    if (position_.used == 0 && at < S) out.doc_start[at] = 1;
    at += n;
    position_.used += n;
    if (position_.used < static_cast<int64_t>(current_->ids.size())) continue;
    ++position_.first.ordinal, position_.used = 0;
    current_ = nullptr;
  }
  put_concat(buffer_, options_, out);
  return finish_row(S, options_.document_positions.value_or(false), S, out);
}

void LanePacker::put(const Part& part, int64_t at, RowView out) const {
  const auto from = static_cast<std::ptrdiff_t>(part.begin) + part.first;
  const std::span<const int32_t> ids(part.from->ids.data() + from, static_cast<size_t>(part.n) + 1);
  const std::span<const uint8_t> learned = part.from->learned.empty()
                                               ? std::span<const uint8_t>()
                                               : std::span(part.from->learned.data() + from, static_cast<size_t>(part.n) + 1);
  put_pairs(ids, learned, at, out);
}

int64_t LanePacker::fill_concat_documents(RowView out) {
  const int64_t S = options_.seq_len;
  for (int64_t at = 0; at < S;) {
    if (current_ == nullptr && !pull()) return RowFeed::kEnd;
    const auto used = static_cast<size_t>(position_.used);
    const size_t end = *std::upper_bound(current_->ends.begin(), current_->ends.end(), used);
    const int64_t n = std::min<int64_t>(S - at, static_cast<int64_t>(end - used) - 1);
    if (n > 0) put({current_, used, end, 0, n}, at, out);
    at += n;
    position_.used += n;
    if (used + static_cast<size_t>(n) + 1 < end) continue;
    ++position_.used;  // a document's last id predicts nothing
    if (position_.used < static_cast<int64_t>(current_->ids.size())) continue;
    ++position_.first.ordinal, position_.used = 0;
    current_ = nullptr;
  }
  return finish_row(S, options_.document_positions.value_or(true), S, out);
}

bool LanePacker::make_window() {
  std::vector<Part> parts;
  std::vector<int64_t> lengths;
  std::vector<bool> cuttable;
  LaneStart last;
  const int64_t documents = options_.packing == Packing::none ? 1 : kPackWindow;
  for (int64_t i = 0; i < documents; ++i) {
    const Shared document = next_();
    if (document == nullptr) break;
    if (i == 0 && document->ordinal != position_.first.ordinal) position_.used = 0;
    if (i == 0) position_.first = {document->block, document->ordinal};
    last = {document->block, document->ordinal + 1};
    ++rowless_;
    size_t begin = 0;
    for (const size_t end : document->ends) {
      const int64_t n = std::max<int64_t>(0, static_cast<int64_t>(end - begin) - 1), in_row = std::min(n, options_.seq_len);
      const auto learned = document->learned.begin() + static_cast<std::ptrdiff_t>(document->learned.empty() ? 0 : begin + 1);
      const bool learns = document->learned.empty() || std::any_of(learned, learned + in_row, [](uint8_t l) { return l != 0; });
      if (learns) {
        parts.push_back({document, begin, end, 0, n});
        lengths.push_back(n);
        cuttable.push_back(document->learned.empty());
      }
      begin = end;
    }
  }
  if (last.block == nullptr) return false;
  rows_.clear();
  for (const PackedRow& row : pack_rows(lengths, cuttable, options_)) {
    std::vector<Part>& out = rows_.emplace_back();
    for (const PackedPart& p : row) {
      Part part = parts[static_cast<size_t>(p.document)];
      part.first = p.first, part.n = p.n;
      out.push_back(std::move(part));
    }
  }
  behind_window_ = last;
  if (!rows_.empty()) rowless_ = 0;
  check(rowless_ < kMostRowless, "none of {} documents on end fits into a row with a loss: raise seq_len (now {})", rowless_,
        options_.seq_len);
  return true;
}

int64_t LanePacker::fill_from_window(RowView out) {
  while (position_.used >= static_cast<int64_t>(rows_.size())) {
    if (!rows_.empty()) position_ = {behind_window_, 0}, rows_.clear();
    if (!make_window()) return RowFeed::kEnd;
    if (rows_.empty()) position_ = {behind_window_, 0};
  }
  const std::vector<Part>& row = rows_[static_cast<size_t>(position_.used)];
  int64_t at = 0;
  for (const Part& part : row) {
    if (part.n > 0) put(part, at, out);
    at += part.n;
  }
  ++position_.used;
  return finish_row(at, options_.document_positions.value_or(true), options_.seq_len, out);
}

}  // namespace halftone
