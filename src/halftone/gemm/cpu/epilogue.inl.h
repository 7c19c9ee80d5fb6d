// The epilogue of gemm.h over a vector type V; separate multiplications and additions, so that every instruction set
// gives the same bits.
#pragma once
#include "halftone/gemm/cpu/kernels.h"

namespace halftone::gemm {

template <class V, bool kInteger, bool kBf16, bool kAccumulate>
void epilogue_of(const EpilogueArgs& e) {
  constexpr int64_t kLanes = V::kLanes;
  for (int64_t i = 0; i < e.rows; ++i) {
    const auto* acc = static_cast<const float*>(e.acc) + i * e.acc_ld;
    auto* c32 = static_cast<float*>(e.c) + (kBf16 ? 0 : i * e.ldc);
    auto* c16 = static_cast<bf16*>(e.c) + (kBf16 ? i * e.ldc : 0);
    const auto scale = V::set(e.scale_m == nullptr ? 1.0f : e.scale_m[i]);
    for (int64_t j = 0; j < e.cols; j += kLanes) {
      const auto m = V::mask(e.cols - j);
      auto v = kInteger ? V::load_int(acc + j) : V::load(acc + j);
      if (e.scale_m != nullptr) v = V::mul(v, scale);
      if (e.scale_n != nullptr) v = V::mul(v, V::load(e.scale_n + j, m));
      if (e.bias != nullptr) v = V::add(v, V::load(e.bias + j, m));
      if constexpr (kBf16) {
        if constexpr (kAccumulate) v = V::add(v, V::load(c16 + j, m));
        V::store(c16 + j, m, v);
      } else {
        if constexpr (kAccumulate) v = V::add(v, V::load(c32 + j, m));
        V::store(c32 + j, m, v);
      }
    }
  }
}

template <class V>
void epilogue(const EpilogueArgs& e) {
  const auto with_out = [&]<bool kInteger, bool kBf16>() {
    if (e.accumulate)
      epilogue_of<V, kInteger, kBf16, true>(e);
    else
      epilogue_of<V, kInteger, kBf16, false>(e);
  };
  const bool half = e.c_type == DType::bf16;
  if (e.integer)
    half ? with_out.template operator()<true, true>() : with_out.template operator()<true, false>();
  else
    half ? with_out.template operator()<false, true>() : with_out.template operator()<false, false>();
}

}  // namespace halftone::gemm
