#pragma once
#include <cstdint>
#include <limits>

#include "halftone/comm/communicator.h"
#include "halftone/config/parallelism_config.h"
#include "halftone/nn/moe.h"

// Expert parallelism (docs/parallel/expert.md): sends rows to experts on other ranks and back (docs/experts.md). Rank r of the group holds
// the experts [r * E / ranks, (r + 1) * E / ranks).
namespace halftone::parallel {

struct ExpertExchange : nn::Dispatch {
  comm::Communicator* ranks = nullptr;
  ExpertRows sent;                                // this rank's rows as they are sent: by expert, then by token, without padding
  std::vector<int64_t> sent_rows, received_rows;  // to and from each rank
  OperandSpec format;                             // format in which tokens are sent: codes and scales of each row; unquantised: as they are
};

// Numbers for the documents of a rank begin here: int32, apart from those of other ranks, however many there are.
inline int64_t first_document(int64_t rank, int64_t ranks) { return std::numeric_limits<int32_t>::max() / ranks * rank; }

// placed: the choices `expert`, int32 [T, k], among all experts. capacity 0: every row travels; the host waits once for the counts. Above:
// each pair of ranks moves as many rows, the smallest number not below capacity * T * k / ranks, T being the same on all of them; what
// finds no room is dropped, the later tokens of the last experts of a rank, without a host sync. Choices of no expert (place_experts)
// neither travel nor are dropped.
ExpertExchange plan_exchange(const ExpertRows& placed, const at::Tensor& expert_tk, comm::Communicator& ranks, double capacity,
                             const OperandSpec& format = {});

// x[T, D] -> [received.tokens, D]. Gradients travel as they are.
at::Tensor send_rows(const at::Tensor& x_td, const ExpertExchange& exchange);
// Outputs of the local experts, [received.tokens, D] -> [sent.rows, D], for combine_rows() with `sent`.
at::Tensor return_rows(const at::Tensor& y_td, const ExpertExchange& exchange);

// Keeps this rank's share of the experts of all layers. Error naming the fields if they do not divide evenly.
void split_experts(nn::Module& model, int64_t index, int64_t ranks);
// The same, and installs ports that exchange tokens with the other ranks, which must outlive the model.
void apply_experts(nn::Module& model, comm::Communicator& ranks, const ParallelismConfig& parallelism);
// Logs options of the axis that have no effect.
void report_idle_experts(const ParallelismConfig& parallelism);

}  // namespace halftone::parallel
