#include "halftone/train/inference.h"

#include "halftone/ops/batch_invariant.h"
#include "halftone/ops/device.h"
#include "halftone/parallel/mesh.h"
#include "halftone/train/processes.h"
#include "halftone/train/saved_model.h"

namespace halftone {

JobConfig inference_config(const LoadedStep& step, const InferenceOptions& o) {
  JobConfig config = config_of(step, o.recipe);
  if (!o.dtype.empty()) config.training.mixed_precision_param = o.dtype;
  config.debug.batch_invariant = config.debug.batch_invariant || o.batch_invariant;
  set_batch_invariant(config.debug.batch_invariant);
  return config;
}

Engine::Options inference_engine(const JobConfig& config, const std::string& device, Processes* processes) {
  Engine::Options options;
  options.device = select_device(device, processes == nullptr ? 0 : static_cast<int>(processes->local_rank()));
  options.trainable = false;
  if (processes != nullptr && processes->many()) {
    processes->connect(config, options.device), options.axes = processes->axes();
  } else {
    parallel::Mesh(config.parallelism, 1);  // its error for degrees that need more processes
  }
  return options;
}

}  // namespace halftone
