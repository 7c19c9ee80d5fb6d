#include "halftone/train/flops.h"

#include <algorithm>
#include <cctype>
#include <string>

namespace halftone {

double flops_per_token(const nn::ModelSize& m, int64_t seq_len) {
  const double counted = static_cast<double>(m.active_parameters) - (m.tied ? 0 : static_cast<double>(m.embedding_parameters));
  const int64_t seen = (m.layers - m.windowed_layers) * seq_len + m.windowed_layers * std::min(m.window, seq_len);  // summed over layers
  return 6 * counted + 6 * static_cast<double>(m.heads * (m.qk_dim + m.v_dim)) * static_cast<double>(seen);
}

double tflops(double flops_per_token, double tokens_per_second) { return flops_per_token * tokens_per_second / 1e12; }

double mfu_percent(double flops_per_token, double tokens_per_second, double peak_flops) {
  return 100 * flops_per_token * tokens_per_second / peak_flops;
}

PeakFlops peak_flops(std::string_view device_name) {
  // The first match wins: H200 before H20, GB200 before B200, the special H100 boards before the others.
  struct Entry {
    std::string_view part;
    double bf16;
  };
  static constexpr Entry kPeaks[] = {{"A100", 312e12},    {"A6000", 154.85e12}, {"H100 NVL", 835e12}, {"H100 PCIe", 756e12},
                                     {"H100", 989e12},    {"H200", 989e12},     {"H20", 148e12},      {"GB200", 2.5e15},
                                     {"GB300", 2.5e15},   {"B200", 2.25e15},    {"B300", 2.25e15},    {"MI355X", 2500e12},
                                     {"MI300X", 1300e12}, {"MI325X", 1300e12},  {"MI250X", 191.5e12}};
  for (const auto& [part, bf16] : kPeaks) {
    if (device_name.find(part) != std::string_view::npos) return {bf16, true};
  }
  std::string lower(device_name);
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  if (lower.find("l40s") != std::string::npos) return {362e12, true};
  return {};
}

}  // namespace halftone
