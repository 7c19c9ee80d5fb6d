#pragma once
#include "halftone/base/cpu.h"

namespace halftone {

// Implementations of a CPU kernel, lowest first. Names match HALFTONE_ISA; `ref` is the scalar reference.
enum class Isa { ref, v3, avxvnni, avx512, vnni, amx };

inline bool available(Isa isa) {
  const CpuFeatures& f = cpu_features();
  return isa == Isa::ref || isa == Isa::v3 || (isa == Isa::avxvnni && f.avxvnni) || (isa == Isa::avx512 && f.avx512) ||
         (isa == Isa::vnni && f.vnni) || (isa == Isa::amx && f.amx);
}
inline Isa best_isa() {
  const CpuFeatures& f = cpu_features();
  return f.amx ? Isa::amx : f.vnni ? Isa::vnni : f.avx512 ? Isa::avx512 : f.avxvnni ? Isa::avxvnni : Isa::v3;
}
constexpr const char* name(Isa isa) {
  switch (isa) {
    case Isa::ref:
      return "ref";
    case Isa::v3:
      return "v3";
    case Isa::avxvnni:
      return "avxvnni";
    case Isa::avx512:
      return "avx512";
    case Isa::vnni:
      return "vnni";
    case Isa::amx:
      return "amx";
  }
  return "";
}

}  // namespace halftone
