#include "halftone/fused/stored_weight.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "halftone/gemm/decode.h"

namespace halftone {
namespace {

constexpr int64_t kRows = 32, kColumns = 256;
constexpr int kGroup = 32;

struct Stored {
  explicit Stored(Element e) : element(e) {}
  Element element;
  std::vector<uint8_t> codes = std::vector<uint8_t>(kRows * kColumns);
  std::vector<float> scales = std::vector<float>(kRows * kColumns), zeros = scales;

  void store(const std::vector<float>& w, uint32_t step) {
    StoreWeight p;
    p.w = w.data(), p.n = kRows, p.k = kColumns, p.element = element, p.group = kGroup;
    p.rounding.stochastic = true, p.rounding.key = philox_key(1, "w#param"), p.rounding.step = step;
    p.codes = codes.data(), p.scales = scales.data(), p.zeros = zeros.data();
    store_weight(p);
  }
  std::vector<float> load() {
    std::vector<float> w(kRows * kColumns);
    for (int64_t i = 0; i < kRows * kColumns; ++i) {
      const bool pairs = element == Element::uint4;
      const uint8_t byte = codes[static_cast<size_t>(pairs ? i / 2 : i)];
      const auto at = static_cast<size_t>(pairs ? i / kGroup : i / kColumns);
      const float code = gemm::code_value(element, pairs ? static_cast<uint8_t>(byte >> (i % 2 * 4) & 0xF) : byte);
      w[static_cast<size_t>(i)] = (pairs ? zeros[at] : 0.0f) + code * scales[at];
    }
    return w;
  }
};

double rms(const std::vector<float>& a, const std::vector<float>* b = nullptr) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += std::pow(a[i] - (b == nullptr ? 0.0f : (*b)[i]), 2);
  return std::sqrt(sum / static_cast<double>(a.size()));
}

// Repeated stores with updates far below a quantum, as at the end of a schedule, leave the weight unchanged.
TEST(StoredWeight, SmallUpdatesLeaveTheWeightAlone) {
  for (const Element e : {Element::int8, Element::uint4}) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<float> w(kRows * kColumns);
    for (float& x : w) x = 0.02f * normal(random);
    Stored stored(e);
    stored.store(w, 0);
    const std::vector<float> first = stored.load();
    for (uint32_t step = 1; step <= 300; ++step) {
      w = stored.load();
      for (float& x : w) x += 1e-7f * normal(random);
      stored.store(w, step);
    }
    w = stored.load();
    EXPECT_LT(rms(w, &first), 0.05 * rms(first)) << (e == Element::int8 ? "int8" : "uint4");
  }
}

// The mean of many draws is the weight: storing is unbiased.
TEST(StoredWeight, MeanOfDrawsIsTheWeight) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  std::vector<float> w(kRows * kColumns);
  for (float& x : w) x = 0.02f * normal(random);
  for (const Element e : {Element::int8, Element::uint4}) {
    Stored stored(e);
    std::vector<double> sum(w.size());
    constexpr uint32_t kDraws = 400;
    for (uint32_t step = 0; step < kDraws; ++step) {
      stored.store(w, step);
      const std::vector<float> drawn = stored.load();
      for (size_t i = 0; i < w.size(); ++i) sum[i] += drawn[i];
    }
    double difference = 0, quantum = 0;
    for (size_t i = 0; i < w.size(); ++i) difference += std::pow(sum[i] / kDraws - w[i], 2);
    for (size_t i = 0; i < w.size(); ++i) quantum += std::pow(stored.scales[e == Element::int8 ? i / kColumns : i / kGroup], 2);
    // One draw has a variance of a sixth of a quantum squared on average.
    EXPECT_NEAR(std::sqrt(difference / quantum), std::sqrt(1.0 / 6 / kDraws), 0.1 * std::sqrt(1.0 / 6 / kDraws));
  }
}

}  // namespace
}  // namespace halftone
