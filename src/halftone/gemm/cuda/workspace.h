#pragma once
#include <cstddef>
#include <cstdint>

#include "halftone/device/launch.h"
#include "halftone/gemm/product.h"

namespace halftone::gemm {

// Bump allocator over the caller's workspace. With a null address it only counts.
class Workspace {
 public:
  Workspace(void* at, int64_t bytes) : at_(static_cast<std::byte*>(at)), bytes_(bytes) {}
  template <class T>
  T* take(int64_t count) {
    constexpr int64_t kAlign = 256;
    const int64_t begin = used_;
    used_ += device::ceil_div(count * static_cast<int64_t>(sizeof(T)), kAlign) * kAlign;
    return at_ ? reinterpret_cast<T*>(at_ + begin) : reinterpret_cast<T*>(kAlign);
  }
  int64_t used() const { return used_; }
  bool fits() const { return used_ <= bytes_; }
  void* rest() const { return at_ + used_; }
  int64_t rest_bytes() const { return bytes_ > used_ ? bytes_ - used_ : 0; }

 private:
  std::byte* at_;
  int64_t bytes_, used_ = 0;
};

constexpr bool is_fp8(Numbers t) { return t == Numbers::e4m3 || t == Numbers::e5m2; }
constexpr bool is_8bit(Numbers t) { return is_fp8(t) || t == Numbers::s8; }
inline int64_t bytes_of(Numbers t) { return is_8bit(t) ? 1 : t == Numbers::bf16 ? 2 : 4; }
inline bool in_blocks(const ProductOperand& x) { return x.scales == Scales::block128 || x.scales == Scales::tile128 || x.macro; }

// Whether address and row stride are multiples of 16 bytes, as sm_90's TMA requires.
inline bool aligned16(const void* at, int64_t row_bytes) { return reinterpret_cast<uintptr_t>(at) % 16 == 0 && row_bytes % 16 == 0; }

}  // namespace halftone::gemm
