#pragma once
#include <fmt/format.h>

#include <string>

#include "halftone/base/dtype.h"
#include "halftone/formats/support.h"
#include "halftone/quantize/operand.h"

// The operands that a linear layer's three products read and how long each lives: a pure function of the recipe, the hardware and the use.
//   forward Y = X W^T   dgrad dX = dY W   wgrad dW = dY^T X
namespace halftone {

enum class LinearProduct { forward, dgrad, wgrad };
enum class Matrix { x, w, dy };

// Outputs that the quantiser writes for one copy of a matrix; an unquantised copy is the matrix itself. A plan leaves the random numbers to
// the call, which knows the weight's name and the step.
struct CopyRequest {
  OperandSpec spec{};
  Rounding rounding{};
  RotationSigns signs{};  // of the Hadamard rotation, or the seed they are derived from (quantize/operand.h)
  const uint32_t* signs_step = nullptr;
  PhiloxKey signs_key{};
  bool codes = false, packed = false, panels = false;
  ValueForm form = ValueForm::none;
  bool block_scales = false;  // write byte scales even beside values alone, which include them: a GPU omits them otherwise
  int64_t multiple = 1;       // the contraction is zero-padded to a multiple of it
};

// Input of the units that multiply (formats/support.h).
struct UnitInput {
  Path path = Path::values;
  DType type = DType::bf16;  // of values; s8: codes
  bool blocks = false;       // CPU: sums over 128 elements of the contraction are scaled one by one
  bool panels = false;       // CPU: right operands are packed (quantize/panels.h)
  constexpr bool codes() const { return path == Path::int8 || path == Path::fp8; }
};
// numbers: dtype of unquantised operands. Follows formats/support.h, so that the kernels match what a run prints at its start.
UnitInput unit_input(const OperandSpec& a, const OperandSpec& b, DType numbers, bool emulate, Hardware hardware);

// The copy of a matrix that a product reads: row-wise, or transposed. kept: transposed and held until the backward pass, so that its size
// matters more than its decoding time.
enum class CopyUse { rows, columns, kept };
CopyRequest copy_request(const OperandSpec& spec, const OperandSpec& other, DType numbers, CopyUse use, bool emulate, Hardware hardware);

enum class Origin {
  own_read,       // quantised from the matrix
  shared_read,    // by the read that makes the matrix's other copy
  forward_codes,  // the values of the codes that the forward product read
  read_again,     // in wgrad, from what its producer or its ranks still have
};
enum class Lifetime { product, wgrad, version };  // freed after its product; after wgrad; when the weights change
enum class Sent { nothing, values, codes };       // what ranks exchange of the operand's rows before the product

struct OperandPlan {
  Matrix matrix = Matrix::x;
  bool columns = false;  // contracts the matrix's rows
  CopyRequest copy{};
  DType numbers = DType::bf16;  // of an unquantised operand
  const char* role = "";        // random numbers are keyed by "<weight>#<role>" (numerics.md section 4)
  // Role of a rotation's signs: products share none.
  const char* sign_role() const { return columns == (matrix == Matrix::w) ? "rht.dgrad" : "rht"; }
  Origin origin = Origin::own_read;
  Lifetime life = Lifetime::product;
  Sent sent = Sent::nothing;
  bool packed_once = false;  // converted to the units' input when it is made, not in each product
};

struct ProductPlan {
  LinearProduct product = LinearProduct::forward;
  OperandPlan left, right;
  UnitInput units;
  bool joined = false;  // siblings run as one product, if their memory is adjacent
  bool fast_accum = false, emulate = false;
  bool in_parts = false;     // one part per rank, beside the transfers of other parts
  bool bias = false;         // added before rounding
  bool slopes = false;       // dW is multiplied by the slopes of the weight's quantiser (ops/dge.h)
  bool scales_left = false;  // the scales of stored int8 rows are contracted: dY is multiplied by them
};

struct LinearPlan {
  ProductPlan forward, dgrad, wgrad;
};

// One use of a layer, as far as its plan depends on it.
struct LinearUse {
  Hardware hardware = Hardware::cpu_v3;
  DType x = DType::bf16, w = DType::bf16, dy = DType::bf16;
  int64_t tokens = 0;          // rows of X
  bool grouped = false;        // GPU: products over groups of rows, each with its expert's weight
  bool siblings_match = true;  // all weights are unstored and of X's dtype
  bool whole_panels = true;    // every weight's rows fill panels
  bool biases = false;
  bool keep = true;            // a backward pass follows
  bool last_pass = false;      // StepContext::last_pass
  bool keeps_results = false;  // each weight's output is kept for the recomputation of the block
  bool x_again = false;        // the producer of X can give it again in wgrad
  bool gathers = false;        // ranks have rows of X and of dX
  bool scatters = false;       // ranks have rows of Y and of dY
  bool in_parts = false;
};
LinearPlan plan_linear(const LinearRecipe& recipe, const LinearUse& use);

// dtype that the unquantised operands of a product are converted to: the wider of the two.
constexpr DType numbers_of(const OperandSpec& a, DType a_type, const OperandSpec& b, DType b_type) {
  if (a.quantized()) return b_type;
  return b.quantized() || a_type == DType::f32 ? a_type : b_type;
}

// bitnet: wgrad reads the values that the forward codes represent.
constexpr bool wgrad_reads_forward_codes(const LinearRecipe& r) {
  return r.x_wgrad.same_as_forward && r.x_wgrad.granularity == Granularity::row;
}
// Bytes per element of a copy, including its block scales; 0: the matrix itself is read.
double copy_bytes(const CopyRequest& copy, Hardware hardware);
// Bytes per element of the right operand in the units' input; 0: the matrix itself is read.
double right_operand_bytes(const ProductPlan& plan);

// "Y is int8 row [512 x 256] as codes by int8 row [256 x 256] as int8 panels": the operands of a product [m, n] with k contracted; without
// sizes if m is negative.
std::string operands_text(const ProductPlan& plan, int64_t m = -1, int64_t n = -1, int64_t k = -1);

}  // namespace halftone

// The plan of a product in one line.
template <>
struct fmt::formatter<halftone::ProductPlan> : fmt::formatter<std::string> {
  fmt::format_context::iterator format(const halftone::ProductPlan& plan, fmt::format_context& context) const;
};
