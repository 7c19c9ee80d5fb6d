#pragma once
#include <c10/core/Event.h>

#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "halftone/config/job_config.h"
#include "halftone/models/registry.h"
#include "halftone/nn/deoscillation.h"
#include "halftone/nn/parameter_store.h"
#include "halftone/parallel/plan.h"
#include "halftone/train/context.h"
#include "halftone/train/expert_load.h"
#include "halftone/train/step_graph.h"

namespace halftone {

struct StepResult {     // of all processes
  double loss_sum = 0;  // nats over valid labels
  int64_t valid_labels = 0;
  double max_loss = 0;   // largest of the processes' mean losses
  int64_t max_rank = 0;  // whose it is; of a step that is not finite, the first that has such a loss
  double grad_norm = 0;  // before clipping
  bool finite = true;
  bool updated = false;
  std::vector<ExpertLoad> experts{};  // of every layer that has some
};

// The model, its parameters and the optimizer: everything of a training step that is not input or output.
class Engine {
 public:
  struct Options {
    at::Device device = at::kCPU;
    uint64_t seed = 0;
    int64_t vocab_size = 0;  // the tokenizer's: the model must have as many; 0: none
    int64_t positions = 0;   // longest row
    bool trainable = true;
    parallel::Plan* plan = nullptr;  // null: one process
  };
  // Model on the device with undefined contents; follow with initialize() or a checkpoint.
  Engine(const JobConfig& config, const Options& options);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  void initialize() { store_.initialize(options_.seed); }
  uint64_t seed() const { return options_.seed; }
  const Options& options() const { return options_; }
  void set_seed(uint64_t seed);  // of every later draw; a resumed run goes on with the seed it started with
  // One optimizer step (number `step`, from 1) in three parts, of which only the last waits for a GPU: its own work goes on meanwhile, and
  // so may the next step's first part. In this order each: accumulate, result of the step before, update.
  // Forward and backward of its micro-batches: gradients of sum CE / sum valid labels over all of them, and over those of the other
  // processes, which have as many: `valid_labels` are those of all.
  void accumulate(std::span<const MicroBatch> batches, int64_t step, int64_t valid_labels);
  void accumulate(std::span<const MicroBatch> batches, int64_t step);  // of one process
  // Clips and updates. Nothing changes when loss or norm is not finite, the mean loss is above the limit, or no label is valid.
  void update(double lr_factor, double loss_limit = std::numeric_limits<double>::infinity());
  // What became of the step that was given to update() last; once.
  StepResult result();
  // In place of update(): forgets what accumulate() did.
  void drop_gradients();
  // The three parts.
  StepResult step(std::span<const MicroBatch> batches, int64_t step, double lr_factor);
  // Sum of cross-entropies in nats, of this process: of a pipeline's stages the last one has it.
  double evaluate(std::span<const MicroBatch> batches);
  double evaluate(const MicroBatch& batch) { return evaluate(std::span(&batch, 1)); }
  // Of whole rows what this process computes (context parallelism); the batch itself where that is all, or where it is that already. The
  // functions above do it, too.
  MicroBatch own_part(const MicroBatch& batch) const;
  parallel::Pipeline* pipeline() const { return options_.plan != nullptr ? options_.plan->pipeline() : nullptr; }

  nn::Model& model() { return *built_.model; }
  nn::ParameterStore& store() { return store_; }
  const std::vector<std::string>& recipe_lines() const { return recipe_lines_; }
  const BuiltModel& built() const { return built_; }
  const nn::ModelSize& size() const { return size_; }
  at::Device device() const { return options_.device; }
  int64_t updates() const { return updates_; }
  void set_updates(int64_t n) { updates_ = n; }  // optimizer's t after loading
  std::vector<std::string> memory_table() const;

  struct NamedState {
    std::string fqn;
    at::Tensor exp_avg, exp_avg_sq;  // undefined where the rule has none
    const OptimizerSegment* segment;
    std::vector<std::pair<std::string, at::Tensor>> more;  // of weight de-oscillation
  };
  std::vector<NamedState> optimizer_states();
  // The axes of the mesh along which processes hold the same of a parameter.
  std::vector<std::string_view> holders(const nn::Parameter& p) const;
  // As before the first update, after a checkpoint that holds no states.
  void clear_optimizer();
  // Makes room for the states that a checkpoint of step `step` holds.
  void prepare_states(int64_t step) { deosc_->prepare(step); }

 private:
  parallel::DataParallel* data_parallel() const { return options_.plan != nullptr ? &options_.plan->data() : nullptr; }
  bool sharded() const { return data_parallel() != nullptr && data_parallel()->sharded(); }
  void gradients_are_stale();
  comm::Communicator* context_ranks() const { return options_.plan != nullptr ? options_.plan->groups().context : nullptr; }
  void set_step(int64_t step);
  nn::ModelInput input_of(const MicroBatch& batch) const;  // with its place in the run
  void build_optimizer(const OptimizerConfig& config, const TrainingConfig& training);
  // Adds the sums of losses to the outcome. Gradients are multiplied by `scale`, and by the factor where there is one.
  void forward_backward(std::span<const MicroBatch> batches, double scale, const at::Tensor& factor);
  const StepOutcome& arrived_outcome() const;  // waits for it

  Options options_;
  ContextOptions rows_;  // how they are shared, where they are
  BuiltModel built_;
  nn::ParameterStore store_;
  nn::ModelSize size_;
  std::vector<std::string> recipe_lines_;
  std::unique_ptr<nn::Deoscillator> deosc_;
  std::unique_ptr<ExpertLoads> experts_;
  StepContext context_;  // of the current step
  std::unique_ptr<StepGraph> graph_;
  OptimizerHyper hyper_;
  std::vector<std::vector<double>> base_lr_;  // per unit and segment
  at::Tensor device_step_;                    // CUDA: int32 [1], the current step as a graph reads it (ops/weight.h)
  at::Tensor outcome_;                        // a StepOutcome on the device
  at::Tensor seen_;                           // its copy for the host: the next step begins another
  std::unique_ptr<c10::Event> arrived_;       // GPU: the copy is there
  int64_t step_ = 0, valid_labels_ = 0;       // of accumulate()
  int64_t own_labels_ = 0;                    // of these, this process's
  int64_t updating_labels_ = 0;               // of update()
  double max_norm_ = 1;
  bool host_states_ = false;  // the optimizer's states lie in host memory, which a GPU's kernels write
  int64_t updates_ = 0;
};

// Error naming the model where its parameters, gradients and moments, `needed` bytes, exceed what is available.
void require_memory(int64_t needed, int64_t available, const ModelConfig& model);

// Error where the optimizer's states, `needed` bytes, exceed what is available of host memory (training.offload).
void require_host_memory(int64_t needed, int64_t available);

// Cuts a model that has its recipes for tensor parallelism. Error where that cannot be.
void split_tensors(nn::Model& model, const nn::TensorPart& part);

// The optimizer's states, of an element of the parameters.
int64_t moment_bytes(const OptimizerConfig& config);
bool keeps_states_on_host(const TrainingConfig& config);

}  // namespace halftone
