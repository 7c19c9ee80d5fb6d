#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "halftone/checkpoint/hf_forms.h"

// Writes weights to Hugging Face folders as codes with scales; hf_quantized.h reads them back.
namespace halftone {

// How an export holds one weight, or each of its experts.
struct HfWeightCodes {
  const HfForm* form = nullptr;
  OperandSpec spec{};    // the quantiser
  bool inputs = false;   // readers quantise the inputs of its layer, too
  bool trained = false;  // these are the codes that the run multiplied with
  bool bf16 = false;     // of the numbers rounded to bfloat16, as the run's
  std::string why{};     // not `trained`: the reason
};

// Whether published models quantise the weight, of that shape and name here: linear layers and experts, except vocabulary tables and
// routers; in stacked formats, stacked experts.
bool takes_codes(const HfFormat& format, const ModelFamily& family, const std::string& native, at::IntArrayRef shape);

// A file tensor of one weight. outer: what multiplies all its scales, or divides them (compressed-tensors); sizes: [N, K]; zeros: points
// that integers represent as 0.
struct HfCodedTensor {
  enum class Part { codes, scales, outer, sizes, zeros };
  std::string name;
  std::vector<int64_t> shape;
  at::ScalarType type;
  Part part;
};
// From a weight's name and shape there; of a stacked one [E, N, K]. Error naming `native` if the shape does not fit.
std::vector<HfCodedTensor> coded_tensors(const HfFormat& format, const HfForm& form, const std::string& native, const std::string& hf,
                                         at::IntArrayRef shape);

// Numbers and what their codes differ from them by, as sums of squares.
struct HfCodeError {
  double signal = 0, noise = 0;
  double decibels() const;  // the ratio of both; infinite without noise
};

// The codes and scales of a matrix [n, k], a few rows at a time. Several threads may call it.
class HfCodedMatrix {
 public:
  using Rows = std::function<at::Tensor(int64_t first, int64_t rows)>;  // in native order, in the stored type
  // heads: the file has the rows of each head permuted (hf.h); 0: it has not. error: added to, unless null or the codes are the trained
  // ones.
  HfCodedMatrix(const HfFormat& format, const HfWeightCodes& how, int64_t n, int64_t k, int64_t heads, Rows native,
                HfCodeError* error = nullptr);
  // Rows of a file tensor, in file order. Codes: bytes. With codes read from front to back their scales are made only once.
  at::Tensor rows(HfCodedTensor::Part part, int64_t first, int64_t rows);

 private:
  struct Piece {
    at::Tensor codes, scales, outer;
  };
  void find_amax();                           // if the quantiser needs it: reads all rows
  Piece encode(int64_t first, int64_t rows);  // multiples of unit_
  Piece around(int64_t first, int64_t rows, int64_t per);
  void add_error(const at::Tensor& x, const struct Operand& codes, int64_t first);
  at::Tensor arranged(const at::Tensor& rows) const;  // native order -> file order
  HfFormat::Layout layout_;
  HfWeightCodes how_;
  int64_t n_, k_, heads_, unit_;  // unit_: rows that are encoded together
  bool arrange_first_ = false;
  Rows native_;
  HfCodeError* error_;
  std::once_flag amax_once_;
  at::Tensor amax_;  // int32 [1]
  std::mutex mutex_;
  at::Tensor scales_;          // all, until they were read
  std::vector<bool> encoded_;  // units
  int64_t missing_ = 0, unread_ = 0;
};

}  // namespace halftone
