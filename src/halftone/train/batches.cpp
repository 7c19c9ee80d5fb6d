#include "halftone/train/batches.h"

#include <nlohmann/json.hpp>

#include "halftone/base/error.h"
#include "halftone/base/stopwatch.h"

namespace halftone {

MicroBatch to_device(const Batch& b, const Engine& engine, int64_t first_row) {
  MicroBatch m;
  const auto move = [&](const at::Tensor& t) { return t.defined() ? t.to(engine.device(), true) : t; };
  m.input.tokens = move(b.tokens), m.labels = move(b.labels);
  m.input.positions = move(b.positions);
  if (engine.built().block_causal) m.input.documents = documents_of(b.doc_start, engine.device());
  m.valid_labels = b.valid_labels, m.first_row = first_row;
  return m;
}

std::vector<MicroBatch> coming_step(DataLoader& loader, const Engine& engine) {
  const nlohmann::json here = loader.state();
  std::vector<MicroBatch> batches;
  for (int64_t a = 0; a < loader.microbatches_per_step() && loader.has_next(); ++a) {
    const Batch batch = loader.next();
    batches.push_back(to_device(batch, engine, a * batch.tokens.numel()));
  }
  loader.load_state(here);
  return batches;
}

Evaluation evaluate(Engine& engine, DataLoader& loader) {
  const Stopwatch watch;
  Evaluation e;
  loader.rewind();
  while (loader.has_next()) {
    const Batch batch = loader.next();
    e.loss_sum += engine.evaluate(to_device(batch, engine, 0));
    e.valid_labels += batch.valid_labels, e.tokens += batch.tokens.numel(), e.label_bytes += batch.label_bytes;
  }
  check(e.valid_labels > 0, "validation: no valid label in its data");
  e.seconds = watch.seconds();
  return e;
}

}  // namespace halftone
