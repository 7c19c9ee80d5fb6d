#include "halftone/parallel/pipeline.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "halftone/base/error.h"
#include "halftone/base/log.h"

namespace halftone::parallel {

Pipeline::Pipeline(comm::Watch& watch, const comm::Mesh& mesh, const ParallelismConfig& config, at::Device device)
    : watch_(watch), config_(config), device_(device), ranks_(mesh.size("pp")), rank_(mesh.coordinate(watch.rank(), "pp")) {
  // With one stage on each rank, streams go up and gradients down.
  const bool both = !is_single_stage(config.pipeline_parallel_schedule);
  const std::vector<int64_t> ranks = mesh.ranks(watch.rank(), "pp");
  constexpr const char* kNames[2][2] = {{"pp streams down", "pp streams up"}, {"pp gradients down", "pp gradients up"}};
  for (const Flow flow : {kStream, kGradient}) {
    for (const size_t up : {0, 1}) {
      if (both || (flow == kStream) == (up == 1)) links_[flow][up] = communicator(watch, kNames[flow][up], ranks, device);
    }
  }
}

void Pipeline::attach(nn::Model& model, at::ScalarType stream) {
  check(!model.size().tied,
        "parallelism.pipeline_parallel_degree = {}: the model's head reads the embedding's weights (tied), which are of another stage; "
        "set the degree to 1",
        ranks_);
  model_ = &model, stream_ = stream;
  stages_ = split_stages(config_, model.blocks());
  const auto stages = static_cast<int64_t>(stages_.size());
  // Which rank has a stage follows from a schedule, however many micro-batches it is of; a file has its own number.
  rank_of_ = config_.pipeline_parallel_schedule.starts_with("PipelineSchedule")
                 ? read_schedule(*config_.pipeline_parallel_schedule_csv, ranks_, stages).rank_of
                 : schedule_of(config_, stages, 1).rank_of;
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
}

std::vector<int64_t> Pipeline::blocks() const {
  std::vector<int64_t> own;
  for (int64_t i = 0; i < model_->blocks(); ++i)
    if (holds_[static_cast<size_t>(i + 1)]) own.push_back(i);
  return own;
}

// Which message an action waits for; none where this rank has what it needs.
std::optional<Pipeline::Message> Pipeline::needed(const Action& a) const {
  if (a.kind == Kind::forward && a.stage > 0) return Message{kStream, a.stage, a.microbatch};
  const bool back = a.kind == Kind::input || a.kind == Kind::full;
  if (back && a.stage + 1 < static_cast<int64_t>(stages_.size())) return Message{kGradient, a.stage, a.microbatch};
  return std::nullopt;
}

Pipeline::Prepared& Pipeline::prepared(int64_t microbatches, bool train) {
  const auto [at, fresh] = prepared_.try_emplace({microbatches, train});
  Prepared& p = at->second;
  if (!fresh) return p;
  const auto stages = static_cast<int64_t>(stages_.size());
  Schedule s;
  if (train || !config_.pipeline_parallel_schedule.starts_with("PipelineSchedule")) {
    s = schedule_of(config_, stages, microbatches);
  } else {  // a file's micro-batches need not divide those of an evaluation
    s.stages = stages, s.microbatches = microbatches, s.rank_of = rank_of_;
    s.ranks.resize(static_cast<size_t>(ranks_));
    for (int64_t m = 0; m < microbatches; ++m)
      for (int64_t i = 0; i < stages; ++i) s.ranks[static_cast<size_t>(rank_of_[static_cast<size_t>(i)])].push_back({i, Kind::forward, m});
  }
  if (train) {
    const Timeline t = simulate(s);
    log_info(
        "Pipeline: {} of {} stages on {} ranks, {} micro-batches of a step, {:.1f}% of the time is bubbles if all stages take the same",
        config_.pipeline_parallel_schedule, stages, ranks_, microbatches, 100 * t.bubble);
    if (microbatches < stages)
      log_warning("pipeline: {} micro-batches are fewer than the {} stages; raise training.local_batch_size or training.global_batch_size",
                  microbatches, stages);
  } else {
    s = forward_only(s);
  }
  p.actions = s.ranks[static_cast<size_t>(rank_)];
  // The last of a stage: of those that go back; of the last stage's forward passes, which have the head's gradients.
  std::map<std::pair<int64_t, bool>, size_t> last;
  for (size_t i = 0; i < p.actions.size(); ++i) last[{p.actions[i].stage, p.actions[i].kind == Kind::forward}] = i;
  p.last.assign(p.actions.size(), false);
  for (const auto& [of, i] : last) p.last[i] = true;
  for (int64_t r = 0; r < ranks_; ++r) {
    if (r == rank_) continue;
    for (const Action& a : s.ranks[static_cast<size_t>(r)]) {
      if (a.kind == Kind::weight) continue;
      const int64_t reader = a.kind == Kind::forward ? a.stage + 1 : a.stage - 1;
      if (reader < 0 || reader == stages || s.rank_of[static_cast<size_t>(reader)] != rank_) continue;
      const Flow flow = a.kind == Kind::forward ? kStream : kGradient;
      p.channels[{flow, r}].messages.push_back({flow, reader, a.microbatch});
    }
  }
  return p;
}

// Receives up to what the action needs.
void Pipeline::expect(Prepared& p, const Action& action, std::span<const StageInput> batches) {
  const auto message = needed(action);
  if (!message || arrived_.contains(*message)) return;
  const int64_t from = rank_of_[static_cast<size_t>(message->flow == kStream ? message->stage - 1 : message->stage + 1)];
  if (from == rank_) return;  // this rank makes it
  Channel& channel = p.channels.at({message->flow, from});
  while (!arrived_.contains(*message)) {
    const Message& next = channel.messages.at(channel.next++);
    const nn::ModelInput& input = batches[static_cast<size_t>(next.microbatch)].input;
    const nn::Groups& groups = model_->groups();
    const int64_t shards = groups.tensor != nullptr && groups.sequence_shards ? groups.tensor->size() : 1;
    Arrival a;
    a.tensor = at::empty({input.tokens.numel() / shards, model_->size().dim}, at::TensorOptions().device(device_).dtype(stream_));
    a.pending.emplace(link(next.flow, from, rank_).recv(a.tensor, from));
    arrived_.emplace(next, std::move(a));
  }
}

at::Tensor Pipeline::take(Prepared& p, const Action& action, std::span<const StageInput> batches) {
  const auto message = needed(action);
  if (!message) return {};
  expect(p, action, batches);
  auto arrival = arrived_.extract(*message);
  check(!arrival.empty(), "pipeline: {} runs before what it reads", action_text(action));
  if (arrival.mapped().pending) arrival.mapped().pending->wait();
  // The answer to a stream that this stage sent.
  std::erase_if(sent_, [&](Sent& s) {
    const bool answered = s.answer == *message;
    if (answered) s.pending.wait();
    return answered;
  });
  return arrival.mapped().tensor;
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
  const at::Tensor whole = tensor.contiguous();
  check(whole.scalar_type() == stream_, "pipeline: expected a stream of {}, found {}", c10::toString(stream_),
        c10::toString(whole.scalar_type()));
  const Message answer{kGradient, m.stage - 1, m.microbatch};
  sent_.push_back({m.flow == kStream ? answer : Message{kStream, -1, -1}, link(m.flow, rank_, to).send(whole, to), whole});
}

void Pipeline::run(std::span<const StageInput> batches, double grad_scale, bool train, DataParallel& data, at::Tensor& loss_sum) {
  Prepared& p = prepared(static_cast<int64_t>(batches.size()), train);
  for (auto& [of, channel] : p.channels) channel.next = 0;
  std::map<std::pair<int64_t, int64_t>, std::unique_ptr<nn::Pass>> passes;
  for (size_t i = 0; i < p.actions.size(); ++i) {
    const Action& a = p.actions[i];
    const StageUnits& units = stages_[static_cast<size_t>(a.stage)];
    const comm::Activity activity(watch_, action_text(a));
    at::Tensor in = take(p, a, batches);
    if (i + 1 < p.actions.size()) expect(p, p.actions[i + 1], batches);  // comes while this one is computed
    if (train) data.begin_pass(p.last[i]);
    std::unique_ptr<nn::Pass>& pass = passes[{a.stage, a.microbatch}];
    if (a.kind == Kind::forward) {
      const StageInput& b = batches[static_cast<size_t>(a.microbatch)];
      pass = std::make_unique<nn::Pass>(*model_, b.input, b.labels, grad_scale, train, &data,
                                        nn::PassPart{units.first, units.end, std::move(in)});
      if (units.end < model_->blocks() + 2) {
        deliver({kStream, a.stage + 1, a.microbatch}, pass->take_out());
      } else {
        loss_sum.add_(pass->loss_sum());
      }
      if (!train) pass.reset();
      continue;
    }
    if (a.kind == Kind::weight) {
      pass->weight_gradients();
    } else {
      const at::Tensor d = pass->backward(in, a.kind == Kind::input);
      if (a.stage > 0) deliver({kGradient, a.stage - 1, a.microbatch}, d);
    }
    if (a.kind != Kind::input) passes.erase({a.stage, a.microbatch});
  }
  for (Sent& s : sent_) s.pending.wait();
  sent_.clear();
}

void Pipeline::sum(at::Tensor& numbers) { links_[kStream][1]->all_reduce(numbers).wait(); }

std::string Pipeline::text() const { return fmt::format("pipeline {} on {} ranks", config_.pipeline_parallel_schedule, ranks_); }

}  // namespace halftone::parallel
