#pragma once

namespace halftone {

// Instruction sets of this processor beyond the x86-64-v3 baseline; files named *_avxvnni.cpp, *_avx512.cpp, *_vnni.cpp and *_amx.cpp
// are compiled for them and called only after asking here. HALFTONE_ISA=v3|avxvnni|avx512|vnni|amx lowers what is reported.
struct CpuFeatures {
  bool avxvnni = false;  // AVX-VNNI: int8 dot products of 256 bits, on processors without AVX-512 since Alder Lake
  bool avx512 = false;   // F, BW, VL, DQ, CD
  bool vnni = false;     // avx512 and AVX512-VNNI and AVX512-BF16
  bool amx = false;      // vnni and AMX-TILE, AMX-INT8, AMX-BF16, with the kernel's permission for tile data
};
const CpuFeatures& cpu_features();

}  // namespace halftone
