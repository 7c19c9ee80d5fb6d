#include "halftone/gemm/grouped_product_cuda.h"

#include <cctype>

#include "cuda/grouped_product_case.h"

namespace halftone::gemm {
namespace {

struct Kind {
  const char* name;
  Ragged ragged;
  OperandKind a, b;
  bool tensor_cores;  // with training's output types: bf16 for rows, f32 for contractions
};
constexpr auto kRows = Ragged::rows, kContraction = Ragged::contraction;
constexpr auto kRow = Scales::row, kTensor = Scales::tensor;
constexpr Kind kKinds[] = {
    {"rows bf16", kRows, plain(BF), plain(BF), true},
    {"rows bf16 dgrad", kRows, plain(BF), plain(BF, true), true},
    {"rows bf16 outer (nvfp4)", kRows, outer(plain(BF)), outer(plain(BF)), true},
    {"rows bf16 row x row", kRows, scaled(BF, kRow), scaled(BF, kRow), true},
    {"rows bf16 tensor x row outer", kRows, scaled(BF, kTensor), outer(scaled(BF, kRow)), true},
    {"rows f32", kRows, plain(Numbers::f32), plain(Numbers::f32, true), false},
    {"rows f32 1x128 x 128x128", kRows, scaled(Numbers::f32, Scales::block128), scaled(Numbers::f32, Scales::tile128), false},
    {"rows f32 with macro blocks", kRows, macro(plain(Numbers::f32), false), macro(plain(Numbers::f32), true), false},
    {"rows fp8 row-wise", kRows, scaled(E4, kRow), scaled(E4, kRow), true},
    {"rows fp8 row outer x tensor", kRows, outer(scaled(E4, kRow)), scaled(E4, kTensor), true},
    {"rows fp8 tensorwise", kRows, scaled(E4, kTensor), scaled(E4, kTensor), true},
    {"rows fp8 e5m2 x e4m3", kRows, scaled(E5, kTensor), scaled(E4, kRow), true},
    {"rows fp8 e4m3 x e5m2", kRows, scaled(E4, kTensor), scaled(E5, kTensor), false},
    {"rows e5m2 x e5m2", kRows, scaled(E5, kTensor), scaled(E5, kTensor), false},
    {"rows fp8 1x128 x 128x128", kRows, scaled(E4, Scales::block128), scaled(E4, Scales::tile128), true},
    {"rows mxfp4 with macro blocks", kRows, macro(scaled(E4, kRow), false), outer(macro(scaled(E4, kRow), true)), true},
    {"rows fp8 macro x 128x128", kRows, macro(scaled(E5, kTensor), false), scaled(E4, Scales::tile128), false},
    {"rows int8", kRows, scaled(I8, kRow), scaled(I8, kRow), true},
    {"rows int8 row x tensor (bitnet)", kRows, scaled(I8, kRow), scaled(I8, kTensor), true},
    {"contraction bf16", kContraction, plain(BF, true), plain(BF, true), true},
    {"contraction bf16 of copies", kContraction, outer(plain(BF)), outer(plain(BF)), true},
    {"contraction bf16 mixed", kContraction, plain(BF, true), plain(BF), false},
    {"contraction bf16 row x tensor", kContraction, scaled(BF, kRow), scaled(BF, kTensor), true},
    {"contraction f32", kContraction, plain(Numbers::f32, true), plain(Numbers::f32), false},
    {"contraction f32 1x128 x 1x128", kContraction, scaled(Numbers::f32, Scales::block128), scaled(Numbers::f32, Scales::block128), false},
    {"contraction fp8 row-wise", kContraction, scaled(E4, kRow), scaled(E4, kRow), true},
    {"contraction fp8 tensorwise outer", kContraction, outer(scaled(E4, kTensor)), scaled(E4, kTensor), true},
    {"contraction fp8 e5m2 x e4m3", kContraction, scaled(E5, kTensor), scaled(E4, kTensor), true},
    {"contraction fp8 1x128 x 1x128", kContraction, scaled(E4, Scales::block128), scaled(E4, Scales::block128), true},
    {"contraction mxfp4 macro blocks", kContraction, macro(scaled(E4, kRow), false), outer(macro(scaled(E4, kRow), false)), true},
    {"contraction int8", kContraction, scaled(I8, kRow), scaled(I8, kRow), true},
};

struct Buffer {
  std::vector<int> counts;
  int spare;
};
const Buffer kBuffers[] = {
    {{130, 0, 1, 0, 256, 77, 0}, 384},
    {{0, 0, 0}, 256},
    {{384}, 0},
    {{0, 700, 128, 5}, 0},
};
struct Shape {
  int64_t other, n;  // k for rows, m for contractions
};
constexpr Shape kShapes[] = {{1408, 272}, {176, 1408}, {16, 16}, {2880, 400}};

bool is_fp8(const Kind& kind) { return kind.a.numbers == E4 || kind.a.numbers == E5; }

// numerics.md 13.1; the portable kernel also has fp32 sums of fp8 codes.
double bar(const Kind& kind, DType out, bool fast, bool tensor_cores) {
  const double sums = !is_fp8(kind) || !tensor_cores ? 90 : fast ? 40 : 50;
  return std::min(sums, out == DType::f32 ? 90.0 : 54.0);
}

class GroupedProductCuda : public ::testing::TestWithParam<Kind>, protected Products<GroupedProduct> {
 protected:
  GroupedProductCuda() : Products(0xEE) {}
  void SetUp() override {
    if (!missing().empty()) GTEST_SKIP() << missing();
    load("halftone_cuda_grouped_product");
  }
};

struct How {
  DType type;
  bool accumulate, fast;
  float alpha;
};

// Guard values after D must stay unchanged.
constexpr int64_t kGuard = 64;
std::vector<uint8_t> initial(const How& how, int64_t count, float size) {
  std::vector<uint8_t> bytes(static_cast<size_t>(count + kGuard) * size_of(how.type));
  const PhiloxKey key = philox_key(3, "D");
  parallel_for(count + kGuard, 4096, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const bool read = how.accumulate && i < count;
      const float x = read ? size * normal(key, static_cast<uint64_t>(i)) : std::numeric_limits<float>::quiet_NaN();
      const bf16 h(x);
      if (how.type == DType::f32)
        std::memcpy(&bytes[static_cast<size_t>(i) * 4], &x, 4);
      else
        std::memcpy(&bytes[static_cast<size_t>(i) * 2], &h, 2);
    }
  });
  return bytes;
}
float number(DType type, const std::vector<uint8_t>& bytes, int64_t i) {
  float x;
  bf16 h;
  if (type == DType::f32) return std::memcpy(&x, &bytes[static_cast<size_t>(i) * 4], 4), x;
  return std::memcpy(&h, &bytes[static_cast<size_t>(i) * 2], 2), to_float(h);
}

// Elements of D: a sample from every group, each with its fp64 value without D's previous one.
struct Sample {
  int64_t at;
  double value;
};
std::vector<Sample> samples(Ragged ragged, const TestGroups& groups, const GroupedTestOperand& a, const GroupedTestOperand& b) {
  std::vector<Sample> out;
  for (int64_t g = 0; g < groups.groups.groups; ++g) {
    const int64_t begin = groups.offsets[static_cast<size_t>(g)], end = groups.offsets[static_cast<size_t>(g) + 1];
    if (begin == end) continue;
    const int64_t rows = ragged == Ragged::rows ? end - begin : a.rows;
    for (const int64_t r : sample_rows(rows, 24)) {
      for (int64_t c = 0; c < b.rows; ++c) {
        out.push_back({ragged == Ragged::rows ? (begin + r) * b.rows + c : (g * rows + r) * b.rows + c, 0});
      }
    }
  }
  parallel_for(static_cast<int64_t>(out.size()), 64, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      Sample& s = out[static_cast<size_t>(i)];
      const int64_t row = s.at / b.rows, c = s.at % b.rows;
      const bool of_rows = ragged == Ragged::rows;
      const int64_t g = of_rows ? groups.of_row[static_cast<size_t>(row)] : row / a.rows;
      const double* x = &a.values[static_cast<size_t>((of_rows ? row : row % a.rows) * a.k)];
      const double* y = &b.values[static_cast<size_t>(((of_rows ? g * b.rows : 0) + c) * a.k)];
      const int64_t begin = of_rows ? 0 : groups.offsets[static_cast<size_t>(g)];
      const int64_t end = of_rows ? a.k : groups.offsets[static_cast<size_t>(g) + 1];
      for (int64_t k = begin; k < end; ++k) s.value += x[k] * y[k];
    }
  });
  return out;
}

void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }
std::string kind_name(const testing::TestParamInfo<Kind>& info) {
  std::string name = info.param.name;
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name;
}
INSTANTIATE_TEST_SUITE_P(Of, GroupedProductCuda, ::testing::ValuesIn(kKinds), kind_name);

TEST_P(GroupedProductCuda, AgainstTheDequantisedProducts) {
  const Kind& kind = GetParam();
  const bool of_rows = kind.ragged == kRows;
  double worst[2][2] = {{999, 999}, {999, 999}};
  for (const Shape& s : kShapes) {
    for (const Buffer& buffer : kBuffers) {
      const TestGroups groups(buffer.counts, buffer.spare);
      const int64_t count = groups.groups.groups;
      const GroupedTestOperand a = make_grouped(kind.a, of_rows ? Meets::rows : Meets::columns, groups, of_rows ? groups.rows : s.other,
                                                of_rows ? s.other : groups.rows, 1);
      const GroupedTestOperand b =
          make_grouped(kind.b, of_rows ? Meets::copies : Meets::columns, groups, s.n, of_rows ? s.other : groups.rows, 2);
      const auto expected_sums = samples(kind.ragged, groups, a, b);
      double square = 0;
      for (const Sample& x : expected_sums) square += x.value * x.value;
      const double size = expected_sums.empty() ? 1 : std::sqrt(square / static_cast<double>(expected_sums.size()));
      std::vector<How> hows;
      for (const DType type : {DType::bf16, DType::f32}) {
        for (const bool accumulate : {false, true}) {
          for (const bool fast : {false, true}) {
            if ((accumulate && of_rows) || (fast && !is_fp8(kind))) continue;
            hows.push_back({type, accumulate, fast, accumulate ? 0.75f : 1.0f});
          }
        }
      }
      for (const How& how : hows) {
        const std::string what = std::string(kind.name) + " " + std::to_string(s.other) + " " + std::to_string(s.n) + " of " +
                                 std::to_string(groups.rows) + " rows" + (how.type == DType::f32 ? " f32" : " bf16") +
                                 (how.accumulate ? " accumulate" : "") + (how.fast ? " fast" : "");
        const int64_t size_d = of_rows ? groups.rows * s.n : count * s.other * s.n;
        const auto before = initial(how, size_d, static_cast<float>(size));
        const Device d(before);
        GroupedProduct p;
        p.ragged = kind.ragged, p.groups = groups.groups, p.rows = groups.rows, p.n = s.n;
        (of_rows ? p.k : p.m) = s.other;
        p.a = a.operand, p.b = b.operand, p.d = d.get(), p.d_type = how.type;
        p.accumulate = how.accumulate, p.fast_accumulation = how.fast, p.alpha = how.alpha;
        const bool usual = how.type == (of_rows ? DType::bf16 : DType::f32);
        if (usual) {
          ASSERT_EQ(size_(&p) > 0, kind.tensor_cores) << what;
        }
        const char* message = product(p);
        ASSERT_EQ(message, nullptr) << what << ": " << message;
        ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess) << what;
        const auto out = d.fetch<uint8_t>();
        const size_t element = size_of(how.type);
        ASSERT_EQ(
            std::memcmp(&out[static_cast<size_t>(size_d) * element], &before[static_cast<size_t>(size_d) * element], kGuard * element), 0)
            << what << ": wrote behind D";
        const std::vector<uint8_t> zeros(out.size());
        if (of_rows) {  // rows after the groups
          const size_t first = static_cast<size_t>(groups.offsets.back() * s.n) * element;
          ASSERT_EQ(std::memcmp(&out[first], zeros.data(), static_cast<size_t>(size_d) * element - first), 0) << what << ": no zeros";
        }
        for (int64_t g = 0; g < count && !of_rows; ++g) {  // empty groups
          if (groups.offsets[static_cast<size_t>(g)] != groups.offsets[static_cast<size_t>(g) + 1]) continue;
          const size_t bytes = static_cast<size_t>(s.other * s.n) * element, first = static_cast<size_t>(g) * bytes;
          ASSERT_EQ(std::memcmp(&out[first], how.accumulate ? &before[first] : zeros.data(), bytes), 0) << what << ", group " << g;
        }
        std::vector<double> expected, found;
        for (const Sample& x : expected_sums) {
          expected.push_back(how.alpha * x.value + (how.accumulate ? number(how.type, before, x.at) : 0));
          found.push_back(number(how.type, out, x.at));
        }
        if (expected.empty()) continue;
        const double db = sqnr(expected, found);
        EXPECT_GE(db, bar(kind, how.type, how.fast, usual && kind.tensor_cores)) << what;
        auto& low = worst[how.type == DType::f32][how.fast];
        low = std::min(low, db);
      }
    }
  }
  std::printf("%-32s lowest dB: bf16 %.1f, f32 %.1f", kind.name, worst[0][0], worst[1][0]);
  std::printf(is_fp8(kind) ? ", fast: %.1f, %.1f\n" : "\n", worst[0][1], worst[1][1]);
}

// The groups are read when the kernel runs, so one captured graph serves every step.
TEST_P(GroupedProductCuda, RunsInsideAGraph) {
  const Kind& kind = GetParam();
  const bool of_rows = kind.ragged == kRows;
  const TestGroups groups({200, 0, 60}, 128);
  const int64_t other = 192, n = 320;
  const GroupedTestOperand a =
      make_grouped(kind.a, of_rows ? Meets::rows : Meets::columns, groups, of_rows ? groups.rows : other, of_rows ? other : groups.rows, 1);
  const GroupedTestOperand b = make_grouped(kind.b, of_rows ? Meets::copies : Meets::columns, groups, n, of_rows ? other : groups.rows, 2);
  const std::vector<uint16_t> fill(static_cast<size_t>((of_rows ? groups.rows : 3 * other) * n * 2), 0x7FFF);
  const Device eager(fill), replayed(fill);
  GroupedProduct p;
  p.ragged = kind.ragged, p.groups = groups.groups, p.rows = groups.rows, p.n = n;
  (of_rows ? p.k : p.m) = other;
  p.a = a.operand, p.b = b.operand, p.d = eager.get(), p.d_type = of_rows ? DType::bf16 : DType::f32;
  ASSERT_STREQ(product(p), nullptr);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  p.d = replayed.get();
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  const char* message = product(p, stream);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  ASSERT_EQ(message, nullptr) << message;
  cudaGraphExec_t exec = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
  for (int i = 0; i < 2; ++i) ASSERT_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(replayed.fetch<uint8_t>(), eager.fetch<uint8_t>());
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

using GroupedProductCudaErrors = GroupedProductCuda;
INSTANTIATE_TEST_SUITE_P(Of, GroupedProductCudaErrors, ::testing::Values(kKinds[0]), kind_name);

TEST_P(GroupedProductCudaErrors, SaysWhatItCannotDo) {
  const TestGroups groups({128}, 0);
  const Device memory(std::vector<float>(128 * 128));
  GroupedProduct p;
  EXPECT_STREQ(product(p), "grouped product: expected at least one group, offsets and ends");
  p.groups = groups.groups, p.rows = 100;
  EXPECT_STREQ(product(p), "grouped product: expected rows that are a multiple of 128");
  p.rows = 128, p.n = 64, p.k = 40;
  EXPECT_STREQ(product(p), "grouped product: expected both operands and an output");
  p.a.data = p.b.data = memory.get(), p.d = memory.get();
  p.a.numbers = E4;
  EXPECT_STREQ(product(p), "grouped product: expected operands of the same element type (e4m3 and e5m2 may be mixed)");
  p.b.numbers = E4;
  EXPECT_STREQ(product(p), "grouped product: 8-bit operands need k and n that are multiples of 16; append zeros");
  p.k = 64, p.a.scales = kRow;
  EXPECT_STREQ(product(p), "grouped product: expected the scales that the operand names");
  p.a.scales = Scales::none, p.accumulate = true;
  EXPECT_STREQ(product(p), "grouped product: products of rows neither accumulate nor take a transposed A");
  p.accumulate = false;
  EXPECT_STREQ(run_(&p, nullptr), "grouped product: the workspace is too small; ask halftone_cuda_grouped_product_workspace");
}

}  // namespace
}  // namespace halftone::gemm
