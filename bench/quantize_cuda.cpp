// Time and bandwidth of the CUDA quantisers beside a device copy that moves as many bytes, measured in turns:
//   bench_quantize_cuda [FILTER] [once | ties]   needs halftone_cuda.so beside the program
// `once` runs each scheme a single time, for a profiler; with `ties` the tensor's scale of NVFP4 has so few bits that elements meet middles
// of codes in every block, as they do in many blocks of four of ten tensors. GB/s counts what a scheme must move: one read of the matrix, a
// second one where a scale of the tensor, of a column or of a two-level scheme must be known first, and all that is written. Rows `floor`
// are no schemes: what MXFP4 with 4 bits or a byte an element, stochastic rounding (SR) or a rotation (H32) takes before it encodes
// anything; `floor least`: the least instructions of packed copies, whoever makes them. A pause before each line: the clock of a device at
// its power limit would otherwise depend on the lines before. The last line repeats the table as JSON.
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "check_cuda.h"
#include "halftone/quantize/operand_shape.h"
#include "halftone/quantize/reads_twice.h"
#include "quantize_floor.h"

using namespace halftone;

namespace {

struct Module {
  Module() {
    const auto path = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "halftone_cuda.so";
    void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      fmt::print(stderr, "{}\n", dlerror());
      std::exit(2);
    }
    workspace = reinterpret_cast<size_t (*)(const QuantizeOperand*)>(dlsym(handle, "halftone_cuda_quantize_workspace"));
    quantize =
        reinterpret_cast<const char* (*)(const QuantizeOperand*, void*, size_t, void*)>(dlsym(handle, "halftone_cuda_quantize_operand"));
    amax = reinterpret_cast<const char* (*)(const QuantizeOperand*, unsigned*, void*)>(dlsym(handle, "halftone_cuda_amax"));
  }
  size_t (*workspace)(const QuantizeOperand*);
  const char* (*quantize)(const QuantizeOperand*, void*, size_t, void*);
  const char* (*amax)(const QuantizeOperand*, unsigned*, void*);
};

enum class Out { none, codes, packed, bf16, fold_e4m3, fold_e5m2 };
struct Scheme {
  std::string name;
  OperandSpec spec;
  Out row, transposed;
  int hadamard = 0;
  bool stochastic = false;
  double bar() const { return hadamard != 0 || stochastic ? 0.70 : 0.85; }
};

OperandSpec make(Element e, Granularity g, int block, ScaleFormat s, ScaleMode m = ScaleMode::none, TwoLevel two = TwoLevel::none,
                 Fp4Chain chain = Fp4Chain::alto) {
  OperandSpec o;
  o.element = e, o.granularity = g, o.block = block, o.scale = s, o.mode = m, o.two_level = two, o.chain = chain;
  return o;
}

// Every operand of every recipe, along rows, along columns and both from one read, in the forms in which products read it: codes,
// 4-bit pairs, mxfp4 folded into fp8, bf16 values. Row copies are never rotated.
std::vector<Scheme> schemes() {
  using E = Element;
  using G = Granularity;
  using S = ScaleFormat;
  std::vector<Scheme> out;
  const auto three = [&](const std::string& name, const OperandSpec& s, Out o, bool stochastic = false) {
    out.push_back({name + " row", s, o, Out::none, 0, stochastic});
    out.push_back({name + " transposed", s, Out::none, o, 0, stochastic});
    out.push_back({name + " both", s, o, o, 0, stochastic});
  };
  const auto rotated = [&](const std::string& name, const OperandSpec& s, Out o, int width, bool stochastic) {
    out.push_back({name + " transposed", s, Out::none, o, width, stochastic});
    out.push_back({name + " both", s, o, o, width, stochastic});
  };
  three("e4m3 tensor", make(E::e4m3, G::tensor, 0, S::fp32), Out::codes);
  three("e5m2 tensor", make(E::e5m2, G::tensor, 0, S::fp32), Out::codes);
  three("e4m3 row pow2", make(E::e4m3, G::row, 0, S::fp32_pow2), Out::codes);
  three("e4m3 1x128", make(E::e4m3, G::block, 128, S::fp32), Out::codes);
  three("e4m3 128x128", make(E::e4m3, G::tile, 128, S::fp32), Out::codes);
  three("e4m3 1x128 SR", make(E::e4m3, G::block, 128, S::fp32), Out::codes, true);
  for (const auto& [name, element] : {std::pair{"mxfp8 e4m3", E::e4m3}, {"mxfp8 e5m2", E::e5m2}}) {
    const std::string n = name;
    for (const auto& [shape, g] : {std::pair{"", G::block}, {" 32x32", G::tile}}) {
      const OperandSpec s = make(element, g, 32, S::e8m0, ScaleMode::rceil);
      three(n + shape + " codes", s, Out::codes);
      three(n + shape + " bf16", s, Out::bf16);
    }
    three(n + " codes SR", make(element, G::block, 32, S::e8m0, ScaleMode::rceil), Out::codes, true);
    three(n + " bf16 SR", make(element, G::block, 32, S::e8m0, ScaleMode::rceil), Out::bf16, true);
  }
  for (const auto& [form, o] : {std::pair{" packed", Out::packed}, {" folded", Out::fold_e4m3}}) {
    const OperandSpec s = make(E::e2m1, G::block, 32, S::e8m0, ScaleMode::adaptive);
    const std::string n = std::string("mxfp4") + form;
    three(n, s, o);
    three(std::string("mxfp4 32x32") + form, make(E::e2m1, G::tile, 32, S::e8m0, ScaleMode::adaptive), o);
    three(n + " SR", s, o, true);
    rotated(n + " H32", s, o, 32, false);
    rotated(n + " H32 SR", s, o, 32, true);
  }
  out.push_back({"mxfp4 folded e5m2 both", make(E::e2m1, G::block, 32, S::e8m0, ScaleMode::adaptive), Out::fold_e5m2, Out::fold_e5m2});
  out.push_back({"mxfp4 bf16 both", make(E::e2m1, G::block, 32, S::e8m0, ScaleMode::adaptive), Out::bf16, Out::bf16});
  for (const auto& [name, scale, chain, width] : {std::tuple{"nvfp4 torchao", S::e4m3, Fp4Chain::torchao, 16},
                                                  {"nvfp4 alto", S::e4m3, Fp4Chain::alto, 32},
                                                  {"amdfp4", S::ue5m3, Fp4Chain::alto, 32}}) {
    const OperandSpec s = make(E::e2m1, G::block, 16, scale, ScaleMode::none, TwoLevel::tensor, chain),
                      tile = make(E::e2m1, G::tile, 16, scale, ScaleMode::none, TwoLevel::tensor, chain);
    const std::string n = name, h = fmt::format(" H{}", width);
    three(n + " packed", s, Out::packed);
    three(n + " bf16", s, Out::bf16);
    out.push_back({n + " 16x16 bf16 both", tile, Out::bf16, Out::bf16});
    three(n + " bf16 SR", s, Out::bf16, true);
    rotated(n + " bf16" + h, s, Out::bf16, width, false);
    rotated(n + " bf16" + h + " SR", s, Out::bf16, width, true);
  }
  three("int8", make(E::int8, G::row, 0, S::fp32), Out::codes);
  three("int8 SR", make(E::int8, G::row, 0, S::fp32), Out::codes, true);
  three("int4 packed", make(E::int4, G::row, 0, S::fp32), Out::packed);
  three("int4 codes", make(E::int4, G::row, 0, S::fp32), Out::codes);
  three("int4 packed SR", make(E::int4, G::row, 0, S::fp32), Out::packed, true);
  three("int4 codes SR", make(E::int4, G::row, 0, S::fp32), Out::codes, true);
  three("ternary", make(E::ternary, G::tensor, 0, S::fp32), Out::codes);
  return out;
}

double bytes_per_element(Out o) { return o == Out::none ? 0 : o == Out::packed ? 0.5 : o == Out::bf16 ? 2 : 1; }
ValueForm form_of(Out o) {
  return o == Out::bf16        ? ValueForm::bf16
         : o == Out::fold_e4m3 ? ValueForm::fold_e4m3
         : o == Out::fold_e5m2 ? ValueForm::fold_e5m2
                               : ValueForm::none;
}
bool needs_read_first(const OperandSpec& s, Out o, bool transposed) { return o != Out::none && reads_twice(s, form_of(o), transposed); }

struct Bump {
  uint8_t* base;
  size_t used = 0;
  void* take(double bytes) {
    void* at = base + used;
    used += (static_cast<size_t>(bytes) + 511) / 256 * 256;
    return at;
  }
};

int64_t scale_bytes(const OperandSpec& s, int64_t R, int64_t C) {
  if (s.granularity == Granularity::tensor) return 4;
  if (s.granularity == Granularity::row) return 4 * R;
  const BlockShape b = block_shape(s, R, C);
  return (R + b.rows - 1) / b.rows * ((C + b.cols - 1) / b.cols) * (has_byte_scales(s.scale) ? 1 : 4);
}

// Memory of one copy; adds what is written to `bytes`.
QuantizedCopy prepare(const Scheme& s, bool transposed, int64_t R, int64_t C, Bump& memory, double& bytes) {
  QuantizedCopy copy;
  const Out o = transposed ? s.transposed : s.row;
  copy.spec = s.spec, copy.spec.stochastic = s.stochastic, copy.spec.hadamard = transposed ? s.hadamard : 0;
  copy.signs = 0xB5297A4Du, copy.rounding.key = philox_key(1, transposed ? "dy.wgrad" : "dy.dgrad"), copy.rounding.step = 3;
  const double elements = static_cast<double>(R) * static_cast<double>(C);
  void* out = memory.take(elements * bytes_per_element(o));
  if (o == Out::codes) copy.codes = static_cast<uint8_t*>(out);
  if (o == Out::packed) copy.packed = static_cast<uint8_t*>(out);
  copy.form = form_of(o);
  bytes += elements * bytes_per_element(o);
  if (copy.form != ValueForm::none) copy.values = out;
  if (copy.form != ValueForm::bf16 && !(s.spec.element == Element::e2m1 && is_fold(copy.form))) {
    copy.scales = memory.take(static_cast<double>(scale_bytes(s.spec, R, C)));
    bytes += static_cast<double>(scale_bytes(s.spec, R, C));
  }
  if (is_fold(copy.form)) copy.fold_scale = static_cast<float*>(memory.take(4.0 * static_cast<double>(R)));
  copy.outer = s.spec.two_level == TwoLevel::tensor ? static_cast<float*>(memory.take(4)) : nullptr;
  return copy;
}

struct Timer {
  Timer() { check_cuda(cudaEventCreate(&start), "event"), check_cuda(cudaEventCreate(&stop), "event"); }
  template <class F>
  double seconds(int n, F&& f) {
    check_cuda(cudaEventRecord(start), "record");
    for (int i = 0; i < n; ++i) f(i);
    check_cuda(cudaEventRecord(stop), "record");
    check_cuda(cudaEventSynchronize(stop), "timed work");
    float ms = 0;
    check_cuda(cudaEventElapsedTime(&ms, start, stop), "time");
    return ms * 1e-3 / n;
  }
  cudaEvent_t start, stop;
};

double median(std::vector<double> v) {
  std::nth_element(v.begin(), v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2), v.end());
  return v[v.size() / 2];
}

// Normal numbers of bf16 or fp32, repeated all over the buffer. ties: the largest is 21 times a power of two.
void fill(void* at, size_t bytes, DType type, bool ties) {
  constexpr size_t kPattern = size_t{32} << 20;
  std::vector<uint8_t> host(kPattern);
  std::mt19937 rng(1);
  std::normal_distribution<float> normal;
  for (size_t i = 0; i < kPattern / size_of(type); ++i) {
    const float drawn = normal(rng), v = !ties ? drawn : i == 0 ? 5.90625f : std::clamp(drawn, -5.875f, 5.875f);
    const bf16 half(v);
    std::memcpy(&host[i * size_of(type)], type == DType::f32 ? static_cast<const void*>(&v) : &half, size_of(type));
  }
  for (size_t done = 0; done < bytes; done += kPattern) {
    check_cuda(cudaMemcpy(static_cast<uint8_t*>(at) + done, host.data(), std::min(kPattern, bytes - done), cudaMemcpyHostToDevice), "fill");
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string filter = argc > 1 ? argv[1] : "";
  const std::string how = argc > 2 ? argv[2] : "";
  if (!how.empty() && how != "once" && how != "ties") {
    fmt::print(stderr, "bench_quantize_cuda: expected [FILTER] [once | ties], found '{}'\n", how);
    return 2;
  }
  const bool once = how == "once", ties = how == "ties";
  const Module module;
  Timer timer;
  constexpr size_t kInput = size_t{1} << 30, kOutput = size_t{4} << 30, kCopy = size_t{2} << 30;
  const auto allocate = [](size_t bytes) {
    void* p = nullptr;
    check_cuda(cudaMalloc(&p, bytes), "memory");
    return static_cast<uint8_t*>(p);
  };
  uint8_t *input = allocate(kInput), *output = allocate(kOutput), *copies = allocate(2 * kCopy);
  struct Shape {
    DType type;
    int64_t rows, cols;
  };
  std::string json = "[";
  int missed = 0;
  for (const Shape& shape : {Shape{DType::bf16, 4096, 8192}, {DType::bf16, 16384, 14336}, {DType::f32, 8192, 8192}}) {
    if (once && shape.rows != 16384) continue;
    fill(input, kInput, shape.type, ties);
    fill(copies, kCopy, shape.type, ties);
    const double elements = static_cast<double>(shape.rows * shape.cols), input_bytes = elements * static_cast<double>(size_of(shape.type));
    const int turns = std::max(1, static_cast<int>(static_cast<double>(kInput) / input_bytes));  // inputs in turns, beyond the L2 cache
    fmt::print("{} {} x {}, {:.0f} MiB\n{:<42} {:>9} {:>9} {:>10} {:>7} {:>5}\n", shape.type == DType::f32 ? "fp32" : "bf16", shape.rows,
               shape.cols, input_bytes / (1 << 20), "scheme", "us", "GB/s", "copy GB/s", "share", "bar");
    const auto measure = [&](const std::string& name, double bytes, double bar, auto&& work) {
      if (once) {
        timer.seconds(1, work);
        fmt::print("{}\n", name);
        return;
      }
      const auto half = static_cast<size_t>(bytes / 2);
      const int n = std::max(3, static_cast<int>(1.5e10 / bytes));
      std::vector<double> scheme, copy;
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      for (int round = 0; round < 6; ++round) {
        const double a = timer.seconds(n, work);
        const double b =
            timer.seconds(n, [&](int) { check_cuda(cudaMemcpyAsync(copies + kCopy, copies, half, cudaMemcpyDeviceToDevice), "copy"); });
        if (round > 0) scheme.push_back(a), copy.push_back(b);
      }
      const double t = median(scheme), c = median(copy), share = c / t;
      if (share < bar) ++missed;
      fmt::print("{:<42} {:>9.1f} {:>9.0f} {:>10.0f} {:>6.1f}% {:>4.0f}%{}\n", name, t * 1e6, bytes / t / 1e9, bytes / c / 1e9, share * 100,
                 bar * 100, share < bar ? " missed" : "");
      json += fmt::format(
          "{}{{\"type\": \"{}\", \"rows\": {}, \"cols\": {}, \"scheme\": \"{}\", \"us\": {:.2f}, \"gbs\": {:.1f}, \"copy_gbs\": {:.1f}, "
          "\"share\": {:.4f}, \"bar\": {}}}",
          json.size() > 1 ? ", " : "", shape.type == DType::f32 ? "fp32" : "bf16", shape.rows, shape.cols, name, t * 1e6, bytes / t / 1e9,
          bytes / c / 1e9, share, bar);
    };
    QuantizeOperand p;
    p.type = shape.type, p.rows = shape.rows, p.cols = shape.cols, p.ld = shape.cols;
    const auto turn = [&](int i) { p.x = input + static_cast<size_t>(i % turns) * static_cast<size_t>(input_bytes); };
    const auto succeed = [](const char* problem) {
      if (problem == nullptr) return;
      fmt::print(stderr, "{}\n", problem);
      std::exit(2);
    };
    if (filter.empty()) {
      measure("amax (read only)", input_bytes, 0.85,
              [&](int i) { turn(i), succeed(module.amax(&p, reinterpret_cast<unsigned*>(output), nullptr)); });
    }
    for (const Scheme& s : schemes()) {
      if (!filter.empty() && s.name.find(filter) == std::string::npos) continue;
      Bump memory{output};
      double bytes = input_bytes;
      if (needs_read_first(s.spec, s.row, false) || needs_read_first(s.spec, s.transposed, true)) bytes += input_bytes;
      p.want_row = s.row != Out::none, p.want_transposed = s.transposed != Out::none;
      if (p.want_row) p.row = prepare(s, false, shape.rows, shape.cols, memory, bytes);
      if (p.want_transposed) p.transposed = prepare(s, true, shape.cols, shape.rows, memory, bytes);
      turn(0);
      const size_t need = module.workspace(&p);
      void* workspace = memory.take(static_cast<double>(need));
      if (memory.used > kOutput) {
        fmt::print(stderr, "{}: too little memory set aside\n", s.name);
        return 2;
      }
      measure(s.name, bytes, s.bar(), [&](int i) { turn(i), succeed(module.quantize(&p, workspace, need, nullptr)); });
    }
    for (const Floor& f : quantize_floors()) {
      if (shape.type != f.type || (!filter.empty() && f.name.find(filter) == std::string::npos)) continue;
      measure(f.name, input_bytes + elements * f.output_bytes, 0, [&](int i) {
        turn(i);
        f.run(p.x, shape.rows, shape.cols, output, output + kOutput / 2, nullptr);
      });
    }
  }
  fmt::print("{} below their bar\n{}]\n", missed, json);
  return 0;
}
