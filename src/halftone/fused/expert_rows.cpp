#include "halftone/fused/expert_rows.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "halftone/base/parallel.h"
#include "halftone/fused/arguments.h"

namespace halftone {
namespace {

float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

// Calls f(group) for every group, in parallel.
template <class F>
void for_each_group(const RowGroups& groups, F&& f) {
  parallel_for(groups.groups, 1, [&](int64_t begin, int64_t end) {
    for (int64_t g = begin; g < end; ++g) f(g);
  });
}

}  // namespace

void place_experts(const PlaceExperts& p) {
  check_ids("experts", p.expert, DType::s32, p.tokens * p.top_k, p.experts, 0);
  std::fill_n(p.counts, p.experts, 0);
  for (int64_t i = 0; i < p.tokens * p.top_k; ++i) ++p.counts[p.expert[i]];
  p.offsets[0] = 0;
  for (int64_t e = 0; e < p.experts; ++e) {
    p.ends[e] = p.offsets[e] + p.counts[e];
    p.offsets[e + 1] = static_cast<int32_t>(p.offsets[e] + (p.counts[e] + kGroupRows - 1) / kGroupRows * kGroupRows);
  }
  check(p.offsets[p.experts] <= p.rows, "experts: expected room for {} rows, found {}", p.offsets[p.experts], p.rows);
  std::fill_n(p.source, p.rows, -1);
  std::vector<int32_t> next(p.offsets, p.offsets + p.experts);
  for (int64_t i = 0; i < p.tokens * p.top_k; ++i) {
    const int32_t row = next[static_cast<size_t>(p.expert[i])]++;
    p.slot[i] = row, p.source[row] = static_cast<int32_t>(i);
  }
  const auto begins = [&](int32_t tile) { return static_cast<uint32_t>(p.source[tile * kGroupRows]); };  // -1: after all others
  std::iota(p.order, p.order + p.rows / kGroupRows, 0);
  std::stable_sort(p.order, p.order + p.rows / kGroupRows, [&](int32_t a, int32_t b) { return begins(a) < begins(b); });
}

void gather_rows(const GatherRows& p) {
  check_float("gather of rows", p.dtype);
  dispatch_float(p.dtype, [&]<class T>() {
    parallel_for(p.rows, row_grain(p.cols), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        T* out = p.out == nullptr ? nullptr : static_cast<T*>(p.out) + r * p.cols;
        if (p.source[r] < 0) {
          if (out != nullptr) std::fill_n(out, p.cols, T(0.0f));
          continue;
        }
        const T* x = static_cast<const T*>(p.x) + p.source[r] / p.top_k * p.cols;
        if (p.other != nullptr) {
          const T* y = static_cast<const T*>(p.other) + r * p.cols;
          float sum = 0;
          for (int64_t c = 0; c < p.cols; ++c) sum += static_cast<float>(x[c]) * static_cast<float>(y[c]);
          p.dots[p.source[r]] = sum;
        }
        if (out == nullptr) continue;
        if (p.weight == nullptr) {
          std::copy_n(x, p.cols, out);
        } else {
          const float w = p.weight[p.source[r]];
          for (int64_t c = 0; c < p.cols; ++c) out[c] = T(w * static_cast<float>(x[c]));
        }
      }
    });
  });
}

void combine_rows(const CombineRows& p) {
  check_float("combination of rows", p.dtype);
  dispatch_float(p.dtype, [&]<class T>() {
    parallel_for(p.tokens, row_grain(p.cols * p.top_k), [&](int64_t begin, int64_t end) {
      std::vector<float> sum(static_cast<size_t>(p.cols));
      for (int64_t t = begin; t < end; ++t) {
        std::fill(sum.begin(), sum.end(), 0.0f);
        for (int64_t j = t * p.top_k; j < (t + 1) * p.top_k; ++j) {
          const T* row = static_cast<const T*>(p.rows) + p.slot[j] * p.cols;
          const T* more = p.more == nullptr ? nullptr : static_cast<const T*>(p.more) + p.slot[j] * p.cols;
          const float w = p.weight == nullptr ? 1.0f : p.weight[j];
          for (int64_t c = 0; c < p.cols; ++c)
            sum[static_cast<size_t>(c)] +=
                w * (more == nullptr ? static_cast<float>(row[c]) : static_cast<float>(row[c]) + static_cast<float>(more[c]));
        }
        T* out = static_cast<T*>(p.out) + t * p.cols;
        for (int64_t c = 0; c < p.cols; ++c) out[c] = T(sum[static_cast<size_t>(c)]);
      }
    });
  });
}

void group_bias(const GroupBias& p) {
  dispatch_float(p.dtype, [&]<class T>() {
    dispatch_float(p.bias_dtype, [&]<class B>() {
      for_each_group(p.groups, [&](int64_t g) {
        const B* bias = static_cast<const B*>(p.bias) + g * p.cols;
        for (int64_t r = p.groups.offsets[g]; r < p.groups.ends[g]; ++r) {
          T* x = static_cast<T*>(p.x) + r * p.cols;
          for (int64_t c = 0; c < p.cols; ++c) x[c] = T(static_cast<float>(x[c]) + static_cast<float>(bias[c]));
        }
      });
    });
  });
}

void group_sums(const GroupSums& p) {
  dispatch_float(p.dtype, [&]<class T>() {
    for_each_group(p.groups, [&](int64_t g) {
      for (int64_t r = p.groups.offsets[g]; r < p.groups.ends[g]; ++r) {
        const T* x = static_cast<const T*>(p.x) + r * p.cols;
        for (int64_t c = 0; c < p.cols; ++c) p.sums[g * p.cols + c] += static_cast<float>(x[c]);
      }
    });
  });
}

void clamped_swiglu(const ClampedSwiglu& p) {
  dispatch_float(p.dtype, [&]<class T>() {
    parallel_for(p.rows, row_grain(p.cols), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin * p.cols; i < end * p.cols; ++i) {
        const T* gu = static_cast<const T*>(p.gu) + 2 * i;
        const float g = std::min(static_cast<float>(gu[0]), p.limit), u = std::clamp(static_cast<float>(gu[1]), -p.limit, p.limit);
        static_cast<T*>(p.h)[i] = T(g * sigmoid(kClampedSlope * g) * (u + 1));
      }
    });
  });
}

void clamped_swiglu_backward(const ClampedSwigluBackward& p) {
  dispatch_float(p.dtype, [&]<class T>() {
    parallel_for(p.rows, row_grain(p.cols), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin * p.cols; i < end * p.cols; ++i) {
        const T* gu = static_cast<const T*>(p.gu) + 2 * i;
        T* dgu = static_cast<T*>(p.dgu) + 2 * i;
        const float g0 = static_cast<float>(gu[0]), u0 = static_cast<float>(gu[1]), d = static_cast<float>(static_cast<const T*>(p.dh)[i]);
        const float g = std::min(g0, p.limit), u = std::clamp(u0, -p.limit, p.limit), s = sigmoid(kClampedSlope * g);
        dgu[0] = T(g0 <= p.limit ? d * (u + 1) * s * (1 + kClampedSlope * g * (1 - s)) : 0.0f);
        dgu[1] = T(u0 == u ? d * g * s : 0.0f);
      }
    });
  });
}

}  // namespace halftone
