#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace halftone {

// What the launcher (torchrun, srun, mpirun) said through its environment variables.
struct Environment {
  std::string launcher = "none";  // torchrun, slurm, openmpi, or none: one process
  int64_t rank = 0;
  int64_t local_rank = 0;  // = the device
  int64_t world_size = 1;
  std::string store_address = "127.0.0.1";
  int64_t store_port = 29500;
  bool launcher_hosts_store = false;  // torchrun's agent is the server of the store; otherwise rank 0 is
  int64_t restart_count = 0;          // of torchrun, whose store keeps the keys of earlier starts
  std::string job;                    // the launcher's name for this job; "" where it has none
  std::vector<int64_t> log_ranks = {0};
  int64_t simulated_world_size = 1;  // NGPU, else WORLD_SIZE, for comm.mode = fake_backend
};

using GetVariable = std::function<const char*(const char*)>;  // std::getenv and its like; nullptr = not set

// The first scheme with both rank and size wins; schemes are never mixed. Throws Error naming the variable when a value
// is no number, a rank is outside the size, or an address is missing.
Environment read_environment(const GetVariable& get);
Environment read_environment();  // of this process

// Error where the launcher started several processes.
void require_one_process(const Environment& environment);

// "a[1-3,7]" -> "a1": first node of a Slurm node list.
std::string first_slurm_node(std::string_view list);

}  // namespace halftone
