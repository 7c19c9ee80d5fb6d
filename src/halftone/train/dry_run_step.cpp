#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>

#include "halftone/ops/range.h"
#include "halftone/parallel/stages.h"
#include "halftone/train/dry_run.h"
#include "halftone/train/engine.h"
#include "halftone/train/silence.h"

namespace halftone {

const DryRun::Peak* DryStep::range(std::string_view name) const {
  const auto found = std::find_if(peaks.begin(), peaks.end(), [&](const DryRun::Peak& p) { return p.range == name; });
  return found == peaks.end() ? nullptr : &*found;
}

const DryRun::Peak& DryStep::peak() const { return *std::ranges::max_element(peaks, {}, &DryRun::Peak::bytes); }

DryStep dry_step(const JobConfig& config, int64_t vocab_size, Hardware hardware, int64_t world, int64_t rank, const GpuRates* rates) {
  const Silence silence;  // the run itself logs it
  const ParallelismConfig& p = config.parallelism;
  const parallel::Mesh mesh(p, world);
  DryStep step;
  DryRun dry(hardware, rates);
  dry.transfers.reads_counts = p.expert_parallel_capacity == 0;
  comm::Watch watch(rank, world, [&](comm::Operation& o, bool begins) { begins ? dry.transfers.begin(o) : dry.transfers.end(o); });
  std::unique_ptr<parallel::Axes> axes;
  Engine::Options options;
  options.device = at::kMeta, options.vocab_size = vocab_size, options.positions = config.training.seq_len;
  if (world > 1) {
    const at::ScalarType reduce = config.training.mixed_precision_reduce == "bfloat16" ? at::kBFloat16 : at::kFloat;
    axes = std::make_unique<parallel::Axes>(watch, mesh, p, parallel::DataParallelOptions{at::kMeta, reduce, parallel::reshards(p)});
    options.axes = axes.get();
  }
  {
    Engine engine(config, options);
    const int64_t count = mesh.size("pp") > 1 ? p.pipeline_parallel_microbatch_size : config.training.local_batch_size;
    std::vector<MicroBatch> batches;
    int64_t labels = 0;
    for (int64_t i = parallel::microbatches_of_step(p, config.training, mesh.size("batch")); i > 0; --i) {
      const Owner owner("batch and rotary tables");
      MicroBatch& b = batches.emplace_back();
      b.input.tokens = at::empty({count, config.training.seq_len}, at::TensorOptions().dtype(at::kLong).device(at::kMeta));
      b.labels = at::empty_like(b.input.tokens), b.valid_labels = b.labels.numel(), labels += b.valid_labels;
    }
    for (int number = 1; number <= 2; ++number) {
      dry.restart();
      engine.accumulate(batches, number, labels * mesh.size("batch"));
      engine.update(1);
      engine.result();
    }
    step.host_bytes = dry.host;
  }
  step.peaks = dry.peaks, step.seconds = dry.seconds;
  step.traffic = std::move(dry.transfers.traffic), step.slower_ms = dry.transfers.slower_ms;
  return step;
}

}  // namespace halftone
