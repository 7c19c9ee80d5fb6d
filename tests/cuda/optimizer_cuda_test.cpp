#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "cuda/module.h"
#include "halftone/base/philox.h"
#include "halftone/fused/adamw.h"

namespace halftone {
namespace {

using StepFunction = const char* (*)(const OptimizerStep*, void*);

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

struct Case {
  OptimizerRule rule;
  DType param, state, grad;
  bool stochastic;
};

// Segments of whole vectors, odd lengths and odd offsets; more of them than one launch takes; gaps that stay untouched.
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

// The device's result equals the CPU's in every bit, except that any NaN stands for any other.
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
    ASSERT_EQ(std::memcmp(&cpu[i * size], &gpu[i * size], size), 0) << what << "[" << i << "]: cpu " << a << ", device " << b << ", rule "
                                                                    << static_cast<int>(c.rule) << ", stochastic " << c.stochastic;
  }
}

void compare(const Case& c, StepFunction device_step) {
  const auto list = segments();
  const int64_t n = list.back().offset + list.back().count + 11;
  Buffer param(values(c.param, n, 1, false)), grad(values(c.grad, n, 2, false)), m(values(c.state, n, 3, false)),
      v(values(c.state, n, 4, true));
  Buffer copy(std::vector<uint8_t>(static_cast<size_t>(n) * 2)), factor(values(DType::f32, 1, 5, true));

  OptimizerStep p;
  p.rule = c.rule, p.step = 3, p.segments = list, p.stochastic_rounding = c.stochastic, p.zero_grad = true;
  p.param_dtype = c.param, p.state_dtype = c.state, p.grad_dtype = c.grad;
  OptimizerStep d = p;
  p.param = param.host.data(), p.grad = grad.host.data(), p.m = m.host.data(), p.v = v.host.data();
  p.compute_copy = reinterpret_cast<bf16*>(copy.host.data()), p.grad_factor = reinterpret_cast<const float*>(factor.host.data());
  d.param = param.device, d.grad = grad.device, d.m = m.device, d.v = v.device;
  d.compute_copy = static_cast<bf16*>(copy.device), d.grad_factor = static_cast<const float*>(factor.device);

  optimizer_step(p);
  const char* problem = device_step(&d, nullptr);
  ASSERT_EQ(problem, nullptr) << problem;
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  expect_equal(c, "param", c.param, param.host, param.fetch());
  expect_equal(c, "m", c.state, m.host, m.fetch());
  expect_equal(c, "v", c.state, v.host, v.fetch());
  expect_equal(c, "grad", c.grad, grad.host, grad.fetch());
  expect_equal(c, "copy", DType::bf16, copy.host, copy.fetch());
}

TEST(OptimizerCuda, EqualsTheCpuBitForBit) {
  const CudaModule module;
  if (!module.reason().empty()) GTEST_SKIP() << module.reason();
  const auto step = module.function<StepFunction>("halftone_cuda_optimizer_step");
  ASSERT_NE(step, nullptr);
  for (const OptimizerRule rule : {OptimizerRule::adamw, OptimizerRule::adam, OptimizerRule::sgd}) {
    for (const DType param : {DType::f32, DType::bf16}) {
      for (const DType state : {DType::f32, DType::bf16}) {
        for (const DType grad : {DType::f32, DType::bf16}) compare({rule, param, state, grad, param == DType::bf16}, step);
      }
    }
  }
  compare({OptimizerRule::adamw, DType::bf16, DType::f32, DType::f32, false}, step);
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
}  // namespace halftone
