#include <cuda_runtime_api.h>

#include <limits>
#include <memory>
#include <numbers>
#include <tuple>
#include <vector>

#include "cuda/module.h"
#include "fused/support.h"
#include "halftone/fused/cross_entropy_ref.h"
#include "halftone/fused/norm_rope_ref.h"
#include "halftone/fused/rms_norm_ref.h"
#include "halftone/fused/swiglu_ref.h"

namespace halftone::fused_cuda_test {
namespace {

// Host bytes that a kernel reads and writes on the device.
class Device {
 public:
  template <class T>
  T* put(T* host, size_t bytes) {
    void* device = nullptr;
    EXPECT_EQ(cudaMalloc(&device, std::max<size_t>(bytes, 1)), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice), cudaSuccess);
    copies_.push_back({const_cast<std::remove_const_t<T>*>(host), device, bytes});
    return static_cast<T*>(device);
  }
  void* put(Matrix& m) {
    return m.type == DType::bf16 ? static_cast<void*>(put(m.b.data(), m.b.size() * 2)) : put(m.f.data(), m.f.size() * 4);
  }
  // Copies everything back to the host.
  void fetch() {
    for (const Copy& c : copies_) EXPECT_EQ(cudaMemcpy(c.host, c.device, c.bytes, cudaMemcpyDeviceToHost), cudaSuccess);
  }
  ~Device() {
    for (const Copy& c : copies_) cudaFree(c.device);
  }

 private:
  struct Copy {
    void *host, *device;
    size_t bytes;
  };
  std::vector<Copy> copies_;
};

class FusedOnDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!module_.reason().empty()) GTEST_SKIP() << module_.reason();
  }
  template <class... Args, class... Given>
  void call(const char* name, const char* (*)(Args...), Given... given) {
    const auto f = module_.function<const char* (*)(Args...)>(name);
    ASSERT_NE(f, nullptr) << name;
    const char* problem = f(given...);
    ASSERT_EQ(problem, nullptr) << problem;
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }

  CudaModule module_;
};
using NormForward = const char* (*)(const RmsNormForward*, void*);
using NormBackward = const char* (*)(const RmsNormBackward*, float*, void*);

struct Types {
  DType stream, type, weight;
};
const Types kTypes[] = {{DType::f32, DType::bf16, DType::f32},
                        {DType::f32, DType::bf16, DType::bf16},
                        {DType::bf16, DType::bf16, DType::bf16},
                        {DType::f32, DType::f32, DType::f32}};
// Odd sizes and strides take the scalar path, the others the vectors.
struct Size {
  int64_t rows, cols, pad;
};
const Size kSizes[] = {{1, 1, 3}, {17, 33, 3}, {300, 768, 0}, {40, 4096, 4}, {3, 16384, 0}};
constexpr double kTolerance = 2e-6;

TEST_F(FusedOnDevice, RmsNormForwardIsItsDefinition) {
  for (const Types& t : kTypes) {
    for (const Size& size : kSizes) {
      for (const bool with_branch : {false, true}) {
        Matrix x(size.rows, size.cols, t.stream, size.pad), branch(size.rows, size.cols, t.type, size.pad);
        Matrix sum(size.rows, size.cols, t.stream, size.pad), y(size.rows, size.cols, t.type, size.pad), w(1, size.cols, t.weight, 0);
        x.randomise(1), branch.randomise(2), w.randomise(3);
        std::vector<float> rstd(static_cast<size_t>(size.rows));
        RmsNormForward p;
        p.rows = size.rows, p.cols = size.cols, p.stream_dtype = t.stream, p.dtype = t.type, p.weight_dtype = t.weight;
        p.x = x.data(), p.x_stride = x.stride, p.weight = w.data(), p.y = y.data(), p.y_stride = y.stride, p.rstd = rstd.data();
        if (with_branch) p.branch = branch.data(), p.branch_stride = branch.stride, p.sum = sum.data(), p.sum_stride = sum.stride;
        const RmsNormForwardRef expected = rms_norm_forward_ref(p);
        Device device;
        p.x = device.put(x), p.weight = device.put(w), p.y = device.put(y), p.rstd = device.put(rstd.data(), rstd.size() * 4);
        if (with_branch) p.branch = device.put(branch), p.sum = device.put(sum);
        uint32_t amax = 0xFFFFFFFFu;
        if (size.rows % 2 != 0 || with_branch) p.amax = device.put(&amax, 4);
        call("halftone_cuda_rms_norm_forward", NormForward{}, &p, nullptr);
        device.fetch();
        EXPECT_TRUE(p.amax == nullptr || amax == largest_magnitude(y));
        y.expect_near(expected.y, kTolerance, 1e-6, "y"), y.expect_gaps_untouched();
        if (with_branch) sum.expect_near(expected.sum, 0, 0, "sum"), sum.expect_gaps_untouched();
        for (size_t r = 0; r < rstd.size(); ++r) ASSERT_NEAR(rstd[r], expected.rstd[r], kTolerance * expected.rstd[r]);
      }
    }
  }
}

TEST_F(FusedOnDevice, RmsNormBackwardIsItsDefinition) {
  for (const Types& t : kTypes) {
    for (const Size& size : kSizes) {
      Matrix x(size.rows, size.cols, t.stream, size.pad), dy(size.rows, size.cols, t.type, size.pad),
          d_sum(size.rows, size.cols, t.stream, size.pad);
      Matrix dx(size.rows, size.cols, t.stream, size.pad), d_branch(size.rows, size.cols, t.type, size.pad), w(1, size.cols, t.weight, 0);
      Matrix dw(1, size.cols, DType::f32, 0);
      x.randomise(1), dy.randomise(2), d_sum.randomise(3), w.randomise(4), dw.randomise(5);
      std::vector<float> rstd;
      for (int64_t r = 0; r < size.rows; ++r) rstd.push_back(0.5f + 0.01f * static_cast<float>(r % 50));
      RmsNormBackward p;
      p.rows = size.rows, p.cols = size.cols, p.stream_dtype = t.stream, p.dtype = t.type, p.weight_dtype = t.weight;
      p.x = x.data(), p.x_stride = x.stride, p.weight = w.data(), p.rstd = rstd.data(), p.dy = dy.data(), p.dy_stride = dy.stride;
      p.d_sum = d_sum.data(), p.d_sum_stride = d_sum.stride, p.dx_stride = dx.stride, p.d_branch_stride = d_branch.stride;
      RmsNormBackwardRef expected = rms_norm_backward_ref(p);
      for (int64_t c = 0; c < size.cols; ++c) expected.dw[static_cast<size_t>(c)] += dw.at(0, c);
      Device device;
      p.x = device.put(x), p.weight = device.put(w), p.rstd = device.put(rstd.data(), rstd.size() * 4), p.dy = device.put(dy);
      p.d_sum = device.put(d_sum), p.dx = device.put(dx), p.d_branch = device.put(d_branch);
      p.dw = static_cast<float*>(device.put(dw));
      std::vector<float> partial(static_cast<size_t>(module_.function<int64_t (*)(int64_t)>("halftone_cuda_rms_norm_partial")(size.cols)));
      call("halftone_cuda_rms_norm_backward", NormBackward{}, &p, device.put(partial.data(), partial.size() * 4), nullptr);
      device.fetch();
      dx.expect_near(expected.dx, kTolerance, 3e-6, "dx"), dx.expect_gaps_untouched();
      dw.expect_near(expected.dw, kTolerance, 1e-6 * static_cast<double>(size.rows), "dw");
      for (int64_t r = 0; r < size.rows; ++r) {
        for (int64_t c = 0; c < size.cols; ++c) {
          const auto rounded = static_cast<float>(dx.at(r, c));
          ASSERT_EQ(d_branch.at(r, c), t.type == DType::bf16 ? to_float(bf16(rounded)) : rounded);
        }
      }
    }
  }
}

TEST_F(FusedOnDevice, SwigluIsItsDefinition) {
  std::vector<Size> sizes(std::begin(kSizes), std::end(kSizes));
  sizes.push_back({4100, 251, 3});  // more rows than blocks in a grid column
  for (const DType type : kFloatTypes) {
    for (const Size& size : sizes) {
      Matrix g(size.rows, size.cols, type, size.pad), u(size.rows, size.cols, type, size.pad), dh(size.rows, size.cols, type, size.pad);
      Matrix h(size.rows, size.cols, type, size.pad), dg(size.rows, size.cols, type, size.pad), du(size.rows, size.cols, type, size.pad);
      g.randomise(1, 20), u.randomise(2), dh.randomise(3);
      SwigluForward f;
      f.rows = size.rows, f.cols = size.cols, f.dtype = type, f.g = g.data(), f.u = u.data();
      f.g_stride = g.stride, f.u_stride = u.stride, f.h_stride = h.stride;
      SwigluBackward b;
      b.rows = size.rows, b.cols = size.cols, b.dtype = type, b.g = g.data(), b.u = u.data(), b.dh = dh.data();
      b.g_stride = g.stride, b.u_stride = u.stride, b.dh_stride = dh.stride, b.dg_stride = dg.stride, b.du_stride = du.stride;
      const std::vector<double> forward = swiglu_forward_ref(f);
      const SwigluBackwardRef backward = swiglu_backward_ref(b);
      Device device;
      f.g = b.g = device.put(g), f.u = b.u = device.put(u), f.h = device.put(h);
      b.dh = device.put(dh), b.dg = device.put(dg), b.du = device.put(du);
      uint32_t amax[3] = {~0u, ~0u, ~0u};
      if (size.cols != 4096) f.amax = device.put(amax, 4), b.amax = device.put(amax + 1, 8);
      call("halftone_cuda_swiglu_forward", static_cast<const char* (*)(const SwigluForward*, void*)>(nullptr), &f, nullptr);
      call("halftone_cuda_swiglu_backward", static_cast<const char* (*)(const SwigluBackward*, void*)>(nullptr), &b, nullptr);
      device.fetch();
      h.expect_near(forward, kTolerance, 1e-6, "h"), h.expect_gaps_untouched();
      dg.expect_near(backward.dg, 1e-5, 1e-6, "dg"), dg.expect_gaps_untouched();
      du.expect_near(backward.du, kTolerance, 1e-6, "du"), du.expect_gaps_untouched();
      if (f.amax == nullptr) continue;
      EXPECT_EQ(amax[0], largest_magnitude(h));
      EXPECT_EQ(amax[1], largest_magnitude(dg));
      EXPECT_EQ(amax[2], largest_magnitude(du));
    }
  }
}

// dg over g, du over u, h over dh.
TEST_F(FusedOnDevice, SwigluBackwardWorksInPlace) {
  for (const DType type : kFloatTypes) {
    for (const Size& size : {Size{17, 33, 3}, Size{300, 768, 0}}) {
      Matrix g(size.rows, size.cols, type, size.pad), u = g, dh = g, dg = g, du = g, h = g;
      g.randomise(1, 20), u.randomise(2), dh.randomise(3);
      Device device;
      SwigluBackward p;
      p.rows = size.rows, p.cols = size.cols, p.dtype = type;
      p.g_stride = p.u_stride = p.dh_stride = p.dg_stride = p.du_stride = p.h_stride = g.stride;
      void *gate = device.put(g), *up = device.put(u), *grad = device.put(dh);
      p.g = gate, p.u = up, p.dh = grad, p.dg = device.put(dg), p.du = device.put(du), p.h = device.put(h);
      call("halftone_cuda_swiglu_backward", static_cast<const char* (*)(const SwigluBackward*, void*)>(nullptr), &p, nullptr);
      p.dg = gate, p.du = up, p.h = grad;
      call("halftone_cuda_swiglu_backward", static_cast<const char* (*)(const SwigluBackward*, void*)>(nullptr), &p, nullptr);
      device.fetch();
      EXPECT_TRUE(g.same_bits(dg) && u.same_bits(du) && dh.same_bits(h)) << name_of(type) << " " << size.cols;
      EXPECT_NE(largest_magnitude(h), 0u);
    }
  }
}

TEST_F(FusedOnDevice, LargestMagnitudesShowWhatIsNotFinite) {
  for (const float odd : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    Matrix g(300, 768, DType::bf16, 0), u(300, 768, DType::bf16, 0), h(300, 768, DType::bf16, 0), w(1, 768, DType::f32, 0);
    g.randomise(1, 20), u.randomise(2), w.randomise(3), g.set(170, 5, odd);
    uint32_t of_h = 0, of_y = 0, empty = 1;
    Device device;
    SwigluForward f;
    f.rows = 300, f.cols = f.g_stride = f.u_stride = f.h_stride = 768, f.dtype = DType::bf16;
    f.g = device.put(g), f.u = device.put(u), f.h = device.put(h), f.amax = device.put(&of_h, 4);
    call("halftone_cuda_swiglu_forward", static_cast<const char* (*)(const SwigluForward*, void*)>(nullptr), &f, nullptr);
    RmsNormForward p;
    p.rows = 300, p.cols = p.x_stride = p.y_stride = 768, p.stream_dtype = p.dtype = DType::bf16;
    p.x = f.g, p.weight = device.put(w), p.y = f.h, p.amax = device.put(&of_y, 4);
    call("halftone_cuda_rms_norm_forward", NormForward{}, &p, nullptr);
    p.rows = 0, p.amax = device.put(&empty, 4);
    call("halftone_cuda_rms_norm_forward", NormForward{}, &p, nullptr);
    device.fetch();
    EXPECT_EQ(of_h > 0x7F800000u, std::isnan(odd));
    EXPECT_GE(of_h, 0x7F800000u);
    EXPECT_GT(of_y, 0x7F800000u);  // infinity times 0
    EXPECT_EQ(empty, 0u);
  }
}

// Tables and parameters for heads of d elements, the first `rotated` of which are rotated; with_tables copies them to the device.
Rope rope_of(const RopeTable& table, int64_t tokens, int64_t heads, int64_t d, DType type, RopePairing pairing) {
  Rope p;
  p.tokens = tokens, p.heads = heads, p.head_dim = d, p.rotated = 2 * table.half_dim, p.dtype = type, p.pairing = pairing;
  p.cos = table.cos.data(), p.sin = table.sin.data(), p.max_positions = table.positions, p.seq_len = 50, p.offset = 7;
  return p;
}
Rope with_tables(Rope p, Device& device) {
  const auto bytes = static_cast<size_t>(p.max_positions * p.rotated / 2) * 4;
  p.cos = device.put(p.cos, bytes), p.sin = device.put(p.sin, bytes);
  return p;
}

TEST_F(FusedOnDevice, RopeEqualsTheCpu) {
  for (const DType type : kFloatTypes) {
    for (const RopePairing pairing : {RopePairing::neighbours, RopePairing::halves}) {
      for (const int64_t rotated : {64, 32, 6}) {
        const RopeTable table = rope_table(64, rotated, 1e4);
        for (const bool inverse : {false, true}) {
          // The last two have more tokens than blocks in a grid column, in single pairs and in vectors.
          const bool long_ones = type == DType::bf16 && !inverse && pairing == RopePairing::neighbours && rotated == 64;
          for (const auto& [tokens, heads, pad] :
               std::vector<std::tuple<int64_t, int64_t, int64_t>>{{150, 3, 3}, {150, 3, 8}, {4100, 8, 3}, {4100, 32, 8}}) {
            if (tokens > 150 && !long_ones) continue;
            Matrix x(tokens, heads * 64, type, pad), cpu(tokens, heads * 64, type, pad), gpu(tokens, heads * 64, type, pad);
            x.randomise(1);
            Rope p = rope_of(table, tokens, heads, 64, type, pairing);
            p.x = x.data(), p.x_stride = x.stride, p.out = cpu.data(), p.out_stride = cpu.stride, p.inverse = inverse;
            rope(p);
            Device device;
            p = with_tables(p, device), p.x = device.put(x), p.out = device.put(gpu);
            call("halftone_cuda_rope", static_cast<const char* (*)(const Rope*, void*)>(nullptr), &p, nullptr);
            void* in_place = device.put(x);
            p.x = p.out = in_place;
            call("halftone_cuda_rope", static_cast<const char* (*)(const Rope*, void*)>(nullptr), &p, nullptr);
            device.fetch();
            EXPECT_TRUE(gpu.same_bits(cpu)) << name_of(type) << " rotated " << rotated << " inverse " << inverse << " tokens " << tokens
                                            << " pad " << pad;
            EXPECT_TRUE(x.same_bits(cpu)) << "in place";
          }
        }
      }
    }
  }
}

// Single pairs (odd strides and rotated sizes) and vectors, heads of 1 to 32 lanes, many rows per block and many blocks per row.
TEST_F(FusedOnDevice, NormRopeIsItsDefinition) {
  struct Heads {
    int64_t tokens, heads, d, rotated, pad;
  };
  for (const DType type : kFloatTypes) {
    for (const RopePairing pairing : {RopePairing::neighbours, RopePairing::halves}) {
      for (const auto& [tokens, heads, d, rotated, pad] :
           {Heads{1, 1, 2, 2, 3}, Heads{150, 3, 8, 8, 8}, Heads{150, 3, 8, 4, 3}, Heads{150, 7, 80, 80, 8}, Heads{150, 7, 80, 32, 3},
            Heads{90, 3, 128, 128, 3}, Heads{2100, 8, 128, 128, 8}, Heads{2100, 32, 128, 64, 8}, Heads{70, 2, 256, 256, 8},
            Heads{70, 2, 256, 6, 3}, Heads{40, 40, 256, 64, 8}}) {
        SCOPED_TRACE(fmt::format("{} {} heads of {}, rotated {}, pad {}", name_of(type), heads, d, rotated, pad));
        const RopeTable table = rope_table(64, rotated, 1e4);
        Matrix x(tokens, heads * d, type, pad), y = x, dy = x, dx = x, w(1, d, type, 0), dw(1, d, DType::f32, 0);
        x.randomise(1), dy.randomise(2), w.randomise(3), dw.randomise(4);
        NormRope f{rope_of(table, tokens, heads, d, type, pairing), w.data(), 1e-3f};
        NormRopeBackward b{f, x.data(), x.stride, nullptr};
        f.rope.x = x.data(), b.norm.rope.x = dy.data();
        f.rope.x_stride = f.rope.out_stride = b.norm.rope.x_stride = b.norm.rope.out_stride = x.stride;
        const std::vector<double> forward = norm_rope_ref(f);
        NormRopeBackwardRef backward = norm_rope_backward_ref(b);
        for (int64_t i = 0; i < d; ++i) backward.dw[static_cast<size_t>(i)] += dw.at(0, i);
        Matrix dw_again = dw;
        Device device;
        f.rope = with_tables(f.rope, device), b.norm.rope.cos = f.rope.cos, b.norm.rope.sin = f.rope.sin;
        f.weight = b.norm.weight = device.put(w), f.rope.x = b.x = device.put(x), f.rope.out = device.put(y);
        void* gradient = device.put(dy);
        b.norm.rope.x = gradient, b.norm.rope.out = device.put(dx), b.dw = static_cast<float*>(device.put(dw));
        std::vector<float> partial(static_cast<size_t>(module_.function<int64_t (*)(int64_t)>("halftone_cuda_norm_rope_partial")(d)));
        float* parts = device.put(partial.data(), partial.size() * 4);
        using Backward = const char* (*)(const NormRopeBackward*, float*, void*);
        call("halftone_cuda_norm_rope", static_cast<const char* (*)(const NormRope*, void*)>(nullptr), &f, nullptr);
        call("halftone_cuda_norm_rope_backward", Backward{}, &b, parts, nullptr);
        b.norm.rope.out = gradient, b.dw = static_cast<float*>(device.put(dw_again));
        call("halftone_cuda_norm_rope_backward", Backward{}, &b, parts, nullptr);
        device.fetch();
        y.expect_near(forward, kTolerance, 3e-6, "y"), y.expect_gaps_untouched();
        dx.expect_near(backward.dx, kTolerance, 1e-5, "dx"), dx.expect_gaps_untouched();
        dw.expect_near(backward.dw, kTolerance, 2e-5 * std::sqrt(static_cast<double>(tokens * heads)), "dw");
        EXPECT_TRUE(dy.same_bits(dx)) << "in place";
        EXPECT_TRUE(dw_again.same_bits(dw)) << "again";
      }
    }
  }
}

// A row in one block and in clusters of 2, 4 and 8, as single elements (odd sizes) and vectors; the last does not fit into them in f32.
TEST_F(FusedOnDevice, CrossEntropyIsItsDefinition) {
  for (const DType type : kFloatTypes) {
    for (const DType gradient : kFloatTypes) {
      for (const auto& [rows, vocab] :
           std::vector<std::pair<int64_t, int64_t>>{{1, 2}, {19, 1001}, {33, 4096}, {5, 40004}, {2, 128256}, {2, 500008}}) {
        Matrix z(rows, vocab, type, 0), d(rows, vocab, gradient, 0);
        z.randomise(1, 15);
        if (vocab > 1000) {
          for (int64_t c = 0; c < 900; ++c) z.set(0, c, -std::numeric_limits<float>::infinity());
        }
        std::vector<int64_t> labels;
        for (int64_t r = 0; r < rows; ++r) labels.push_back(r % 7 == 3 ? kIgnoredLabel : vocab - 1 - r * 31 % std::min<int64_t>(vocab, 90));
        std::vector<float> loss(static_cast<size_t>(rows)), lse(static_cast<size_t>(rows));
        CrossEntropy p;
        p.rows = rows, p.vocab = vocab, p.dtype = type, p.logits = z.data(), p.logits_stride = z.stride, p.labels = labels.data();
        p.grad_scale = 0.125f, p.dlogits_dtype = gradient, p.dlogits_stride = d.stride;
        p.z_loss = gradient == DType::f32 ? 0.01f : 0.0f;
        const CrossEntropyRef expected = cross_entropy_ref(p);
        for (const bool in_place : {false, true}) {
          if (in_place && type != gradient) continue;
          Device device;
          void* logits = device.put(z);
          p.logits = logits, p.labels = device.put(labels.data(), labels.size() * 8), p.dlogits = in_place ? logits : device.put(d);
          p.loss = device.put(loss.data(), loss.size() * 4), p.lse = device.put(lse.data(), lse.size() * 4);
          call("halftone_cuda_cross_entropy", static_cast<const char* (*)(const CrossEntropy*, void*)>(nullptr), &p, nullptr);
          device.fetch();
          // z - lse is rounded at 30: 2^-20 of a probability, times grad_scale.
          (in_place ? z : d).expect_near(expected.dlogits, 1e-5, 5e-7, fmt::format("dlogits of {} in place {}", vocab, in_place));
          for (size_t r = 0; r < loss.size(); ++r) {
            ASSERT_NEAR(loss[r], expected.loss[r], 1e-5 + 1e-6 * std::abs(expected.loss[r]));
            ASSERT_NEAR(lse[r], expected.lse[r], 1e-5 + 1e-6 * std::abs(expected.lse[r]));
          }
          if (in_place) continue;
          // In two parts: the first call returns lse and target, the second the gradient.
          Matrix in_parts(rows, vocab, gradient, 0);
          Device again;
          const auto* from = static_cast<const char*>(again.put(z));
          auto* to = static_cast<char*>(again.put(in_parts));
          CrossEntropy part = p;
          part.labels = again.put(labels.data(), labels.size() * 8), part.loss = nullptr, part.whole_vocab = vocab;
          std::vector<std::vector<float>> of_part(4, std::vector<float>(loss.size()));  // lse, target of each
          float* whole = again.put(lse.data(), lse.size() * 4);
          for (const size_t i : {0, 1}) {
            part.first_column = i == 0 ? 0 : vocab / 4, part.vocab = i == 0 ? vocab / 4 : vocab - vocab / 4;
            if (part.vocab == 0) continue;
            part.logits = from + part.first_column * static_cast<int64_t>(size_of(type));
            part.dlogits = nullptr, part.whole_lse = nullptr;
            part.lse = again.put(of_part[2 * i].data(), loss.size() * 4),
            part.target = again.put(of_part[2 * i + 1].data(), loss.size() * 4);
            call("halftone_cuda_cross_entropy", static_cast<const char* (*)(const CrossEntropy*, void*)>(nullptr), &part, nullptr);
            part.dlogits = to + part.first_column * static_cast<int64_t>(size_of(gradient)), part.whole_lse = whole;
            part.lse = part.target = nullptr;
            call("halftone_cuda_cross_entropy", static_cast<const char* (*)(const CrossEntropy*, void*)>(nullptr), &part, nullptr);
          }
          again.fetch();
          in_parts.expect_near(expected.dlogits, 1e-5, 5e-7, fmt::format("dlogits of {} in parts", vocab));
          for (size_t r = 0; r < loss.size() && vocab > 2; ++r) {
            if (labels[r] == kIgnoredLabel) continue;
            const double sum = std::exp(double{of_part[0][r]} - expected.lse[r]) + std::exp(double{of_part[2][r]} - expected.lse[r]);
            ASSERT_NEAR(sum, 1, 3e-5);
            ASSERT_NEAR(lse[r] - of_part[1][r] - of_part[3][r], expected.loss[r], 2e-5 + 1e-6 * std::abs(expected.loss[r]));
          }
        }
      }
    }
  }
}

TEST_F(FusedOnDevice, WhatIsOutsideATableIsNan) {
  std::vector<float> logits(8, 1.0f), loss(1);
  std::vector<int64_t> label = {8};
  CrossEntropy p;
  p.rows = 1, p.vocab = 8, p.dtype = DType::f32;
  Device device;
  p.logits = device.put(logits.data(), 32), p.logits_stride = 8, p.labels = device.put(label.data(), 8),
  p.loss = device.put(loss.data(), 4);
  call("halftone_cuda_cross_entropy", static_cast<const char* (*)(const CrossEntropy*, void*)>(nullptr), &p, nullptr);
  std::vector<float> table(8, 1.0f), x(4, 1.0f);
  Rope r;
  r.tokens = 1, r.heads = 1, r.head_dim = 4, r.dtype = DType::f32, r.x_stride = r.out_stride = 4, r.max_positions = 4, r.seq_len = 1,
  r.offset = 4;
  float* values = device.put(x.data(), 16);
  r.x = values, r.out = values, r.cos = r.sin = device.put(table.data(), 32);
  call("halftone_cuda_rope", static_cast<const char* (*)(const Rope*, void*)>(nullptr), &r, nullptr);
  device.fetch();
  EXPECT_TRUE(std::isnan(loss[0]));
  for (const float v : x) EXPECT_TRUE(std::isnan(v));
}

}  // namespace
}  // namespace halftone::fused_cuda_test
