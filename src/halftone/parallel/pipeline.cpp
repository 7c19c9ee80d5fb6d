#include "halftone/parallel/pipeline.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "halftone/base/error.h"
#include "halftone/base/log.h"

namespace halftone::parallel {

Pipeline::Pipeline(comm::Watch& watch, const Mesh& mesh, const ParallelismConfig& config, at::Device device)
    : watch_(watch),
      config_(config),
      device_(device),
      ranks_(mesh.size("pp")),
      rank_(mesh.coordinate(watch.rank(), "pp")),
      sequence_shards_(config.enable_sequence_parallel ? mesh.size("tp") : 1) {
  // With one stage per rank, streams go up and gradients down.
  const bool both = !is_single_stage(config.pipeline_parallel_schedule);
  const std::vector<int64_t> ranks = mesh.ranks(watch.rank(), "pp");
  constexpr const char* kNames[2][2] = {{"pp streams down", "pp streams up"}, {"pp gradients down", "pp gradients up"}};
  for (const size_t flow : {0, 1}) {
    for (const size_t up : {0, 1}) {
      if (both || flow + up == 1) links_[flow][up] = communicator(watch, kNames[flow][up], ranks, device);
    }
  }
  if (device.is_cuda()) over_host_ = communicator(watch, "pp first run", ranks, at::kCPU);
}

void Pipeline::attach(nn::Model& model, at::ScalarType stream) {
  check(!model.size().tied,
        "parallelism.pipeline_parallel_degree = {}: the head shares the embedding's weights (tied), which are in another stage; "
        "set the degree to 1",
        ranks_);
  model_ = &model, stream_ = stream;
  stages_ = split_stages(config_, model.blocks());
  const auto stages = static_cast<int64_t>(stages_.size());
  // The stage-to-rank mapping follows from a schedule with any number of micro-batches; a file has a fixed number.
  rank_of_ = config_.pipeline_parallel_schedule.starts_with("PipelineSchedule")
                 ? read_schedule(*config_.pipeline_parallel_schedule_csv, ranks_, stages).rank_of
                 : schedule_of(config_, stages_, 1).rank_of;
  for (size_t s = 0; s < stages_.size(); ++s) {
    check(!is_single_stage(config_.pipeline_parallel_schedule) || rank_of_[s] == static_cast<int64_t>(s),
          "parallelism.pipeline_parallel_schedule = {}: stage {} belongs to line {} of the file, found it in line {}",
          config_.pipeline_parallel_schedule, s, s + 1, rank_of_[s] + 1);
  }
  holds_.assign(static_cast<size_t>(model.blocks() + 2), false);
  for (size_t s = 0; s < stages_.size(); ++s) {
    if (rank_of_[s] != rank_) continue;
    std::fill(holds_.begin() + stages_[s].first, holds_.begin() + stages_[s].end, true);
  }
  last_ = holds_.back();
  open_links();
}

// NCCL connects two ranks at their first message and blocks both hosts meanwhile: do it here, in the same order on all ranks.
void Pipeline::open_links() {
  std::set<std::pair<comm::Communicator*, int64_t>> open;  // peers
  for (size_t s = 0; s + 1 < rank_of_.size(); ++s) {
    const int64_t below = rank_of_[s], above = rank_of_[s + 1];
    if (below == above || (below != rank_ && above != rank_)) continue;
    for (const auto& [flow, from, to] : {std::tuple(Flow::stream, below, above), std::tuple(Flow::gradient, above, below)}) {
      comm::Communicator& ranks = *link(flow, from, to);
      if (!open.insert({&ranks, from == rank_ ? to : from}).second) continue;
      at::Tensor t = at::zeros({1}, at::TensorOptions().device(device_));
      (from == rank_ ? ranks.send(t, to) : ranks.recv(t, from)).wait();
    }
  }
}

std::vector<int64_t> Pipeline::blocks() const {
  std::vector<int64_t> own;
  for (int64_t i = 0; i < model_->blocks(); ++i)
    if (holds_[static_cast<size_t>(i + 1)]) own.push_back(i);
  return own;
}

Schedule Pipeline::schedule(int64_t microbatches, bool train) const {
  const auto stages = static_cast<int64_t>(stages_.size());
  if (train || !config_.pipeline_parallel_schedule.starts_with("PipelineSchedule")) {
    Schedule s = schedule_of(config_, stages_, microbatches);
    return train ? s : forward_only(s);
  }
  Schedule s;  // a file's micro-batches need not divide those of an evaluation
  s.stages = stages, s.microbatches = microbatches, s.rank_of = rank_of_;
  s.ranks.resize(static_cast<size_t>(ranks_));
  for (int64_t m = 0; m < microbatches; ++m)
    for (int64_t i = 0; i < stages; ++i) s.ranks[static_cast<size_t>(rank_of_[static_cast<size_t>(i)])].push_back({i, Kind::forward, m});
  return s;
}

const std::vector<PipelineAction>& Pipeline::prepared(int64_t microbatches, bool train) {
  const std::pair key(microbatches, train);
  if (const auto at = prepared_.find(key); at != prepared_.end()) return at->second;
  const Schedule s = schedule(microbatches, train);
  if (train) {
    log_info("Pipeline: {} of {} stages on {} ranks, {} micro-batches per step, expected bubble {:.1f}%",
             config_.pipeline_parallel_schedule, s.stages, ranks_, microbatches, 100 * simulate(s, s.expected).bubble);
    if (microbatches < s.stages)
      log_warning("pipeline: {} micro-batches are fewer than the {} stages; raise training.local_batch_size or training.global_batch_size",
                  microbatches, s.stages);
  }
  return prepared_.emplace(key, rank_actions(s, rank_)).first->second;
}

void Pipeline::receive(const Message& m, std::span<const nn::MicroBatch> batches) {
  const int64_t from = rank_of_[static_cast<size_t>(sender_of(m))];
  const nn::ModelInput& input = batches[static_cast<size_t>(m.microbatch)].input;
  Arrival a;
  const at::TensorOptions options = at::TensorOptions().device(first_run_ ? at::kCPU : device_).dtype(stream_);
  a.tensor = at::empty({input.tokens.numel() / sequence_shards_, model_->size().dim}, options);
  a.pending.emplace(way(m.flow, from, rank_).recv(a.tensor, from, static_cast<int>(m.flow)));
  arrived_.emplace(m, std::move(a));
}

at::Tensor Pipeline::take(const PipelineAction& planned) {
  const auto& message = planned.needs;
  if (!message) return {};
  auto arrival = arrived_.extract(*message);
  check(!arrival.empty(), "pipeline: {} runs before its inputs", action_text(planned.action));
  if (arrival.mapped().pending) arrival.mapped().pending->wait();
  // Completes the send that this message answers.
  std::erase_if(sent_, [&](Sent& s) {
    const bool answered = s.answer == *message;
    if (answered) s.pending.wait();
    return answered;
  });
  return arrival.mapped().tensor.to(device_);
}

void Pipeline::deliver(const Message& m, const at::Tensor& tensor) {
  const int64_t to = rank_of_[static_cast<size_t>(m.stage)];
  if (to == rank_) {
    arrived_[m].tensor = tensor;
    return;
  }
  std::erase_if(sent_, [](Sent& s) {
    const bool ended = s.pending.ended();
    if (ended) s.pending.wait();
    return ended;
  });
  const at::Tensor whole = tensor.contiguous().to(first_run_ ? at::kCPU : device_);
  check(whole.scalar_type() == stream_, "pipeline: expected a stream of {}, found {}", c10::toString(stream_),
        c10::toString(whole.scalar_type()));
  const Message answer{Flow::gradient, m.stage - 1, m.microbatch};
  sent_.push_back({m.flow == Flow::stream ? answer : Message{Flow::stream, -1, -1},
                   way(m.flow, rank_, to).send(whole, to, static_cast<int>(m.flow)), whole});
}

void Pipeline::run(std::span<const nn::MicroBatch> batches, double grad_scale, bool train, DataParallel& data, at::Tensor& loss_sum) {
  const auto microbatches = static_cast<int64_t>(batches.size());
  first_run_ = device_.is_cuda() && !prepared_.contains({microbatches, train});
  const std::vector<PipelineAction>& plan = prepared(microbatches, train);
  std::map<std::pair<int64_t, int64_t>, std::unique_ptr<nn::Pass>> passes;
  const auto receive_for = [&](size_t i) {
    if (i == plan.size()) return;
    for (const Message& m : plan[i].receives) receive(m, batches);
  };
  if (times_ != nullptr) times_->begin_run();
  receive_for(0);
  for (size_t i = 0; i < plan.size(); ++i) {
    const Action& a = plan[i].action;
    const StageUnits& units = stages_[static_cast<size_t>(a.stage)];
    const comm::Activity activity(watch_, action_text(a));
    at::Tensor in = take(plan[i]);
    receive_for(i + 1);  // in flight while this action computes
    if (times_ != nullptr) times_->begin_pass(a);
    if (train) data.begin_pass(plan[i].last);
    std::unique_ptr<nn::Pass>& pass = passes[{a.stage, a.microbatch}];
    at::Tensor out;
    if (a.kind == Kind::forward) {
      const nn::MicroBatch& b = batches[static_cast<size_t>(a.microbatch)];
      pass = std::make_unique<nn::Pass>(*model_, b.input, b.labels, grad_scale, train, &data,
                                        nn::PassPart{units.first, units.end, std::move(in)});
      plan[i].gives ? void(out = pass->take_out()) : void(loss_sum.add_(pass->loss_sum()));
    } else if (a.kind == Kind::weight) {
      pass->weight_gradients();
    } else {
      out = pass->backward(in, a.kind == Kind::input);
    }
    if (times_ != nullptr) times_->end_pass();
    if (plan[i].gives) deliver(*plan[i].gives, out);
    if (a.kind == Kind::forward ? !train : a.kind != Kind::input) passes.erase({a.stage, a.microbatch});
  }
  for (Sent& s : sent_) s.pending.wait();
  sent_.clear();
}

void Pipeline::sum(at::Tensor& numbers) { link(Flow::stream, 0, 1)->all_reduce(numbers).wait(); }

std::string Pipeline::text() const { return fmt::format("pipeline {} on {} ranks", config_.pipeline_parallel_schedule, ranks_); }

}  // namespace halftone::parallel
