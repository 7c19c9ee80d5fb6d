#include "halftone/fused/cross_entropy.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "halftone/base/parallel.h"
#include "halftone/fused/arguments.h"
#include "halftone/fused/kernels.h"

namespace halftone {
namespace {

const void* row_of(const void* base, DType type, int64_t offset) {
  return static_cast<const char*>(base) + offset * static_cast<int64_t>(size_of(type));
}
void* row_of(void* base, DType type, int64_t offset) { return static_cast<char*>(base) + offset * static_cast<int64_t>(size_of(type)); }

float element(const void* row, DType type, int64_t i) {
  return type == DType::bf16 ? to_float(static_cast<const bf16*>(row)[i]) : static_cast<const float*>(row)[i];
}
void set_element(void* row, DType type, int64_t i, float value) {
  if (type == DType::bf16) {
    static_cast<bf16*>(row)[i] = bf16(value);
  } else {
    static_cast<float*>(row)[i] = value;
  }
}

int64_t label_of(const CrossEntropy& p, int64_t r) {
  return p.label_dtype == DType::s64 ? static_cast<const int64_t*>(p.labels)[r] : static_cast<const int32_t*>(p.labels)[r];
}

// Loss of row r; writes lse and the gradient. `exponentials` [V] is scratch memory.
float row_loss(const CrossEntropy& p, int64_t r, float* exponentials) {
  const auto& k = fused_kernels();
  const int64_t label = label_of(p, r);
  void* gradient = p.dlogits ? row_of(p.dlogits, p.dlogits_dtype, r * p.dlogits_stride) : nullptr;
  if (label == kIgnoredLabel) {
    if (gradient) std::memset(gradient, 0, static_cast<size_t>(p.vocab) * size_of(p.dlogits_dtype));
    if (p.lse) p.lse[r] = 0;
    if (p.target) p.target[r] = 0;
    return 0;
  }
  const void* z = row_of(p.logits, p.dtype, r * p.logits_stride);
  const int64_t column = label - p.first_column;
  const bool here = column >= 0 && column < p.vocab;
  const float target = here ? element(z, p.dtype, column) : 0;
  if (p.target) p.target[r] = target;
  const SoftmaxSum s = k.softmax_sum(z, p.dtype, p.vocab, gradient ? exponentials : nullptr);
  const double log_sum = std::log(static_cast<double>(s.sum));
  if (p.lse) p.lse[r] = static_cast<float>(s.max + log_sum);
  if (gradient) {
    const float scale = p.grad_factor ? p.grad_scale * *p.grad_factor : p.grad_scale;
    const double lse = p.whole_lse ? p.whole_lse[r] : s.max + log_sum;
    const float sum = p.whole_lse ? static_cast<float>(std::exp(lse - s.max)) : s.sum;
    const float weight = p.z_loss == 0 ? 1.0f : static_cast<float>(1 + 2.0 * p.z_loss * lse);
    k.scaled_copy(exponentials, p.vocab, scale / sum * weight, gradient, p.dlogits_dtype);
    if (here) set_element(gradient, p.dlogits_dtype, column, (exponentials[column] / sum * weight - 1.0f) * scale);
  }
  return static_cast<float>(log_sum - (static_cast<double>(target) - s.max));
}

}  // namespace

CrossEntropyResult cross_entropy(const CrossEntropy& p) {
  check_shape("cross_entropy", p.rows, p.vocab);
  check_float("logits", p.dtype);
  check_float("gradient of the logits", p.dlogits_dtype);
  if (p.rows == 0) return {};
  check(p.vocab > 0 && p.logits && p.labels, "cross_entropy: expected logits and labels, found vocab {}", p.vocab);
  check_ids("labels", p.labels, p.label_dtype, p.rows, p.whole_vocab > 0 ? p.whole_vocab : p.vocab, kIgnoredLabel);
  std::vector<float> own(p.loss ? 0 : static_cast<size_t>(p.rows));
  float* loss = p.loss ? p.loss : own.data();
  parallel_for(p.rows, row_grain(p.vocab), [&](int64_t begin, int64_t end) {
    std::vector<float> exponentials(p.dlogits ? static_cast<size_t>(p.vocab) : 0);
    for (int64_t r = begin; r < end; ++r) loss[r] = row_loss(p, r, exponentials.data());
  });
  CrossEntropyResult result;
  for (int64_t r = 0; r < p.rows; ++r) {
    result.loss_sum += loss[r];
    result.valid += label_of(p, r) != kIgnoredLabel;
  }
  return result;
}

}  // namespace halftone
