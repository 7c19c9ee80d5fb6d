// Products on a CUDA device from operands as the quantisers write them (gemm/product.h), on random data: TFLOP/s per kind and shape, and
// the ratio to the bf16 product and to the best fp8 algorithm of cuBLASLt in the same run. One table row and one JSON line
// each; kinds run in turns, so that a device that throttles slows all of them alike.
//
//   bench_gemm_cuda [--search SECONDS] [--rounds N] [--json FILE] [MxNxK ...]
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "halftone/base/parallel.h"
#include "halftone/base/philox.h"
#include "halftone/formats/float_code.h"
#include "halftone/gemm/product_cuda.h"

namespace halftone::gemm {
namespace {

void need(cudaError_t status) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "gemm_cuda: %s\n", cudaGetErrorString(status));
  std::exit(2);
}

// What the numbers of an operand look like: normal values quantised as the scheme does it.
enum class Data { bf16, e4m3, e5m2, int8, mxfp4_e4m3, mxfp4_e5m2, mxfp8, nvfp4 };
size_t bytes_of(Data d) { return d == Data::bf16 || d == Data::mxfp8 || d == Data::nvfp4 ? 2 : 1; }

void fill_block(Data d, const float* x, int64_t i, void* out) {  // 32 elements from element i on
  auto* bytes = static_cast<uint8_t*>(out);
  auto* halves = static_cast<bf16*>(out);
  const auto exponent = [](float amax, int p2) { return amax > 0 ? std::ilogb(amax * 8 / 7) - p2 : 0; };
  for (int part = 0; part < 2; ++part) {
    float amax = 0;
    const bool sixteen = d == Data::nvfp4;
    for (int j = sixteen ? part * 16 : 0; j < (sixteen ? part * 16 + 16 : 32); ++j) amax = std::max(amax, std::fabs(x[j]));
    for (int j = part * 16; j < part * 16 + 16; ++j) {
      const int e = exponent(amax, 2);
      switch (d) {
        case Data::bf16:
          halves[i + j] = bf16(x[j]);
          break;
        case Data::e4m3:
          bytes[i + j] = encode(Float::e4m3, x[j] * 100);
          break;
        case Data::e5m2:
          bytes[i + j] = encode(Float::e5m2, x[j] * 12000);
          break;
        case Data::int8:
          bytes[i + j] = static_cast<uint8_t>(static_cast<int8_t>(std::lrint(std::clamp(x[j] * 28.0f, -127.0f, 127.0f))));
          break;
        case Data::mxfp4_e4m3:  // the largest block of a row of normal values has exponent 1 at most
          bytes[i + j] = encode(Float::e4m3, std::ldexp(decode(Float::e2m1, encode(Float::e2m1, std::ldexp(x[j], -e))), e - 1 + 6));
          break;
        case Data::mxfp4_e5m2:
          bytes[i + j] = encode(Float::e5m2, std::ldexp(decode(Float::e2m1, encode(Float::e2m1, std::ldexp(x[j], -e))), e - 1 + 13));
          break;
        case Data::mxfp8: {
          const int f = exponent(amax, 8);
          halves[i + j] = bf16(std::ldexp(decode(Float::e4m3, encode(Float::e4m3, std::ldexp(x[j], -f))), f));
          break;
        }
        case Data::nvfp4: {
          const float s = decode(Float::e4m3, encode(Float::e4m3, amax / 6 * 400));
          halves[i + j] = bf16(s * decode(Float::e2m1, encode(Float::e2m1, x[j] * 400 / std::max(s, 0.01f))));
          break;
        }
      }
    }
  }
}

constexpr int64_t kPattern = int64_t{1} << 22;  // elements; repeated with a shift that keeps rows different
class Operands {
 public:
  explicit Operands(int64_t most) : most_(most) {}
  const void* get(Data d, int which) {
    void*& at = memory_[{d, which}];
    if (at) return at;
    const size_t size = bytes_of(d);
    std::vector<uint8_t> host(static_cast<size_t>(kPattern) * size);
    const PhiloxKey key = philox_key(7, which == 0 ? "a" : "b");
    parallel_for(kPattern / 32, 256, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) {
        float x[32];
        for (int j = 0; j < 32; ++j) {
          const auto u = philox(key, static_cast<uint64_t>(b * 32 + j));
          x[j] = std::sqrt(-2 * std::log(unit_float(u[0]) + 0x1p-25f)) * std::cos(6.2831853f * unit_float(u[1]));
        }
        fill_block(d, x, b * 32, host.data());
      }
    });
    need(cudaMalloc(&at, static_cast<size_t>(most_) * size));
    constexpr int64_t kShift = 97 * 32;
    auto* bytes = static_cast<uint8_t*>(at);
    for (int64_t done = 0, turn = 0; done < most_; ++turn) {
      const int64_t from = done == 0 ? 0 : turn * kShift % (kPattern / 2), count = std::min(kPattern - from, most_ - done);
      need(cudaMemcpy(bytes + static_cast<size_t>(done) * size, host.data() + static_cast<size_t>(from) * size,
                      static_cast<size_t>(count) * size, cudaMemcpyHostToDevice));
      done += count;
    }
    return at;
  }

 private:
  int64_t most_;
  std::map<std::pair<Data, int>, void*> memory_;
};

struct Kind {
  const char* name;
  Data a, b;
  Numbers a_numbers, b_numbers;
  Scales a_scales, b_scales;
  DType out = DType::bf16;
  bool accumulate = false, fast = false, outer = false;
  bool measure = true;
  bool search = false;  // one of the fp8 products whose cuBLASLt algorithms are all timed
};
constexpr auto none = Scales::none, tensor = Scales::tensor, row = Scales::row, block = Scales::block128, tile = Scales::tile128;
constexpr auto BF = Numbers::bf16, E4 = Numbers::e4m3, E5 = Numbers::e5m2, I8 = Numbers::s8;
constexpr auto f32 = DType::f32, b16 = DType::bf16;
constexpr Kind kKinds[] = {
    {"bf16", Data::bf16, Data::bf16, BF, BF, none, none},
    {"bf16 -> f32 +=", Data::bf16, Data::bf16, BF, BF, none, none, f32, true},
    {"fp8 tensor, fast", Data::e4m3, Data::e4m3, E4, E4, tensor, tensor, b16, false, true, false, true, true},
    {"fp8 tensor", Data::e4m3, Data::e4m3, E4, E4, tensor, tensor, b16, false, false, false, true, true},
    {"fp8 tensor e5m2 x e4m3", Data::e5m2, Data::e4m3, E5, E4, tensor, tensor, b16, false, false, false, true, true},
    {"fp8 tensor e5m2 x e4m3 -> f32 +=", Data::e5m2, Data::e4m3, E5, E4, tensor, tensor, f32, true, false, false, true, true},
    {"fp8 row, fast", Data::e4m3, Data::e4m3, E4, E4, row, row, b16, false, true, false, true, true},
    {"fp8 row", Data::e4m3, Data::e4m3, E4, E4, row, row, b16, false, false, false, true, true},
    {"fp8 row -> f32 +=", Data::e4m3, Data::e4m3, E4, E4, row, row, f32, true, false, false, true, true},
    {"fp8 1x128 x 128x128", Data::e4m3, Data::e4m3, E4, E4, block, tile, b16, false, false, false, true, true},
    {"fp8 1x128 x 1x128 -> f32 +=", Data::e4m3, Data::e4m3, E4, E4, block, block, f32, true, false, false, true, true},
    {"int8", Data::int8, Data::int8, I8, I8, row, row},
    {"int8, by the model of waves", Data::int8, Data::int8, I8, I8, row, row, b16, false, false, false, false},
    {"int8 -> f32 +=", Data::int8, Data::int8, I8, I8, row, row, f32, true},
    {"mxfp4 e4m3 x e4m3, fast", Data::mxfp4_e4m3, Data::mxfp4_e4m3, E4, E4, row, row, b16, false, true},
    {"mxfp4 e4m3 x e4m3", Data::mxfp4_e4m3, Data::mxfp4_e4m3, E4, E4, row, row},
    {"mxfp4 e5m2 x e4m3, fast -> f32 +=", Data::mxfp4_e5m2, Data::mxfp4_e4m3, E5, E4, tensor, row, f32, true, true},
    {"mxfp4 e5m2 x e4m3 -> f32 +=", Data::mxfp4_e5m2, Data::mxfp4_e4m3, E5, E4, tensor, row, f32, true},
    {"mxfp4 e5m2 x e5m2, fast", Data::mxfp4_e5m2, Data::mxfp4_e5m2, E5, E5, tensor, tensor, b16, false, true},
    {"mxfp4 e5m2 x e5m2", Data::mxfp4_e5m2, Data::mxfp4_e5m2, E5, E5, tensor, tensor},
    {"mxfp4 e5m2 x e5m2, fast -> f32 +=", Data::mxfp4_e5m2, Data::mxfp4_e5m2, E5, E5, tensor, tensor, f32, true, true},
    {"mxfp4 e5m2 x e5m2 -> f32 +=", Data::mxfp4_e5m2, Data::mxfp4_e5m2, E5, E5, tensor, tensor, f32, true},
    {"mxfp8 (bf16 values)", Data::mxfp8, Data::mxfp8, BF, BF, none, none},
    {"nvfp4 (bf16 values)", Data::nvfp4, Data::nvfp4, BF, BF, none, none, b16, false, false, true},
    {"bf16 x bf16 row (int8_weight)", Data::bf16, Data::bf16, BF, BF, none, row},
};

struct Options {
  double search = 2;
  int rounds = 21;
  std::string json;
  std::vector<std::array<int64_t, 3>> shapes;
};

struct Module {
  const char* (*run)(const Product*, void*) = nullptr;
  int64_t (*workspace)(const Product*) = nullptr;
  const char* (*search)(const Product*, double, ProductSearch*, void*) = nullptr;
};
Module load() {
  const auto path = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "halftone_cuda.so";
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    std::fprintf(stderr, "gemm_cuda: %s\n", dlerror());
    std::exit(2);
  }
  Module m;
  m.run = reinterpret_cast<decltype(m.run)>(dlsym(handle, "halftone_cuda_product"));
  m.workspace = reinterpret_cast<decltype(m.workspace)>(dlsym(handle, "halftone_cuda_product_workspace"));
  m.search = reinterpret_cast<decltype(m.search)>(dlsym(handle, "halftone_cuda_product_search"));
  return m;
}

class Bench {
 public:
  Bench(const Options& options, int64_t most_operand, int64_t most_out) : options_(options), module_(load()), operands_(most_operand) {
    std::vector<float> factors(size_t{1} << 22);
    for (size_t i = 0; i < factors.size(); ++i) factors[i] = 0.001f * (1 + 0.1f * std::sin(static_cast<float>(i)));
    need(cudaMalloc(reinterpret_cast<void**>(&scales_), factors.size() * 4));
    need(cudaMemcpy(scales_, factors.data(), factors.size() * 4, cudaMemcpyHostToDevice));
    need(cudaMalloc(&out_, static_cast<size_t>(most_out) * 4));
    need(cudaMemset(out_, 0, static_cast<size_t>(most_out) * 4));
    need(cudaMalloc(&workspace_, kWorkspace));
    need(cudaStreamCreate(&stream_));
    need(cudaEventCreate(&begin_));
    need(cudaEventCreate(&end_));
    if (!options.json.empty()) json_ = std::fopen(options.json.c_str(), "w");
  }
  ~Bench() {
    if (json_) std::fclose(json_);
  }

  void shape(int64_t m, int64_t n, int64_t k) {
    const double flop = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
    const int repeats = std::clamp(static_cast<int>(2e11 / flop), 1, 50);  // in one graph, so that launching is not timed
    std::vector<Product> products;
    for (const Kind& kind : kKinds) products.push_back(product(kind, m, n, k));
    std::vector<cudaGraphExec_t> graphs;
    for (size_t i = 0; i < products.size(); ++i) {
      run(products[i], i, nullptr);  // chooses the algorithm
      need(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
      for (int r = 0; r < repeats; ++r) run(products[i], i, stream_);
      cudaGraph_t graph = nullptr;
      need(cudaStreamEndCapture(stream_, &graph));
      need(cudaGraphInstantiate(&graphs.emplace_back(), graph, 0));
      need(cudaGraphDestroy(graph));
    }
    std::vector<std::vector<float>> times(products.size());
    for (int round = -1; round < options_.rounds; ++round) {
      for (size_t i = 0; i < products.size(); ++i) {
        need(cudaEventRecord(begin_, stream_));
        need(cudaGraphLaunch(graphs[i], stream_));
        need(cudaEventRecord(end_, stream_));
        need(cudaEventSynchronize(end_));
        float ms = 0;
        need(cudaEventElapsedTime(&ms, begin_, end_));
        if (round >= 0) times[i].push_back(ms / static_cast<float>(repeats));
      }
    }
    for (const cudaGraphExec_t graph : graphs) need(cudaGraphExecDestroy(graph));
    std::vector<double> rate;
    for (auto& t : times) {
      std::sort(t.begin(), t.end());
      rate.push_back(flop / t[t.size() / 2] / 1e9);
    }
    const double fp8 = rate[kFp8Row];
    std::printf("\n%lld x %lld x %lld                TFLOP/s    / bf16  / fp8 row, fast   chosen / best of cuBLASLt (algorithms timed)\n",
                static_cast<long long>(m), static_cast<long long>(n), static_cast<long long>(k));
    for (size_t i = 0; i < products.size(); ++i) {
      std::printf("%-34s %8.0f  %8.2f  %8.2f", kKinds[i].name, rate[i], rate[i] / rate[0], rate[i] / fp8);
      ProductSearch found;
      if (kKinds[i].search && options_.search > 0 && !module_.search(&products[i], options_.search, &found, nullptr)) {
        std::printf("           %8.3f (%d of %d; heuristic %.3f) chosen %s, best %s", found.best_ms / found.chosen_ms, found.timed,
                    found.found, found.best_ms / found.first_ms, found.chosen, found.best);
      }
      std::printf("\n");
      if (json_) {
        std::fprintf(
            json_,
            "{\"kind\": \"%s\", \"m\": %lld, \"n\": %lld, \"k\": %lld, \"tflops\": %.1f, \"vs_bf16\": %.3f, \"vs_fp8_row_fast\": %.3f",
            kKinds[i].name, static_cast<long long>(m), static_cast<long long>(n), static_cast<long long>(k), rate[i], rate[i] / rate[0],
            rate[i] / fp8);
        if (found.timed > 0) {
          std::fprintf(json_, ", \"vs_best_algorithm\": %.3f, \"algorithms\": %d, \"timed\": %d", found.best_ms / found.chosen_ms,
                       found.found, found.timed);
        }
        std::fprintf(json_, "}\n");
      }
    }
    std::fflush(stdout);
    if (json_) std::fflush(json_);
  }

 private:
  void run(const Product& p, size_t kind, cudaStream_t stream) {
    if (const char* message = module_.run(&p, stream)) {
      std::fprintf(stderr, "gemm_cuda: %s: %s\n", kKinds[kind].name, message);
      std::exit(1);
    }
  }
  static constexpr size_t kWorkspace = size_t{96} << 20;
  static constexpr size_t kFp8Row = 6;

  ProductOperand operand(const Kind& kind, int which) {
    ProductOperand x;
    x.numbers = which == 0 ? kind.a_numbers : kind.b_numbers;
    x.data = operands_.get(which == 0 ? kind.a : kind.b, which);
    x.scales = which == 0 ? kind.a_scales : kind.b_scales;
    x.scale = scales_;
    if (kind.outer) x.outer = scales_;
    return x;
  }
  Product product(const Kind& kind, int64_t m, int64_t n, int64_t k) {
    Product p;
    p.m = m, p.n = n, p.k = k, p.a = operand(kind, 0), p.b = operand(kind, 1);
    p.d = out_, p.d_type = kind.out, p.accumulate = kind.accumulate, p.fast_accumulation = kind.fast, p.measure = kind.measure;
    p.workspace = workspace_, p.workspace_bytes = static_cast<int64_t>(kWorkspace);
    if (module_.workspace(&p) > p.workspace_bytes)
      std::fprintf(stderr, "gemm_cuda: %s runs with less workspace than it wants\n", kind.name);
    return p;
  }

  Options options_;
  Module module_;
  Operands operands_;
  float* scales_ = nullptr;
  void *out_ = nullptr, *workspace_ = nullptr;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  FILE* json_ = nullptr;
};

Options parse(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    long long m, n, k;
    if (word == "--search" && i + 1 < argc) {
      o.search = std::atof(argv[++i]);
    } else if (word == "--rounds" && i + 1 < argc) {
      o.rounds = std::max(1, std::atoi(argv[++i]));
    } else if (word == "--json" && i + 1 < argc) {
      o.json = argv[++i];
    } else if (std::sscanf(word.c_str(), "%lldx%lldx%lld", &m, &n, &k) == 3 && m > 0 && n > 0 && k > 0 && n % 16 == 0 && k % 16 == 0) {
      o.shapes.push_back({m, n, k});
    } else {
      std::fprintf(stderr,
                   "gemm_cuda: expected [--search SECONDS] [--rounds N] [--json FILE] [MxNxK ...], N and K multiples of 16, found '%s'\n",
                   word.c_str());
      std::exit(2);
    }
  }
  if (o.shapes.empty()) {
    o.shapes = {{4096, 4096, 4096},   {8192, 8192, 8192}, {16384, 14336, 4096}, {16384, 4096, 14336},
                {4096, 14336, 16384}, {2048, 2048, 2048}, {1024, 1024, 1024}};
  }
  return o;
}

}  // namespace
}  // namespace halftone::gemm

int main(int argc, char** argv) {
  using namespace halftone::gemm;
  const Options options = parse(argc, argv);
  cudaDeviceProp device{};
  need(cudaGetDeviceProperties(&device, 0));
  std::printf("%s, %d multiprocessors\n", device.name, device.multiProcessorCount);
  int64_t operand = 0, out = 0;
  for (const auto& [m, n, k] : options.shapes) operand = std::max({operand, m * k, n * k}), out = std::max(out, m * n);
  Bench bench(options, operand, out);
  for (const auto& [m, n, k] : options.shapes) bench.shape(m, n, k);
}
