// What only benchmarks need: every algorithm of cuBLASLt for a problem, and the fastest of them.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <limits>

#include "halftone/gemm/cublaslt/matmul.h"
#include "halftone/gemm/cuda/timing.h"

namespace halftone::gemm::lt {
namespace {

template <class T>
std::vector<T> capability(const cublasLtMatmulAlgo_t& algo, cublasLtMatmulAlgoCapAttributes_t what) {
  size_t bytes = 0;
  cublasLtMatmulAlgoCapGetAttribute(&algo, what, nullptr, 0, &bytes);
  std::vector<T> values(bytes / sizeof(T));
  if (!values.empty()) cublasLtMatmulAlgoCapGetAttribute(&algo, what, values.data(), bytes, &bytes);
  return values;
}
template <class T>
void configure(cublasLtMatmulAlgo_t& algo, cublasLtMatmulAlgoConfigAttributes_t what, T value) {
  cublasLtMatmulAlgoConfigSetAttribute(&algo, what, &value, sizeof(value));
}

}  // namespace

std::vector<cublasLtMatmulAlgo_t> Call::all() const {
  std::vector<cublasLtMatmulAlgo_t> out = heuristic(512);
  const cublasLtHandle_t library = handle(p_.device);
  if (library == nullptr) return out;
  const auto type = [](int32_t t) { return static_cast<cudaDataType>(t); };
  std::vector<int> ids(256);
  int count = 0;
  cublasLtMatmulAlgoGetIds(library, compute_type(p_), scale_type(p_), type(p_.b_type), type(p_.a_type), type(p_.d_type), type(p_.d_type),
                           static_cast<int>(ids.size()), ids.data(), &count);
  for (int i = 0; i < count; ++i) {
    cublasLtMatmulAlgo_t base;
    if (cublasLtMatmulAlgoInit(library, compute_type(p_), scale_type(p_), type(p_.b_type), type(p_.a_type), type(p_.d_type),
                               type(p_.d_type), ids[static_cast<size_t>(i)], &base) != CUBLAS_STATUS_SUCCESS) {
      continue;
    }
    auto tiles = capability<uint32_t>(base, CUBLASLT_ALGO_CAP_TILE_IDS);
    auto stages = capability<uint32_t>(base, CUBLASLT_ALGO_CAP_STAGES_IDS);
    if (tiles.empty()) tiles = {CUBLASLT_MATMUL_TILE_UNDEFINED};
    if (stages.empty()) stages = {CUBLASLT_MATMUL_STAGES_UNDEFINED};
    const auto swizzling = capability<int32_t>(base, CUBLASLT_ALGO_CAP_CTA_SWIZZLING_SUPPORT);
    const auto custom = capability<int32_t>(base, CUBLASLT_ALGO_CAP_CUSTOM_OPTION_MAX);
    for (const uint32_t tile : tiles) {
      for (const uint32_t stage : stages) {
        for (uint32_t swizzle = 0; swizzle <= (swizzling.empty() ? 0u : static_cast<uint32_t>(swizzling[0] != 0)); ++swizzle) {
          for (int32_t option = 0; option <= (custom.empty() ? 0 : std::min(custom[0], 32)); ++option) {
            for (const uint16_t cluster : {CUBLASLT_CLUSTER_SHAPE_AUTO, CUBLASLT_CLUSTER_SHAPE_1x1x1, CUBLASLT_CLUSTER_SHAPE_2x1x1,
                                           CUBLASLT_CLUSTER_SHAPE_1x2x1, CUBLASLT_CLUSTER_SHAPE_2x2x1}) {
              cublasLtMatmulAlgo_t algo = base;
              configure(algo, CUBLASLT_ALGO_CONFIG_TILE_ID, tile);
              configure(algo, CUBLASLT_ALGO_CONFIG_STAGES_ID, stage);
              configure(algo, CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, swizzle);
              configure(algo, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, static_cast<uint32_t>(option));
              configure(algo, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, cluster);
              if (takes(algo)) out.push_back(algo);
            }
          }
        }
      }
    }
  }
  return out;
}

void describe(const cublasLtMatmulAlgo_t& algo, char* text, size_t size) {
  const auto get = [&](cublasLtMatmulAlgoConfigAttributes_t what, auto value) {
    size_t written = 0;
    cublasLtMatmulAlgoConfigGetAttribute(&algo, what, &value, sizeof(value), &written);
    return static_cast<int>(value);
  };
  std::snprintf(text, size, "%d tile %d stages %d cluster %d swizzle %d option %d", get(CUBLASLT_ALGO_CONFIG_ID, int32_t{}),
                get(CUBLASLT_ALGO_CONFIG_TILE_ID, uint32_t{}), get(CUBLASLT_ALGO_CONFIG_STAGES_ID, uint32_t{}),
                get(CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, uint16_t{}), get(CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, uint32_t{}),
                get(CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, uint32_t{}));
}

Search search(const Problem& p, const Pointers& x, double seconds, cudaStream_t stream) {
  constexpr size_t kFinalists = 16;
  Call call(p);
  const auto algos = call.all();
  Search out;
  out.found = static_cast<int>(algos.size());
  std::vector<std::pair<float, size_t>> once;
  const auto begin = std::chrono::steady_clock::now();
  for (size_t i = 0; i < algos.size(); ++i) {
    if (std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() > seconds) break;
    const auto run = [&] { return call.run(x, algos[i], stream) == CUBLAS_STATUS_SUCCESS; };
    const float ms = run() ? time_once(run, stream) : -1;  // the first run may load the kernel
    ++out.timed;
    if (ms > 0) once.emplace_back(ms, i);
  }
  if (once.empty()) return out;
  std::sort(once.begin(), once.end());
  const auto in_turns = [&](const std::vector<cublasLtMatmulAlgo_t>& list, int rounds) {
    return time_in_turns(
        list.size(), [&](size_t i) { return call.run(x, list[i], stream) == CUBLAS_STATUS_SUCCESS; }, rounds, stream);
  };
  std::vector<cublasLtMatmulAlgo_t> finalists;
  for (const auto& [ms, i] : once) {
    if (finalists.size() < kFinalists) finalists.push_back(algos[i]);
  }
  const auto finals = in_turns(finalists, 11);
  out.best = finalists[static_cast<size_t>(std::min_element(finals.begin(), finals.end()) - finals.begin())];
  out.first = algos[0];
  choose(p, x, Choice::measured, stream, out.chosen);
  const auto ms = in_turns({out.best, out.first, out.chosen}, 41);
  out.best_ms = ms[0], out.first_ms = ms[1], out.chosen_ms = ms[2];
  return out;
}

}  // namespace halftone::gemm::lt
