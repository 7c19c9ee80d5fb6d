#include "halftone/data/epoch_coverage.h"

#include <fmt/format.h>

#include <algorithm>

#include "halftone/data/source.h"

namespace halftone {
namespace {

using Lines = std::vector<std::string>;

constexpr double kWorthALine = 0.01;       // share of the data
constexpr double kManyPasses = 16;         // more passes teach almost nothing (Muennighoff et al. 2023, arXiv:2305.16264)
constexpr int64_t kFewPredictions = 1000;  // their mean loss is accurate to about a tenth of a nat

std::string share(int64_t part, int64_t whole) {
  const double percent = 100.0 * static_cast<double>(part) / static_cast<double>(std::max<int64_t>(whole, 1));
  return fmt::format("{:.1f}% ({} of {})", percent, with_commas(part), with_commas(whole));
}
bool counts(int64_t part, int64_t whole) { return static_cast<double>(part) >= kWorthALine * static_cast<double>(whole) && part > 0; }

// Data that packing drops.
void add_packing(const DataLoader& loader, Lines& lines) {
  const RowSequence& rows = loader.rows();
  const RowUse& use = rows.use();
  const int64_t S = rows.options().seq_len, lost = use.units - use.used;
  const std::string& name = loader.options().name;
  if (use.unlearned_documents > 0) {
    lines.push_back(fmt::format("{}: {} documents have no token with a loss within seq_len (now {}){}; raise seq_len, or look at them",
                                name, share(use.unlearned_documents, rows.documents()), S,
                                ends_with_document(rows.options().packing) ? " and are left out" : ""));
  }
  if (!counts(lost, use.units)) return;
  const std::string documents = fmt::format("{} of {} documents", with_commas(use.longer_documents), with_commas(rows.documents()));
  if (rows.options().packing == Packing::first_fit) {
    lines.push_back(fmt::format(
        "{}: packing first_fit drops {}, which are longer than a row, and with them {} of the predictions; raise seq_len (now {}) or "
        "use packing concat or concat_documents",
        name, documents, share(lost, use.units), S));
  } else if (rows.options().packing == Packing::best_fit) {
    lines.push_back(fmt::format(
        "{}: packing best_fit truncates {}, which are longer than a row, and drops {} of the predictions; raise seq_len (now {})", name,
        documents, share(lost, use.units), S));
  } else if (rows.options().packing == Packing::none) {
    lines.push_back(fmt::format(
        "{}: packing none truncates {} at the end of their row, and drops {} of the predictions; raise seq_len (now {}) or use packing "
        "concat or concat_documents",
        name, documents, share(lost, use.units), S));
  } else {
    lines.push_back(fmt::format("{}: {} of the predictions are dropped from every epoch: they do not fill a row; lower seq_len (now {})",
                                name, share(lost, use.units), S));
  }
}

// Data dropped at the end of one pass.
void add_pass_end(const DataLoader& loader, Lines& lines) {
  const DataLoader::Options& o = loader.options();
  const RowSequence& rows = loader.rows();
  const RowUse& use = rows.use();
  const int64_t tail = rows.options().packing == Packing::concat ? use.units - use.pass_rows * (rows.options().seq_len + 1) : 0;
  if (counts(tail, use.units)) {
    lines.push_back(fmt::format("{}: one pass drops its last {} of the tokens, which do not fill a row; lower seq_len (now {})", o.name,
                                share(tail, use.units), rows.options().seq_len));
  }
  const int64_t over = o.pad_last ? 0 : use.pass_rows % o.global_batch;
  if (counts(over, use.pass_rows)) {
    lines.push_back(fmt::format("{}: one pass (dataloader.repeat = false) drops its last {} of the rows, which do not fill a step of {}",
                                o.name, share(over, use.pass_rows), o.global_batch));
  }
}

}  // namespace

Lines training_coverage(const DataLoader& loader, int64_t steps) {
  const DataLoader::Options& o = loader.options();
  const int64_t rows = loader.rows().use().rows;
  Lines lines;
  add_packing(loader, lines);
  if (!o.repeat) {
    add_pass_end(loader, lines);
    if (steps > loader.steps_per_pass()) {
      lines.push_back(fmt::format("{}: training.steps = {}, but one pass (dataloader.repeat = false) has {} steps: the run ends there",
                                  o.name, steps, loader.steps_per_pass()));
    }
    return lines;
  }
  const double passes = static_cast<double>(steps) * static_cast<double>(o.global_batch) / static_cast<double>(std::max<int64_t>(rows, 1));
  if (steps > 0 && rows < o.global_batch) {
    lines.push_back(
        fmt::format("{}: an epoch has {} rows, fewer than the {} of a step: every step sees rows more than once; give more "
                    "data, or lower seq_len or global_batch_size",
                    o.name, with_commas(rows), o.global_batch));
  } else if (passes > kManyPasses) {
    lines.push_back(fmt::format("{}: {} steps of {} rows go {:.0f} times through the {} rows of an epoch; give more data, or fewer steps",
                                o.name, with_commas(steps), o.global_batch, passes, with_commas(rows)));
  }
  return lines;
}

Lines validation_coverage(const DataLoader& loader) {
  const DataLoader::Options& o = loader.options();
  const RowUse& use = loader.rows().use();
  Lines lines;
  add_packing(loader, lines);
  add_pass_end(loader, lines);
  const bool concat = loader.rows().options().packing == Packing::concat;
  const int64_t predictions = concat ? use.pass_rows * loader.rows().options().seq_len : use.used;
  if (predictions < kFewPredictions) {
    lines.push_back(
        fmt::format("{}: a validation pass has {} predictions in {} rows of {} documents: its loss is a rough figure; give it "
                    "more text, or raise validation.holdout",
                    o.name, with_commas(predictions), use.pass_rows, with_commas(loader.rows().documents())));
  }
  return lines;
}

}  // namespace halftone
