#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <vector>

#include "cuda/module.h"
#include "fused/random_value_cases.h"

namespace halftone {
namespace {

using FillFunction = const char* (*)(const RandomFill*, void*);

// The output of a fill in host memory, surrounded by a byte pattern that must not change.
std::vector<uint8_t> filled(const RandomFill& what, FillFunction on_device) {
  constexpr size_t kMargin = 64;
  const size_t bytes = static_cast<size_t>(what.count) * size_of(what.dtype);
  std::vector<uint8_t> out(bytes + 2 * kMargin, 0xA5);
  RandomFill p = what;
  if (on_device == nullptr) {
    p.out = out.data() + kMargin;
    random_fill(p);
    return out;
  }
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, out.size()), cudaSuccess);
  EXPECT_EQ(cudaMemcpy(memory, out.data(), out.size(), cudaMemcpyHostToDevice), cudaSuccess);
  p.out = static_cast<uint8_t*>(memory) + kMargin;
  const char* problem = on_device(&p, nullptr);
  EXPECT_EQ(problem, nullptr) << problem;
  EXPECT_EQ(cudaMemcpy(out.data(), memory, out.size(), cudaMemcpyDeviceToHost), cudaSuccess);
  cudaFree(memory);
  return out;
}

TEST(RandomFillCuda, HasTheBitsOfTheHost) {
  const CudaModule module;
  if (!module.reason().empty()) GTEST_SKIP() << module.reason();
  const auto on_device = module.function<FillFunction>("halftone_cuda_random_fill");
  ASSERT_NE(on_device, nullptr);
  struct Range {
    uint64_t first;
    int64_t count;
    uint32_t draw;
  };
  const Range ranges[] = {{0, 3'000'000, 0}, {0, 1, 0}, {3, 2, 1}, {6, 4099, 7}, {0x3FFFFFFFE, 70'001, 2}, {9, 0, 0}};
  for (const DType type : {DType::f32, DType::bf16}) {
    for (const Range& r : ranges) {
      for (size_t i = 0; i < random_value_cases().size(); ++i) {
        RandomFill p{.key = philox_key(11, "layers.0#init"), .first_index = r.first, .draw = r.draw, .count = r.count, .dtype = type};
        p.values = random_value_cases()[i];
        EXPECT_TRUE(filled(p, on_device) == filled(p, nullptr))
            << "case " << i << ", " << r.count << " elements from " << r.first << ", type " << static_cast<int>(type);
      }
    }
  }
}

}  // namespace
}  // namespace halftone
