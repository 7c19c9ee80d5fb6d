#pragma once
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "halftone/ops/error_sums.h"
#include "halftone/ops/linear.h"

namespace halftone {

// Operands of a linear layer's three GEMMs by the roles of numerics.md section 4, then the GEMMs.
inline constexpr std::array<std::string_view, 9> kWatched = {"x.fwd",   "w.fwd", "dy.dgrad", "w.dgrad", "dy.wgrad",
                                                             "x.wgrad", "y",     "dx",       "dw"};

// Effect of one step's quantisation on one of these (docs/numerics_report.md). Absent: the figure does not exist, because nothing was
// quantised.
struct QuantizationFigures {
  std::string layer;  // the weight's name without ".weight"
  std::string_view operand;
  double amax = 0;                           // NaN when an element is NaN
  double nonfinite = 0;                      // count of elements
  std::optional<double> saturated, flushed;  // shares
  std::optional<double> sqnr;                // dB; infinite if nothing differs, NaN if an element is not finite
  int64_t call = 0;                          // in forward order; layers of one joined GEMM share it
};

// Watches the linear layers of one step, forward and backward: quantises every operand again exactly as the step does, and compares the
// step's results with GEMMs of unquantised operands. Changes no result. While it exists, a layer's input is kept until its backward,
// whatever the recipe says.
class QuantizationStats : public std::enable_shared_from_this<QuantizationStats> {
 public:
  enum class Detail { operands, all };  // operands: without the GEMMs, which cost several times as much
  // `pads`: a token whose input is all zeros is padding (nn::SequenceInfo); no figure counts it.
  explicit QuantizationStats(bool pads = false, Detail detail = Detail::all) : pads_(pads), products_(detail == Detail::all) {}
  // The same call; only one that keeps for backward is counted, so neither validation nor the first pass of a recomputed block.
  LinearCall watch(const at::Tensor& x_tk, FusedLinears& fused, const LinearOptions& options, LinearCall call);
  // Layers in forward order. The only function that synchronizes with the device.
  std::vector<QuantizationFigures> read() const;

 private:
  enum Slot { kXForward, kWForward, kDyDgrad, kWDgrad, kDyWgrad, kXWgrad, kY, kDx, kDw };
  struct Layer {
    std::string name;
    int64_t call = 0;
    std::array<ErrorSums, kWatched.size()> sums;
  };
  struct Site;                                                            // one call
  Layer& layer(const Weight& weight);                                     // a new layer belongs to the latest call
  void add(const FusedLinears& fused, Slot slot, const ErrorSums& sums);  // to each of its layers
  void forward(const Site& site, const at::Tensor& y);
  void backward(const Site& site, const at::Tensor& dy, const at::Tensor& dx, const std::vector<at::Tensor>& dw);

  std::vector<std::unique_ptr<Layer>> layers_;
  int64_t calls_ = 0;
  bool pads_, products_;
};

// The instance that watches the current step; null if there is none.
std::shared_ptr<QuantizationStats>& quantization_stats();

}  // namespace halftone
