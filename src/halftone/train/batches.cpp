#include "halftone/train/batches.h"

#include <nlohmann/json.hpp>

namespace halftone {

MicroBatch to_device(const Batch& b, const Engine& engine, int64_t first_row) {
  MicroBatch m;
  const auto move = [&](const at::Tensor& t) { return t.defined() ? t.to(engine.device(), true) : t; };
  m.input.tokens = move(b.tokens), m.labels = move(b.labels);
  m.input.positions = move(b.positions);
  if (engine.built().block_causal) m.input.doc_start = move(b.doc_start);
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

}  // namespace halftone
