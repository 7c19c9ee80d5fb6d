#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "cuda/module.h"
#include "halftone/base/philox.h"
#include "halftone/fused/grad_norm.h"
#include "halftone/optim/optimizer.h"
#include "halftone/optim/step.h"

namespace halftone::optimizer_cuda_test {
namespace {

using StepFunction = const char* (*)(const OptimizerStep*, void*);
using SquaresFunction = const char* (*)(const PartialSquares*, void*);
using JudgeFunction = const char* (*)(const JudgeStep*, void*);

// Bytes on the host and their copy on the device.
class Buffer {
 public:
  explicit Buffer(std::vector<uint8_t> bytes) : host(std::move(bytes)) {
    EXPECT_EQ(cudaMalloc(&device, host.size()), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(device, host.data(), host.size(), cudaMemcpyHostToDevice), cudaSuccess);
  }
  ~Buffer() { cudaFree(device); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  std::vector<uint8_t> fetch() const {
    std::vector<uint8_t> out(host.size());
    EXPECT_EQ(cudaMemcpy(out.data(), device, out.size(), cudaMemcpyDeviceToHost), cudaSuccess);
    return out;
  }

  std::vector<uint8_t> host;
  void* device = nullptr;
};

// Values in (-1, 1), or squares of them, with zeros and a NaN among them.
std::vector<uint8_t> values(DType type, int64_t n, uint64_t seed, bool positive) {
  std::vector<uint8_t> bytes(static_cast<size_t>(n) * size_of(type));
  for (int64_t i = 0; i < n; ++i) {
    float x = unit_float(philox(philox_key(seed, "values"), static_cast<uint64_t>(i))[0]) * 2 - 1;
    if (positive) x *= x;
    if (i % 97 == 5) x = 0;
    if (i == 41) x = std::numeric_limits<float>::quiet_NaN();
    if (type == DType::f32) {
      std::memcpy(&bytes[static_cast<size_t>(i) * 4], &x, 4);
    } else {
      const bf16 h(x);
      std::memcpy(&bytes[static_cast<size_t>(i) * 2], &h, 2);
    }
  }
  return bytes;
}

template <class T>
std::vector<uint8_t> bytes_of(const T& x) {
  const auto* p = reinterpret_cast<const uint8_t*>(&x);
  return {p, p + sizeof x};
}

struct Case {
  std::string_view optimizer;
  DType param, state, grad;
  bool stochastic;
  bool updates = true;
  bool nesterov = false;
};

// Segments with full vectors, odd lengths and odd offsets; more than one launch takes; gaps that must stay unchanged.
std::vector<OptimizerSegment> segments() {
  std::vector<OptimizerSegment> out;
  int64_t offset = 0;
  for (int64_t i = 0; i < 41; ++i) {
    OptimizerSegment s;
    s.count = i == 7 ? 300001 : i % 3 == 0 ? 64 * (i + 1) : 17 * i;
    s.offset = offset;
    s.lr = 1e-3 * static_cast<double>(i + 1);
    s.weight_decay = i % 2 == 0 ? 0.1 : 0.0;
    s.key = philox_key(9, "segment" + std::to_string(i));
    s.first_index = static_cast<uint64_t>(3 * i);
    offset += s.count + i % 5;
    out.push_back(s);
  }
  return out;
}

// The device's result equals the CPU's bit for bit; all NaNs count as equal.
void expect_equal(const Case& c, const char* what, DType type, const std::vector<uint8_t>& cpu, const std::vector<uint8_t>& gpu) {
  const size_t size = size_of(type), n = cpu.size() / size;
  for (size_t i = 0; i < n; ++i) {
    float a, b;
    if (type == DType::f32) {
      std::memcpy(&a, &cpu[i * 4], 4), std::memcpy(&b, &gpu[i * 4], 4);
    } else {
      bf16 x, y;
      std::memcpy(&x, &cpu[i * 2], 2), std::memcpy(&y, &gpu[i * 2], 2);
      a = to_float(x), b = to_float(y);
    }
    if (std::isnan(a) && std::isnan(b)) continue;
    ASSERT_EQ(std::memcmp(&cpu[i * size], &gpu[i * size], size), 0)
        << what << "[" << i << "]: cpu " << a << ", device " << b << ", " << c.optimizer << ", stochastic " << c.stochastic;
  }
}

void compare(const Case& c, const CudaModule& module) {
  const auto list = segments();
  const int64_t n = list.back().offset + list.back().count + 11;
  Buffer param(values(c.param, n, 1, false)), grad(values(c.grad, n, 2, false)), m(values(c.state, n, 3, false)),
      v(values(c.state, n, 4, true));
  Buffer copy(std::vector<uint8_t>(static_cast<size_t>(n) * 2));
  // The decision is made on the host, and on the device.
  StepOutcome outcome;
  outcome.loss_sum = 3;
  const StepLimits limits{2, c.updates ? 1.5 : 1.4, 0.3};
  Buffer judged(bytes_of(outcome)), parts(bytes_of(9.0));
  judge(outcome, 3, limits);
  const JudgeStep j{static_cast<const double*>(parts.device), 1, limits, static_cast<StepOutcome*>(judged.device)};
  ASSERT_EQ(module.function<JudgeFunction>("halftone_cuda_judge_step")(&j, nullptr), nullptr);

  OptimizerStep p;
  p.optimizer = optim::optimizer_of(c.optimizer).place, p.options.nesterov = c.nesterov, p.step = 3, p.segments = list,
  p.stochastic_rounding = c.stochastic, p.zero_grad = true;
  p.param_dtype = c.param, p.state_dtype = c.state, p.grad_dtype = c.grad;
  OptimizerStep d = p;
  p.param = param.host.data(), p.grad = grad.host.data(), p.states[0] = m.host.data(), p.states[1] = v.host.data();
  p.compute_copy = reinterpret_cast<bf16*>(copy.host.data()), p.outcome = &outcome;
  d.param = param.device, d.grad = grad.device, d.states[0] = m.device, d.states[1] = v.device;
  d.compute_copy = static_cast<bf16*>(copy.device), d.outcome = static_cast<const StepOutcome*>(judged.device);

  optimizer_step(p);
  const char* problem = module.function<StepFunction>("halftone_cuda_optimizer_step")(&d, nullptr);
  ASSERT_EQ(problem, nullptr) << problem;
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  expect_equal(c, "param", c.param, param.host, param.fetch());
  expect_equal(c, "m", c.state, m.host, m.fetch());
  expect_equal(c, "v", c.state, v.host, v.fetch());
  expect_equal(c, "grad", c.grad, grad.host, grad.fetch());
  expect_equal(c, "copy", DType::bf16, copy.host, copy.fetch());
  StepOutcome found;
  std::memcpy(&found, judged.fetch().data(), sizeof found);
  EXPECT_EQ(found.updated, c.updates);
  EXPECT_TRUE(found.finite);
  EXPECT_EQ(found.loss_sum, 3);
  EXPECT_EQ(found.grad_norm, 3);
  EXPECT_EQ(found.grad_factor, outcome.grad_factor);
}

TEST(OptimizerCuda, EqualsTheCpuBitForBit) {
  const CudaModule module;
  if (!module.reason().empty()) GTEST_SKIP() << module.reason();
  ASSERT_NE(module.function<StepFunction>("halftone_cuda_optimizer_step"), nullptr);
  for (const std::string_view optimizer : optim::optimizer_names()) {
    for (const DType param : {DType::f32, DType::bf16}) {
      for (const DType state : {DType::f32, DType::bf16}) {
        for (const DType grad : {DType::f32, DType::bf16}) compare({optimizer, param, state, grad, param == DType::bf16}, module);
      }
    }
  }
  compare({"AdamW", DType::bf16, DType::f32, DType::f32, false}, module);
  compare({"SGD", DType::bf16, DType::bf16, DType::f32, true, true, true}, module);
  for (const DType param : {DType::f32, DType::bf16})
    compare({"AdamW", param, DType::f32, DType::f32, param == DType::bf16, false}, module);
}

// Norm of two buffers, as for two units.
class GradNormCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!module_.reason().empty()) GTEST_SKIP() << module_.reason();
    squares_ = module_.function<SquaresFunction>("halftone_cuda_partial_squares");
    judge_ = module_.function<JudgeFunction>("halftone_cuda_judge_step");
    ASSERT_TRUE(squares_ != nullptr && judge_ != nullptr);
  }
  StepOutcome judged(const Buffer& a, const Buffer& b, const StepLimits& limits = {}) {
    StepOutcome outcome;
    outcome.loss_sum = 1;
    const Buffer result(bytes_of(outcome));
    const int64_t sizes[] = {static_cast<int64_t>(a.host.size()) / 4, static_cast<int64_t>(b.host.size()) / 4};
    const int64_t count = norm_parts(sizes[0]) + norm_parts(sizes[1]);
    const Buffer parts(std::vector<uint8_t>(static_cast<size_t>(count) * 8, 0xFF));  // NaN where nothing is written
    auto* sums = static_cast<double*>(parts.device);
    const PartialSquares x{static_cast<const float*>(a.device), sizes[0], sums},
        y{static_cast<const float*>(b.device), sizes[1], sums + norm_parts(sizes[0])};
    const JudgeStep j{sums, count, limits, static_cast<StepOutcome*>(result.device)};
    EXPECT_EQ(squares_(&x, nullptr), nullptr);
    EXPECT_EQ(squares_(&y, nullptr), nullptr);
    EXPECT_EQ(judge_(&j, nullptr), nullptr);
    std::memcpy(&outcome, result.fetch().data(), sizeof outcome);
    return outcome;
  }

  CudaModule module_;
  SquaresFunction squares_ = nullptr;
  JudgeFunction judge_ = nullptr;
};

// Numbers in (-1, 1).
std::vector<uint8_t> plain_values(int64_t n, uint64_t seed) {
  std::vector<uint8_t> bytes(static_cast<size_t>(n) * 4);
  for (int64_t i = 0; i < n; ++i) {
    const float x = unit_float(philox(philox_key(seed, "plain"), static_cast<uint64_t>(i))[0]) * 2 - 1;
    std::memcpy(&bytes[static_cast<size_t>(i) * 4], &x, 4);
  }
  return bytes;
}
double cpu_squares(const Buffer& b) { return sum_of_squares(b.host.data(), static_cast<int64_t>(b.host.size()) / 4); }

TEST_F(GradNormCuda, IsTheCpusAndRepeatsBitForBit) {
  const Buffer other(plain_values(70001, 2));
  for (const int64_t n : {1, 3, 4, 1023, 4096, 4099, 131072, 5000003}) {
    const Buffer b(plain_values(n, 1));
    const double norm = std::sqrt(cpu_squares(b) + cpu_squares(other));
    const StepOutcome first = judged(b, other, {1, 1, 2});
    EXPECT_NEAR(first.grad_norm, norm, 1e-13 * norm) << n;
    EXPECT_EQ(first.grad_factor, clip_factor(first.grad_norm, 2)) << n;
    EXPECT_TRUE(first.finite && first.updated) << n;
    for (int i = 0; i < 3; ++i) EXPECT_EQ(judged(b, other, {1, 1, 2}).grad_norm, first.grad_norm) << n;
  }
}

TEST_F(GradNormCuda, IsNotFiniteWhereAnElementIsNotAndNowhereElse) {
  constexpr int64_t kCount = 5000003;
  const Buffer other(plain_values(5, 2));
  for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(), NAN}) {
    for (const int64_t where : {int64_t{0}, int64_t{4097}, kCount - 1}) {
      std::vector<uint8_t> bytes = plain_values(kCount, 1);
      std::memcpy(&bytes[static_cast<size_t>(where) * 4], &bad, 4);
      const StepOutcome o = judged(Buffer(std::move(bytes)), other);
      EXPECT_FALSE(o.finite || o.updated) << where;
    }
  }
  std::vector<uint8_t> bytes(4 * 1001);
  for (size_t i = 0; i < 1001; ++i) {
    const float large = 3e38f;
    std::memcpy(&bytes[i * 4], &large, 4);
  }
  const StepOutcome o = judged(Buffer(std::move(bytes)), other);
  EXPECT_TRUE(o.finite && o.updated);
  EXPECT_NEAR(o.grad_norm, static_cast<double>(3e38f) * std::sqrt(1001.0), 1e27);
}

TEST(OptimizerCuda, RefusesWhatItCannotDo) {
  const CudaModule module;
  if (!module.reason().empty()) GTEST_SKIP() << module.reason();
  const auto step = module.function<StepFunction>("halftone_cuda_optimizer_step");
  ASSERT_NE(step, nullptr);
  OptimizerStep p;
  p.param_dtype = DType::s8;
  EXPECT_STREQ(step(&p, nullptr), "optimizer: expected f32 or bf16 buffers");
  p.param_dtype = DType::f32;
  EXPECT_NE(step(&p, nullptr), nullptr);
}

}  // namespace
}  // namespace halftone::optimizer_cuda_test
