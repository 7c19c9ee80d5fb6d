#include "halftone/base/cpu.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

#include "halftone/base/error.h"

namespace halftone {
namespace {

// Linux grants AMX tile state only on request (arch_prctl(2), ARCH_REQ_XCOMP_PERM).
bool request_tile_data() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

CpuFeatures detect() {
  CpuFeatures f;
  __builtin_cpu_init();
  f.avxvnni = __builtin_cpu_supports("avxvnni");
  f.avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512cd");
  f.vnni = f.avx512 && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16");
  f.amx = f.vnni && __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-int8") && __builtin_cpu_supports("amx-bf16");
  if (const char* text = std::getenv("HALFTONE_ISA")) {
    const std::string_view isa = text;
    check(isa == "v3" || isa == "avxvnni" || isa == "avx512" || isa == "vnni" || isa == "amx",
          "HALFTONE_ISA: expected v3, avxvnni, avx512, vnni or amx, found '{}'", isa);
    f.amx = f.amx && isa == "amx";
    f.vnni = f.vnni && (isa == "amx" || isa == "vnni");
    f.avx512 = f.avx512 && isa != "v3" && isa != "avxvnni";
    f.avxvnni = f.avxvnni && isa != "v3";
  }
  f.amx = f.amx && request_tile_data();
  return f;
}

}  // namespace

const CpuFeatures& cpu_features() {
  static const CpuFeatures features = detect();
  return features;
}

}  // namespace halftone
