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
#include "halftone/nn/recipe_schedule.h"
#include "halftone/parallel/axes.h"
#include "halftone/train/expert_load.h"
#include "halftone/train/step_graph.h"

namespace halftone {

struct StepResult {     // over all ranks
  double loss_sum = 0;  // nats over valid labels
  int64_t valid_labels = 0;
  double max_loss = 0;   // largest mean loss of a rank
  int64_t max_rank = 0;  // that rank; in a non-finite step, the first with a non-finite loss
  double grad_norm = 0;  // before clipping
  bool finite = true;
  bool updated = false;
  std::vector<ExpertLoad> experts{};  // of every MoE layer
};

// The model, its parameters and the optimizer: runs one optimizer step, apart from I/O.
class Engine {
 public:
  struct Options {
    at::Device device = at::kCPU;
    uint64_t seed = 0;
    int64_t vocab_size = 0;  // the tokenizer's: the model must have as many; 0: none
    int64_t positions = 0;   // longest row
    bool trainable = true;
    parallel::Axes* axes = nullptr;  // null: one process
  };
  // Creates the model on the device with undefined weights; call initialize() or load a checkpoint next.
  Engine(const JobConfig& config, const Options& options);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  void initialize() { store_.initialize(options_.seed); }
  uint64_t seed() const { return options_.seed; }
  const Options& options() const { return options_; }
  void set_seed(uint64_t seed);  // for all later draws; a resumed run keeps the seed it started with
  // One optimizer step (number `step`, from 1) in three parts, of which only the last waits for a GPU: the GPU keeps running meanwhile,
  // and the next step's first part may be queued. Order: accumulate, result of the previous step, update.
  // Forward and backward of this rank's micro-batches: gradients of sum CE / sum valid labels over all ranks, each of which has as many
  // micro-batches; `valid_labels` is the sum over all ranks.
  void accumulate(std::span<const MicroBatch> batches, int64_t step, int64_t valid_labels);
  void accumulate(std::span<const MicroBatch> batches, int64_t step);  // for a single process
  // Clips and updates. Nothing changes if loss or norm is not finite, the mean loss is above the limit, or no label is valid.
  void update(double lr_factor, double loss_limit = std::numeric_limits<double>::infinity());
  // The outcome of the latest update(); call once.
  StepResult result();
  // Instead of update(): discards the gradients of accumulate().
  void drop_gradients();
  // The three parts.
  StepResult step(std::span<const MicroBatch> batches, int64_t step, double lr_factor);
  // Sum of cross-entropies in nats on this rank; in a pipeline, the last stage has it.
  double evaluate(std::span<const MicroBatch> batches);
  double evaluate(const MicroBatch& batch) { return evaluate(std::span(&batch, 1)); }
  // This rank's part of full rows (parallel::Axes); the functions above call it too.
  MicroBatch own_part(const MicroBatch& batch) const;
  parallel::Pipeline* pipeline() const { return options_.axes != nullptr ? options_.axes->pipeline() : nullptr; }

  // From here on adds up the losses (nats) and valid labels of each source of a mixture, of this rank: fp64 [2, sources] on the device;
  // undefined on ranks whose losses others count.
  void sum_sources(int64_t sources);
  const at::Tensor& source_sums() const { return source_sums_; }

  nn::Model& model() { return *built_.model; }
  nn::ParameterStore& store() { return store_; }
  const std::vector<std::string>& recipe_lines() const { return recipe_lines_; }
  const nn::RecipeSchedule& recipes() const { return *recipes_; }
  // Another number of steps, of which quantize.phases takes fractions.
  void set_scheduled_steps(int64_t steps) { recipes_->set_steps(steps); }
  // The recipes of this step, which accumulate() enters too; evaluate() runs in those of the latest step.
  void enter_phase_of(int64_t step);
  const BuiltModel& built() const { return built_; }
  const nn::ModelSize& size() const { return size_; }
  at::Device device() const { return options_.device; }
  int64_t updates() const { return updates_; }
  void set_updates(int64_t n) { updates_ = n; }  // the optimizer's t after loading
  std::vector<std::string> memory_table() const;

  struct NamedState {
    std::string fqn;
    std::vector<std::pair<optim::State, at::Tensor>> tensors;
    const OptimizerSegment* segment;
    std::vector<std::pair<std::string, at::Tensor>> more;  // of weight de-oscillation
  };
  std::vector<NamedState> optimizer_states();
  // The mesh axes along which ranks hold replicas of a parameter.
  std::vector<std::string_view> holders(const nn::Parameter& p) const;
  // Resets the states, for a checkpoint without them.
  void clear_optimizer();
  // Allocates the states that a checkpoint of step `step` contains.
  void prepare_states(int64_t step);

 private:
  parallel::DataParallel* data_parallel() const { return options_.axes != nullptr ? &options_.axes->data() : nullptr; }
  bool sharded() const { return data_parallel() != nullptr && data_parallel()->sharded(); }
  void gradients_are_stale();
  void set_step(int64_t step);
  void start_deoscillation();
  nn::ModelInput input_of(const MicroBatch& batch) const;  // with its step context
  void build_optimizer(const OptimizerConfig& config, const TrainingConfig& training);
  // Adds the losses to the outcome. Multiplies gradients by `scale`, and by the factor if given.
  void forward_backward(std::span<const MicroBatch> batches, double scale, const at::Tensor& factor);
  const StepOutcome& arrived_outcome() const;  // waits for it

  Options options_;
  BuiltModel built_;
  nn::ParameterStore store_;
  nn::ModelSize size_;
  std::vector<std::string> recipe_lines_;
  std::unique_ptr<nn::RecipeSchedule> recipes_;
  std::vector<nn::RecomputePlan> recompute_;  // of every phase
  std::unique_ptr<nn::Deoscillator> deosc_;
  std::unique_ptr<ExpertLoads> experts_;
  StepContext context_;  // of the current step
  std::unique_ptr<StepGraph> graph_;
  OptimizerHyper hyper_;
  std::span<const optim::State> states_;
  std::vector<std::vector<double>> base_lr_;  // per unit and segment
  at::Tensor device_step_;                    // CUDA: int32 [1], the current step, which graphs read (ops/weight.h)
  at::Tensor outcome_;                        // a StepOutcome on the device
  at::Tensor source_sums_;
  at::Tensor seen_;                      // its host copy, since the next step overwrites it
  std::unique_ptr<c10::Event> arrived_;  // GPU: the copy is complete
  int64_t step_ = 0, valid_labels_ = 0;  // of accumulate()
  int64_t own_labels_ = 0;               // this rank's part of them
  int64_t updating_labels_ = 0;          // of update()
  double max_norm_ = 1;
  bool host_states_ = false;  // optimizer states are in host memory, accessed by GPU kernels
  int64_t updates_ = 0;
};

// Error naming the model if its parameters, gradients and moments, `needed` bytes, exceed the available memory.
void require_memory(int64_t needed, int64_t available, const ModelConfig& model);

// Error if the optimizer's states, `needed` bytes, exceed the available host memory (training.offload).
void require_host_memory(int64_t needed, int64_t available);

// Bytes of optimizer state per parameter element.
int64_t moment_bytes(const OptimizerConfig& config);
bool keeps_states_on_host(const TrainingConfig& config);

}  // namespace halftone
