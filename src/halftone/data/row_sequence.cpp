#include "halftone/data/row_sequence.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "halftone/base/error.h"
#include "halftone/data/row_packing.h"
#include "halftone/data/source.h"

namespace halftone {
namespace {

constexpr std::pair<Packing, const char*> kPackings[] = {{Packing::concat, "concat"},
                                                         {Packing::concat_documents, "concat_documents"},
                                                         {Packing::first_fit, "first_fit"},
                                                         {Packing::best_fit, "best_fit"},
                                                         {Packing::none, "none"}};

std::string percent(int64_t part, int64_t whole) {
  return fmt::format("{:.1f}%", 100.0 * static_cast<double>(part) / static_cast<double>(std::max<int64_t>(whole, 1)));
}

}  // namespace

Packing parse_packing(const std::string& name) {
  for (const auto& [packing, its_name] : kPackings)
    if (name == its_name) return packing;
  fail("dataloader.packing = \"{}\": expected concat, concat_documents, first_fit, best_fit or none", name);
}

const char* name_of(Packing packing) { return std::ranges::find(kPackings, packing, &std::pair<Packing, const char*>::first)->second; }

RowSequence::RowSequence(std::shared_ptr<const TokenStore> store, RowOptions options) : store_(std::move(store)), options_(options) {
  const int64_t S = options_.seq_len;
  check(S >= 1 && S < INT32_MAX, "seq_len = {}: expected at least 1", S);
  check(options_.bins >= 1, "dataloader.num_packing_bins = {}: expected at least 1", options_.bins);
  check(options_.holdout >= 0 && options_.holdout < 1, "validation.holdout = {}: expected a share from 0 to below 1", options_.holdout);
  threshold_ = static_cast<uint64_t>(std::ldexp(options_.holdout, 64));
  const bool concat = options_.packing == Packing::concat;
  check(!concat || !store_->masked(), "{}", kConcatOfChats);
  if (store_->stats().chats > 0) options_.eos_id.reset();  // a turn's EOS ends no document
  for (int64_t i = 0; i < store_->documents(); ++i) {
    if (!included(i)) continue;
    ++documents_;
    const int64_t n = pairs(i);
    use_.units += store_->count_loss(i, std::min<int64_t>(1, store_->length(i)), n);
    use_.unlearned_documents += n > 0 && !learns(i, std::min(n, S)) ? 1 : 0;
    use_.longer_documents += n > S && (options_.packing != Packing::best_fit || masked(i)) ? 1 : 0;
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
    case Packing::best_fit:
      check(rows(0) > 0, "none of the {} {} documents fits into a row with a loss: raise seq_len (now {})", documents_, side, S);
      break;
    case Packing::none:
      check(units_ > 0, "none of the {} {} documents has a loss within seq_len: raise it (now {})", documents_, side, S);
      break;
  }
  use_.rows = rows(0), use_.pass_rows = pass_rows();
  if (concat) use_.units = use_.used = use_.places = units_;
  if (!concat) measure_use();
}

// Predictions in the rows of the first epoch.
void RowSequence::measure_use() {
  const int64_t S = options_.seq_len;
  const auto add = [&](int64_t document, int64_t first, int64_t n) {
    if (n <= 0) return;
    use_.places += n;
    use_.used += store_->count_loss(document, first + 1, n);
  };
  if (packs()) {
    for (const Part& part : epoch(0).packed->parts) add(part.document, part.first, std::min(S, pairs(part.document) - part.first));
    return;
  }
  const EpochPlan& plan = *epoch(0).plan;
  const bool single = options_.packing == Packing::none;
  for (int64_t place = 0, left = use_.rows * S; place < plan.documents() && left > 0; ++place) {
    const int64_t document = plan.document(place), n = std::min(single ? S : left, plan.weight(document) > 0 ? pairs(document) : 0);
    add(document, 0, n);
    if (!single) left -= n;
  }
}

bool RowSequence::learns(int64_t document, int64_t n) const { return !store_->masked() || store_->count_loss(document, 1, n) > 0; }

bool RowSequence::masked(int64_t document) const {
  const int64_t n = pairs(document);
  return store_->masked() && n > 0 && store_->count_loss(document, 1, n) < n;
}

bool RowSequence::included(int64_t document) const {
  return options_.holdout == 0 ? !options_.held_out : (store_->hash(document) < threshold_) == options_.held_out;
}

int64_t RowSequence::weight(int64_t document) const {
  if (!included(document)) return 0;
  if (options_.packing == Packing::concat) return store_->length(document);
  const int64_t n = pairs(document);
  if (options_.packing != Packing::concat_documents && n > 0 && !learns(document, std::min(n, options_.seq_len))) return 0;
  return options_.packing == Packing::none ? 1 : n;
}

RowSequence::Epoch& RowSequence::epoch(int64_t number) {
  if (cache_[0].number == number) return cache_[0];
  std::swap(cache_[0], cache_[1]);
  Epoch& e = cache_[0];
  if (e.number == number) return e;
  e.number = -1;
  e.plan = std::make_unique<EpochPlan>(Shuffle(store_->documents(), options_.shuffle, options_.seed, number),
                                       [this](int64_t document) { return weight(document); });
  e.packed = packs() ? pack(*e.plan) : nullptr;
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
    case Packing::best_fit:
      return static_cast<int64_t>(epoch(number).packed->row_begin.size()) - 1;
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
    case Packing::best_fit:
      return fill_packed(cursor, out);
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
  loss_.resize(store_->masked() ? buffer_.size() : 0);
  if (!loss_.empty()) store_->read_loss(document, first, loss_);
  halftone::put_pairs(buffer_, loss_, at, out);
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

std::unique_ptr<RowSequence::Packed> RowSequence::pack(const EpochPlan& plan) const {
  auto out = std::make_unique<Packed>();
  // Windows of equal size. first_fit goes on from one document to the next.
  const int64_t documents = plan.documents();
  const int64_t windows = options_.packing == Packing::best_fit ? (documents + kBestFitWindow - 1) / kBestFitWindow : 1;
  std::vector<int64_t> lengths;
  std::vector<bool> cuttable;
  for (int64_t w = 0; w < windows; ++w) {
    const int64_t begin = documents * w / windows, end = documents * (w + 1) / windows;
    lengths.clear(), cuttable.clear();
    for (int64_t place = begin; place < end; ++place) {
      const int64_t document = plan.document(place), n = plan.weight(document);
      lengths.push_back(n);
      cuttable.push_back(n <= options_.seq_len || !masked(document));
    }
    for (const PackedRow& row : pack_rows(lengths, cuttable, options_)) {
      for (const PackedPart& part : row) out->parts.push_back({plan.document(begin + part.document), part.first});
      out->row_begin.push_back(static_cast<int64_t>(out->parts.size()));
    }
  }
  return out;
}

int64_t RowSequence::fill_packed(RowCursor cursor, RowView out) {
  const Packed& packed = *epoch(cursor.epoch).packed;
  const auto r = static_cast<size_t>(cursor.row);
  int64_t at = 0;
  for (int64_t k = packed.row_begin[r]; k < packed.row_begin[r + 1]; ++k) {
    const Part& part = packed.parts[static_cast<size_t>(k)];
    const int64_t n = std::min(options_.seq_len, pairs(part.document) - part.first);
    put_pairs(part.document, part.first, n, at, out);
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
  const std::string bins = options_.packing == Packing::first_fit  ? fmt::format(" num_packing_bins={}", options_.bins)
                           : options_.packing == Packing::best_fit ? fmt::format(" window={}", kBestFitWindow)
                                                                   : "";
  return fmt::format("packing={}{} seq_len={} shuffle={}{} seed={} holdout={}{} tokenizer={}", name_of(options_.packing), bins,
                     options_.seq_len, options_.shuffle, options_.shuffle_rows ? " shuffle_rows=true" : "",
                     options_.shuffle || options_.shuffle_rows ? options_.seed : 0, options_.holdout,
                     options_.held_out ? " (held out)" : "", with_tokenizer ? store_->codec_digest() : "-");
}

std::string RowSequence::summary() const {
  const bool tokens = options_.packing == Packing::concat;
  const int64_t empty = store_->stats().empty_documents;
  std::string more;
  if (store_->masked()) more += fmt::format(", {} of the tokens have a loss", percent(use_.used, use_.places));
  if (packs()) more += fmt::format(", {} padding", percent(use_.rows * options_.seq_len - use_.places, use_.rows * options_.seq_len));
  if (options_.packing == Packing::best_fit && use_.longer_documents > 0)
    more += fmt::format(", truncated {} documents longer than a row", with_commas(use_.longer_documents));
  if (use_.unlearned_documents > 0)
    more += fmt::format(", {} documents without a loss within seq_len", with_commas(use_.unlearned_documents));
  if (empty > 0) more += fmt::format(", skipped {} empty documents", with_commas(empty));
  return fmt::format("{}; {} of {} documents, {}{} {} per epoch{}", store_->summary(), with_commas(documents_),
                     with_commas(store_->documents()), with_commas(use_.used),
                     use_.used == use_.units ? "" : fmt::format(" of {}", with_commas(use_.units)), tokens ? "tokens" : "predictions",
                     more);
}

}  // namespace halftone
