#pragma once
#include <array>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "halftone/parallel/data_parallel.h"
#include "halftone/parallel/pass_times.h"
#include "halftone/parallel/pipeline_actions.h"
#include "halftone/parallel/stages.h"

namespace halftone::parallel {

// Pipeline parallelism over the mesh's `pp` axis: each rank has one or several stages (ranges of a model's units) and runs a schedule's
// actions in order. A stage sends its output as one tensor, x + branch, and receives its gradient as one. Messages of one kind between
// two ranks arrive in the order in which the schedule sends them, whatever order the receiver needs them in: it buffers early ones. No
// send is waited for before its answer has arrived, so no order of actions can deadlock.
class Pipeline {
 public:
  // All ranks call it. Mesh and watch must outlive it.
  Pipeline(comm::Watch& watch, const Mesh& mesh, const ParallelismConfig& config, at::Device device);

  // Splits the model into stages; call before materialisation. stream: dtype of the units' output.
  void attach(nn::Model& model, at::ScalarType stream);
  bool has(const nn::Parameter& parameter) const { return holds_.at(static_cast<size_t>(nn::place_of(parameter, model_->blocks()))); }
  std::vector<int64_t> blocks() const;  // of this rank's stages
  bool first() const { return rank_ == 0; }
  // Whether this rank has the last stage, where losses are computed.
  bool last() const { return last_; }
  int64_t microbatch_rows() const { return config_.pipeline_parallel_microbatch_size; }

  // Runs the micro-batches of one step, or with `train` false of one evaluation; adds the sum of their losses on the last stage.
  void run(std::span<const nn::MicroBatch> batches, double grad_scale, bool train, DataParallel& data, at::Tensor& loss_sum);
  void sum(at::Tensor& numbers);                                     // all-reduce over all stages
  Schedule schedule(int64_t microbatches, bool train = true) const;  // of a step, or of an evaluation
  void measure(PassTimes* times) { times_ = times; }                 // times every run from here on; null: stops
  std::string text() const;                                          // for the log

 private:
  struct Arrival {
    at::Tensor tensor;
    std::optional<comm::Pending> pending;
  };
  struct Sent {
    Message answer;  // arrives when the receiver has read the message
    comm::Pending pending;
    at::Tensor tensor;
  };
  const std::vector<PipelineAction>& prepared(int64_t microbatches, bool train);
  std::unique_ptr<comm::Communicator>& link(Flow flow, int64_t from, int64_t to) {
    return links_[flow == Flow::stream ? 0 : 1][from < to ? 1 : 0];
  }
  comm::Communicator& way(Flow flow, int64_t from, int64_t to) { return first_run_ ? *over_host_ : *link(flow, from, to); }
  void open_links();
  void receive(const Message& message, std::span<const nn::MicroBatch> batches);
  at::Tensor take(const PipelineAction& planned);
  void deliver(const Message& message, const at::Tensor& tensor);

  comm::Watch& watch_;
  const ParallelismConfig config_;
  at::Device device_;
  int64_t ranks_, rank_;                                                     // along pp
  int64_t sequence_shards_;                                                  // into which tensor parallelism splits the stream's rows
  std::array<std::array<std::unique_ptr<comm::Communicator>, 2>, 2> links_;  // by flow, and whether to a higher rank
  // CUDA loads a kernel at its first launch and may wait for all work on the device to finish. That includes a message in flight, and its
  // peer may need what this rank was about to launch: so the first run of a plan sends through the host.
  std::unique_ptr<comm::Communicator> over_host_;
  bool first_run_ = false;

  nn::Model* model_ = nullptr;
  at::ScalarType stream_ = at::kFloat;
  std::vector<StageUnits> stages_;
  std::vector<int64_t> rank_of_;  // by stage
  std::vector<bool> holds_;       // by unit
  bool last_ = false;
  std::map<std::pair<int64_t, bool>, std::vector<PipelineAction>> prepared_;
  std::map<Message, Arrival> arrived_;
  std::list<Sent> sent_;
  PassTimes* times_ = nullptr;
};

}  // namespace halftone::parallel
