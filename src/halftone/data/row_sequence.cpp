#include "halftone/data/row_sequence.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "halftone/base/error.h"
#include "halftone/data/row_packing.h"
#include "halftone/data/source.h"

namespace halftone {
namespace {

const char* name_of(Packing packing) {
  switch (packing) {
    case Packing::concat:
      return "concat";
    case Packing::concat_documents:
      return "concat_documents";
    case Packing::first_fit:
      return "first_fit";
    default:
      return "none";
  }
}

}  // namespace

Packing parse_packing(const std::string& name) {
  for (const Packing p : {Packing::concat, Packing::concat_documents, Packing::first_fit, Packing::none})
    if (name == name_of(p)) return p;
  fail("dataloader.packing = \"{}\": expected concat, concat_documents, first_fit or none", name);
}

RowSequence::RowSequence(std::shared_ptr<const TokenStore> store, RowOptions options) : store_(std::move(store)), options_(options) {
  const int64_t S = options_.seq_len;
  check(S >= 1 && S < INT32_MAX, "seq_len = {}: expected at least 1", S);
  check(options_.bins >= 1, "dataloader.num_packing_bins = {}: expected at least 1", options_.bins);
  check(options_.holdout >= 0 && options_.holdout < 1, "validation.holdout = {}: expected a share from 0 to below 1", options_.holdout);
  threshold_ = static_cast<uint64_t>(std::ldexp(options_.holdout, 64));
  int64_t beyond = 0;  // predictions of longer documents that do not fit into a row
  for (int64_t i = 0; i < store_->documents(); ++i) {
    if (!included(i)) continue;
    ++documents_;
    const int64_t n = std::max<int64_t>(0, store_->length(i) - 1);
    use_.units += n;
    if (n <= S) continue;
    ++use_.longer_documents;
    beyond += options_.packing == Packing::first_fit ? n : n - S;
  }
  const char* side = options_.held_out ? "held-out validation" : "training";
  check(documents_ > 0, "no document is left for {} ({} documents, validation.holdout = {})", side, store_->documents(), options_.holdout);
  units_ = epoch(0).plan->total();
  switch (options_.packing) {
    case Packing::concat:
      check(units_ > 0, "the {} documents hold no token", side);
      break;
    case Packing::concat_documents:
      check(units_ >= S, "the {} documents hold {} predictions, less than one row: lower seq_len (now {}) or add text", side, units_, S);
      break;
    case Packing::first_fit:
      check(rows(0) > 0, "none of the {} {} documents fits into a row: raise seq_len (now {})", documents_, side, S);
      break;
    default:
      break;
  }
  use_.rows = rows(0), use_.pass_rows = pass_rows();
  const bool concat = options_.packing == Packing::concat;
  if (concat) use_.units = units_;
  use_.used = concat ? units_ : options_.packing == Packing::concat_documents ? use_.rows * S : use_.units - beyond;
}

bool RowSequence::included(int64_t document) const {
  return options_.holdout == 0 ? !options_.held_out : (store_->hash(document) < threshold_) == options_.held_out;
}

int64_t RowSequence::weight(int64_t document) const {
  if (!included(document)) return 0;
  if (options_.packing == Packing::concat) return store_->length(document);
  return options_.packing == Packing::none ? 1 : std::max<int64_t>(0, store_->length(document) - 1);
}

RowSequence::Epoch& RowSequence::epoch(int64_t number) {
  if (cache_[0].number == number) return cache_[0];
  std::swap(cache_[0], cache_[1]);
  Epoch& e = cache_[0];
  if (e.number == number) return e;
  e.number = -1;
  e.plan = std::make_unique<EpochPlan>(Shuffle(store_->documents(), options_.shuffle, options_.seed, number),
                                       [this](int64_t document) { return weight(document); });
  e.first_fit = options_.packing == Packing::first_fit ? pack_first_fit(*e.plan) : nullptr;
  e.number = number;
  return e;
}

int64_t RowSequence::rows(int64_t number) {
  const int64_t S = options_.seq_len;
  switch (options_.packing) {
    case Packing::concat: {
      // Row r starts at token r * (S + 1) of the endless stream.
      const auto first_row = [&](int64_t e) { return static_cast<int64_t>((static_cast<__int128>(e) * units_ + S) / (S + 1)); };
      return first_row(number + 1) - first_row(number);
    }
    case Packing::concat_documents:
      return units_ / S;
    case Packing::first_fit:
      return static_cast<int64_t>(epoch(number).first_fit->row_begin.size()) - 1;
    default:
      return units_;
  }
}

int64_t RowSequence::pass_rows() { return options_.packing == Packing::concat ? units_ / (options_.seq_len + 1) : rows(0); }

RowCursor RowSequence::advance(RowCursor cursor, int64_t n) {
  cursor.row += n;
  for (int64_t here; cursor.row >= (here = rows(cursor.epoch)); ++cursor.epoch) cursor.row -= here;
  return cursor;
}

RowCursor RowSequence::packed(RowCursor cursor) {
  return {cursor.epoch, Shuffle(rows(cursor.epoch), options_.shuffle_rows, options_.seed, cursor.epoch, "data.shuffle_rows")(cursor.row)};
}

int64_t RowSequence::fill(RowCursor cursor, RowView out) {
  cursor = packed(advance(cursor, 0));
  switch (options_.packing) {
    case Packing::concat:
      return fill_concat(cursor, out);
    case Packing::concat_documents:
      return fill_concat_documents(cursor, out);
    case Packing::first_fit:
      return fill_first_fit(cursor, out);
    default:
      return fill_single(cursor, out);
  }
}

int64_t RowSequence::fill_concat(RowCursor cursor, RowView out) {
  const int64_t S = options_.seq_len, want = S + 1;
  buffer_.resize(static_cast<size_t>(want));
  const __int128 first_row = (static_cast<__int128>(cursor.epoch) * units_ + S) / want;
  int64_t unit = static_cast<int64_t>((first_row + cursor.row) * want - static_cast<__int128>(cursor.epoch) * units_);
  std::fill_n(out.doc_start, S, 0);
  for (int64_t at = 0, number = cursor.epoch; at < want; ++number, unit = 0) {
    const EpochPlan& plan = *epoch(number).plan;
    auto [place, offset] = plan.locate(unit);
    for (; at < want && place < plan.documents(); ++place, offset = 0) {
      const int64_t document = plan.document(place), n = std::min(want - at, plan.weight(document) - offset);
      if (n <= 0) continue;
      store_->read(document, offset, {buffer_.data() + at, static_cast<size_t>(n)});
      // Without an EOS id, the true starts of documents replace "after an EOS".
      if (!options_.eos_id && offset == 0 && at < S) out.doc_start[at] = 1;
      at += n;
    }
  }
  put_concat(buffer_, options_, out);
  return finish_row(S, options_.document_positions.value_or(false), options_.seq_len, out);
}

void RowSequence::put_pairs(int64_t document, int64_t first, int64_t n, int64_t at, RowView out) {
  if (n <= 0) return;
  buffer_.resize(static_cast<size_t>(n) + 1);
  store_->read(document, first, buffer_);
  halftone::put_pairs(buffer_, {}, at, out);
}

int64_t RowSequence::fill_concat_documents(RowCursor cursor, RowView out) {
  const int64_t S = options_.seq_len;
  const EpochPlan& plan = *epoch(cursor.epoch).plan;
  auto [place, offset] = plan.locate(cursor.row * S);
  for (int64_t at = 0; at < S; ++place, offset = 0) {
    const int64_t document = plan.document(place), n = std::min(S - at, plan.weight(document) - offset);
    put_pairs(document, offset, n, at, out);
    at += std::max<int64_t>(n, 0);
  }
  return finish_row(S, options_.document_positions.value_or(true), options_.seq_len, out);
}

std::unique_ptr<RowSequence::FirstFit> RowSequence::pack_first_fit(const EpochPlan& plan) const {
  auto out = std::make_unique<FirstFit>();
  std::vector<int64_t> lengths(static_cast<size_t>(plan.documents()));
  for (int64_t i = 0; i < plan.documents(); ++i) lengths[static_cast<size_t>(i)] = plan.weight(plan.document(i));
  out->row_begin.push_back(0);
  for (const PackedRow& row : pack_rows(lengths, {}, options_)) {
    for (const PackedPart& part : row) out->documents.push_back(plan.document(part.document));
    out->row_begin.push_back(static_cast<int64_t>(out->documents.size()));
  }
  return out;
}

int64_t RowSequence::fill_first_fit(RowCursor cursor, RowView out) {
  const FirstFit& fit = *epoch(cursor.epoch).first_fit;
  const auto r = static_cast<size_t>(cursor.row);
  int64_t at = 0;
  for (int64_t k = fit.row_begin[r]; k < fit.row_begin[r + 1]; ++k) {
    const int64_t document = fit.documents[static_cast<size_t>(k)], n = weight(document);
    put_pairs(document, 0, n, at, out);
    at += n;
  }
  return finish_row(at, options_.document_positions.value_or(true), options_.seq_len, out);
}

int64_t RowSequence::fill_single(RowCursor cursor, RowView out) {
  const EpochPlan& plan = *epoch(cursor.epoch).plan;
  const int64_t document = plan.document(plan.locate(cursor.row).place);
  const int64_t n = std::clamp<int64_t>(store_->length(document) - 1, 0, options_.seq_len);
  put_pairs(document, 0, n, 0, out);
  return finish_row(n, options_.document_positions.value_or(true), options_.seq_len, out);
}

std::string RowSequence::describe() const {
  const bool with_tokenizer = !store_->ready_made() || options_.holdout > 0;  // held-out documents are chosen by their text
  const std::string bins = options_.packing == Packing::first_fit ? fmt::format(" num_packing_bins={}", options_.bins) : "";
  return fmt::format("packing={}{} seq_len={} shuffle={}{} seed={} holdout={}{} tokenizer={}", name_of(options_.packing), bins,
                     options_.seq_len, options_.shuffle, options_.shuffle_rows ? " shuffle_rows=true" : "",
                     options_.shuffle || options_.shuffle_rows ? options_.seed : 0, options_.holdout,
                     options_.held_out ? " (held out)" : "", with_tokenizer ? store_->codec_digest() : "-");
}

std::string RowSequence::summary() const {
  const bool tokens = options_.packing == Packing::concat;
  const int64_t empty = store_->stats().empty_documents;
  return fmt::format("{}; {} of {} documents, {}{} {} per epoch{}", store_->summary(), with_commas(documents_),
                     with_commas(store_->documents()), with_commas(use_.used),
                     use_.used == use_.units ? "" : fmt::format(" of {}", with_commas(use_.units)), tokens ? "tokens" : "predictions",
                     empty == 0 ? "" : fmt::format(", skipped {} empty documents", with_commas(empty)));
}

}  // namespace halftone
