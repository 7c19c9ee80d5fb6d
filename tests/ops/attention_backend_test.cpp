#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "halftone/base/error.h"
#include "halftone/ops/attention_core.h"
#include "ops/attention_reference.h"

namespace halftone {
namespace {

struct BackendCase {
  std::string backend;
  int64_t head_dim, group;
  bool documents;
  int64_t window = 0, v_dim = 0;
};
void PrintTo(const BackendCase& c, std::ostream* out) { *out << c.backend << " head size " << c.head_dim; }

std::vector<BackendCase> backend_cases() {
  std::vector<BackendCase> cases;
  for (const int64_t head_dim : {64, 128}) {
    for (const int64_t group : {1, 4}) {
      cases.push_back({"cudnn", head_dim, group, false});
      for (const bool documents : {false, true}) cases.push_back({"flash-2", head_dim, group, documents});
    }
  }
  cases.push_back({"cudnn", 64, 4, false, 201});  // as long as the longest row: none
  for (const bool documents : {false, true}) {
    cases.push_back({"flash-2", 80, 4, documents}), cases.push_back({"math", 64, 4, documents});
    for (const int64_t window : {2, 37, 130}) {
      for (const int64_t head_dim : {64, 80, 128}) cases.push_back({"flash-2", head_dim, 4, documents, window});
      cases.push_back({"math", 64, 4, documents, window});
    }
    // Values narrower than keys: padded.
    cases.push_back({"flash-2", 192, 1, documents, 0, 128}), cases.push_back({"flash-2", 32, 4, documents, 37, 16});
    cases.push_back({"math", 192, 1, documents, 0, 128}), cases.push_back({"math", 16, 4, documents, 37, 24});
  }
  return cases;
}

using AttentionBackend = OnDeviceWith<BackendCase>;

AttentionArgs args_of_case(const BackendCase& c, int64_t batch, int64_t seq) {
  AttentionArgs a = args_of(batch, seq, 8, 8 / c.group, c.head_dim, c.documents, c.window);
  a.v_dim = c.v_dim > 0 ? c.v_dim : c.head_dim;
  return a;
}
int64_t columns_of(const AttentionArgs& a) { return (a.heads + a.kv_heads) * a.head_dim + a.kv_heads * a.v_dim; }

// Through one back-end: qkv [T, (H + Hkv) * d + Hkv * dv] as attention reads it.
struct ByBackend {
  aten::AttentionState state;
  at::Tensor d_q, d_k, d_v;  // [T, heads * d]
  ByBackend(const at::Tensor& qkv, const at::Tensor& d_out, const AttentionArgs& a, const std::string& backend) {
    const int64_t k = a.heads * a.head_dim, v = k + a.kv_heads * a.head_dim;
    state = aten::attention(as_heads(qkv, a, a.heads, a.head_dim), as_heads(qkv.narrow(1, k, v - k), a, a.kv_heads, a.head_dim),
                            as_heads(qkv.narrow(1, v, qkv.size(1) - v), a, a.kv_heads, a.v_dim), a, backend);
    const aten::AttentionGradients g = aten::attention_backward(d_out.view(state.attended.sizes()), state, a);
    d_q = as_rows(g.q), d_k = as_rows(g.k), d_v = as_rows(g.v);
  }
};

// Sequence lengths are not multiples of a tile.
TEST_P(AttentionBackend, EqualsTheDefinitionInFp64) {
  const BackendCase& c = param();
  for (const int64_t seq : {201, 67 + 3}) {
    at::manual_seed(11);
    const AttentionArgs a = args_of_case(c, 3, seq);
    const at::Tensor qkv = random(3 * seq, columns_of(a)), d_out = random(3 * seq, 8 * a.v_dim);
    const Result expected = reference(qkv, d_out, a, false);
    const ByBackend found(qkv, d_out, a, c.backend);
    const aten::AttentionState& state = found.state;
    EXPECT_LT(relative(expected.out, state.out), 4e-3) << "seq " << seq;
    int64_t column = 0;
    for (const at::Tensor& part : {found.d_q, found.d_k, found.d_v}) {
      EXPECT_LT(relative(expected.d_qkv.narrow(1, column, part.size(1)), part), 8e-3) << "seq " << seq << ", column " << column;
      EXPECT_EQ(part.stride(1), 1);
      column += part.size(1);
    }
    ASSERT_TRUE(state.out.is_contiguous());
    if (c.backend == "math") continue;
    EXPECT_TRUE(state.out.is_alias_of(state.attended)) << "the output was copied";
    EXPECT_TRUE(state.k.is_alias_of(qkv) && state.v.is_alias_of(qkv)) << "K or V was copied";
  }
}

std::string backend_name(const testing::TestParamInfo<std::tuple<std::string, BackendCase>>& info) {
  const auto& [device, c] = info.param;
  std::string name = fmt::format("{}_{}_d{}_group{}{}{}{}", device, c.backend, c.head_dim, c.group, c.documents ? "_documents" : "",
                                 c.window > 0 ? fmt::format("_window{}", c.window) : "", c.v_dim > 0 ? fmt::format("_v{}", c.v_dim) : "");
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

// Token 100 of each row and its gradients have the same bits when everything outside its document and window changes.
TEST_P(AttentionBackend, WhatIsOutsideAWindowOrDocumentChangesNoBit) {
  const BackendCase& c = param();
  const int64_t seq = 300, place = 100;
  const int64_t first = std::max(c.window > 0 ? place - c.window + 1 : 0, c.documents ? int64_t{66} : 0);
  const int64_t last = std::min(c.window > 0 ? place + c.window - 1 : seq - 1, c.documents ? seq - 2 : seq - 1);
  if ((c.window == 0 && !c.documents) || c.window == 201) GTEST_SKIP() << "nothing is outside";
  at::manual_seed(14);
  const AttentionArgs a = args_of_case(c, 2, seq);
  const Deterministic on;
  // Only row 0 is split into documents.
  const auto inside = [&](const at::Tensor& t) { return t.narrow(0, first, last + 1 - first); };
  const auto run = [&](const at::Tensor& qkv, const at::Tensor& d_out) {
    const ByBackend found(qkv, d_out, a, c.backend);
    return std::array{found.state.out, found.d_q, found.d_k, found.d_v};
  };
  const at::Tensor qkv = random(2 * seq, columns_of(a)), d_out = random(2 * seq, 8 * a.v_dim);
  const at::Tensor other_qkv = random(2 * seq, qkv.size(1)), other_d_out = random(2 * seq, d_out.size(1));
  inside(other_qkv).copy_(inside(qkv)), inside(other_d_out).copy_(inside(d_out));
  const auto one = run(qkv, d_out), other = run(other_qkv, other_d_out);
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_TRUE(at::equal(one[i][place], other[i][place])) << i;
    EXPECT_FALSE(at::equal(one[i][first - 1], other[i][first - 1])) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Cuda, AttentionBackend, testing::Combine(testing::Values(std::string("cuda")), testing::ValuesIn(backend_cases())),
                         backend_name);
INSTANTIATE_TEST_SUITE_P(Cpu, AttentionBackend,
                         testing::Combine(testing::Values(std::string("cpu")),
                                          testing::Values(BackendCase{"math", 64, 4, false}, BackendCase{"math", 64, 4, true},
                                                          BackendCase{"math", 64, 4, false, 2}, BackendCase{"math", 64, 4, true, 37},
                                                          BackendCase{"math", 192, 1, true, 0, 128},
                                                          BackendCase{"math", 16, 4, false, 37, 24})),
                         backend_name);

std::string rows_name(const testing::TestParamInfo<std::tuple<std::string, bool>>& info) {
  return std::get<0>(info.param) + (std::get<1>(info.param) ? "_documents" : "_rows");
}

using AttentionOp = OnDeviceWith<bool>;

// With rotation, through the selected back-end, against the CPU kernel.
TEST_P(AttentionOp, EqualsTheProcessor) {
  at::manual_seed(12);
  const at::Tensor qkv = random(2 * 150, 6 * 64), d_out = random(2 * 150, 4 * 64);
  AttentionArgs a = args_of(2, 150, 4, 1, 64, param());
  const Result found = run_op(qkv, d_out, a);
  const at::Device device = test_device();
  test_device() = at::kCPU;
  const Result expected = run_op(qkv.to(at::kCPU), d_out.to(at::kCPU), args_of(2, 150, 4, 1, 64, param()));
  test_device() = device;
  EXPECT_LT(relative(expected.out, found.out), 6e-3);
  EXPECT_LT(relative(expected.d_qkv, found.d_qkv), 1.2e-2);
}

INSTANTIATE_TEST_SUITE_P(Cuda, AttentionOp, testing::Combine(testing::Values(std::string("cuda")), testing::Bool()), rows_name);

using AttentionRepeats = OnDeviceWith<bool>;

// Long enough that, without determinism, blocks accumulate one gradient in any order.
TEST_P(AttentionRepeats, BitForBitWhereAskedFor) {
  at::manual_seed(13);
  const AttentionArgs a = args_of(2, 2000, 8, 2, 128, param());
  const at::Tensor qkv = random(2 * 2000, 12 * 128), d_out = random(2 * 2000, 8 * 128);
  const Deterministic on;
  const Result first = run_op(qkv, d_out, a);
  for (int i = 0; i < 3; ++i) {
    const Result again = run_op(qkv, d_out, a);
    EXPECT_TRUE(at::equal(first.out, again.out));
    EXPECT_TRUE(at::equal(first.d_qkv, again.d_qkv));
  }
}

INSTANTIATE_TEST_SUITE_P(Cuda, AttentionRepeats, testing::Combine(testing::Values(std::string("cuda")), testing::Bool()), rows_name);

using AttentionMemory = OnDevice;

// Twice the tokens in documents of equal length: twice the memory. Materialized scores would take four times as much.
TEST_P(AttentionMemory, OfDocumentsGrowsWithTheTokens) {
  const auto peak = [](int64_t seq) {
    AttentionArgs a = args_of(2, seq, 8, 2, 64, false);
    at::Tensor start = at::arange(seq, at::kInt).div(512, "floor").mul(512).to(at::kInt).expand({2, seq}).contiguous();
    a.documents = documents_of(start, test_device());
    const at::Tensor qkv = random(2 * seq, 12 * 64), d_out = random(2 * seq, 8 * 64);
    synchronize(test_device());
    reset_peak_memory(test_device());
    const double before = peak_memory(test_device()).active_gib;
    run_op(qkv, d_out, a);
    synchronize(test_device());
    return peak_memory(test_device()).active_gib - before;
  };
  const double half = peak(4096), whole = peak(8192);
  RecordProperty("gib_4096", std::to_string(half));
  EXPECT_GT(half, 0);
  EXPECT_LT(whole, 2.2 * half);
  EXPECT_LT(whole, 0.5);
}

INSTANTIATE_TEST_SUITE_P(Cuda, AttentionMemory, testing::Values(std::string("cuda")), [](const auto& info) { return info.param; });

TEST(AttentionChoice, NamesTheBackendAndWhatThoseBeforeItLack) {
  aten::AttentionQuery q;
  q.cuda = q.cudnn = true, q.head_dim = 128, q.seq = 8192;
  EXPECT_EQ(aten::describe_attention(q), "cudnn");
  const auto with = [&](auto change) {
    aten::AttentionQuery other = q;
    change(other);
    return aten::describe_attention(other);
  };
  EXPECT_EQ(with([](auto& x) { x.head_dim = 80; }), "flash-2 (cudnn: head size 80, it supports 64 and 128)");
  EXPECT_EQ(with([](auto& x) { x.documents = true; }), "flash-2 (cudnn: no document masks)");
  EXPECT_EQ(with([](auto& x) { x.window = true; }), "flash-2 (cudnn: no windows)");
  EXPECT_EQ(with([](auto& x) { x.deterministic = true; }), "flash-2 (cudnn: gradients do not repeat bit for bit)");
  EXPECT_EQ(with([](auto& x) { x.cudnn = false; }), "flash-2 (cudnn: not in this LibTorch)");
  EXPECT_EQ(with([](auto& x) { x.head_dim = 20; }),
            "math (cudnn: head size 20, it supports 64 and 128; flash-2: head size 20, it supports multiples of 8 up to 256)");
  EXPECT_EQ(with([](auto& x) { x.dtype = at::kFloat; }), "math (cudnn: Float, it supports BFloat16; flash-2: Float, it supports BFloat16)");
  EXPECT_EQ(with([](auto& x) { x.head_dim = 192, x.v_dim = 128; }),
            "flash-2 (values of 128 padded to 192; cudnn: value heads of 128, key heads of 192)");
  EXPECT_EQ(with([](auto& x) { x.head_dim = 64, x.v_dim = 128; }),
            "math (cudnn: value heads of 128, key heads of 64; flash-2: value heads of 128, key heads of 64)");
  EXPECT_EQ(with([](auto& x) { x.cuda = false; }), "math (cudnn: not on the processor; flash-2: not on the processor)");
}

TEST(AttentionChoice, ABackendThatCannotIsAnError) {
  const AttentionArgs a = args_of(1, 6, 2, 1, 16, false);
  const at::Tensor q = random(6, 2 * 16).view({1, 6, 2, 16}), kv = random(6, 16).view({1, 6, 1, 16});
  EXPECT_NO_THROW(aten::attention(q, kv, kv, a, "math"));
  EXPECT_THROW(aten::attention(q, kv, kv, a, "cudnn"), Error);
  EXPECT_THROW(aten::attention(q, kv, kv, a, "flash-3"), Error);
}

TEST(Documents, BeginWhereTheirStartsSay) {
  const at::Tensor start = at::tensor({0, 0, 2, 3, 3, 3, 0, 0, 0, 0, 4, 4}, at::kInt).reshape({2, 6});
  const Documents d = documents_of(start, at::kCPU);
  EXPECT_TRUE(at::equal(d.offsets, at::tensor({0, 2, 3, 6, 10, 12}, at::kInt))) << d.offsets;
  EXPECT_EQ(d.longest, 4);
  EXPECT_TRUE(at::equal(d.start, start.reshape(-1)));
  start[1][5].fill_(3);
  try {
    documents_of(start, at::kCPU);
    FAIL() << "a place that belongs to no document was accepted";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("position 5 of row 1 names 3"), std::string::npos) << e.what();
  }
  start[1][5].fill_(4), start[1][0].fill_(2);
  EXPECT_THROW(documents_of(start, at::kCPU), Error);
}

}  // namespace
}  // namespace halftone
