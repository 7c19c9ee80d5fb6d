#pragma once
#include <string>
#include <string_view>

#include "halftone/config/layer_recipe.h"
#include "halftone/formats/recipe.h"

namespace halftone::library {

// A quantised matrix's format as a string: words separated by ':', the first an element or a scheme, the others in any order.
//   element      e4m3 e5m2 e3m2 e2m3 e2m1 int8 int4 uint4 ternary, or hp (unquantised)
//   scheme       mxfp8_e4m3 mxfp8_e5m2 mxfp6_e2m3 mxfp6_e3m2 mxfp4 nvfp4 amdfp4 mxint8 nvint4: element, blocks and scales of one operand
// scale block   tensor, row, 1xB (along the contraction), BxB; B = 16, 32, 128
//   scale        fp32 pow2 e8m0 e4m3_scale ue5m3 bf16
//   scale mode   floor ceil rceil even adaptive uos (e8m0)
//   two_level=none|tensorwise|blockwise  chain=alto|torchao  choice=squared|absolute|largest  clip=none|static|dynamic
//   hadamard=16|32|64|128  signs=random|deterministic|torchao  floor=1e-5
// sr           stochastic rounding;  packed: two 4-bit codes per byte
// "mxfp4:floor" and "e2m1:1x32:e8m0:floor" are equivalent. Each word is defined in numerics.md sections 2 to 5.
struct Format {
  OperandSpec spec{};
  bool packed = false;
};

// Error naming the invalid word, or the combination that no quantiser supports.
Format parse_format(std::string_view text);

// The canonical string of a spec; parse_format reads it back.
std::string format_string(const OperandSpec& spec, bool packed = false);

// A recipe (numerics.md section 7) with options "use_hadamard=false,fast_accum=forward+dgrad"; names and legal combinations are those of
// [quantize] (numerics.md 7.3, 7.4). Error also for options that belong to a module, not to a single GEMM.
LinearRecipe parse_recipe(const std::string& recipe, const std::string& options, const std::string& name);

}  // namespace halftone::library
