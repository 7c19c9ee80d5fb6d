#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <limits>

#include "halftone/base/error.h"
#include "halftone/ops/aten.h"
#include "halftone/ops/attention.h"
#include "halftone/ops/rope_table.h"
#include "ops/test_device.h"

namespace halftone {
namespace {

double relative(const at::Tensor& reference, const at::Tensor& x) {
  const at::Tensor r = reference.to(at::kCPU, at::kDouble);
  return ((r - x.to(at::kCPU, at::kDouble)).norm() / r.norm()).item<double>();
}

// Documents of one token, of less and of more than a tile; the last row is one document.
Documents packed(int64_t rows, int64_t places) {
  at::Tensor start = at::zeros({rows, places}, at::kInt);
  for (int64_t b = 0; b + 1 < rows; ++b) {
    for (const int64_t begin : {int64_t{1}, int64_t{2}, int64_t{66}, places - 1}) start[b].narrow(0, begin, places - begin).fill_(begin);
  }
  return documents_of(start, test_device());
}

AttentionArgs args_of(int64_t batch, int64_t seq, int64_t heads, int64_t kv_heads, int64_t head_dim, bool documents) {
  AttentionArgs a;
  a.batch = batch, a.seq = seq, a.heads = heads, a.kv_heads = kv_heads, a.head_dim = head_dim, a.scale = 1.0 / std::sqrt(head_dim);
  std::tie(a.cos, a.sin) = rope_tables(seq, head_dim, 10000, {}, test_device());
  if (documents) a.documents = packed(batch, seq);
  return a;
}

at::Tensor random(int64_t rows, int64_t cols) { return at::randn({rows, cols}).to(test_device(), at::kBFloat16); }

struct Result {
  at::Tensor out, d_qkv;
};

// The definition in fp64, derived by LibTorch.
Result reference(const at::Tensor& qkv, const at::Tensor& d_out, const AttentionArgs& a) {
  at::AutoGradMode grad(true);
  const at::Tensor leaf = qkv.to(at::kDouble).detach().set_requires_grad(true);
  int64_t column = 0;
  const auto next = [&](int64_t heads) {
    const at::Tensor part = leaf.narrow(1, column, heads * a.head_dim).reshape({a.batch, a.seq, heads, a.head_dim}).transpose(1, 2);
    column += heads * a.head_dim;
    return part.repeat_interleave(a.heads / heads, 1);
  };
  const at::Tensor q = next(a.heads), k = next(a.kv_heads), v = next(a.kv_heads);
  const at::Tensor places = at::arange(a.seq, qkv.options().dtype(at::kLong));
  at::Tensor hidden = (places.unsqueeze(0) > places.unsqueeze(1)).reshape({1, 1, a.seq, a.seq});
  if (a.documents.start.defined()) hidden = hidden.logical_or(places < a.documents.start.to(at::kLong).reshape({a.batch, 1, a.seq, 1}));
  const at::Tensor scores = (at::matmul(q, k.transpose(2, 3)) * a.scale).masked_fill(hidden, -std::numeric_limits<double>::infinity());
  const at::Tensor out = at::matmul(at::softmax(scores, -1), v).transpose(1, 2).reshape({a.batch * a.seq, a.heads * a.head_dim});
  torch::autograd::backward({out}, {d_out.to(at::kDouble)});
  return {out.detach(), leaf.grad()};
}

struct BackendCase {
  std::string backend;
  int64_t head_dim, group;
  bool documents;
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
  for (const bool documents : {false, true}) cases.push_back({"flash-2", 80, 4, documents});
  for (const bool documents : {false, true}) cases.push_back({"math", 64, 4, documents});
  return cases;
}

using AttentionBackend = OnDeviceWith<BackendCase>;

// No sequence length is a multiple of a tile.
TEST_P(AttentionBackend, EqualsTheDefinitionInFp64) {
  const BackendCase& c = param();
  for (const int64_t seq : {201, 67 + 3}) {
    at::manual_seed(11);
    const AttentionArgs a = args_of(3, seq, 8, 8 / c.group, c.head_dim, c.documents);
    const at::Tensor qkv = random(3 * seq, (8 + 2 * a.kv_heads) * c.head_dim), d_out = random(3 * seq, 8 * c.head_dim);
    const Result expected = reference(qkv, d_out, a);
    const aten::AttentionState state = aten::attention(qkv, a, true, c.backend);
    const aten::AttentionGradients g = aten::attention_backward(d_out, state, a);
    EXPECT_LT(relative(expected.out, state.out), 4e-3) << "seq " << seq;
    int64_t column = 0;
    for (const at::Tensor& part : {g.q, g.k, g.v}) {
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
  std::string name = fmt::format("{}_{}_d{}_group{}{}", device, c.backend, c.head_dim, c.group, c.documents ? "_documents" : "");
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Cuda, AttentionBackend, testing::Combine(testing::Values(std::string("cuda")), testing::ValuesIn(backend_cases())),
                         backend_name);
INSTANTIATE_TEST_SUITE_P(Cpu, AttentionBackend,
                         testing::Combine(testing::Values(std::string("cpu")),
                                          testing::Values(BackendCase{"math", 64, 4, false}, BackendCase{"math", 64, 4, true})),
                         backend_name);

std::string rows_name(const testing::TestParamInfo<std::tuple<std::string, bool>>& info) {
  return std::get<0>(info.param) + (std::get<1>(info.param) ? "_documents" : "_rows");
}

using AttentionOp = OnDeviceWith<bool>;

Result run_op(const at::Tensor& qkv, const at::Tensor& d_out, const AttentionArgs& a) {
  at::AutoGradMode grad(true);
  const at::Tensor leaf = qkv.detach().clone().set_requires_grad(true);
  const at::Tensor out = causal_attention(leaf * 1.0, a);
  torch::autograd::backward({out}, {d_out});
  return {out.detach(), leaf.grad()};
}

// With rotation, by whichever back-end is chosen, beside the processor's kernel.
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

struct Deterministic {
  Deterministic() { at::globalContext().setDeterministicAlgorithms(true, false); }
  ~Deterministic() { at::globalContext().setDeterministicAlgorithms(false, false); }
};

// Long enough that blocks add to one gradient in any order without it.
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

// Twice the tokens in documents that are all as long: twice the memory. Scores would take four times as much.
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
  EXPECT_EQ(with([](auto& x) { x.head_dim = 80; }), "flash-2 (cudnn: head size 80, it takes 64 and 128)");
  EXPECT_EQ(with([](auto& x) { x.documents = true; }), "flash-2 (cudnn: no document masks)");
  EXPECT_EQ(with([](auto& x) { x.deterministic = true; }), "flash-2 (cudnn: gradients do not repeat bit for bit)");
  EXPECT_EQ(with([](auto& x) { x.cudnn = false; }), "flash-2 (cudnn: not in this LibTorch)");
  EXPECT_EQ(with([](auto& x) { x.head_dim = 20; }),
            "math (cudnn: head size 20, it takes 64 and 128; flash-2: head size 20, it takes multiples of 8 up to 256)");
  EXPECT_EQ(with([](auto& x) { x.dtype = at::kFloat; }), "math (cudnn: Float, it takes BFloat16; flash-2: Float, it takes BFloat16)");
  EXPECT_EQ(with([](auto& x) { x.cuda = false; }), "math (cudnn: not on the processor; flash-2: not on the processor)");
}

TEST(AttentionChoice, ABackendThatCannotIsAnError) {
  const AttentionArgs a = args_of(1, 6, 2, 1, 16, false);
  const at::Tensor qkv = random(6, 4 * 16);
  EXPECT_NO_THROW(aten::attention(qkv, a, false, "math"));
  EXPECT_THROW(aten::attention(qkv, a, false, "cudnn"), Error);
  EXPECT_THROW(aten::attention(qkv, a, false, "flash-3"), Error);
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
    EXPECT_NE(std::string(e.what()).find("place 5 of row 1 names 3"), std::string::npos) << e.what();
  }
  start[1][5].fill_(4), start[1][0].fill_(2);
  EXPECT_THROW(documents_of(start, at::kCPU), Error);
}

}  // namespace
}  // namespace halftone
