#pragma once
#include <c10/core/Allocator.h>

#include <array>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "halftone/config/job_config.h"
#include "halftone/ops/cuda_module.h"
#include "halftone/ops/hardware.h"
#include "halftone/train/transfers.h"

namespace halftone {

struct GpuRates;

// Kinds of work whose times are summed.
enum class Work : size_t { products, attention, elementwise, quantisers, head, optimizer, norm };
inline constexpr std::array<std::string_view, 7> kWorks = {"products",    "attention", "norm, activation, RoPE", "quantisers",
                                                           "head + loss", "optimizer", "gradient norm"};

// A step's allocations, kernels and messages, noted while the engine runs on meta tensors: no memory is allocated and no kernel launched.
// Serves the thread that runs the engine; tensors made meanwhile must not outlive it. Nests.
class DryRun final : public c10::Allocator {
 public:
  // rates: of the device, for times; null: none.
  explicit DryRun(Hardware hardware, const GpuRates* rates = nullptr);
  ~DryRun() override;
  DryRun(const DryRun&) = delete;
  DryRun& operator=(const DryRun&) = delete;

  // Bytes by owner: the name of the innermost Owner (ops/range.h) at the allocation. Without one, activations: those allocated in a range
  // that has ended are kept for backward.
  using Owners = std::map<std::string, int64_t>;
  // A range of the engine (a unit's pass, the head, the optimizer): the moment with the most memory.
  struct Peak {
    std::string range;
    int64_t bytes = 0;
    Owners owners;
    int64_t kept = 0;  // bytes of activations that one pass over it leaves to the backward pass
    double flops = 0;  // of products and attention
    int64_t run = -1;  // number of the latest pass over it
    int64_t live = 0;  // allocated bytes of that pass's activations
  };
  std::vector<Peak> peaks;                      // by range, in the order of the first step
  std::array<double, kWorks.size()> seconds{};  // by Work
  const GpuRates* const rates;
  void spent(Work work, double time);
  Transfers transfers;
  int64_t live = 0, host = 0;  // allocated bytes: of the device, and of pinned host memory
  void worked(double flops) { peaks[peak_].flops += flops; }
  // Discards what was noted; memory stays.
  void restart();

  c10::DataPtr allocate(size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void*, const void*, size_t) const override {}

 private:
  struct Block;
  struct Scopes;
  static void free(void* block);
  void moved(int owner, int64_t range, int64_t bytes);
  void count(const Block& block, int64_t bytes);

  DryRun* outer_;
  std::unique_ptr<SimulatedDevice> device_;
  c10::Allocator* before_;
  uint64_t callback_ = 0;
  // The innermost range and owner; 0: activations.
  int64_t range_ = 0, ranges_ = 0;
  std::string range_name_ = "model";
  int owner_ = 0;
  size_t peak_ = 0;
  std::vector<std::string> owners_ = {"activations"};
  std::vector<int64_t> of_owners_ = {0};
  int64_t in_range_ = 0;  // of activations: allocated in the current range
  uintptr_t next_ = 1 << 20;
};

// The second of two steps: memory by range, and this rank's traffic.
struct DryStep {
  std::vector<DryRun::Peak> peaks;
  std::array<double, kWorks.size()> seconds{};
  std::vector<Traffic> traffic;
  double slower_ms = 0;                                    // Transfers
  int64_t host_bytes = 0;                                  // optimizer states in host memory
  const DryRun::Peak* range(std::string_view name) const;  // null: none
  const DryRun::Peak& peak() const;
};
// Runs the engine of a rank. Errors as at a run's start.
DryStep dry_step(const JobConfig& config, int64_t vocab_size, Hardware hardware, int64_t world = 1, int64_t rank = 0,
                 const GpuRates* rates = nullptr);

// Registers what LibTorch lacks on the meta device, once (train/dry_run_ops.cpp).
void add_meta_functions();
// For attention kernels: adds their FLOPs and time to the dry run in progress (train/dry_run_ops.cpp).
void note_attention(int64_t batch, int64_t heads, int64_t queries, int64_t keys, int64_t d, int64_t v_dim, int64_t window, bool causal,
                    bool forward, bool cudnn);

// Seconds of a kernel (train/estimate_time.cpp).
double seconds(const gemm::Product& p, const GpuRates& gpu);
double seconds(const gemm::GroupedProduct& p, const GpuRates& gpu);
double seconds(const QuantizeOperand& p, const GpuRates& gpu);
double seconds(const RmsNormForward& p, const GpuRates& gpu);
double seconds(const RmsNormBackward& p, const GpuRates& gpu);
double seconds(const SwigluForward& p, const GpuRates& gpu);
double seconds(const SwigluBackward& p, const GpuRates& gpu);
double seconds(const ClampedSwiglu& p, const GpuRates& gpu);
double seconds(const ClampedSwigluBackward& p, const GpuRates& gpu);
double seconds(const Rope& p, const GpuRates& gpu);
double seconds(const NormRope& p, const GpuRates& gpu);
double seconds(const NormRopeBackward& p, const GpuRates& gpu);
double seconds(const GatherRows& p, const GpuRates& gpu);
double seconds(const CombineRows& p, const GpuRates& gpu);
double seconds(const CrossEntropy& p, const GpuRates& gpu);
double seconds(const PartialSquares& p, const GpuRates& gpu);
double optimizer_seconds(const OptimizerStep& p, const GpuRates& gpu, bool host_states);
// flops: of the scores that are computed.
double attention_seconds(double flops, bool cudnn, int64_t d, int64_t v_dim, bool forward);

}  // namespace halftone
