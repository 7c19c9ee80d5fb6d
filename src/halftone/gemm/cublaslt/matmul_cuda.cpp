// Host code of the CUDA module (cmake/cuda.cmake compiles every *_cuda.cpp).
#include "halftone/gemm/cublaslt/matmul.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <numeric>
#include <shared_mutex>
#include <string_view>
#include <unordered_map>

#include "halftone/gemm/cuda/choices.h"
#include "halftone/gemm/cuda/timing.h"

namespace halftone::gemm::lt {
namespace {

template <class T>
void set(cublasLtMatmulDescOpaque_t& desc, cublasLtMatmulDescAttributes_t what, const T& value) {
  cublasLtMatmulDescSetAttribute(&desc, what, &value, sizeof(value));
}

bool is_int8(const Problem& p) { return p.a_type == CUDA_R_8I; }

struct Preference {
  explicit Preference(const Problem& p) {
    cublasLtMatmulPreferenceInit(&opaque);
    const auto put = [&](cublasLtMatmulPreferenceAttributes_t what, auto value) {
      cublasLtMatmulPreferenceSetAttribute(&opaque, what, &value, sizeof(value));
    };
    put(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, p.workspace);
    // Split-K partial sums are reduced in fp32, never in D's type.
    put(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
    put(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, uint32_t{1} << p.align_b);
    put(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, uint32_t{1} << p.align_a);
    put(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, uint32_t{1} << p.align_d);
    put(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, uint32_t{1} << p.align_d);
  }
  cublasLtMatmulPreferenceOpaque_t opaque;
};

struct Hash {
  size_t operator()(const Problem& p) const { return std::hash<std::string_view>{}({reinterpret_cast<const char*>(&p), sizeof(Problem)}); }
};
static_assert(std::has_unique_object_representations_v<Problem>, "the hash reads the bytes");

using Algorithms = std::unordered_map<Problem, cublasLtMatmulAlgo_t, Hash>;
// Measured choices are kept apart from the heuristic's: a caller that asks for the heuristic gets it, whatever was measured.
struct Cache {
  std::shared_mutex mutex;
  Algorithms measured, heuristic;
};
Cache& cache() {
  static Cache it;
  return it;
}

using Algos = std::vector<cublasLtMatmulAlgo_t>;
// The `count` fastest, fastest first; ties go to the one cuBLASLt prefers.
Algos fastest_few(const Algos& algos, const std::vector<float>& ms, size_t count) {
  std::vector<size_t> order(algos.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t i, size_t j) { return ms[i] < ms[j]; });
  Algos out;
  for (size_t i = 0; i < std::min(count, order.size()); ++i) out.push_back(algos[order[i]]);
  return out;
}

// Interleaves a and b, without duplicates.
Algos interleaved(const Algos& a, const Algos& b) {
  Algos out;
  const auto add = [&](const cublasLtMatmulAlgo_t& algo) {
    const auto same = [&](const cublasLtMatmulAlgo_t& other) { return std::memcmp(&other, &algo, sizeof algo) == 0; };
    if (std::none_of(out.begin(), out.end(), same)) out.push_back(algo);
  };
  for (size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
    for (const Algos* from : {&a, &b}) {
      if (i < from->size()) add((*from)[i]);
    }
  }
  return out;
}

// x.d: scratch memory, overwritten.
cublasLtMatmulAlgo_t fastest_of(Call& call, const Pointers& x, const Algos& heuristic, cudaStream_t stream) {
  Algos algos = interleaved(heuristic, call.siblings());
  const auto time = [&](int rounds, int repeats) {
    const auto run = [&](size_t i) { return call.run(x, algos[i], stream) == CUBLAS_STATUS_SUCCESS; };
    return time_in_turns(algos.size(), run, rounds, stream, repeats);
  };
  constexpr int kRounds = 7, kRepeats = 10, kFinalRounds = 11, kFinalRepeats = 24;
  constexpr size_t kFinalists = 4;
  constexpr float kBrief = 0.02f;  // milliseconds
  std::vector<float> ms = time(kRounds, kRepeats);
  // Among many GEMMs of a few microseconds noise would decide: try variants of the best two, then a final round.
  const bool brief = ms[fastest(ms)] < kBrief;
  const Algos first = brief ? fastest_few(algos, ms, 2) : Algos{algos[fastest(ms)]};
  algos = first;
  for (const cublasLtMatmulAlgo_t& algo : first) {
    const auto variants = call.variants(algo);
    algos.insert(algos.end(), variants.begin(), variants.end());
  }
  if (algos.size() == 1) return algos[0];
  ms = time(kRounds, kRepeats);
  if (!brief) return algos[fastest(ms)];
  algos = fastest_few(algos, ms, kFinalists);
  return algos[fastest(time(kFinalRounds, kFinalRepeats))];
}

}  // namespace

cublasLtHandle_t handle(int device) {
  static std::mutex mutex;
  static std::array<cublasLtHandle_t, 64> handles{};
  if (device < 0 || device >= static_cast<int>(handles.size())) return nullptr;
  const std::lock_guard lock(mutex);
  auto& it = handles[static_cast<size_t>(device)];
  if (it == nullptr && cublasLtCreate(&it) != CUBLAS_STATUS_SUCCESS) it = nullptr;
  return it;
}

Call::Call(const Problem& p) : p_(p) {
  cublasLtMatmulDescInit(&desc_, compute_type(p), scale_type(p));
  set(desc_, CUBLASLT_MATMUL_DESC_TRANSA, p.b_transposed ? CUBLAS_OP_N : CUBLAS_OP_T);
  set(desc_, CUBLASLT_MATMUL_DESC_TRANSB, p.a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (p.fast) set(desc_, CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t{1});
  // The heuristic finds nothing for a scale mode without an address; any address will do.
  static const void* const kSomewhere = reinterpret_cast<const void*>(uintptr_t{1} << 30);
  if (p.b_scale >= 0) {
    set(desc_, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, p.b_scale);
    set(desc_, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, kSomewhere);
  }
  if (p.a_scale >= 0) {
    set(desc_, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, p.a_scale);
    set(desc_, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, kSomewhere);
  }
  if (p.bias_type >= 0) {
    set(desc_, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set(desc_, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, p.bias_type);
    set(desc_, CUBLASLT_MATMUL_DESC_BIAS_POINTER, kSomewhere);
  }
  if (p.pointer_mode != CUBLASLT_POINTER_MODE_HOST) set(desc_, CUBLASLT_MATMUL_DESC_POINTER_MODE, p.pointer_mode);
  const auto m = static_cast<uint64_t>(p.m), n = static_cast<uint64_t>(p.n), k = static_cast<uint64_t>(p.k);
  const auto type = [](int32_t t) { return static_cast<cudaDataType>(t); };
  cublasLtMatrixLayoutInit(&a_, type(p.b_type), p.b_transposed ? n : k, p.b_transposed ? k : n, p.ldb);
  cublasLtMatrixLayoutInit(&b_, type(p.a_type), p.a_transposed ? m : k, p.a_transposed ? k : m, p.lda);
  cublasLtMatrixLayoutInit(&d_, type(p.d_type), n, m, p.ldd);
}

std::vector<cublasLtMatmulAlgo_t> Call::heuristic(int count) const {
  const cublasLtHandle_t library = handle(p_.device);
  if (library == nullptr) return {};
  Preference preference(p_);
  std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<size_t>(count));
  int returned = 0;
  auto* self = const_cast<Call*>(this);  // the API takes non-const handles but does not modify the descriptors
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(library, &self->desc_, &self->a_, &self->b_, &self->d_, &self->d_,
                                                               &preference.opaque, count, found.data(), &returned);
  std::vector<cublasLtMatmulAlgo_t> algos;
  if (status != CUBLAS_STATUS_SUCCESS) return algos;
  for (int i = 0; i < returned; ++i) {
    if (found[static_cast<size_t>(i)].state == CUBLAS_STATUS_SUCCESS) algos.push_back(found[static_cast<size_t>(i)].algo);
  }
  return algos;
}

bool Call::takes(const cublasLtMatmulAlgo_t& algo) const {
  auto* self = const_cast<Call*>(this);
  cublasLtMatmulHeuristicResult_t result;
  return cublasLtMatmulAlgoCheck(handle(p_.device), &self->desc_, &self->a_, &self->b_, &self->d_, &self->d_, &algo, &result) ==
             CUBLAS_STATUS_SUCCESS &&
         result.workspaceSize <= p_.workspace;
}

std::vector<cublasLtMatmulAlgo_t> Call::siblings() const {
  constexpr int32_t kScalar = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F, kVector = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
  if (p_.a_scale < 0 || p_.b_scale < 0) return {};
  Problem other = p_;
  other.a_scale = other.b_scale = p_.a_scale == kScalar && p_.b_scale == kScalar ? kVector : kScalar;
  std::vector<cublasLtMatmulAlgo_t> out;
  for (const cublasLtMatmulAlgo_t& algo : Call(other).heuristic(kMeasured)) {
    if (takes(algo)) out.push_back(algo);
  }
  return out;
}

std::vector<cublasLtMatmulAlgo_t> Call::variants(const cublasLtMatmulAlgo_t& algo) const {
  // For block-scaled GEMMs the heuristic returns one algorithm for all sizes. Short GEMMs, whose trials are cheap, also try the algorithm's
  // custom options: at 1024^3 one of them is 9% faster.
  constexpr int64_t kShort = int64_t{1} << 33;
  constexpr int32_t kMostOptions = 8;
  int32_t options = 0;
  if (p_.a_scale > CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F && p_.m * p_.n * p_.k <= kShort) {
    cublasLtMatmulAlgoCapGetAttribute(&algo, CUBLASLT_ALGO_CAP_CUSTOM_OPTION_MAX, &options, sizeof(options), nullptr);
    options = std::clamp(options, 0, kMostOptions);
  }
  std::vector<cublasLtMatmulAlgo_t> out;
  for (const uint32_t swizzle : {0u, 1u}) {  // clusters first: long GEMMs try only the first variants
    for (const uint16_t cluster : {CUBLASLT_CLUSTER_SHAPE_1x1x1, CUBLASLT_CLUSTER_SHAPE_2x1x1, CUBLASLT_CLUSTER_SHAPE_1x2x1,
                                   CUBLASLT_CLUSTER_SHAPE_2x2x1, CUBLASLT_CLUSTER_SHAPE_4x1x1, CUBLASLT_CLUSTER_SHAPE_1x4x1}) {
      for (int32_t option = 0; option <= options; ++option) {
        cublasLtMatmulAlgo_t other = algo;
        cublasLtMatmulAlgoConfigSetAttribute(&other, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, &cluster, sizeof(cluster));
        cublasLtMatmulAlgoConfigSetAttribute(&other, CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, &swizzle, sizeof(swizzle));
        if (options > 0) cublasLtMatmulAlgoConfigSetAttribute(&other, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, &option, sizeof(option));
        if (std::memcmp(&other, &algo, sizeof(algo)) != 0 && takes(other)) out.push_back(other);
      }
    }
  }
  return out;
}

cublasStatus_t Call::run(const Pointers& x, const cublasLtMatmulAlgo_t& algo, cudaStream_t stream) {
  if (p_.b_scale >= 0) set(desc_, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, x.b_scale);
  if (p_.a_scale >= 0) set(desc_, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, x.a_scale);
  if (p_.bias_type >= 0) set(desc_, CUBLASLT_MATMUL_DESC_BIAS_POINTER, x.bias);
  const float beta = p_.accumulate ? 1.0f : 0.0f;
  const int32_t one = 1, zero_or_one = p_.accumulate ? 1 : 0;
  const bool device = p_.pointer_mode == CUBLASLT_POINTER_MODE_DEVICE;
  const void* alpha_at = device ? x.alpha_beta : is_int8(p_) ? static_cast<const void*>(&one) : &x.alpha;
  const void* beta_at = device ? x.alpha_beta + 1 : is_int8(p_) ? static_cast<const void*>(&zero_or_one) : &beta;
  return cublasLtMatmul(handle(p_.device), &desc_, alpha_at, x.b, &a_, x.a, &b_, beta_at, x.d, &d_, x.d, &d_, &algo, x.workspace,
                        p_.workspace, stream);
}

namespace {

// Algorithm that matmul() uses for this problem; false if there is none.
bool choose(const Problem& p, const Pointers& x, Choice choice, cudaStream_t stream, cublasLtMatmulAlgo_t& algo) {
  Cache& c = cache();
  bool measure = choice == Choice::measured;
  const auto known = [&](const Algorithms& from) {
    const std::shared_lock lock(c.mutex);
    const auto it = from.find(p);
    if (it == from.end()) return false;
    algo = it->second;
    return true;
  };
  if (known(measure ? c.measured : c.heuristic)) return true;
  Call call(p);
  Problem anywhere = p;  // valid for all devices of this model
  anywhere.device = 0;
  if (measure && recall(ProductChoice::library, anywhere, algo) && call.takes(algo)) {
    const std::unique_lock lock(c.mutex);
    c.measured.insert_or_assign(p, algo);
    return true;
  }
  if (measure && is_capturing(stream)) {
    measure = false;
    if (known(c.heuristic)) return true;
  }
  const auto algos = call.heuristic(measure ? kMeasured : 1);
  if (algos.empty()) return false;
  algo = algos[0];
  if (measure) {
    const Scratch scratch(p.m * p.ldd * (p.d_type == CUDA_R_16BF ? 2 : 4), stream);
    if (!scratch.get()) return true;  // out of memory: the next call measures
    Pointers to_scratch = x;
    to_scratch.d = scratch.get();
    algo = fastest_of(call, to_scratch, algos, stream);
    note_choice(choice_of(ProductChoice::library, anywhere, algo));
  }
  const std::unique_lock lock(c.mutex);
  (measure ? c.measured : c.heuristic).insert_or_assign(p, algo);
  return true;
}

}  // namespace

const char* matmul(const Problem& p, const Pointers& x, Choice choice, cudaStream_t stream) {
  cublasLtMatmulAlgo_t algo;
  if (!choose(p, x, choice, stream, algo)) return "product: cuBLASLt has no algorithm for these types, scales, shape and alignment";
  const cublasStatus_t status = Call(p).run(x, algo, stream);
  return status == CUBLAS_STATUS_SUCCESS ? nullptr : cublasLtGetStatusString(status);
}

}  // namespace halftone::gemm::lt
