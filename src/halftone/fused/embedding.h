#pragma once
#include <cstdint>

#include "halftone/base/dtype.h"

namespace halftone {

// out[t] = table[ids[t]]. Throws Error if an id is outside [0, vocab).
struct EmbeddingForward {
  int64_t tokens = 0, vocab = 0, cols = 0;  // T, V, D
  DType id_dtype = DType::s64;              // s64 or s32
  const void* ids = nullptr;                // [T]
  DType table_dtype = DType::f32;           // bf16 or f32
  const void* table = nullptr;              // [V, D]
  int64_t table_stride = 0;
  DType dtype = DType::bf16;  // dtype of out: bf16 or f32
  void* out = nullptr;        // [T, D]
  int64_t out_stride = 0;
};
void embedding_forward(const EmbeddingForward& p);

// dtable[ids[t]] += dy[t], for each row in token order (threads split the columns, not the tokens).
struct EmbeddingBackward {
  int64_t tokens = 0, vocab = 0, cols = 0;
  DType id_dtype = DType::s64;
  const void* ids = nullptr;  // [T]
  DType dtype = DType::bf16;  // dtype of dy: bf16 or f32
  const void* dy = nullptr;   // [T, D]
  int64_t dy_stride = 0;
  float* dtable = nullptr;  // [V, D], accumulated (beta = 1)
  int64_t dtable_stride = 0;
};
void embedding_backward(const EmbeddingBackward& p);

}  // namespace halftone
