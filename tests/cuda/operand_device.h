#pragma once
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <omp.h>

#include <memory>
#include <optional>

#include "cuda/module.h"
#include "halftone/quantize/operand_ref.h"
#include "quantize/operand_cases.h"

// Requests to the CUDA quantisers, compared byte for byte with the scalar reference.
namespace halftone::testing {

using WorkspaceFunction = size_t (*)(const QuantizeOperand*);
using QuantizeFunction = const char* (*)(const QuantizeOperand*, void*, size_t, void*);
using AmaxFunction = const char* (*)(const QuantizeOperand*, unsigned*, void*);

// Requested outputs: all, or one as in training.
enum class Only { all, codes, packed, values };

// The entry of operand_specs() with that name.
inline NamedSpec operand_spec(const std::string& name) {
  for (const NamedSpec& s : operand_specs()) {
    if (s.name == name) return s;
  }
  ADD_FAILURE() << "no operand is called " << name;
  return {};
}
// For copies beside rotated ones.
inline NamedSpec unrotated(NamedSpec s) {
  s.spec.hadamard = 0, s.spec.eden = false;
  return s;
}

// The device reads the matrix in fp32 and rounds it to the case's bf16; the second run reuses the amax of the first.
struct Master {
  bool leaves, takes;
};

struct Case {
  NamedSpec row, transposed;
  Shape shape;
  Fill fill;
  DType type;
  ValueForm form;
  bool stochastic, want_row, want_transposed;
  bool groups;         // draws numbered so that a vector of eight is one Philox group
  int64_t length = 0;  // of both copies, if longer than the matrix
  bool given_amax = false;
  Only only = Only::all;
  std::optional<std::pair<Only, ValueForm>> transposed_only{};  // if the transposed copy has a different request
  bool device_step = false;                                     // draws read the step from device memory
  std::optional<Master> master{};
  std::vector<int32_t> offsets{};                                     // of groups of rows, if any
  enum class Rows { given, elsewhere, weighted } rows = Rows::given;  // source of the rows (RowSource)
  std::string what() const {
    return fmt::format("{} / {}{}{}{} {}x{}+{} fill {} type {} form {} groups {} length {} amax {} only {}{}{}{}", row.name,
                       transposed.name, stochastic ? ", stochastic" : "", want_row ? ", row" : "", want_transposed ? ", transposed" : "",
                       shape.rows, shape.cols, shape.pad, static_cast<int>(fill), static_cast<int>(type), static_cast<int>(form), groups,
                       length, given_amax, static_cast<int>(only), device_step ? " step" : "", master ? " master" : "",
                       offsets.empty() ? "" : fmt::format(" rows of {} groups, kind {}", offsets.size() - 1, static_cast<int>(rows)));
  }
};

inline QuantizedCopy copy_of(const Case& c, bool transposed) {
  QuantizedCopy copy;
  copy.spec = transposed ? c.transposed.spec : c.row.spec;
  copy.spec.stochastic = c.stochastic && !copy.spec.eden;
  copy.form = transposed && c.transposed_only ? c.transposed_only->second : c.form;
  copy.length = c.length > (transposed ? c.shape.rows : c.shape.cols) ? c.length : 0;
  copy.rounding.key = philox_key(1234, transposed ? "w#dy.wgrad" : "w#dy.dgrad");
  copy.rounding.step = 7, copy.rounding.micro = 1, copy.rounding.first_row = 5;
  copy.signs_key = philox_key(1234, "w#rht"), copy.signs = RotationSigns(philox(copy.signs_key, 0, copy.rounding.step));
  copy.rounding.first_column = c.groups ? 24 : 3, copy.rounding.row_length = c.groups ? (c.shape.cols + 31) / 8 * 8 : c.shape.cols + 7;
  return copy;
}

// Removes outputs that are not requested from a copy with all outputs.
inline void keep(QuantizedCopy& copy, Only only) {
  if (only == Only::all) return;
  if (only != Only::codes) copy.codes = nullptr;
  if (only != Only::packed) copy.packed = nullptr;
  if (only == Only::values) copy.scales = nullptr;
  if (only == Only::codes && copy.spec.two_level != TwoLevel::tensor) copy.outer = nullptr;
  copy.lost = nullptr;
}

// A request with all outputs of the reference and the device.
struct Request {
  explicit Request(const Case& c) : what(c) {
    x = elements(values(c.fill, c.shape.rows, c.shape.cols + c.shape.pad), c.type);
    if (c.master) wide = elements(values(c.fill, c.shape.rows, c.shape.cols + c.shape.pad), DType::f32);
    p.x = x.data(), p.type = c.type, p.rows = c.shape.rows, p.cols = c.shape.cols, p.ld = c.shape.cols + c.shape.pad;
    p.want_row = c.want_row, p.want_transposed = c.want_transposed;
    if (c.given_amax) p.amax = &amax;
    const int64_t groups = c.offsets.empty() ? 1 : static_cast<int64_t>(c.offsets.size()) - 1;
    if (!c.offsets.empty()) p.groups = {groups, what.offsets.data()};
    if (c.want_row) {
      p.row = copy_of(c, false);
      expected_row = std::make_unique<CopyBuffers>(p.row, p.rows, p.cols, groups);
      found_row = std::make_unique<CopyBuffers>(p.row, p.rows, p.cols, groups);
      expected_row->attach(p.row), keep(p.row, c.only);
    }
    if (c.want_transposed) {
      p.transposed = copy_of(c, true);
      expected_transposed = std::make_unique<CopyBuffers>(p.transposed, p.cols, p.rows, groups, true);
      found_transposed = std::make_unique<CopyBuffers>(p.transposed, p.cols, p.rows, groups, true);
      expected_transposed->attach(p.transposed), keep(p.transposed, c.transposed_only ? c.transposed_only->first : c.only);
    }
  }
  Case what;
  std::vector<std::byte> x, wide;
  // Gathered rows: RowSource, and the matrix passed to the device.
  std::vector<int32_t> source, order;
  std::vector<float> weight;
  std::vector<std::byte> elsewhere;
  uint32_t amax = 0x42F60000u;  // 123, above every finite element of the fills it is used with
  QuantizeOperand p;
  std::unique_ptr<CopyBuffers> expected_row, found_row, expected_transposed, found_transposed;
};

// Device memory, reused by each run.
class Arena {
 public:
  explicit Arena(size_t bytes) : bytes_(bytes) { EXPECT_EQ(cudaMalloc(&base_, bytes), cudaSuccess); }
  ~Arena() { cudaFree(base_); }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  void clear() { used_ = 0; }
  void* take(size_t n, size_t shift = 0) {
    void* at = static_cast<std::byte*>(base_) + used_ + shift;
    used_ += (n + shift + 511) / 256 * 256;
    EXPECT_LE(used_, bytes_);
    return at;
  }
  void* copy_of(const void* host, size_t n, size_t shift = 0) {
    void* at = take(n, shift);
    EXPECT_EQ(cudaMemcpy(at, host, n, cudaMemcpyHostToDevice), cudaSuccess);
    return at;
  }

 private:
  size_t bytes_, used_ = 0;
  void* base_ = nullptr;
};

// Outputs of a copy on the device, initialised as on the host, so that unwanted writes are detected.
struct DeviceCopy {
  DeviceCopy(Arena& arena, CopyBuffers& host) : host_(host) {
    for (const auto& [name, buffer] : host.all()) at_.push_back(arena.copy_of(buffer->data(), static_cast<size_t>(buffer->size()) + 64));
  }
  void attach(QuantizedCopy& c) {
    const auto put = [&](auto*& pointer, int i) {
      if (pointer != nullptr) pointer = static_cast<std::remove_reference_t<decltype(pointer)>>(at_[static_cast<size_t>(i)]);
    };
    put(c.codes, 0), put(c.packed, 1), put(c.scales, 2), put(c.zeros, 3), put(c.outer, 4), put(c.macro, 5), put(c.values, 6);
    put(c.fold_scale, 7), put(c.lost, 8);
  }
  void fetch() {
    size_t i = 0;
    for (const auto& [name, buffer] : host_.all()) {
      EXPECT_EQ(cudaMemcpy(buffer->data(), at_[i++], static_cast<size_t>(buffer->size()) + 64, cudaMemcpyDeviceToHost), cudaSuccess);
    }
  }

 private:
  CopyBuffers& host_;
  std::vector<void*> at_;
};

// First difference between the device's outputs and the reference's; empty if they are equal.
inline std::string difference(CopyBuffers& expected, CopyBuffers& found) {
  const auto a = expected.all(), b = found.all();
  std::string out;
  for (size_t i = 0; i < a.size(); ++i) {
    const auto *p = a[i].second->data(), *q = b[i].second->data();
    int64_t bad = 0, first = 0;
    for (int64_t j = a[i].second->size() - 1; j >= 0; --j) {
      if (p[j] != q[j]) ++bad, first = j;
    }
    if (bad > 0) {
      out += fmt::format("; {} bytes of {} {}, first {}: {:02x}, device {:02x}", bad, a[i].second->size(), a[i].first, first,
                         static_cast<int>(p[first]), static_cast<int>(q[first]));
    }
    if (!b[i].second->guard_intact()) out += fmt::format("; {} written beyond its end", a[i].first);
  }
  return out;
}

class Device {
 public:
  // bytes: device memory for everything that one request reads and writes.
  explicit Device(size_t bytes = size_t{256} << 20) : arena_(bytes) {
    workspace_ = module_.function<WorkspaceFunction>("halftone_cuda_quantize_workspace");
    quantize_ = module_.function<QuantizeFunction>("halftone_cuda_quantize_operand");
    amax_ = module_.function<AmaxFunction>("halftone_cuda_amax");
  }
  bool ready() const { return workspace_ != nullptr && quantize_ != nullptr && amax_ != nullptr; }

  // x_shift: bytes by which the input is misaligned.
  std::string run(Request& r, size_t x_shift = 0) {
    arena_.clear();
    QuantizeOperand p = r.p;
    p.x = arena_.copy_of(r.x.data(), r.x.size(), x_shift);
    if (!r.source.empty()) {
      const auto put = [&]<class T>(const std::vector<T>& v) -> const T* {
        return v.empty() ? nullptr : static_cast<const T*>(arena_.copy_of(v.data(), v.size() * sizeof(T)));
      };
      p.amax = nullptr;
      p.x = arena_.copy_of(r.elsewhere.data(), r.elsewhere.size());
      p.from.source = put(r.source), p.from.order = put(r.order), p.from.weight = put(r.weight);
    } else if (r.what.master) {
      p.x = arena_.copy_of(r.wide.data(), r.wide.size()), p.type = DType::f32, p.as_bf16 = true;
      auto* found = static_cast<uint32_t*>(found_.take(kAmaxParts * sizeof(uint32_t)));
      found_.clear();
      if (r.what.master->leaves) p.found_amax = found;
      if (r.what.master->takes && ((p.want_row && uses_tensor_amax(p.row)) || (p.want_transposed && uses_tensor_amax(p.transposed))))
        p.amax = found, p.amax_parts = kAmaxParts;
    } else if (p.amax != nullptr) {
      p.amax = static_cast<const uint32_t*>(arena_.copy_of(&r.amax, 4));
    }
    if (r.what.device_step) {
      const uint32_t step = (p.want_row ? p.row : p.transposed).rounding.step;
      const auto* at = static_cast<const uint32_t*>(arena_.copy_of(&step, sizeof(step)));
      for (QuantizedCopy* c : {&p.row, &p.transposed})  // neither the step nor the signs given are read
        c->rounding.device_step = c->signs_step = at, c->rounding.step = ~step, c->signs = {};
    }
    if (p.groups.groups > 0)
      p.groups.offsets = static_cast<const int32_t*>(arena_.copy_of(r.what.offsets.data(), r.what.offsets.size() * sizeof(int32_t)));
    std::unique_ptr<DeviceCopy> row, transposed;
    if (p.want_row) row = std::make_unique<DeviceCopy>(arena_, *r.found_row), row->attach(p.row);
    if (p.want_transposed) transposed = std::make_unique<DeviceCopy>(arena_, *r.found_transposed), transposed->attach(p.transposed);
    const size_t bytes = workspace_(&p);
    void* memory = arena_.take(bytes);
    if (cudaMemset(memory, 0xEE, bytes) != cudaSuccess) return "; no workspace";
    if (const char* problem = quantize_(&p, memory, bytes, nullptr)) return fmt::format("; {}", problem);
    if (const cudaError_t status = cudaDeviceSynchronize(); status != cudaSuccess) return fmt::format("; {}", cudaGetErrorString(status));
    std::string out;
    if (p.want_row) row->fetch(), out += difference(*r.expected_row, *r.found_row);
    if (p.want_transposed) {
      transposed->fetch();
      const std::string bad = difference(*r.expected_transposed, *r.found_transposed);
      if (!bad.empty()) out += " transposed: " + bad;
    }
    return out;
  }
  std::string amax(Request& r, uint32_t& out) {
    arena_.clear();
    QuantizeOperand p = r.p;
    p.x = arena_.copy_of(r.x.data(), r.x.size());
    auto* at = static_cast<unsigned*>(arena_.take(4));
    if (const char* problem = amax_(&p, at, nullptr)) return problem;
    return cudaMemcpy(&out, at, 4, cudaMemcpyDeviceToHost) == cudaSuccess ? "" : "no result";
  }

 private:
  CudaModule module_;
  Arena arena_, found_{4096};
  WorkspaceFunction workspace_;
  QuantizeFunction quantize_;
  AmaxFunction amax_;
};

inline std::string missing() { return CudaModule().reason(); }

inline void scalar_reference(Request& r) { ref::quantize_operand(r.p); }
// Computes references in parallel, then runs the device one case after the other.
inline void expect_reference(const std::vector<Case>& cases, size_t x_shift = 0, void (*reference)(Request&) = scalar_reference) {
  Device device;
  ASSERT_TRUE(device.ready());
  constexpr size_t kAtOnce = 128;
  int failures = 0;
  for (size_t first = 0; first < cases.size(); first += kAtOnce) {
    std::vector<std::unique_ptr<Request>> runs;
    for (size_t i = first; i < std::min(cases.size(), first + kAtOnce); ++i) runs.push_back(std::make_unique<Request>(cases[i]));
#pragma omp parallel for schedule(dynamic, 1)
    for (size_t i = 0; i < runs.size(); ++i) reference(*runs[i]);
    for (auto& r : runs) {
      const std::string bad = device.run(*r, x_shift);
      if (bad.empty()) continue;
      ADD_FAILURE() << r->what.what() << bad;
      if (++failures == 40) FAIL() << "and more";
    }
  }
}

}  // namespace halftone::testing
