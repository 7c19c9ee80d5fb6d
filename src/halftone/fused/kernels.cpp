#include "halftone/fused/kernels.h"

#include "halftone/base/cpu.h"
#include "halftone/fused/rows/table.h"

namespace halftone {
namespace {

const FusedKernels* chosen = nullptr;

}  // namespace

const FusedKernels& fused_kernels() {
  if (chosen) return *chosen;
  return cpu_features().avx512 ? avx512::fused_kernels() : v3::fused_kernels();
}

void use_fused_kernels(const FusedKernels* kernels) { chosen = kernels; }

}  // namespace halftone
