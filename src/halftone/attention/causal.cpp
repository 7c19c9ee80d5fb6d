#include "halftone/attention/causal.h"

#include <cstdlib>
#include <limits>
#include <memory>

#include "halftone/attention/causal_impl.h"
#include "halftone/base/cpu.h"
#include "halftone/base/error.h"

namespace halftone {
namespace attention {
namespace {

constexpr int64_t kDecodeQueries = 4;

AttentionLayout checked(const char* name, const AttentionLayout& l, int64_t length, int heads, int dim) {
  const int64_t head = l.head == 0 ? dim : l.head;
  check(head >= dim, "attention: {} has heads {} elements apart, expected at least {}", name, head, dim);
  check(l.row >= (heads - 1) * head + dim, "attention: {} has rows of {} elements, expected at least {} heads * {}", name, l.row, heads,
        head);
  return {l.row, l.batch_stride == 0 ? length * l.row : l.batch_stride, head};
}

void check_dim(const char* name, int dim) {
  check(dim > 0 && dim <= 256 && dim % 8 == 0, "attention: expected {} to be a multiple of 8 up to 256, found {}", name, dim);
}

void check_common(AttentionShape& s, DType dtype, float scale) {
  if (s.v_dim == 0) s.v_dim = s.head_dim;
  check(s.batch >= 0 && s.q_len >= 0 && s.kv_len >= 0 && s.gap >= 0 && s.q_len < INT32_MAX && s.positions() < INT32_MAX,
        "attention: expected sizes in [0, 2^31), found batch {}, q_len {}, kv_len {}, gap {}", s.batch, s.q_len, s.kv_len, s.gap);
  check(s.window >= 0, "attention: expected a window of at least 0, found {}", s.window);
  check(s.kv_heads > 0 && s.heads > 0 && s.heads % s.kv_heads == 0,
        "attention: expected heads to be a multiple of kv_heads, found {} and {}", s.heads, s.kv_heads);
  check_dim("head_dim", s.head_dim), check_dim("v_dim", s.v_dim);
  check(dtype == DType::bf16 || dtype == DType::f32, "attention: expected bf16 or f32 tensors, found dtype {}", static_cast<int>(dtype));
  check(scale > 0 && scale < std::numeric_limits<float>::infinity(), "attention: expected a positive finite scale, found {}", scale);
}

// Byte permutes of operand_bf16.h: available on every CPU with AMX or VNNI + BF16 except Cooper Lake.
bool has_vbmi() { return __builtin_cpu_supports("avx512vbmi"); }
bool bf16_on_amx(DType t) { return t == DType::bf16 && cpu_features().amx && has_vbmi(); }
bool bf16_on_vnni(DType t) { return t == DType::bf16 && cpu_features().vnni && has_vbmi(); }
bool any_on_avx512(DType) { return cpu_features().avx512; }
bool any_on_v3(DType) { return true; }

constexpr Implementation kImplementations[] = {
    {"amx", bf16_on_amx, forward_amx, backward_amx},
    {"vnni", bf16_on_vnni, forward_vnni, backward_vnni},
    {"avx512", any_on_avx512, forward_avx512, backward_avx512},
    {"v3", any_on_v3, forward_v3, backward_v3},
};

const Implementation& fastest(DType dtype) {
  for (const Implementation& i : kImplementations) {
    if (i.usable(dtype)) return i;
  }
  fail("attention: no implementation");  // unreachable: v3 is always usable
}

bool nothing(const AttentionShape& s) { return s.batch == 0 || s.q_len == 0; }

// Document by document, so that blocks of keys and of queries begin with each.
void forward_documents(const AttentionForward& p) {
  const AttentionShape& s = p.shape;
  const auto bytes = static_cast<int64_t>(size_of(p.dtype));
  const auto of = [&](const void* base, const AttentionLayout& l, int64_t b, int64_t t) {
    return static_cast<const std::byte*>(base) + (b * l.batch_stride + t * l.row) * bytes;
  };
  for (int64_t b = 0; b < s.batch; ++b) {
    const int32_t* start = p.doc_start + b * s.kv_len;
    for (int64_t first = 0, end = 0; first < s.q_len; first = end) {
      while (end < s.q_len && start[end] == start[first]) ++end;
      AttentionForward part = p;
      part.shape.batch = 1, part.shape.q_len = part.shape.kv_len = end - first, part.doc_start = nullptr;
      part.q = of(p.q, p.q_layout, b, first), part.k = of(p.k, p.k_layout, b, first), part.v = of(p.v, p.v_layout, b, first);
      part.out = const_cast<std::byte*>(of(p.out, p.out_layout, b, first));
      if (p.lse != nullptr) part.lse = p.lse + b * s.heads * p.lse_head + first;
      fastest(p.dtype).forward(part);
    }
  }
}

}  // namespace

std::span<const Implementation> implementations() { return kImplementations; }

AttentionForward checked(const AttentionForward& p) {
  AttentionForward x = p;
  AttentionShape& s = x.shape;
  check_common(s, x.dtype, x.scale);
  x.q_layout = checked("q", x.q_layout, s.q_len, s.heads, s.head_dim);
  x.k_layout = checked("k", x.k_layout, s.kv_len, s.kv_heads, s.head_dim);
  x.v_layout = checked("v", x.v_layout, s.kv_len, s.kv_heads, s.v_dim);
  x.out_layout = checked("out", x.out_layout, s.q_len, s.heads, s.v_dim);
  if (x.lse_head == 0) x.lse_head = s.q_len;
  check(!x.invariant || (s.gap == 0 && (x.doc_start == nullptr || s.q_len == s.kv_len)),
        "attention: expected all keys of the rows in a batch-invariant call, found {} queries, {} keys and a gap of {}", s.q_len, s.kv_len,
        s.gap);
  return x;
}

AttentionBackward checked(const AttentionBackward& p) {
  AttentionBackward x = p;
  AttentionShape& s = x.shape;
  check_common(s, x.dtype, x.scale);
  check(x.lse != nullptr || nothing(s), "attention: the backward needs the forward's lse");
  x.q_layout = checked("q", x.q_layout, s.q_len, s.heads, s.head_dim);
  x.k_layout = checked("k", x.k_layout, s.kv_len, s.kv_heads, s.head_dim);
  x.v_layout = checked("v", x.v_layout, s.kv_len, s.kv_heads, s.v_dim);
  x.out_layout = checked("out", x.out_layout, s.q_len, s.heads, s.v_dim);
  x.d_out_layout = checked("d_out", x.d_out_layout, s.q_len, s.heads, s.v_dim);
  x.dq_layout = checked("dq", x.dq_layout, s.q_len, s.heads, s.head_dim);
  x.dk_layout = checked("dk", x.dk_layout, s.kv_len, s.kv_heads, s.head_dim);
  x.dv_layout = checked("dv", x.dv_layout, s.kv_len, s.kv_heads, s.v_dim);
  return x;
}

std::byte* scratch(size_t bytes) {
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  thread_local std::unique_ptr<std::byte, Free> space;
  thread_local size_t size = 0;
  if (bytes > size) {
    const size_t rounded = (bytes + 4095) / 4096 * 4096;
    space.reset(static_cast<std::byte*>(std::aligned_alloc(4096, rounded)));
    size = space ? rounded : 0;
    check(space != nullptr, "attention: no memory for {} bytes of work space", rounded);
  }
  return space.get();
}

}  // namespace attention

void causal_attention_forward(const AttentionForward& p) {
  const AttentionForward x = attention::checked(p);
  if (attention::nothing(x.shape)) return;
  if (x.invariant) return x.doc_start != nullptr ? attention::forward_documents(x) : attention::fastest(x.dtype).forward(x);
  if (x.shape.q_len <= attention::kDecodeQueries) return attention::forward_decode(x);
  attention::fastest(x.dtype).forward(x);
}

void causal_attention_backward(const AttentionBackward& p) {
  const AttentionBackward x = attention::checked(p);
  if (x.shape.batch == 0 || (x.shape.q_len == 0 && x.shape.kv_len == 0)) return;
  attention::fastest(x.dtype).backward(x);
}

}  // namespace halftone
