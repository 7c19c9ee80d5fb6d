#pragma once
#include <c10/core/Device.h>

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "halftone/base/environment.h"
#include "halftone/checkpoint/ranks.h"
#include "halftone/config/job_config.h"
#include "halftone/parallel/axes.h"

namespace halftone {

// `said` by rank: Error "ranks have different WHAT: A on rank 0, B on ranks 1-3; ..." unless all are the same.
void check_same(const std::string& what, const std::vector<std::string>& said);

// The processes that train together, as one of them sees them: who it is, what all of them agree on, and the collectives between them. Of
// a process alone everything is its own.
class Processes {
 public:
  // Connects to the other ranks; all must start within [comm]'s timeout. `folder`: run folder for the failure records of [comm].
  Processes(const Environment& environment, const CommConfig& comm, const std::string& folder = "");
  ~Processes();

  int64_t rank() const { return environment_.rank; }
  int64_t local_rank() const { return environment_.local_rank; }  // = the GPU
  int64_t world() const { return environment_.world_size; }
  bool many() const { return world() > 1; }
  bool first() const { return rank() == 0; }
  // Runs this rank's work on its share of the host's cores; an exception ends the other ranks too (comm::Watch::run).
  void run(const std::function<void()>& body);

  // Error naming the first difference where another configuration, file that it names or version runs on rank 0.
  void compare(const JobConfig& config, const std::string& version);
  // Opens the communicators between these GPUs, for [parallelism].
  void connect(const JobConfig& config, c10::Device device);
  parallel::Axes* axes() const { return axes_.get(); }  // null for a single process
  const parallel::Mesh& mesh() const { return *mesh_; }
  int64_t data_rank() const { return many() ? mesh_->coordinate(rank(), "batch") : 0; }  // which share of the rows it reads
  int64_t data_ranks() const { return many() ? mesh_->size("batch") : 1; }
  int64_t token_ranks() const { return many() ? mesh_->size("loss") : 1; }  // ranks with tokens of their own
  // Whether this rank reports for all ranks with the same tokens.
  bool counts_rows() const { return !many() || axes_->counts_rows(); }
  std::map<std::string, int64_t> degrees() const;  // of the mesh axes, for descriptions of the run
  CheckpointRanks checkpoint_ranks();
  // From here on the timeout is [comm]'s for steps after the first.
  void first_step_is_done();

  // Values of each rank, by rank; all ranks call these in the same order.
  using Said = std::array<double, 6>;
  std::vector<Said> exchange(const Said& own);
  double last_wait() const { return last_wait_; }  // seconds of the previous exchange; the last rank to arrive waits least
  int64_t of_first(int64_t value);                 // rank 0's
  bool all(bool own);
  std::vector<std::string> texts(const std::string& own);
  // Error in one line with the texts and their ranks unless all say the same of `what` they were given.
  void compare(const std::string& what, const std::string& own) { check_same(what, texts(own)); }
  // In rank 0 what each stage of its pipeline says, elsewhere `own` alone.
  std::vector<std::string> of_stages(const std::string& own);
  // Runs `prepare` on one rank of each host first; the other ranks then find its results in files.
  void one_of_host_first(const std::function<void()>& prepare);
  // Null for a single process.
  comm::Watch* watch() const { return watch_.get(); }

 private:
  void share_cores();

  Environment environment_;
  CommConfig comm_;
  std::unique_ptr<comm::Watch> watch_;
  std::unique_ptr<parallel::Mesh> mesh_;
  std::unique_ptr<comm::Communicator> host_;  // on main memory, with any device
  std::unique_ptr<parallel::Axes> axes_;
  int64_t on_host_ = 1;  // processes on this host
  bool first_of_host_ = true;
  int64_t preparations_ = 0;
  double last_wait_ = 0;
};

}  // namespace halftone
