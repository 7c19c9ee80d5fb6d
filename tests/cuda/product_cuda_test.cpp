#include <array>
#include <cctype>
#include <cstdio>
#include <numeric>

#include "cuda/product_case.h"
#include "halftone/gemm/product_cuda.h"

namespace halftone::gemm {
namespace {

class ProductCuda : public ::testing::Test, protected Products<Product> {
 protected:
  void SetUp() override {
    if (!missing().empty()) GTEST_SKIP() << missing();
    load("halftone_cuda_product");
  }
};

struct Kind {
  const char* name;
  OperandKind a, b;
};
constexpr Kind kKinds[] = {
    {"bf16", plain(BF), plain(BF)},
    {"bf16 dgrad", plain(BF), plain(BF, true)},
    {"bf16 wgrad", plain(BF, true), plain(BF, true)},
    {"bf16 outer (nvfp4)", outer(plain(BF)), outer(plain(BF))},
    {"bf16 tensor", plain(BF), scaled(BF, Scales::tensor)},
    {"bf16 rows (int8_weight)", plain(BF), scaled(BF, Scales::row)},
    {"f32", plain(Numbers::f32), plain(Numbers::f32)},
    {"fp8 tensorwise", scaled(E4, Scales::tensor), scaled(E4, Scales::tensor)},
    {"fp8 tensorwise e5m2 x e4m3", scaled(E5, Scales::tensor), scaled(E4, Scales::tensor)},
    {"fp8 tensorwise e4m3 x e5m2", scaled(E4, Scales::tensor), scaled(E5, Scales::tensor)},
    {"fp8 tensorwise outer", outer(scaled(E4, Scales::tensor)), scaled(E4, Scales::tensor)},
    {"fp8 row-wise", scaled(E4, Scales::row), scaled(E4, Scales::row)},
    {"fp8 row x tensor", scaled(E4, Scales::row), scaled(E4, Scales::tensor)},
    {"fp8 tensor e5m2 x row e4m3", scaled(E5, Scales::tensor), scaled(E4, Scales::row)},
    {"fp8 row e5m2 x none", outer(scaled(E5, Scales::row)), plain(E4)},
    {"e5m2 x e5m2 tensor", scaled(E5, Scales::tensor), scaled(E5, Scales::tensor)},
    {"e5m2 x e5m2 row x outer", scaled(E5, Scales::row), outer(scaled(E5, Scales::tensor))},
    {"fp8 1x128 x 128x128", scaled(E4, Scales::block128), scaled(E4, Scales::tile128)},
    {"fp8 128x128 x 1x128", scaled(E4, Scales::tile128), scaled(E4, Scales::block128)},
    {"fp8 1x128 x 1x128", scaled(E4, Scales::block128), scaled(E4, Scales::block128)},
    {"fp8 128x128 x 128x128", scaled(E4, Scales::tile128), scaled(E4, Scales::tile128)},
    {"mxfp4 with macro blocks", macro(scaled(E4, Scales::row), false), macro(scaled(E4, Scales::row), true)},
    {"mxfp4 macro x plain", macro(scaled(E5, Scales::tensor), false), scaled(E4, Scales::row)},
    {"int8 row-wise", scaled(I8, Scales::row), scaled(I8, Scales::row)},
    {"int8 row x tensor (bitnet)", scaled(I8, Scales::row), scaled(I8, Scales::tensor)},
    {"int8 outer", outer(scaled(I8, Scales::row)), scaled(I8, Scales::row)},
};
struct Shape {
  int64_t m, n, k;
};
constexpr Shape kShapes[] = {{1, 256, 1024}, {17, 2880, 1408}, {150, 1408, 2880}, {256, 512, 1024}, {288, 1408, 16}, {130, 48, 176}};

bool is_fp8(const Kind& kind) { return kind.a.numbers == E4 || kind.a.numbers == E5; }

bool ours(const Kind& kind) {
  const bool e5m2 = kind.a.numbers == E5 && kind.b.numbers == E5, rows = kind.a.numbers == BF && kind.b.scales == Scales::row;
  return kind.a.numbers == I8 || kind.a.numbers == Numbers::f32 || e5m2 || rows;
}

// Bars of numerics.md 13.1 against the fp64 GEMM of the dequantised operands: 54 dB with bf16 outputs, 90 with fp32; for fp8 tensor cores
// 50, 40 with fast accumulation.
double bar(const Kind& kind, DType out, bool fast) {
  if (is_fp8(kind)) return fast ? 40 : 50;
  return out == DType::f32 ? 90 : 54;
}

struct Output {
  DType type = DType::bf16;
  bool accumulate = false, fast = false, measure = false;
  int bias = 0;  // 0: none, 1: bf16, 2: f32
  float alpha = 1;
  bool portable = false;
};

float number(DType type, const std::vector<uint8_t>& bytes, int64_t i) {
  if (type == DType::f32) {
    float x;
    std::memcpy(&x, &bytes[static_cast<size_t>(i) * 4], 4);
    return x;
  }
  bf16 x;
  std::memcpy(&x, &bytes[static_cast<size_t>(i) * 2], 2);
  return to_float(x);
}
void put(DType type, std::vector<uint8_t>& bytes, int64_t i, float x) {
  if (type == DType::f32) {
    std::memcpy(&bytes[static_cast<size_t>(i) * 4], &x, 4);
  } else {
    const bf16 h(x);
    std::memcpy(&bytes[static_cast<size_t>(i) * 2], &h, 2);
  }
}

// D with `kMargin` extra columns, which a GEMM must not change. Without accumulation it must not read D either.
struct Sheet {
  static constexpr int64_t kMargin = 16;
  Sheet(const Output& how, int64_t m, int64_t n, float size = 1)
      : type(how.type), ld(n + kMargin), host(static_cast<size_t>(m * ld) * size_of(how.type)) {
    const PhiloxKey key = philox_key(3, "D");
    parallel_for(m * ld, 4096, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const bool read = how.accumulate && i % ld < n;
        put(type, host, i, read ? size * normal(key, static_cast<uint64_t>(i)) : std::numeric_limits<float>::quiet_NaN());
      }
    });
    device = Device(host);
  }
  DType type;
  int64_t ld;
  std::vector<uint8_t> host;
  Device device;
};

struct Bias {
  Bias(int kind, int64_t n, float size = 1) : type(kind == 2 ? DType::f32 : DType::bf16), host(static_cast<size_t>(n) * size_of(type)) {
    const PhiloxKey key = philox_key(4, "bias");
    for (int64_t i = 0; i < n; ++i) put(type, host, i, size * normal(key, static_cast<uint64_t>(i)));
    if (kind != 0) device = Device(host);
  }
  DType type;
  std::vector<uint8_t> host;
  Device device;
};

void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }
class ProductCudaKinds : public ProductCuda, public testing::WithParamInterface<Kind> {};
std::string kind_name(const testing::TestParamInfo<Kind>& info) {
  std::string name = info.param.name;
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name;
}
INSTANTIATE_TEST_SUITE_P(Of, ProductCudaKinds, ::testing::ValuesIn(kKinds), kind_name);

TEST_P(ProductCudaKinds, AgainstTheDequantisedProduct) {
  const Kind& kind = GetParam();
  double worst[2][2] = {{999, 999}, {999, 999}};
  for (const Shape& s : kShapes) {
    const TestOperand a = make_operand(kind.a, s.m, s.k, 1), b = make_operand(kind.b, s.n, s.k, 2);
    const auto rows = sample_rows(s.m, 48);
    const auto sums = reference(a, b, rows);
    // The addend is as large as the product, so that a lost or misplaced one is visible.
    const double size = std::sqrt(std::inner_product(sums.begin(), sums.end(), sums.begin(), 0.0) / static_cast<double>(sums.size()));
    std::vector<Output> outputs;
    for (const DType type : {DType::bf16, DType::f32}) {
      for (const bool accumulate : {false, true}) {
        for (const bool fast : {false, true}) {
          if (fast && !is_fp8(kind)) continue;
          outputs.push_back({type, accumulate, fast});
        }
      }
      outputs.push_back({type, false, false, false, 1});
      outputs.push_back({type, true, false, true, 2, 0.75f});
      outputs.push_back({type, true, false, false, 2, 0.75f, true});
    }
    for (const Output& how : outputs) {
      const Sheet sheet(how, s.m, s.n, static_cast<float>(size));
      const Bias bias(how.bias, s.n, static_cast<float>(size));
      Product p;
      p.m = s.m, p.n = s.n, p.k = s.k, p.a = a.operand, p.b = b.operand;
      p.d = sheet.device.get(), p.d_type = how.type, p.ldd = sheet.ld;
      p.accumulate = how.accumulate, p.fast_accumulation = how.fast, p.measure = how.measure, p.alpha = how.alpha,
      p.portable = how.portable;
      p.bias = bias.device.get(), p.bias_type = bias.type;
      const std::string what = std::string(kind.name) + " " + std::to_string(s.m) + "x" + std::to_string(s.n) + "x" + std::to_string(s.k) +
                               (how.type == DType::f32 ? " f32" : " bf16") + (how.accumulate ? " accumulate" : "") +
                               (how.fast ? " fast" : "") + (how.portable ? " portable" : "") + " bias " + std::to_string(how.bias);
      const char* message = product(p);
      EXPECT_EQ(message, nullptr) << what << ": " << message;
      if (message) continue;
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess) << what;
      const auto out = sheet.device.fetch<uint8_t>();
      std::vector<double> expected, found;
      for (size_t i = 0; i < rows.size(); ++i) {
        for (int64_t n = 0; n < s.n; ++n) {
          double v = how.alpha * sums[i * static_cast<size_t>(s.n) + static_cast<size_t>(n)];
          if (how.bias != 0) {
            const float add = number(bias.type, bias.host, n);
            // cuBLASLt adds a bias in D's type; our own kernels, also used for rows that are not 16-byte aligned, in fp32.
            const bool odd = (kind.a.transposed && s.m % 8 != 0) || (kind.b.transposed && s.n % 8 != 0);
            v += how.type == DType::bf16 && !ours(kind) && !odd ? to_float(bf16(add)) : add;
          }
          if (how.accumulate) v += number(how.type, sheet.host, rows[i] * sheet.ld + n);
          expected.push_back(v);
          found.push_back(number(how.type, out, rows[i] * sheet.ld + n));
        }
      }
      const double db = sqnr(expected, found);
      EXPECT_GE(db, bar(kind, how.type, how.fast)) << what;
      auto& low = worst[how.type == DType::f32][how.fast];
      low = std::min(low, db);
      for (int64_t r = 0; r < s.m; ++r) {
        for (int64_t c = s.n; c < sheet.ld; ++c) {
          ASSERT_TRUE(std::isnan(number(how.type, out, r * sheet.ld + c))) << what << ": wrote outside of D at " << r << ", " << c;
        }
      }
    }
  }
  std::printf("[   dB     ] %-28s bf16 %.1f f32 %.1f", kind.name, worst[0][0], worst[1][0]);
  if (is_fp8(kind)) std::printf(" fast: bf16 %.1f f32 %.1f", worst[0][1], worst[1][1]);
  std::printf("\n");
}

// (sum * scale_m) * scale_n + bias + D, each rounded separately: bit-exact.
TEST_F(ProductCuda, Int8IsExact) {
  struct Exact {
    Shape s;
    bool measure, portable = false;
  };
  for (const Exact& e : {Exact{{1, 48, 16}, false},
                         {{17, 2880, 1408}, false},
                         {{150, 1408, 2880}, true},
                         {{150, 1408, 2880}, false, true},
                         {{1024, 1024, 1024}, true},
                         {{2048, 2048, 2048}, false},
                         {{4096, 4096, 4096}, false},
                         {{4096, 4096, 4096}, true}}) {
    const Shape& s = e.s;
    const TestOperand a = make_operand(scaled(I8, Scales::row), s.m, s.k, 1), b = make_operand(scaled(I8, Scales::row), s.n, s.k, 2);
    const auto rows = sample_rows(s.m, 24);
    const std::vector<int> sums = integer_reference(a, b, rows);
    Product p;
    p.m = s.m, p.n = s.n, p.k = s.k, p.a = a.operand, p.b = b.operand, p.measure = e.measure, p.portable = e.portable;
    for (const DType type : {DType::bf16, DType::f32}) {
      for (const bool accumulate : {false, true}) {
        for (const int with_bias : {0, 1, 2}) {
          const Output how{type, accumulate, false, false, with_bias};
          const Sheet sheet(how, s.m, s.n);
          const Bias bias(with_bias, s.n);
          p.d = sheet.device.get(), p.d_type = type, p.ldd = sheet.ld, p.accumulate = accumulate;
          p.bias = bias.device.get(), p.bias_type = bias.type;
          ASSERT_STREQ(product(p), nullptr);
          const auto out = sheet.device.fetch<uint8_t>();
          for (size_t i = 0; i < rows.size(); ++i) {
            for (int64_t n = 0; n < s.n; ++n) {
              float v = static_cast<float>(sums[i * static_cast<size_t>(s.n) + static_cast<size_t>(n)]);
              v *= a.scales[static_cast<size_t>(rows[i])];
              v *= b.scales[static_cast<size_t>(n)];
              if (with_bias != 0) v += number(bias.type, bias.host, n);
              if (accumulate) v += number(type, sheet.host, rows[i] * sheet.ld + n);
              const float expected = type == DType::f32 ? v : to_float(bf16(v));
              ASSERT_EQ(std::bit_cast<uint32_t>(number(type, out, rows[i] * sheet.ld + n)), std::bit_cast<uint32_t>(expected))
                  << s.m << "x" << s.n << "x" << s.k << " at " << rows[i] << ", " << n << " type " << static_cast<int>(type)
                  << " accumulate " << accumulate << " bias " << with_bias;
            }
          }
        }
      }
    }
    p.a.scales = p.b.scales = Scales::none;
    p.bias = nullptr, p.accumulate = false, p.d_type = DType::s32, p.ldd = 0;
    const Device out(std::vector<int>(static_cast<size_t>(s.m * s.n), -1));
    p.d = out.get();
    ASSERT_STREQ(product(p), nullptr);
    const auto found = out.fetch<int>();
    for (size_t i = 0; i < rows.size(); ++i) {
      for (int64_t n = 0; n < s.n; ++n) {
        ASSERT_EQ(found[static_cast<size_t>(rows[i] * s.n + n)], sums[i * static_cast<size_t>(s.n) + static_cast<size_t>(n)]);
      }
    }
  }
}

TEST_F(ProductCuda, PoisonedScalesReachTheirRowsAlone) {
  for (const Kind& kind : {Kind{"fp8", scaled(E4, Scales::row), scaled(E4, Scales::row)},
                           {"int8", scaled(I8, Scales::row), scaled(I8, Scales::row)},
                           {"e5m2", scaled(E5, Scales::row), scaled(E5, Scales::row)}}) {
    const TestOperand a = make_operand(kind.a, 130, 256, 1), b = make_operand(kind.b, 144, 256, 2);
    auto scales = a.scales;
    scales[129] = std::numeric_limits<float>::quiet_NaN();
    const Device poisoned(scales), out(std::vector<float>(130 * 144));
    Product p;
    p.m = 130, p.n = 144, p.k = 256, p.a = a.operand, p.b = b.operand, p.d = out.get(), p.d_type = DType::f32;
    p.a.scale = poisoned.get<float>();
    ASSERT_STREQ(product(p), nullptr);
    const auto found = out.fetch<float>();
    for (size_t i = 0; i < found.size(); ++i) ASSERT_EQ(std::isnan(found[i]), i / 144 == 129) << kind.name << " " << i;
  }
}

TEST_F(ProductCuda, EmptyProducts) {
  const Device out(std::vector<float>(32 * 48, 2.0f));
  const Device bias(std::vector<float>(48, 3.0f));
  Product p;
  p.m = 32, p.n = 48, p.k = 0, p.d = out.get(), p.d_type = DType::f32, p.accumulate = true;
  p.a.numbers = p.b.numbers = Numbers::s8;
  ASSERT_STREQ(product(p), nullptr);
  EXPECT_EQ(out.fetch<float>()[40], 2.0f);
  p.bias = bias.get(), p.bias_type = DType::f32;
  ASSERT_STREQ(product(p), nullptr);
  EXPECT_EQ(out.fetch<float>()[40], 5.0f);
  p.accumulate = false, p.bias = nullptr;
  ASSERT_STREQ(product(p), nullptr);
  EXPECT_EQ(out.fetch<float>()[32 * 48 - 1], 0.0f);
  p.m = 0, p.k = 64;
  p.a.data = p.b.data = out.get();
  EXPECT_STREQ(product(p), nullptr);
}

// A captured graph replays the GEMM, even if the first call of its shape is inside the capture.
TEST_F(ProductCuda, RunsInsideAGraph) {
  for (const Kind& kind : {kKinds[0], kKinds[3], kKinds[11], kKinds[15], kKinds[17], kKinds[23]}) {
    const TestOperand a = make_operand(kind.a, 96, 512, 1), b = make_operand(kind.b, 160, 512, 2);
    const Device eager(std::vector<float>(96 * 160)), replayed(std::vector<float>(96 * 160));
    Product p;
    p.m = 96, p.n = 160, p.k = 512, p.a = a.operand, p.b = b.operand, p.d = replayed.get(), p.d_type = DType::f32, p.measure = true;
    cudaStream_t stream = nullptr;
    ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
    Product warm = p;  // allocates the workspace of this fixture
    warm.m = 1;
    ASSERT_STREQ(product(p.m == 96 ? warm : p), nullptr);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    workspace_ = Device(std::vector<uint8_t>(static_cast<size_t>(size_(&p))));
    workspace_bytes_ = size_(&p);
    ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    const char* message = product(p, stream);
    cudaGraph_t graph = nullptr;
    ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    ASSERT_EQ(message, nullptr) << kind.name << ": " << message;
    cudaGraphExec_t exec = nullptr;
    ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    for (int i = 0; i < 2; ++i) ASSERT_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    p.d = eager.get(), p.measure = false;
    ASSERT_STREQ(product(p), nullptr);
    EXPECT_EQ(replayed.fetch<float>(), eager.fetch<float>()) << kind.name;
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    cudaStreamDestroy(stream);
  }
}

// Misaligned or oddly strided rows, which TMA does not support: another code path with the same numbers.
TEST_F(ProductCuda, RowsNeedNotBeAligned) {
  constexpr int64_t kM = 48, kN = 32, kK = 64, kStep = kK + 6;
  const TestOperand b = make_operand(scaled(BF, Scales::row), kN, kK, 2);
  std::vector<uint16_t> bits(static_cast<size_t>(kM * kStep + 8));
  const PhiloxKey key = philox_key(3, "values");
  for (size_t i = 0; i < bits.size(); ++i) bits[i] = bf16(normal(key, i)).bits;
  const Device strided(bits);
  for (const int64_t first : {int64_t{0}, int64_t{3}}) {
    std::vector<uint16_t> rows;
    for (int64_t r = 0; r < kM; ++r) {
      const auto from = bits.begin() + first + r * kStep;
      rows.insert(rows.end(), from, from + kK);
    }
    const Device plain(rows), expected(std::vector<float>(kM * kN)), found(std::vector<float>(kM * kN));
    Product p;
    p.m = kM, p.n = kN, p.k = kK, p.b = b.operand, p.d_type = DType::f32, p.d = expected.get();
    p.a.numbers = BF, p.a.data = plain.get();
    ASSERT_STREQ(product(p), nullptr);
    p.a.data = strided.get<uint16_t>() + first, p.a.ld = kStep, p.d = found.get();
    ASSERT_STREQ(product(p), nullptr);
    const auto e = expected.fetch<float>(), f = found.fetch<float>();
    for (size_t i = 0; i < e.size(); ++i) ASSERT_NEAR(f[i], e[i], 1e-5f * (1 + std::abs(e[i]))) << first << ", " << i;
  }
}

TEST_F(ProductCuda, SaysWhatItCannotDo) {
  Product p;
  p.m = 32, p.n = 48, p.k = 64;
  EXPECT_STREQ(product(p), "product: expected both operands and an output");
  const Device memory(std::vector<float>(64 * 64));
  p.a.data = p.b.data = memory.get(), p.d = memory.get();
  p.a.numbers = Numbers::e4m3;
  EXPECT_STREQ(product(p), "product: expected operands of the same element type (e4m3 and e5m2 may be mixed)");
  p.b.numbers = Numbers::e5m2, p.k = 40;
  EXPECT_STREQ(product(p), "product: 8-bit operands need k and n that are multiples of 16; append zeros");
  p.k = 64, p.b.transposed = true;
  EXPECT_STREQ(product(p), "product: 8-bit operands lie along the contraction; quantise the transposed copy");
  p.b.transposed = false, p.a.scales = Scales::row;
  EXPECT_STREQ(product(p), "product: expected the scales that the operand names");
  p.a.scale = memory.get<float>(), p.d_type = DType::s32;
  EXPECT_STREQ(product(p), "product: int32 goes with plain int8 products");
  p.d_type = DType::bf16, p.a.data = memory.get<uint8_t>() + 8;
  EXPECT_STREQ(product(p), "product: expected rows of 8-bit codes 16-byte aligned");
  p.a.data = memory.get();
  Product sums = p;
  sums.a.numbers = sums.b.numbers = Numbers::s8, sums.k = 133152;
  EXPECT_STREQ(product(sums),
               "product: int32 sums of int8 products hold up to 133144 of them; shorten the contraction (for the gradient of a weight the "
               "tokens of a micro-batch: fewer rows or more accumulation), or use another format");
  EXPECT_STREQ(run_(&p, nullptr), "product: the workspace is too small; ask halftone_cuda_product_workspace");
}

}  // namespace
}  // namespace halftone::gemm
