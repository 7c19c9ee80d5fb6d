#include <fmt/format.h>
#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "halftone/attention/causal_impl.h"
#include "halftone/attention/causal_ref.h"
#include "halftone/base/error.h"

namespace halftone::attention {
namespace {

struct Problem {
  AttentionShape shape;
  bool documents = false;  // several documents of irregular lengths per row
  float amplitude = 1;     // of q and k: large ones leave the code path for bounded scores
  bool fused = true;       // q, k, v as slices of one tensor, or separate with a batch stride beyond length * row
};

// A tensor [batch][length] of rows, filled with random numbers of variance amplitude^2.
struct Tensor {
  DType dtype;
  std::vector<std::byte> bytes;
  Tensor(int64_t count, DType t, uint64_t seed, float amplitude) : dtype(t), bytes(static_cast<size_t>(count) * size_of(t)) {
    uint64_t state = seed * 0x9E3779B97F4A7C15u + 1;
    for (int64_t i = 0; i < count; ++i) {
      float x = 0;
      for (int n = 0; n < 4; ++n) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        x += static_cast<float>(state >> 40) * 0x1p-24f - 0.5f;
      }
      set(i, x * 1.7320508f * amplitude);
    }
  }
  void set(int64_t i, float x) {
    if (dtype == DType::f32) {
      reinterpret_cast<float*>(bytes.data())[i] = x;
    } else {
      reinterpret_cast<bf16*>(bytes.data())[i] = bf16(x);
    }
  }
  float get(int64_t i) const {
    return dtype == DType::f32 ? reinterpret_cast<const float*>(bytes.data())[i] : to_float(reinterpret_cast<const bf16*>(bytes.data())[i]);
  }
  std::byte* element(int64_t i) { return bytes.data() + static_cast<size_t>(i) * size_of(dtype); }
};

// All tensors of a forward and a backward call; every result starts as NaN, so that an element left unwritten is detected. Value heads
// narrower or wider than keys have gaps between them.
struct Data {
  AttentionShape s;
  int64_t q_width, kv_width, out_width, v_width, v_head, q_row, kv_row, v_row, q_batch, kv_batch, v_batch;
  Tensor q, k, v, out, d_out, dq, dk, dv;
  std::vector<float> lse;
  std::vector<int32_t> doc_start;
  AttentionForward forward;
  AttentionBackward backward;

  Data(const Problem& p, DType t)
      : s(p.shape),
        q_width(s.heads * s.head_dim),
        kv_width(s.kv_heads * s.head_dim),
        out_width(s.v_dim == 0 ? q_width : s.heads * s.v_dim),
        v_width(s.v_dim == 0 ? kv_width : s.kv_heads * s.v_dim),
        v_head(v_width / s.kv_heads + (s.v_dim == 0 ? 0 : 16)),
        q_row(p.fused ? q_width + 2 * kv_width : q_width + 8),
        kv_row(p.fused ? q_row : kv_width + 24),
        v_row(std::max(kv_row, s.kv_heads * v_head)),
        q_batch(p.fused ? 0 : s.q_len * q_row + 40),
        kv_batch(p.fused ? 0 : s.kv_len * kv_row + 56),
        v_batch(p.fused ? 0 : s.kv_len * v_row + 72),
        q(size(s.q_len, q_row, q_batch), t, 1, p.amplitude),
        k(size(s.kv_len, kv_row, kv_batch), t, 2, p.amplitude),
        v(size(s.kv_len, v_row, v_batch), t, 3, 1),
        out(s.batch * s.q_len * out_width, t, 4, NAN),
        d_out(s.batch * s.q_len * out_width, t, 5, 1),
        dq(size(s.q_len, q_row, q_batch), t, 6, NAN),
        dk(size(s.kv_len, kv_row, kv_batch), t, 7, NAN),
        dv(size(s.kv_len, v_row, v_batch), t, 8, NAN),
        lse(static_cast<size_t>(s.batch * s.heads * s.q_len), NAN) {
    if (p.documents) {
      for (int64_t b = 0; b < s.batch; ++b) {
        int32_t start = 0;
        for (int32_t j = 0; j < s.positions(); ++j) {
          if (j - start > 17 + (j * 31 + b * 7) % 190) start = j;
          doc_start.push_back(start);
        }
      }
    }
    const int32_t* docs = p.documents ? doc_start.data() : nullptr;
    const float scale = 1 / std::sqrt(static_cast<float>(s.head_dim));
    const AttentionLayout ql{q_row, q_batch}, kl{kv_row, kv_batch}, vl{v_row, v_batch, v_head}, dense{out_width, 0};
    forward = checked(AttentionForward{s, t, scale, q.bytes.data(), k.bytes.data(), v.bytes.data(), out.bytes.data(), lse.data(), ql, kl,
                                       vl, dense, docs});
    backward = checked(AttentionBackward{s,
                                         t,
                                         scale,
                                         q.bytes.data(),
                                         k.bytes.data(),
                                         v.bytes.data(),
                                         out.bytes.data(),
                                         d_out.bytes.data(),
                                         lse.data(),
                                         dq.bytes.data(),
                                         dk.bytes.data(),
                                         dv.bytes.data(),
                                         ql,
                                         kl,
                                         vl,
                                         dense,
                                         dense,
                                         ql,
                                         kl,
                                         vl,
                                         docs});
    s = forward.shape;
  }
  int64_t size(int64_t length, int64_t row, int64_t batch) const { return s.batch * (batch == 0 ? length * row : batch); }
};

struct Difference {
  double sqnr_db, relative;  // relative: largest error over largest reference value
};
Difference compare(const Tensor& found, const AttentionLayout& l, const std::vector<double>& expected, int64_t length, int64_t heads,
                   int64_t dim) {
  double signal = 0, noise = 0, top = 0, worst = 0;
  for (int64_t i = 0; i < static_cast<int64_t>(expected.size()); ++i) {
    const int64_t d = i % dim, h = i / dim % heads, t = i / dim / heads % length, b = i / dim / heads / length;
    const double error = found.get(b * l.batch_stride + t * l.row + h * l.head + d) - expected[i];
    if (std::isnan(error)) return {-999, 999};
    signal += expected[i] * expected[i], noise += error * error;
    top = std::max(top, std::abs(expected[i])), worst = std::max(worst, std::abs(error));
  }
  // One visible key: dq and dk are zero except for the rounding of the stored output.
  if (top == 0) return {noise < 1e-4 * static_cast<double>(expected.size()) ? 999.0 : -999.0, worst};
  return {noise == 0 ? 999 : 10 * std::log10(signal / noise), worst / top};
}

void expect_close(const char* what, const Difference& d, DType t, double least_db) {
  if (t == DType::f32) {
    EXPECT_LE(d.relative, 1e-5) << what;
  } else {
    EXPECT_GE(d.sqnr_db, least_db) << what;
  }
}

void check_forward(Data& x, const std::vector<double>& out, const std::vector<double>& lse, DType t) {
  expect_close("out", compare(x.out, x.forward.out_layout, out, x.s.q_len, x.s.heads, x.s.v_dim), t, 45);
  for (size_t i = 0; i < lse.size(); ++i) {
    if (std::isinf(lse[i])) {
      ASSERT_EQ(x.lse[i], -std::numeric_limits<float>::infinity());
    } else {
      // bf16: the sum covers the weights rounded to eight bits, so that they are normalised exactly.
      ASSERT_NEAR(x.lse[i], lse[i], t == DType::f32 ? 1e-5 * std::max(1.0, std::abs(lse[i])) : 8e-3) << i;
    }
  }
}

void check_all(const Problem& p, DType t) {
  Data x(p, t);
  const ReferenceForward forward = reference_forward(x.forward);
  const ReferenceBackward backward = reference_backward(x.backward);
  for (const Implementation& implementation : implementations()) {
    if (!implementation.usable(t)) continue;
    SCOPED_TRACE(std::string(implementation.name) + (t == DType::f32 ? " f32" : " bf16"));
    Data y(p, t);
    implementation.forward(y.forward);
    check_forward(y, forward.out, forward.lse, t);
    implementation.backward(y.backward);
    expect_close("dq", compare(y.dq, y.backward.dq_layout, backward.dq, y.s.q_len, y.s.heads, y.s.head_dim), t, 40);
    expect_close("dk", compare(y.dk, y.backward.dk_layout, backward.dk, y.s.kv_len, y.s.kv_heads, y.s.head_dim), t, 40);
    expect_close("dv", compare(y.dv, y.backward.dv_layout, backward.dv, y.s.kv_len, y.s.kv_heads, y.s.v_dim), t, 40);
  }
}

class CausalAttention : public testing::TestWithParam<Problem> {};

TEST_P(CausalAttention, EqualsTheDefinition) {
  check_all(GetParam(), DType::bf16);
  check_all(GetParam(), DType::f32);
}

INSTANTIATE_TEST_SUITE_P(Shapes, CausalAttention,
                         testing::Values(Problem{{2, 256, 256, 4, 2, 32}},  // the demo's head, full blocks
                                         Problem{{1, 201, 201, 2, 1, 32}},  // partial blocks
                                         Problem{{1, 5, 5, 1, 1, 8}},       // smaller than a tile
                                         Problem{{3, 1, 1, 2, 2, 16}},      // one token
                                         Problem{{1, 97, 97, 3, 3, 24}, false, 1, false},
                                         Problem{{2, 150, 150, 2, 1, 64}, true},  // documents
                                         Problem{{1, 300, 300, 4, 1, 40}, true, 1, false},
                                         Problem{{2, 70, 333, 4, 2, 32}, false, 1, false},  // later queries of a KV cache
                                         Problem{{1, 33, 400, 2, 2, 64}, true, 1, false},
                                         Problem{{1, 100, 60, 2, 1, 32}, false, 1, false},  // the first 40 queries see nothing
                                         Problem{{1, 140, 140, 2, 1, 128}}, Problem{{1, 90, 90, 1, 1, 80}}, Problem{{1, 70, 70, 1, 1, 256}},
                                         Problem{{1, 65, 65, 1, 1, 248}, false, 1, false},
                                         Problem{{1, 200, 200, 2, 1, 32}, false, 4},  // scores up to 60: running maximum
                                         Problem{{1, 160, 160, 2, 1, 64}, true, 5}));

// Windows below a tile, of one key, across strips, as long as the row and longer.
INSTANTIATE_TEST_SUITE_P(Windows, CausalAttention,
                         testing::Values(Problem{{1, 201, 201, 2, 1, 32, 5}}, Problem{{1, 130, 130, 2, 1, 32, 1}},
                                         Problem{{2, 300, 300, 7, 1, 80, 64}}, Problem{{1, 700, 700, 2, 1, 64, 100}},
                                         Problem{{1, 97, 97, 3, 3, 24, 97}, false, 1, false}, Problem{{1, 97, 97, 1, 1, 24, 500}},
                                         Problem{{2, 300, 300, 2, 1, 64, 40}, true},  // documents longer and shorter than it
                                         Problem{{2, 70, 333, 4, 2, 32, 90}, false, 1, false}, Problem{{1, 33, 400, 2, 2, 64, 50}, true},
                                         Problem{{1, 100, 60, 2, 1, 32, 20}, false, 1, false}, Problem{{1, 140, 140, 7, 1, 128, 33}},
                                         Problem{{1, 200, 200, 2, 1, 32, 70}, false, 4}));

// Values narrower and wider than keys, by more and by less than a register, with gaps between heads.
INSTANTIATE_TEST_SUITE_P(ValueDims, CausalAttention,
                         testing::Values(Problem{{2, 150, 150, 3, 3, 192, 0, 128}}, Problem{{1, 201, 201, 2, 1, 32, 0, 16}, true},
                                         Problem{{1, 5, 5, 1, 1, 8, 0, 24}}, Problem{{1, 97, 97, 4, 2, 24, 30, 40}, true, 1, false},
                                         Problem{{2, 70, 333, 4, 2, 48, 0, 8}, false, 1, false}, Problem{{1, 90, 90, 1, 1, 64, 0, 256}},
                                         Problem{{1, 200, 200, 2, 1, 48, 70, 32}, true, 4}));

// Keys of an earlier part of the row: all visible, or limited by documents and windows that some or no queries reach across.
INSTANTIATE_TEST_SUITE_P(Gaps, CausalAttention,
                         testing::Values(Problem{{2, 64, 64, 4, 2, 32, 0, 0, 64}},
                                         Problem{{1, 70, 45, 2, 1, 64, 0, 0, 70}, false, 1, false},
                                         Problem{{2, 150, 90, 2, 1, 32, 0, 0, 150}, true}, Problem{{1, 64, 200, 2, 2, 24, 0, 40, 90}, true},
                                         Problem{{1, 64, 64, 2, 1, 32, 80, 0, 64}}, Problem{{1, 64, 64, 2, 1, 32, 20, 0, 200}},
                                         Problem{{2, 150, 90, 2, 1, 32, 100, 0, 150}, true, 4, false}));

TEST(CausalAttention, DecodesFromACache) {
  for (const DType t : {DType::bf16, DType::f32}) {
    for (const Problem& p :
         {Problem{{2, 1, 77, 4, 2, 32}, false, 1, false}, Problem{{1, 3, 130, 4, 1, 64}, true, 1, false},
          Problem{{1, 2, 1, 1, 1, 8}, false, 1, false}, Problem{{2, 1, 77, 4, 2, 32, 20}, false, 1, false},
          Problem{{1, 3, 130, 7, 1, 80, 9}, true, 1, false}, Problem{{1, 2, 30, 1, 1, 8, 1}, false, 1, false},
          Problem{{1, 3, 130, 4, 2, 192, 0, 128}, true, 1, false}, Problem{{2, 1, 40, 2, 1, 16, 9, 24}, false, 1, false},
          Problem{{2, 3, 40, 2, 1, 16, 9, 0, 6}, false, 1, false}, Problem{{1, 2, 30, 2, 1, 16, 0, 0, 40}, true, 1, false}}) {
      Data x(p, t);
      const ReferenceForward expected = reference_forward(x.forward);
      causal_attention_forward(x.forward);
      check_forward(x, expected.out, expected.lse, t);
    }
  }
}

TEST(CausalAttention, DoesNotDependOnTheNumberOfThreads) {
  const int threads = omp_get_max_threads();
  for (const DType t : {DType::bf16, DType::f32}) {
    const Problem p{{2, 900, 900, 1, 1, 32}, true};
    Data one(p, t), many(p, t);
    for (Data* x : {&one, &many})
      for (int64_t i = 0; i < one.kv_width; ++i) x->k.set(600 * one.kv_row + i, 1000);  // only the first scores are bounded
    omp_set_num_threads(1);
    causal_attention_forward(one.forward);
    causal_attention_backward(one.backward);
    omp_set_num_threads(5);
    causal_attention_forward(many.forward);
    causal_attention_backward(many.backward);
    omp_set_num_threads(threads);
    EXPECT_EQ(one.out.bytes, many.out.bytes);
    EXPECT_EQ(std::memcmp(one.lse.data(), many.lse.data(), one.lse.size() * sizeof(float)), 0);
    const auto same = [&](const Tensor& a, const Tensor& b, const AttentionLayout& l, int64_t width) {
      for (int64_t r = 0; r < p.shape.batch * p.shape.q_len; ++r)
        for (int64_t i = 0; i < width; ++i) ASSERT_EQ(a.get(r * l.row + i), b.get(r * l.row + i));
    };
    same(one.dq, many.dq, one.backward.dq_layout, one.q_width);
    same(one.dk, many.dk, one.backward.dk_layout, one.kv_width);
    same(one.dv, many.dv, one.backward.dv_layout, one.kv_width);
  }
}

// Row 100 and its gradients have the same bits when everything outside its document and window changes.
TEST(CausalAttention, WhatIsOutsideAWindowOrDocumentChangesNoBit) {
  constexpr int64_t kRow = 100;
  for (const Problem& p : {Problem{{1, 400, 400, 2, 1, 64, 40}}, Problem{{1, 400, 400, 2, 1, 64}, true},
                           Problem{{1, 400, 400, 7, 1, 80, 12}, true}, Problem{{1, 400, 400, 2, 1, 32, 40}, false, 4},
                           Problem{{1, 400, 400, 2, 2, 96, 0, 64}, true}, Problem{{1, 400, 400, 2, 1, 32, 0, 40}, true, 4}}) {
    for (const DType t : {DType::bf16, DType::f32}) {
      for (const Implementation& implementation : implementations()) {
        if (!implementation.usable(t)) continue;
        SCOPED_TRACE(fmt::format("{} {} window {}", implementation.name, t == DType::f32 ? "f32" : "bf16", p.shape.window));
        Data one(p, t), other(p, t);
        const int64_t reach = p.shape.window > 0 ? p.shape.window - 1 : p.shape.kv_len;
        int64_t first = std::max<int64_t>(0, kRow - reach), last = std::min(p.shape.kv_len - 1, kRow + reach);
        if (p.documents) {
          first = std::max<int64_t>(first, one.doc_start[kRow]);
          while (one.doc_start[last] > kRow) --last;
        }
        ASSERT_GT(first, 0);
        for (int64_t r = 0; r < p.shape.kv_len; ++r) {
          if (r >= first && r <= last) continue;
          for (int64_t i = 0; i < one.kv_width; ++i) other.k.set(r * one.kv_row + i, r % 2 ? 0.25f : 1000);
          for (int64_t i = 0; i < one.s.kv_heads * one.v_head; ++i) other.v.set(r * one.v_row + i, -1);
          for (int64_t i = 0; i < one.q_width; ++i) other.q.set(r * one.q_row + i, 0.5f);
          for (int64_t i = 0; i < one.out_width; ++i) other.d_out.set(r * one.out_width + i, 2);
        }
        for (Data* x : {&one, &other}) implementation.forward(x->forward), implementation.backward(x->backward);
        const auto same = [&](const char* what, const Tensor& a, const Tensor& b, const AttentionLayout& l, int64_t heads, int64_t dim) {
          for (int64_t h = 0; h < heads; ++h) {
            const int64_t at = kRow * l.row + h * l.head;
            for (int64_t d = 0; d < dim; ++d) ASSERT_EQ(a.get(at + d), b.get(at + d)) << what << " head " << h << " " << d;
          }
        };
        const AttentionBackward& at = one.backward;
        same("out", one.out, other.out, at.out_layout, one.s.heads, one.s.v_dim);
        same("dq", one.dq, other.dq, at.dq_layout, one.s.heads, one.s.head_dim);
        same("dk", one.dk, other.dk, at.dk_layout, one.s.kv_heads, one.s.head_dim);
        same("dv", one.dv, other.dv, at.dv_layout, one.s.kv_heads, one.s.v_dim);
        EXPECT_NE(one.out.get((first - 1) * one.out_width), other.out.get((first - 1) * one.out_width));  // it reads its own key
      }
    }
  }
}

// Queries in pieces of any size, against the keys of their windows from a multiple of kInvariantKeys on, or each document by itself.
TEST(CausalAttention, InvariantBitsDependOnTheVisibleKeysAlone) {
  for (const Problem& p :
       {Problem{{1, 400, 400, 4, 2, 64}}, Problem{{1, 400, 400, 2, 1, 32, 90}, false, 4}, Problem{{1, 330, 330, 2, 2, 96, 20, 64}}}) {
    for (const DType t : {DType::bf16, DType::f32}) {
      for (const Implementation& implementation : implementations()) {
        if (!implementation.usable(t)) continue;
        SCOPED_TRACE(fmt::format("{} {} window {}", implementation.name, t == DType::f32 ? "f32" : "bf16", p.shape.window));
        Data x(p, t);
        x.forward.invariant = true;
        const ReferenceForward expected = reference_forward(x.forward);
        implementation.forward(x.forward);
        check_forward(x, expected.out, expected.lse, t);
        for (const int64_t piece : {1, 7, 64, 333}) {
          for (int64_t q = 0; q < p.shape.q_len; q += piece) {
            const int64_t count = std::min(piece, p.shape.q_len - q);
            const int64_t first = p.shape.window > 0 ? std::max<int64_t>(0, q - p.shape.window + 1) / kInvariantKeys * kInvariantKeys : 0;
            Tensor out(count * x.out_width, t, 9, NAN);
            AttentionForward part = x.forward;
            part.shape.q_len = count, part.shape.kv_len = q + count - first, part.lse = nullptr;
            part.q = x.q.element(q * x.q_row), part.k = x.k.element(first * x.kv_row), part.v = x.v.element(first * x.v_row);
            part.out = out.bytes.data();
            implementation.forward(part);
            ASSERT_EQ(std::memcmp(out.bytes.data(), x.out.element(q * x.out_width), out.bytes.size()), 0)
                << "queries " << q << " + " << count;
          }
        }
      }
    }
  }
  for (const DType t : {DType::bf16, DType::f32}) {
    const Problem p{{2, 300, 300, 4, 2, 32, 40}, true};
    Data x(p, t), y(p, t);
    x.forward.invariant = true;
    const ReferenceForward expected = reference_forward(x.forward);
    causal_attention_forward(x.forward);
    check_forward(x, expected.out, expected.lse, t);
    for (int64_t b = 0; b < 2; ++b) {
      for (int64_t first = 0, end = 0; first < 300; first = end) {
        while (end < 300 && x.doc_start[b * 300 + end] == first) ++end;
        AttentionForward part = y.forward;
        part.invariant = true, part.doc_start = nullptr, part.lse = nullptr;
        part.shape.batch = 1, part.shape.q_len = part.shape.kv_len = end - first;
        part.q = y.q.element((b * 300 + first) * y.q_row), part.k = y.k.element((b * 300 + first) * y.kv_row);
        part.v = y.v.element((b * 300 + first) * y.v_row), part.out = y.out.element((b * 300 + first) * y.out_width);
        causal_attention_forward(part);
      }
    }
    EXPECT_EQ(x.out.bytes, y.out.bytes);
  }
}

TEST(CausalAttention, WritesOnlyItsOwnColumns) {
  const Problem p{{1, 50, 50, 2, 1, 24}, false, 1, false};
  Data x(p, DType::f32);
  causal_attention_forward(x.forward);
  for (int64_t i = 0; i < static_cast<int64_t>(x.dq.bytes.size() / 4); ++i) x.dq.set(i, 7);
  causal_attention_backward(x.backward);
  for (int64_t r = 0; r < 50; ++r)
    for (int64_t i = x.q_width; i < x.q_row; ++i) ASSERT_EQ(x.dq.get(r * x.q_row + i), 7);
}

TEST(CausalAttention, NanReachesOnlyWhatReadsIt) {
  for (const Implementation& implementation : implementations()) {
    if (!implementation.usable(DType::bf16)) continue;
    Data x({{1, 256, 256, 2, 2, 32}}, DType::bf16);
    x.q.set(130 * x.q_row + 3, NAN);  // query 130 of head 0
    implementation.forward(x.forward);
    for (int64_t r = 0; r < 256; ++r) {
      for (int64_t i = 0; i < x.q_width; ++i) {
        ASSERT_EQ(std::isnan(x.out.get(r * x.q_width + i)), r == 130 && i < 32) << implementation.name << " row " << r << " column " << i;
      }
    }
  }
}

TEST(CausalAttention, EmptyProblemsAreNoWork) {
  for (const AttentionShape& s : {AttentionShape{0, 8, 8, 2, 1, 8}, AttentionShape{2, 0, 8, 2, 1, 8}}) {
    Data x({s, false, 1, false}, DType::f32);
    causal_attention_forward(x.forward);
    causal_attention_backward(x.backward);
    for (int64_t r = 0; r < s.batch * s.kv_len; ++r)  // keys that no query reads have zero gradients
      EXPECT_EQ(x.dk.get(r / s.kv_len * x.kv_batch + r % s.kv_len * x.kv_row), 0);
  }
}

TEST(CausalAttention, RefusesMalformedProblems) {
  const auto message = [](AttentionForward p) {
    try {
      causal_attention_forward(p);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  Data x({{1, 8, 8, 2, 1, 8}}, DType::f32);
  AttentionForward p = x.forward;
  p.shape.head_dim = 12;
  EXPECT_NE(message(p).find("head_dim to be a multiple of 8 up to 256, found 12"), std::string::npos);
  p = x.forward, p.shape.v_dim = 264;
  EXPECT_NE(message(p).find("v_dim to be a multiple of 8 up to 256, found 264"), std::string::npos);
  p = x.forward, p.v_layout.head = 4;
  EXPECT_NE(message(p).find("v has heads 4 elements apart, expected at least 8"), std::string::npos);
  p = x.forward, p.shape.kv_heads = 3;
  EXPECT_NE(message(p).find("multiple of kv_heads, found 2 and 3"), std::string::npos);
  p = x.forward, p.k_layout.row = 4;
  EXPECT_NE(message(p).find("k has rows of 4 elements, expected at least 1 heads * 8"), std::string::npos);
  p = x.forward, p.shape.window = -2;
  EXPECT_NE(message(p).find("window of at least 0, found -2"), std::string::npos);
  p = x.forward, p.scale = -1;
  EXPECT_NE(message(p).find("positive finite scale"), std::string::npos);
  p = x.forward, p.dtype = DType::s8;
  EXPECT_NE(message(p).find("bf16 or f32"), std::string::npos);
}

}  // namespace
}  // namespace halftone::attention
