#pragma once

namespace halftone {

// Instruction sets of this CPU beyond the x86-64-v3 baseline. Files named *_avxvnni.cpp, *_avx512.cpp, *_vnni.cpp and *_amx.cpp are
// compiled for them and called only after this check. HALFTONE_ISA=v3|avxvnni|avx512|vnni|amx lowers the reported level.
struct CpuFeatures {
  bool avxvnni = false;  // AVX-VNNI: 256-bit int8 dot products, on CPUs without AVX-512 since Alder Lake
  bool avx512 = false;   // F, BW, VL, DQ, CD
  bool vnni = false;     // avx512 and AVX512-VNNI and AVX512-BF16
  bool amx = false;      // vnni and AMX-TILE, AMX-INT8, AMX-BF16, and the kernel grants tile data
};
const CpuFeatures& cpu_features();

}  // namespace halftone
