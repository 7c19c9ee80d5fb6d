#include "halftone/gemm/cpu/gemm.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "halftone/base/error.h"
#include "halftone/base/parallel.h"
#include "halftone/gemm/cpu/gemm_ref.h"
#include "halftone/gemm/cpu/kernels.h"
#include "halftone/gemm/int8_sums.h"

namespace halftone::gemm {
namespace {

// Per-thread memory, 64-byte aligned; grows, never shrinks.
class Scratch {
 public:
  std::byte* get(int64_t bytes) {
    if (bytes > size_) {
      size_ = round_up(bytes, 4096);
      data_.reset(static_cast<std::byte*>(std::aligned_alloc(64, static_cast<size_t>(size_))));
      if (data_ == nullptr) throw std::bad_alloc();
    }
    return data_.get();
  }

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::unique_ptr<std::byte, Free> data_;
  int64_t size_ = 0;
};

// Block of C (panels, rows) that is accumulated over several chunks of k: its sums (<= 512 KiB) and the chunk of B (<= 512 KiB) stay in a
// core's L2. With a single chunk no sums are kept, and only B's size matters.
constexpr int64_t kManyPanels = 32, kManyRows = 256, kOneChunkBytes = int64_t{1} << 19;

class Product {
 public:
  Product(const Gemm& g, const Kernels& k) : g_(g), k_(k) {
    tile_ = g.type == DType::s8 ? k.s8 : g.type == DType::bf16 ? k.bf16 : k.f32;
    amx_ = k.amx && g.type != DType::f32;
    panels_per_tile_ = amx_ ? k.panels : g.type == DType::f32 && k.amx ? 3 : k.panels;
    widen_ = g.type == DType::s8 ? k.widen_s8 : g.type == DType::bf16 ? k.widen_bf16 : nullptr;
    wide_ = widen_ == nullptr ? 1 : 2;
    stride_ = panel_bytes(g.type, g.k);
    groups_ = amx_ ? panel_groups(g.type, g.k) : ceil_div(g.k, group_size(g.type));
    chunk_ = k.chunk / wide_;
    chunks_ = std::max<int64_t>(1, ceil_div(groups_, chunk_));
    finish_ = k.epilogue(g.type == DType::s8, g.c_type, g.accumulate);
  }

  // Rows [r0, r1) (r0 a multiple of kBlockRows) x panels [p0, p1) of C.
  void region(int64_t r0, int64_t r1, int64_t p0, int64_t p1) {
    const int64_t chunk_bytes = std::min(groups_, chunk_) * wide_ * kGroupBytes;
    const int64_t many = chunks_ > 1 ? kManyPanels : std::max<int64_t>(kMaxPanels, kOneChunkBytes / std::max<int64_t>(chunk_bytes, 1));
    const int64_t np = round_up(std::min(many, p1 - p0), panels_per_tile_);
    const int64_t nr = chunks_ > 1 ? std::min(kManyRows, round_up(r1 - r0, kBlockRows)) : r1 - r0;
    static thread_local Scratch a_scratch, b_scratch, acc_scratch;
    a_ = a_scratch.get(kBlockRows * chunk_bytes + 64);
    if (widen_ != nullptr) b_ = b_scratch.get(np * chunk_bytes);
    tile_columns_ = panels_per_tile_ * kPanelColumns;
    tiles_across_ = np / panels_per_tile_;
    acc_ = reinterpret_cast<float*>(acc_scratch.get((chunks_ > 1 ? nr * np * kPanelColumns : 2 * kBlockRows * tile_columns_) * 4));
    if (amx_) k_.enter();
    for (int64_t p = p0; p < p1; p += np) {
      for (int64_t r = r0; r < r1; r += nr) block(r, std::min(r1, r + nr), p, std::min(p1, p + np));
    }
    if (amx_) k_.leave();
  }

 private:
  // Sums of the tile at (tile_row, tile_column) of the block. With a single chunk they live for one tile only, in two alternating buffers,
  // because the epilogue of one tile runs during the GEMM of the next.
  float* sums(int64_t tile_row, int64_t tile_column, int turn) const {
    const int64_t at = chunks_ > 1 ? tile_row * tiles_across_ + tile_column : turn;
    return acc_ + at * kBlockRows * tile_columns_;
  }

  void block(int64_t r0, int64_t r1, int64_t p0, int64_t p1) const {
    EpilogueArgs epilogues[2];
    const EpilogueArgs* pending = nullptr;
    int turn = 0;
    for (int64_t chunk = 0; chunk < chunks_; ++chunk) {
      const int64_t first = chunk * chunk_, groups = std::min(chunk_, groups_ - first);
      const std::byte* b_chunk = static_cast<const std::byte*>(g_.b) + p0 * stride_ + first * kGroupBytes;
      int64_t b_stride = stride_;
      if (widen_ != nullptr) {
        for (int64_t p = 0; p < p1 - p0; ++p) widen_->panel(b_chunk + p * stride_, groups, b_ + p * groups * wide_ * kGroupBytes);
        b_chunk = b_, b_stride = groups * wide_ * kGroupBytes;
      }
      for (int64_t r = r0; r < r1; r += kBlockRows) {
        const int64_t rows = std::min(kBlockRows, r1 - r);
        const AView a = view(r, rows, first, groups);
        for (int64_t p = p0; p < p1; p += panels_per_tile_) {
          const std::byte* b = b_chunk + (p - p0) * b_stride;
          const std::byte* next_b = p + panels_per_tile_ < p1 ? b + panels_per_tile_ * b_stride : b_chunk;
          const int64_t panels = std::min(panels_per_tile_, p1 - p);
          float* acc = sums((r - r0) / kBlockRows, (p - p0) / panels_per_tile_, turn ^= 1);
          tile_({.a = a,
                 .b = b,
                 .next_b = next_b,
                 .panel_stride = b_stride,
                 .panels = panels,
                 .rows = rows,
                 .groups = groups * wide_,
                 .acc = acc,
                 .acc_ld = tile_columns_,
                 .first = chunk == 0,
                 .pending = pending,
                 .finish = finish_});
          pending = nullptr;
          if (chunk + 1 < chunks_) continue;
          EpilogueArgs& e = epilogues[turn];
          e = epilogue(acc, r, rows, p * kPanelColumns, std::min(g_.n, (p + panels) * kPanelColumns));
          if (amx_)
            pending = &e;
          else
            finish_(e, 0, rows);
        }
      }
    }
    if (pending != nullptr) finish_(*pending, 0, pending->rows);
  }

  EpilogueArgs epilogue(const float* acc, int64_t r, int64_t rows, int64_t c0, int64_t c1) const {
    const auto at = [](const float* p, int64_t i) { return p == nullptr ? nullptr : p + i; };
    return {.acc = acc,
            .acc_ld = tile_columns_,
            .rows = rows,
            .cols = c1 - c0,
            .scale_m = at(g_.scale_m, r),
            .scale_n = at(g_.scale_n, c0),
            .bias = at(g_.bias, c0),
            .c = static_cast<std::byte*>(g_.c) + (r * g_.ldc + c0) * static_cast<int64_t>(size_of(g_.c_type)),
            .ldc = g_.ldc};
  }

  // Rows [r, r + rows) of A, groups [first, first + groups): in place if the kernel can read them, else copied into the thread's scratch,
  // zero-padded at the edges.
  AView view(int64_t r, int64_t rows, int64_t first, int64_t groups) const {
    const auto size = static_cast<int64_t>(size_of(g_.type));
    if (g_.a_panels) {
      const auto* panel = static_cast<const std::byte*>(g_.a) + r / kPanelColumns * stride_ + first * kGroupBytes;
      const bool second = r + kPanelColumns < g_.m;
      if (widen_ != nullptr) {
        const int64_t half = groups * wide_ * kGroupBytes;
        for (int64_t h = 0; h < (second ? 2 : 1); ++h) widen_->panel(panel + h * stride_, groups, a_ + h * half);
        return {a_, second ? half : 0, 4, kGroupBytes, 0};
      }
      if (!amx_) return {panel, second ? stride_ : 0, 4, kGroupBytes, 0};
      for (int64_t h = 0; h < (second ? 2 : 1); ++h) {
        for (int64_t t = 0; t < groups / kTileGroups; ++t) {
          k_.transpose(panel + h * stride_ + t * 1024, 64, a_ + (h * (groups / kTileGroups) + t) * 1024);
        }
      }
      return {a_, groups * 64, 64, 4, 1024};
    }
    const auto* row = static_cast<const std::byte*>(g_.a) + r * g_.lda * size + first * 4;
    const int64_t stride = g_.lda * size, bytes = std::clamp<int64_t>(g_.k * size - first * 4, 0, groups * 4);
    if (widen_ != nullptr) {
      const int64_t ld = groups * 4 * wide_, whole = bytes / 4;
      for (int64_t i = 0; i < rows; ++i) {
        std::byte* out = a_ + i * ld;
        widen_->row(row + i * stride, whole, out);
        if (whole == groups) continue;
        std::byte last[4] = {};
        std::memcpy(last, row + i * stride + whole * 4, static_cast<size_t>(bytes - whole * 4));
        widen_->row(last, 1, out + whole * 8);
        std::memset(out + (whole + 1) * 8, 0, static_cast<size_t>(groups - whole - 1) * 8);
      }
      return {a_, 16 * ld, ld, 4, 0};
    }
    if (rows == kBlockRows && bytes == groups * 4 && (!amx_ || stride % 1024 != 0 || stride * kBlockRows <= 16384)) {
      return {row, 16 * stride, stride, 4, 64};
    }
    if (!amx_) {
      const int64_t ld = groups * 4;
      for (int64_t i = 0; i < kBlockRows; ++i) {
        const int64_t n = i < rows ? bytes : 0;
        if (n > 0) std::memcpy(a_ + i * ld, row + i * stride, static_cast<size_t>(n));
        std::memset(a_ + i * ld + n, 0, static_cast<size_t>(ld - n));
      }
      return {a_, 16 * ld, ld, 4, 0};
    }
    for (int64_t i = 0; i < kBlockRows; ++i) {
      for (int64_t at = 0; at < groups * 4; at += 64) {
        std::byte* out = a_ + i / 16 * groups * 64 + at * 16 + i % 16 * 64;
        const int64_t n = i < rows ? std::clamp<int64_t>(bytes - at, 0, 64) : 0;
        if (n == 64) {
          std::memcpy(out, row + i * stride + at, 64);
        } else {
          if (n > 0) std::memcpy(out, row + i * stride + at, static_cast<size_t>(n));
          std::memset(out + n, 0, static_cast<size_t>(64 - n));
        }
      }
    }
    return {a_, groups * 64, 64, 4, 1024};
  }

  const Gemm& g_;
  const Kernels& k_;
  void (*tile_)(const TileArgs&);
  const Widen* widen_;
  bool amx_;
  int64_t wide_, panels_per_tile_, stride_, groups_, chunk_, chunks_;
  Epilogue finish_;
  // Per-thread buffers: each thread has its own copy of Product.
  std::byte *a_ = nullptr, *b_ = nullptr;
  float* acc_ = nullptr;
  int64_t tile_columns_ = 0, tiles_across_ = 0;
};

void check_gemm(const Gemm& g) {
  check(g.type == DType::s8 || g.type == DType::bf16 || g.type == DType::f32, "gemm: expected operands s8, bf16 or f32, found type {}",
        static_cast<int>(g.type));
  check(g.c_type == DType::bf16 || g.c_type == DType::f32, "gemm: expected an output in bf16 or f32, found type {}",
        static_cast<int>(g.c_type));
  check(g.m >= 0 && g.n >= 0 && g.k >= 0, "gemm: expected sizes >= 0, found m {}, n {}, k {}", g.m, g.n, g.k);
  check(g.m <= 1 || g.ldc >= g.n, "gemm: expected a row stride of C >= {}, found {}", g.n, g.ldc);
  check(g.a_panels || g.m <= 1 || g.lda >= g.k, "gemm: expected a row stride of A >= {}, found {}", g.k, g.lda);
  check(g.type != DType::s8 || g.k <= kMostInt8Products, "gemm: int32 sums of int8 products are exact up to k = {}, found {}",
        kMostInt8Products, g.k);
  check(g.m * g.n == 0 || (g.c != nullptr && (g.k == 0 || (g.a != nullptr && g.b != nullptr))), "gemm: an operand is missing");
}

const Kernels& kernels(Isa isa) {
  check(available(isa), "instruction set {} is not available on this processor", name(isa));
  switch (isa) {
    case Isa::amx:
      return kernels_amx();
    case Isa::vnni:
      return kernels_vnni();
    case Isa::avx512:
      return kernels_avx512();
    case Isa::avxvnni:
      return kernels_avxvnni();
    default:
      return kernels_v3();
  }
}

}  // namespace

void run(const Gemm& g, Isa isa) {
  check_gemm(g);
  if (g.m == 0 || g.n == 0) return;
  if (isa == Isa::ref) return ref::run(g);
  const Product product(g, kernels(isa));
  const int64_t row_blocks = ceil_div(g.m, kBlockRows), panels = ceil_div(g.n, kPanelColumns);
  // Threads split C only, never k: rows first, then panels. The result of an element does not depend on the split.
  const bool small = g.m * g.n * std::max<int64_t>(g.k, 1) < (int64_t{1} << 18);
  const int64_t threads = small ? 1 : max_threads();
  const int64_t by_row = std::min(threads, row_blocks),
                by_col = std::min(std::max<int64_t>(1, threads / by_row), ceil_div(panels, kMaxPanels));
  parallel_for(by_row * by_col, small ? by_row * by_col : 1, [&](int64_t begin, int64_t end) {
    Product mine = product;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t ri = i % by_row, ci = i / by_row;
      const auto part = [](int64_t n, int64_t of, int64_t at) { return n * at / of; };
      const int64_t p0 = part(ceil_div(panels, kMaxPanels), by_col, ci) * kMaxPanels,
                    p1 = std::min(panels, part(ceil_div(panels, kMaxPanels), by_col, ci + 1) * kMaxPanels);
      mine.region(part(row_blocks, by_row, ri) * kBlockRows, std::min(g.m, part(row_blocks, by_row, ri + 1) * kBlockRows), p0, p1);
    }
  });
}

}  // namespace halftone::gemm
