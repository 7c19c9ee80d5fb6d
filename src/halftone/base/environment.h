#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace halftone {

// Settings from the launcher's environment variables (torchrun, srun, mpirun).
struct Environment {
  std::string launcher = "none";  // torchrun, slurm, openmpi, or none: a single process
  int64_t rank = 0;
  int64_t local_rank = 0;  // = the device index
  int64_t world_size = 1;
  std::string store_address = "127.0.0.1";
  int64_t store_port = 29500;
  bool launcher_hosts_store = false;  // torchrun's agent hosts the store; otherwise rank 0 does
  int64_t restart_count = 0;          // torchrun's restart count; its store keeps the keys of earlier starts
  std::string job;                    // the launcher's name for this job; "" if it has none
  std::vector<int64_t> log_ranks = {0};
  int64_t simulated_world_size = 1;  // NGPU, else WORLD_SIZE, for comm.mode = fake_backend
};

using GetVariable = std::function<const char*(const char*)>;  // std::getenv or a replacement; nullptr = not set

// The first scheme with both rank and size wins; schemes are never mixed. Throws Error naming the variable if a value is not a number, a
// rank is out of range, or an address is missing.
Environment read_environment(const GetVariable& get);
Environment read_environment();  // reads the environment of this process

// Throws Error if the launcher started several processes.
void require_one_process(const Environment& environment);

// First node of a Slurm node list: "a[1-3,7]" -> "a1".
std::string first_slurm_node(std::string_view list);

}  // namespace halftone
