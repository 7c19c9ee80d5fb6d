#include "halftone/train/engine.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "halftone/base/error.h"
#include "halftone/base/log.h"
#include "halftone/formats/describe.h"
#include "halftone/nn/pass.h"
#include "halftone/nn/pattern.h"
#include "halftone/nn/recipe_config.h"
#include "halftone/ops/batch_invariant.h"
#include "halftone/ops/device.h"
#include "halftone/ops/hardware.h"
#include "halftone/ops/host_memory.h"
#include "halftone/ops/range.h"
#include "halftone/train/recompute.h"

namespace halftone {
namespace {

at::ScalarType float_type(const std::string& name, const char* field) {
  if (name == "float32") return at::kFloat;
  if (name == "bfloat16") return at::kBFloat16;
  fail("{}: expected float32 or bfloat16, found '{}'", field, name);
}

// The group that matches the parameter: index into param_groups, or -1 if there are none.
int group_of(const std::vector<ParamGroup>& groups, const std::vector<nn::Pattern>& patterns, const std::string& fqn) {
  for (size_t i = 0; i < groups.size(); ++i) {
    if (patterns[i].matches(fqn)) return static_cast<int>(i);
  }
  check(groups.empty(), "optimizer.param_groups: no pattern matches {}; add one that does", fqn);
  return -1;
}

// debug.batch_invariant: Error naming a layer whose forward product of a row depends on the batch.
void require_batch_invariance(nn::Model& model) {
  model.for_each_module([](nn::Module& m) {
    const auto* layer = dynamic_cast<const nn::QuantizableLayer*>(&m);
    if (layer == nullptr) return;
    const LinearRecipe& r = layer->recipe();
    const std::string_view why = depends_on_batch(r.x_forward);
    check(why.empty(),
          "debug.batch_invariant: {} is {}, whose X ({}) {}; use a scheme with scales of rows or blocks, such as int8 or fp8_rowwise",
          m.fqn(), r.name, describe(r.x_forward), why);
    check(!r.w_forward.stochastic && !r.w_forward.eden,
          "debug.batch_invariant: {} is {}, which draws W ({}) anew at every step; use another scheme", m.fqn(), r.name,
          describe(r.w_forward));
  });
}

std::span<const optim::State> states_of(const OptimizerConfig& c) { return optim::optimizer_of(c.name).states(c); }

}  // namespace

int64_t moment_bytes(const OptimizerConfig& c) { return static_cast<int64_t>(states_of(c).size()) * (c.bfloat16_states() ? 2 : 4); }

void require_memory(int64_t needed, int64_t available, const ModelConfig& model) {
  constexpr double kGiB = 1 << 30;
  check(needed <= available,
        "model.flavor: {} {} needs at least {:.1f} GiB for parameters, gradients and optimizer, {:.1f} GiB of memory are available; use a "
        "smaller model or a larger machine, or set training.dtype and optimizer.state_dtype to \"bfloat16\"",
        model.name, model.flavor, static_cast<double>(needed) / kGiB, static_cast<double>(available) / kGiB);
}

void require_host_memory(int64_t needed, int64_t available) {
  constexpr double kGiB = 1 << 30;
  check(needed <= available,
        "training.offload: the optimizer states need {:.1f} GiB of host memory, {:.1f} GiB are available; set optimizer.state_dtype to "
        "\"bfloat16\", which halves them, or use a machine with more",
        static_cast<double>(needed) / kGiB, static_cast<double>(available) / kGiB);
}

bool keeps_states_on_host(const TrainingConfig& c) { return std::find(c.offload.begin(), c.offload.end(), "optimizer") != c.offload.end(); }

Engine::Engine(const JobConfig& config, const Options& options)
    : options_(options), built_(build_model(config.model, options.vocab_size)), max_norm_(config.training.max_norm) {
  nn::Model& model = *built_.model;
  const int64_t layers = model.size().layers;
  const Hardware hardware = hardware_of(options.device);
  recipes_ = std::make_unique<nn::RecipeSchedule>(model, config.quantize, config.model, hardware, layers, scheduled_steps(config));
  recipe_lines_ = recipes_->phases().front().lines;
  if (batch_invariant()) require_batch_invariance(model);
  size_ = model.size();  // after recipes have added parameters
  if (config.model.print_after_conversion) {
    for (std::string& line : nn::layer_formats(model)) recipe_lines_.push_back(std::move(line));
  }
  model.set_z_loss(config.training.z_loss);
  if (options.axes != nullptr) parallel::apply(model, *options.axes), recipes_->check_split();
  nn::StorageOptions storage;
  storage.device = options.device;
  storage.storage = float_type(config.training.dtype, "training.dtype");
  storage.compute = storage.storage == at::kBFloat16 ? at::kBFloat16
                                                     : float_type(config.training.mixed_precision_param, "training.mixed_precision_param");
  storage.trainable = options.trainable;
  if (data_parallel() != nullptr) storage.shards = data_parallel()->shards(), storage.expert_shards = data_parallel()->expert_shards();
  const at::ScalarType residual = float_type(config.training.mixed_precision_residual, "training.mixed_precision_residual");
  model.set_residual_dtype(residual);
  std::vector<int64_t> blocks;  // of this rank's stages
  if (pipeline() != nullptr) {
    pipeline()->attach(model, c10::promoteTypes(residual, storage.compute));
    storage.wanted = [this](const nn::Parameter& p) { return pipeline()->has(p); };
    blocks = pipeline()->blocks();
  }
  for (const nn::RecipeSchedule::Phase& phase : recipes_->phases()) {
    JobConfig of_phase = config;
    of_phase.quantize.phase = phase.index;
    recompute_.push_back(recompute_plan(model, of_phase, hardware, blocks));
  }
  model.set_recompute(recompute_.front());
  // On a GPU the allocation fails with a message; on a CPU the system would kill the process without one.
  const int64_t moments = options.trainable ? nn::ParameterStore::least_numel(model, storage) * moment_bytes(config.optimizer) : 0;
  if (options.device.is_cpu()) require_memory(nn::ParameterStore::least_bytes(model, storage) + moments, available_memory(), config.model);
  host_states_ = options.trainable && keeps_states_on_host(config.training) && !is_cpu(hardware);
  if (host_states_ && options.device.is_cuda()) require_host_memory(moments, available_memory());
  store_.materialize(model, storage);
  if (data_parallel() != nullptr) data_parallel()->attach(model, store_, storage);
  if (options.trainable && !options.device.is_cpu()) {
    store_.gradients_are_stale();
    const int64_t of_block = (size_.parameters - size_.embedding_parameters) / layers;
    // Disables graphs with data parallelism: the watchdog cannot see captured collectives.
    graph_ = std::make_unique<StepGraph>(options.device, !config.training.disable_cuda_graphs && data_parallel() == nullptr, of_block);
  }
  {
    const Owner owner("batch and rotary tables");
    model.prepare(options.device, options.positions);
  }
  if (options.trainable) {
    build_optimizer(config.optimizer, config.training);
    start_deoscillation();
    experts_ = std::make_unique<ExpertLoads>(model, options.device, config.debug.moe_force_load_balance);
  }
  set_seed(options.seed);
  constexpr int64_t kNumbers = sizeof(StepOutcome) / sizeof(double);
  static_assert(sizeof(StepOutcome) == kNumbers * sizeof(double) && offsetof(StepOutcome, loss_sum) == 0);
  const at::TensorOptions numbers = at::TensorOptions().dtype(at::kDouble);
  outcome_ = at::zeros({kNumbers}, numbers.device(options.device));
  const int64_t ranks = data_parallel() != nullptr ? data_parallel()->ranks() : 0;
  seen_ = at::empty({kNumbers + ranks}, numbers.pinned_memory(options.device.is_cuda()));
  if (options.device.is_meta()) new (seen_.mutable_data_ptr()) StepOutcome();  // of a dry run
  if (options.device.is_cpu()) return;
  device_step_ = at::zeros({1}, numbers.device(options.device).dtype(at::kInt));
  if (options.device.is_cuda()) arrived_ = std::make_unique<c10::Event>(options.device.type());
}

void Engine::start_deoscillation() {
  deosc_ = std::make_unique<nn::Deoscillator>(*built_.model);
  if (sharded()) deosc_->share([this](at::Tensor& amax) { data_parallel()->largest(amax); });
}

void Engine::enter_phase_of(int64_t step) {
  const size_t phase = recipes_->phase_of(step);
  if (!recipes_->enter(phase)) return;
  built_.model->set_recompute(recompute_[phase]);
  if (batch_invariant()) require_batch_invariance(*built_.model);
  if (graph_) graph_->drop();  // it was captured with the former recipes
  if (options_.trainable) start_deoscillation();
  log_info("quantize: phase {} of {} from step {} on: {}", phase + 1, recipes_->phases().size(), recipes_->first_step(phase),
           recipes_->phases()[phase].what);
}

void Engine::prepare_states(int64_t step) {
  enter_phase_of(step);
  deosc_->prepare(step);
}

void Engine::set_step(int64_t step) {
  context_.step = static_cast<uint32_t>(step);
  if (!device_step_.defined()) return;
  device_step_.fill_(static_cast<int32_t>(context_.step));
  context_.device_step = static_cast<const uint32_t*>(device_step_.const_data_ptr());
}

nn::ModelInput Engine::input_of(const MicroBatch& batch) const {
  nn::ModelInput input = batch.input;
  input.step = context_, input.step.first_row = batch.first_row, input.step.scores = batch.input.step.scores;
  if (batch.sources.defined() && source_sums_.defined())
    input.step.loss_groups = batch.sources.reshape(-1), input.step.group_sums = source_sums_;
  return input;
}

void Engine::sum_sources(int64_t sources) {
  if (options_.axes != nullptr && !options_.axes->counts_loss()) return;
  source_sums_ = at::zeros({2, sources}, at::TensorOptions().device(options_.device).dtype(at::kDouble));
}

void Engine::build_optimizer(const OptimizerConfig& config, const TrainingConfig& training) {
  hyper_ = {optim::optimizer_of(config.name).place, config, config.stochastic_rounding};
  states_ = states_of(config);
  // On a GPU GEMMs overwrite the previous step's gradients; with sharded gradients the reductions do.
  hyper_.zero_grad = options_.device.is_cpu() && !sharded();
  check(!config.stochastic_rounding || training.dtype == "bfloat16",
        "optimizer.stochastic_rounding needs bfloat16 parameters; training.dtype is {}", training.dtype);
  check(config.state_dtype == "float32" || config.state_dtype == "bfloat16",
        "optimizer.state_dtype: this build stores moments as float32 or bfloat16; found {}", config.state_dtype);
  std::vector<nn::Pattern> patterns;
  for (const ParamGroup& g : config.param_groups) {
    check(g.optimizer_name == config.name, "optimizer.param_groups: {} and {}; this build runs one optimizer at a time", g.optimizer_name,
          config.name);
    for (const auto& [key, value] : g.optimizer_kwargs) {
      check(key == "lr" || key == "weight_decay", "optimizer.param_groups: {} cannot differ by group; lr and weight_decay can", key);
      check(g.number(key).has_value(), "optimizer.param_groups: {} must be a number", key);
    }
    patterns.emplace_back(g.pattern, nn::Pattern::Begins::anywhere, "optimizer.param_groups: ", g.pattern);
  }
  std::vector<int64_t> claimed(config.param_groups.size());
  for (nn::ParameterStore::Unit& unit : store_.units()) {
    const Owner owner("optimizer states");
    const at::ScalarType type = config.bfloat16_states() ? at::kBFloat16 : at::kFloat;
    const int64_t count = unit.flat.grad.numel();
    for (size_t k = 0; k < states_.size(); ++k) {
      unit.flat.states.push_back(host_states_ ? host_zeros(count, type, options_.device)
                                              : at::zeros({count}, unit.flat.grad.options().dtype(type)));
    }
    base_lr_.emplace_back();
    for (const nn::Parameter* p : unit.parameters) {
      const int group = group_of(config.param_groups, patterns, p->fqn);
      OptimizerSegment s;
      s.offset = p->offset, s.count = p->held(), s.first_index = static_cast<uint64_t>(p->first_index());
      s.lr = config.lr, s.weight_decay = config.weight_decay;
      if (group >= 0) {
        s.lr = config.param_groups[group].number("lr").value_or(config.lr);
        s.weight_decay = config.param_groups[group].number("weight_decay").value_or(config.weight_decay);
      }
      unit.flat.segments.push_back(s);
      base_lr_.back().push_back(s.lr);
    }
  }
  built_.model->for_each_parameter([&](const nn::Parameter& p) {  // of all stages
    const int group = p.buffer || p.numel() == 0 ? -1 : group_of(config.param_groups, patterns, p.fqn);
    if (group >= 0) ++claimed[static_cast<size_t>(group)];
  });
  for (size_t i = 0; i < claimed.size(); ++i) {
    check(claimed[i] > 0, "optimizer.param_groups: pattern '{}' matches no parameter that earlier patterns leave",
          config.param_groups[i].pattern);
    log_info("Optimizer {} (model_part=0): {} params [{}]", config.name, claimed[i], config.param_groups[i].pattern);
  }
}

void Engine::set_seed(uint64_t seed) {
  options_.seed = seed;
  context_.seed = seed;
  if (graph_) graph_->drop();  // it was captured with the old seed
  for (nn::ParameterStore::Unit& unit : store_.units()) {
    for (size_t i = 0; i < unit.flat.segments.size(); ++i) unit.flat.segments[i].key = philox_key(seed, unit.parameters[i]->fqn + "#param");
  }
}

void Engine::forward_backward(std::span<const MicroBatch> batches, double scale, const at::Tensor& factor) {
  outcome_.zero_();
  at::Tensor loss_sum = outcome_.narrow(0, 0, 1);
  std::vector<MicroBatch> of_stages;
  for (const MicroBatch& b : batches) {
    nn::ModelInput input = input_of(b);
    input.loss_factor = factor;
    const bool last = pipeline() == nullptr && &b == &batches.back();
    input.step.last_pass = host_states_ || sharded() || last;  // offloaded or sharded runs have no memory for codes between passes
    if (pipeline() != nullptr) {
      of_stages.emplace_back(b).input = std::move(input);
      continue;
    }
    if (data_parallel() != nullptr) data_parallel()->begin_pass(last);
    nn::Pass pass(*built_.model, input, b.labels, scale, true, data_parallel());
    pass.backward();
    loss_sum.add_(pass.loss_sum());
  }
  if (pipeline() != nullptr) pipeline()->run(of_stages, scale, true, *data_parallel(), loss_sum);
  if (data_parallel() != nullptr) data_parallel()->finish_gradients();
  if (!sharded()) store_.complete_gradients();
  if (options_.axes != nullptr) options_.axes->add_up_parts(store_);
}

void Engine::drop_gradients() {
  experts_->forget();
  if (!hyper_.zero_grad) return gradients_are_stale();
  for (nn::ParameterStore::Unit& unit : store_.units()) unit.flat.grad.zero_();
}

void Engine::gradients_are_stale() { store_.gradients_are_stale(!graph_ || !graph_->exists()); }

void Engine::accumulate(std::span<const MicroBatch> batches, int64_t step) {
  int64_t valid_labels = 0;
  for (const MicroBatch& b : batches) valid_labels += b.valid_labels;
  accumulate(batches, step, valid_labels);
}

MicroBatch Engine::own_part(const MicroBatch& batch) const { return options_.axes != nullptr ? options_.axes->own_part(batch) : batch; }

void Engine::accumulate(std::span<const MicroBatch> given, int64_t step, int64_t valid_labels) {
  step_ = step, valid_labels_ = valid_labels, own_labels_ = 0;
  std::vector<MicroBatch> batches;
  for (const MicroBatch& b : given) batches.push_back(own_part(b));
  const bool counts = options_.axes == nullptr || options_.axes->counts_loss();
  for (const MicroBatch& b : batches) own_labels_ += counts ? b.valid_labels : 0;
  enter_phase_of(step);
  if (valid_labels_ == 0) return;
  set_step(step);
  if (data_parallel() != nullptr) data_parallel()->begin_step();
  const double scale = 1.0 / static_cast<double>(valid_labels_);
  const auto passes = [&](std::span<const MicroBatch> all, const at::Tensor& factor) { forward_backward(all, 1, factor); };
  if (graph_ && graph_->run(batches, scale, passes)) return store_.gradients_are_written();
  if (!hyper_.zero_grad) store_.gradients_are_stale(false);  // an aborted capture may have cleared the flags
  forward_backward(batches, scale, {});
}

void Engine::update(double lr_factor, double loss_limit) {
  updating_labels_ = valid_labels_;
  if (valid_labels_ == 0) return;
  auto* outcome = static_cast<StepOutcome*>(outcome_.mutable_data_ptr());
  std::vector<at::Tensor> gradients;
  if (options_.axes != nullptr) {
    gradients = options_.axes->counted_gradients(store_);
  } else {
    for (const nn::ParameterStore::Unit& unit : store_.units()) gradients.push_back(unit.flat.grad);
  }
  {
    const Range range("gradient norm");
    std::function<void(at::Tensor&)> add_up;
    if (data_parallel() != nullptr) add_up = [this](at::Tensor& sums) { data_parallel()->add_up(sums, own_labels_); };
    judge_step(gradients, {valid_labels_, loss_limit, max_norm_}, outcome, add_up);
  }
  copy_to_host(outcome_, seen_.narrow(0, 0, outcome_.numel()));
  if (data_parallel() != nullptr) copy_to_host(data_parallel()->rank_losses(), seen_.narrow(0, outcome_.numel(), data_parallel()->ranks()));
  std::function<void(at::Tensor&)> add_loads;
  if (data_parallel() != nullptr) add_loads = [this](at::Tensor& loads) { data_parallel()->sum(loads); };
  std::function<void(at::Tensor&)> add_stages;
  if (pipeline() != nullptr) add_stages = [this](at::Tensor& numbers) { pipeline()->sum(numbers); };
  experts_->settle(outcome_.view(at::kByte).narrow(0, offsetof(StepOutcome, updated), 1).ne(0), add_loads, add_stages);
  if (arrived_) {
    arrived_->record(c10::impl::VirtualGuardImpl(options_.device.type()).getStream(options_.device));
  } else if (!arrived_outcome().updated) {
    return drop_gradients();
  }
  const Range range("optimizer");
  for (size_t u = 0; u < store_.units().size(); ++u) {
    FlatParameters& flat = store_.units()[u].flat;
    for (size_t s = 0; s < flat.segments.size(); ++s) flat.segments[s].lr = base_lr_[u][s] * lr_factor;
    optimizer_step(flat, hyper_, updates_ + 1, outcome);
  }
  if (!hyper_.zero_grad) gradients_are_stale();
  if (deosc_->active() && !arrived_outcome().updated) return;  // it decides on the host
  store_.bump_versions();
  if (deosc_->step(step_)) store_.masters_changed();
}

const StepOutcome& Engine::arrived_outcome() const {
  if (arrived_) arrived_->synchronize();
  return *static_cast<const StepOutcome*>(seen_.const_data_ptr());
}

StepResult Engine::result() {
  StepResult r;
  r.valid_labels = updating_labels_;
  if (r.valid_labels == 0) return r;
  const StepOutcome& outcome = arrived_outcome();
  r.loss_sum = outcome.loss_sum, r.grad_norm = outcome.grad_norm, r.finite = outcome.finite, r.updated = outcome.updated;
  r.max_loss = r.loss_sum / static_cast<double>(r.valid_labels);
  const double* losses = seen_.const_data_ptr<double>() + outcome_.numel();
  for (int64_t rank = 0; rank < seen_.numel() - outcome_.numel(); ++rank) {
    if (rank == 0 || (std::isfinite(r.max_loss) && !(losses[rank] <= r.max_loss))) r.max_loss = losses[rank], r.max_rank = rank;
  }
  r.experts = experts_->read();
  if (r.updated) ++updates_;
  return r;
}

StepResult Engine::step(std::span<const MicroBatch> batches, int64_t step, double lr_factor) {
  accumulate(batches, step);
  update(lr_factor);
  return result();
}

double Engine::evaluate(std::span<const MicroBatch> given) {
  at::NoGradGuard no_grad;
  at::Tensor sum = at::zeros({}, outcome_.options());
  std::vector<MicroBatch> of_stages;
  for (const MicroBatch& rows : given) {
    const MicroBatch b = own_part(rows);
    nn::ModelInput input = input_of(b);
    input.step.last_pass = sharded();  // as in training
    if (pipeline() != nullptr) {
      of_stages.emplace_back(b).input = std::move(input);
    } else {
      sum += nn::Pass(*built_.model, input, b.labels, 1.0, false, data_parallel()).loss_sum();
    }
  }
  if (pipeline() != nullptr) pipeline()->run(of_stages, 1.0, false, *data_parallel(), sum);
  return sum.item<double>();
}

std::vector<std::string> Engine::memory_table() const {
  double params = 0, copies = 0, grads = 0, moments = 0;
  const auto mib = [](const at::Tensor& t) { return t.defined() ? static_cast<double>(t.nbytes()) / (1 << 20) : 0.0; };
  for (const nn::ParameterStore::Unit& unit : const_cast<nn::ParameterStore&>(store_).units()) {
    for (const StoredWeight* s : unit.flat.stored) params += mib(s->codes) + mib(s->scales) + mib(s->zeros);
    params += mib(unit.flat.param), copies += mib(unit.flat.compute), grads += mib(unit.flat.grad);
    for (const at::Tensor& state : unit.flat.states) moments += mib(state);
  }
  return {fmt::format("Memory for model: parameters {:.1f} MiB, compute copies {:.1f} MiB, gradients {:.1f} MiB, optimizer {:.1f} MiB{}",
                      params, copies, grads, moments, host_states_ ? " in host memory" : "")};
}

void Engine::clear_optimizer() {
  updates_ = 0;
  if (host_states_) synchronize(options_.device);
  for (nn::ParameterStore::Unit& unit : store_.units()) {
    for (at::Tensor& state : unit.flat.states) state.zero_();
  }
  prepare_states(0);
}

std::vector<Engine::NamedState> Engine::optimizer_states() {
  if (host_states_) synchronize(options_.device);  // the host accesses states that the device's last step updates
  std::vector<NamedState> states;
  for (nn::ParameterStore::Unit& unit : store_.units()) {
    for (size_t i = 0; i < unit.parameters.size(); ++i) {
      const nn::Parameter& p = *unit.parameters[i];
      const OptimizerSegment& s = unit.flat.segments[i];
      states.push_back({p.fqn, {}, &s, deosc_->state(p)});
      for (size_t k = 0; k < states_.size(); ++k)
        states.back().tensors.emplace_back(states_[k], unit.flat.states[k].narrow(0, s.offset, s.count).view(p.local_shape()));
    }
  }
  return states;
}

std::vector<std::string_view> Engine::holders(const nn::Parameter& p) const {
  return options_.axes != nullptr ? options_.axes->holders(p) : std::vector<std::string_view>{"world"};
}

}  // namespace halftone
