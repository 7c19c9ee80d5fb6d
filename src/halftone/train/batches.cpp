#include "halftone/train/batches.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "halftone/base/error.h"
#include "halftone/base/stopwatch.h"

namespace halftone {

std::vector<MicroBatch> to_device(const Batch& b, const Engine& engine, int64_t first_row) {
  const int64_t rows = b.tokens.size(0), each = engine.pipeline() != nullptr ? engine.pipeline()->microbatch_rows() : rows;
  std::vector<MicroBatch> all;
  for (int64_t row = 0; row < rows; row += each) {
    const int64_t count = std::min(each, rows - row);
    const auto cut = [&](const at::Tensor& t) { return t.defined() ? t.narrow(0, row, count) : t; };
    MicroBatch& m = all.emplace_back();
    m.input.tokens = cut(b.tokens), m.labels = cut(b.labels), m.input.positions = cut(b.positions);
    m.input.padding = cut(b.padding);
    if (!b.sources.empty())
      m.sources = at::tensor(b.sources, at::kLong).narrow(0, row, count).unsqueeze(1).expand({count, b.tokens.size(1)});
    if (engine.built().block_causal) m.input.documents = documents_of(cut(b.doc_start), engine.device());
    m.valid_labels = count == rows ? b.valid_labels : cut(b.labels).ge(0).sum().item<int64_t>();
    m.first_row = first_row + row * b.tokens.size(1);
    m = engine.own_part(m);  // in host memory, where its labels are counted
    if (m.input.padding.defined()) m.padding = m.input.padding.sum().item<int64_t>();
    for (at::Tensor* t : {&m.input.tokens, &m.labels, &m.input.positions, &m.input.padding, &m.sources}) {
      if (t->defined()) *t = t->to(engine.device(), true);
    }
  }
  return all;
}

int64_t first_token(const DataLoader& loader, int64_t a, const Batch& batch) {
  return (a * loader.options().dp_size + loader.options().dp_rank) * batch.tokens.numel();
}

StepAgreement agree_on_step(Processes& processes, const std::optional<std::vector<MicroBatch>>& batches, int signal, double data_seconds) {
  double labels = 0, tokens = 0;
  if (batches && processes.counts_rows()) {
    for (const MicroBatch& b : *batches) labels += static_cast<double>(b.valid_labels), tokens += static_cast<double>(b.tokens());
  }
  const std::vector<Processes::Said> said =
      processes.exchange({batches ? 1.0 : 0.0, labels, static_cast<double>(signal), data_seconds, processes.last_wait(), tokens});
  StepAgreement agreed;
  for (size_t rank = 0; rank < said.size(); ++rank) {
    const auto& [has_rows, valid, received, seconds, waited, seen] = said[rank];
    agreed.has_rows = agreed.has_rows && has_rows != 0;
    agreed.valid_labels += static_cast<int64_t>(valid), agreed.tokens += static_cast<int64_t>(seen);
    agreed.signal = std::max(agreed.signal, static_cast<int>(received));
    if (seconds > agreed.data_seconds) agreed.data_seconds = seconds, agreed.data_rank = static_cast<int64_t>(rank);
  }
  constexpr size_t kWaited = 4;
  const auto [last, first] =
      std::minmax_element(said.begin(), said.end(), [](const auto& a, const auto& b) { return a[kWaited] < b[kWaited]; });
  agreed.lag_seconds = (*first)[kWaited] - (*last)[kWaited], agreed.lag_rank = last - said.begin();
  return agreed;
}

std::vector<MicroBatch> coming_step(DataLoader& loader, const Engine& engine) {
  const nlohmann::json here = loader.state();
  std::vector<MicroBatch> batches;
  for (int64_t a = 0; a < loader.microbatches_per_step() && loader.has_next(); ++a) {
    const Batch batch = loader.next();
    for (MicroBatch& m : to_device(batch, engine, first_token(loader, a, batch))) batches.push_back(std::move(m));
  }
  loader.load_state(here);
  return batches;
}

Evaluation evaluate(Engine& engine, DataLoader& loader, Processes& processes) {
  const Stopwatch watch;
  Evaluation e;
  loader.rewind();
  while (loader.has_next()) {
    const Batch batch = loader.next();
    const std::vector<MicroBatch> own = to_device(batch, engine, 0);
    e.loss_sum += engine.evaluate(own);
    for (const MicroBatch& m : own) e.valid_labels += m.valid_labels, e.tokens += m.tokens();
    e.label_bytes += batch.label_bytes;
  }
  Processes::Said own = {e.loss_sum};
  if (processes.counts_rows())
    own = {e.loss_sum, static_cast<double>(e.valid_labels), static_cast<double>(e.tokens), static_cast<double>(e.label_bytes)};
  Processes::Said sums = {};
  for (const Processes::Said& said : processes.exchange(own)) {
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += said[i];
  }
  e.loss_sum = sums[0], e.valid_labels = static_cast<int64_t>(sums[1]);
  e.label_bytes = static_cast<int64_t>(sums[3]) * processes.data_ranks() / processes.token_ranks();  // for full rows
  check(e.valid_labels > 0, "validation: the data has no valid label");
  e.seconds = watch.seconds();
  return e;
}

}  // namespace halftone
