// The epilogue of gemm.h over a vector type V. Multiplies and adds are separate, so that every instruction set gives the same bits.
#pragma once
#include <type_traits>

#include "halftone/gemm/cpu/kernels.h"

namespace halftone::gemm {

template <class V, bool kInteger, bool kBf16, bool kAccumulate>
void epilogue_of(const EpilogueArgs& e, int64_t first, int64_t last) {
  using C = std::conditional_t<kBf16, bf16, float>;
  constexpr int64_t kLanes = V::kLanes;
  for (int64_t i = first; i < last; ++i) {
    const auto* acc = static_cast<const float*>(e.acc) + i * e.acc_ld;
    auto* c = static_cast<C*>(e.c) + i * e.ldc;
    const auto scale = V::set(e.scale_m == nullptr ? 1.0f : e.scale_m[i]);
    const auto value = [&](int64_t j, auto... n) {  // n: set at the end of a row
      auto v = kInteger ? V::from_int(V::loadi(acc + j)) : V::load(acc + j);
      if (e.scale_m != nullptr) v = V::mul(v, scale);
      if (e.scale_n != nullptr) v = V::mul(v, V::load(e.scale_n + j, n...));
      if (e.bias != nullptr) v = V::add(v, V::load(e.bias + j, n...));
      if constexpr (kAccumulate) v = V::add(v, V::load(c + j, n...));
      return v;
    };
    int64_t j = 0;
    for (; j + 2 * kLanes <= e.cols; j += 2 * kLanes) V::store_two(c + j, value(j), value(j + kLanes));
    for (; j < e.cols; j += kLanes) V::store(c + j, value(j, e.cols - j), e.cols - j);
  }
}

template <class V>
Epilogue epilogue(bool integer, DType c_type, bool accumulate) {
  const auto pick = [&]<bool kInteger, bool kBf16>() -> Epilogue {
    return accumulate ? epilogue_of<V, kInteger, kBf16, true> : epilogue_of<V, kInteger, kBf16, false>;
  };
  if (c_type == DType::bf16) return integer ? pick.template operator()<true, true>() : pick.template operator()<false, true>();
  return integer ? pick.template operator()<true, false>() : pick.template operator()<false, false>();
}

}  // namespace halftone::gemm
