#include "halftone/fused/embedding.h"

#include <algorithm>

#include "halftone/base/parallel.h"
#include "halftone/fused/arguments.h"
#include "halftone/fused/kernels.h"

namespace halftone {

void embedding_forward(const EmbeddingForward& p) {
  check_shape("embedding", p.tokens, p.cols);
  check_float("embedding table", p.table_dtype);
  check_float("embedding output", p.dtype);
  if (p.tokens == 0 || p.cols == 0) return;
  check_ids("token ids", p.ids, p.id_dtype, p.tokens, p.vocab, 0);
  parallel_for(p.tokens, row_grain(p.cols), [&](int64_t begin, int64_t end) { fused_kernels().embedding_forward(p, begin, end); });
}

void embedding_backward(const EmbeddingBackward& p) {
  check_shape("embedding backward", p.tokens, p.cols);
  check_float("embedding gradient", p.dtype);
  if (p.tokens == 0 || p.cols == 0) return;
  check_ids("token ids", p.ids, p.id_dtype, p.tokens, p.vocab, 0);
  constexpr int64_t kColumns = 64;  // minimum columns per thread: full cache lines in every row
  parallel_for((p.cols + kColumns - 1) / kColumns, 1, [&](int64_t begin, int64_t end) {
    fused_kernels().embedding_backward(p, begin * kColumns, std::min(p.cols, end * kColumns));
  });
}

}  // namespace halftone
