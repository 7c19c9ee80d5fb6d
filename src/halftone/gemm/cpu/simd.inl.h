// Shared parts of the kernels for all instruction sets (each file instantiates its own copy in an unnamed namespace).
#pragma once
#include "halftone/base/simd.h"
#include "halftone/gemm/cpu/epilogue.inl.h"
#include "halftone/gemm/cpu/register_block.inl.h"

namespace halftone::gemm {
namespace {

struct Block : Simd {
  static constexpr int kRows = kLanes == 16 ? 8 : 6, kPanels = kLanes == 16 ? 3 : 1, kParts = 16 / kLanes;
};

inline uint32_t unit(const std::byte* p) {
  uint32_t v;
  __builtin_memcpy(&v, p, 4);
  return v;
}

struct SumF32 {
  using Acc = Simd::F;
  using Element = float;
  static Acc zero() { return Simd::zero(); }
  static Acc load(const float* p) { return Simd::load(p); }
  static void store(float* p, Acc v) { Simd::store(p, v); }
};
struct DotF32 : SumF32 {
  using B = Simd::F;
  static B load_b(const std::byte* p) { return Simd::load(reinterpret_cast<const float*>(p)); }
  static B broadcast(const std::byte* p) { return Simd::set(*reinterpret_cast<const float*>(p)); }
  static Acc dot(Acc acc, B a, B b) { return Simd::fma(a, b, acc); }
};

struct SumInt {
  using Acc = Simd::I;
  using B = Simd::I;
  using Element = int32_t;
  static Acc zero() { return Simd::zeroi(); }
  static Acc load(const int32_t* p) { return Simd::loadi(p); }
  static void store(int32_t* p, Acc v) { Simd::store(p, v); }
  static B load_b(const std::byte* p) { return Simd::loadi(p); }
  static B broadcast(const std::byte* p) { return Simd::seti(unit(p)); }
};
struct DotS16 : SumInt {
  static Acc dot(Acc acc, B a, B b) { return Simd::addi(acc, Simd::madd16(a, b)); }
};
// Base for unsigned-by-signed dot products; the derived type adds the dot product.
struct OffsetS8 : SumInt {
  static B offset() { return Simd::seti(0x80808080u); }
  static B load_b(const std::byte* p) { return Simd::xor_(Simd::loadi(p), offset()); }
};

struct SplitBf16 {
  static Simd::I low(Simd::I v) { return Simd::shl<16>(v); }
  static Simd::I high(Simd::I v) { return Simd::and_(v, Simd::seti(0xFFFF0000u)); }
};
struct SplitS8 {
  static Simd::I low(Simd::I v) { return Simd::lower_s8(v); }
  static Simd::I high(Simd::I v) { return Simd::upper_s8(v); }
};

// Transposes 16 x 16 units of 4 bytes: rows of 64 bytes at `stride` to 16 consecutive rows of 64 bytes.
inline void transpose16(const std::byte* src, int64_t stride, std::byte* out) {
  for (int64_t i = 0; i < 16; i += Simd::kLanes) {
    for (int64_t g = 0; g < 16; g += Simd::kLanes) Simd::transpose(out + g * 64 + i * 4, 64, src + i * stride + g * 4, stride);
  }
}

// fp32 or int16 dot products for all types, for instruction sets without better ones.
constexpr Kernels wide_kernels(int64_t panels) {
  return {.panels = panels,
          .amx = false,
          .chunk = 256,
          .s8 = register_tile<Block, DotS16>,
          .bf16 = register_tile<Block, DotF32>,
          .f32 = register_tile<Block, DotF32>,
          .widen_s8 = &kWiden<Block, SplitS8>,
          .widen_bf16 = &kWiden<Block, SplitBf16>,
          .epilogue = epilogue<Block>,
          .transpose = transpose16,
          .enter = nullptr,
          .leave = nullptr};
}

}  // namespace
}  // namespace halftone::gemm
