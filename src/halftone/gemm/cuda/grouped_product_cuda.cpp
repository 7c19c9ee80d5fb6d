// Host code of the CUDA module: kernel selection and setup for grouped GEMMs.
#include "halftone/gemm/grouped_product_cuda.h"

#include "halftone/device/error_text.h"
#include "halftone/gemm/cuda/current_device.h"
#include "halftone/gemm/cuda/grouped.h"
#include "halftone/gemm/cuda/scales.h"
#include "halftone/gemm/cuda/workspace.h"
#include "halftone/gemm/cutlass/grouped.h"

namespace halftone::gemm {
namespace {

bool of_rows(const GroupedProduct& p) { return p.ragged == Ragged::rows; }
// Dimensions as the kernel sees them: the ragged dimension spans the full buffer.
int64_t rows_of(const GroupedProduct& p, int which) { return which == 1 ? p.n : of_rows(p) ? p.rows : p.m; }
int64_t contraction_of(const GroupedProduct& p) { return of_rows(p) ? p.k : p.rows; }
int64_t row_step(const GroupedProduct& p, int which) {
  const GroupedOperand& x = which == 0 ? p.a : p.b;
  return x.ld ? x.ld : x.transposed ? rows_of(p, which) : contraction_of(p);
}
bool rows_aligned16(const GroupedProduct& p, int which) {
  const GroupedOperand& x = which == 0 ? p.a : p.b;
  return aligned16(x.data, row_step(p, which) * bytes_of(x.numbers)) && x.stride * bytes_of(x.numbers) % 16 == 0;
}

const char* problem(const GroupedProduct& p) {
  const Numbers a = p.a.numbers, b = p.b.numbers;
  if (p.groups.groups < 1 || !p.groups.offsets || !p.groups.ends) return "grouped product: expected at least one group, offsets and ends";
  if (p.rows < 0 || p.rows % kGroupRows != 0) return "grouped product: expected rows that are a multiple of 128";
  if (p.m < 0 || p.n < 0 || p.k < 0) return "grouped product: expected m, n and k of at least 0";
  if (p.rows > INT32_MAX || p.m > INT32_MAX || p.n > INT32_MAX || p.k > INT32_MAX || p.groups.groups > 65535) {
    return "grouped product: expected rows, m, n and k below 2^31 and at most 65535 groups";
  }
  if (is_fp8(a) ? !is_fp8(b) : a != b) return "grouped product: expected operands of the same element type (e4m3 and e5m2 may be mixed)";
  if (!p.d || !p.a.data || !p.b.data) return "grouped product: expected both operands and an output";
  if (p.d_type != DType::bf16 && p.d_type != DType::f32) return "grouped product: expected an output of bf16 or f32";
  if (of_rows(p) && (p.accumulate || p.a.transposed)) {
    return "grouped product: products of rows neither accumulate nor take a transposed A";
  }
  for (const GroupedOperand* x : {&p.a, &p.b}) {
    if (x->scales != Scales::none && !x->scale) return "grouped product: expected the scales that the operand names";
    if (in_blocks(*x) && !is_fp8(x->numbers) && x->numbers != Numbers::f32) {
      return "grouped product: scales of 128 elements go with fp8 codes and fp32 only";
    }
    if (x->macro && x->scales == Scales::tile128) return "grouped product: macro blocks go with factors of rows or tensors";
    if (is_8bit(x->numbers) && x->transposed) {
      return "grouped product: 8-bit operands lie along the contraction; quantise the transposed copy";
    }
  }
  if (is_8bit(a)) {
    if (p.k % 16 != 0 || p.n % 16 != 0) return "grouped product: 8-bit operands need k and n that are multiples of 16; append zeros";
    if (!rows_aligned16(p, 0) || !rows_aligned16(p, 1)) return "grouped product: expected rows of 8-bit codes 16-byte aligned";
  }
  return nullptr;
}

// Maps the operands' scales to a block scaling of the sm_90 kernels; false if unsupported.
bool block_scales(const GroupedProduct& p, BlockScales& out) {
  out = BlockScales::none;
  if (!in_blocks(p.a) && !in_blocks(p.b)) return true;
  // A macro block of a row is also a factor per row and 128 elements.
  const auto rows = [](const GroupedOperand& x) { return x.macro ? !x.macro_tiles : x.scales == Scales::block128; };
  out = of_rows(p) ? BlockScales::block_tile : BlockScales::block_block;
  return rows(p.a) && (of_rows(p) ? p.b.scales == Scales::tile128 || (p.b.macro && p.b.macro_tiles) : rows(p.b));
}

// Compiled kernels; the first match is used. fp8 kernels with promotion hold two sets of accumulators, so their tiles are smaller.
struct TensorKernel {
  Ragged ragged;
  Numbers a, b;
  bool transposed_a, transposed_b;
  DType d_type;
  bool accumulate, fast;
  BlockScales blocks;
  GroupedTiling tiling;
  const char* (*run)(const GroupedCall&);
};
template <Ragged kRagged, Numbers kA, Numbers kB, bool kTransposedA, bool kTransposedB, DType kD, bool kAccumulate, GroupedTiling kTiling,
          bool kFast = false, BlockScales kBlocks = BlockScales::none>
constexpr TensorKernel kernel() {
  constexpr auto kRun = &grouped_product<kRagged, kA, kB, kTransposedA, kTransposedB, kD, kAccumulate, kFast, kBlocks, kTiling>;
  return {kRagged, kA, kB, kTransposedA, kTransposedB, kD, kAccumulate, kFast, kBlocks, kTiling, kRun};
}
constexpr auto kRows = Ragged::rows, kContraction = Ragged::contraction;
constexpr auto kBf16 = Numbers::bf16, kE4m3 = Numbers::e4m3, kE5m2 = Numbers::e5m2, kS8 = Numbers::s8;
using enum GroupedTiling;
constexpr TensorKernel kKernels[] = {
    kernel<kRows, kBf16, kBf16, false, false, DType::bf16, false, cooperative_128x256_pairs_along_n>(),
    kernel<kRows, kBf16, kBf16, false, false, DType::bf16, false, cooperative_128x256>(),
    kernel<kRows, kBf16, kBf16, false, true, DType::bf16, false, cooperative_128x256_pairs_along_n>(),
    kernel<kRows, kBf16, kBf16, false, true, DType::bf16, false, cooperative_128x256>(),
    kernel<kContraction, kBf16, kBf16, true, true, DType::f32, false, cooperative_128x256_pairs_along_m>(),
    kernel<kContraction, kBf16, kBf16, true, true, DType::f32, true, cooperative_128x256_pairs_along_m>(),
    kernel<kContraction, kBf16, kBf16, false, false, DType::f32, false, cooperative_128x256_pairs_along_m>(),
    kernel<kContraction, kBf16, kBf16, false, false, DType::f32, true, cooperative_128x256_pairs_along_m>(),
    kernel<kRows, kE4m3, kE4m3, false, false, DType::bf16, false, pingpong_128x128, true>(),
    kernel<kRows, kE4m3, kE4m3, false, false, DType::bf16, false, cooperative_128x256, true>(),
    kernel<kRows, kE4m3, kE4m3, false, false, DType::bf16, false, cooperative_128x192>(),
    kernel<kContraction, kE4m3, kE4m3, false, false, DType::f32, false, cooperative_128x192>(),
    kernel<kContraction, kE4m3, kE4m3, false, false, DType::f32, true, cooperative_128x192>(),
    kernel<kRows, kE5m2, kE4m3, false, false, DType::bf16, false, cooperative_128x192>(),
    kernel<kContraction, kE5m2, kE4m3, false, false, DType::f32, false, cooperative_128x192>(),
    kernel<kContraction, kE5m2, kE4m3, false, false, DType::f32, true, cooperative_128x192>(),
    kernel<kRows, kE4m3, kE4m3, false, false, DType::bf16, false, cooperative_128x128, false, BlockScales::block_tile>(),
    kernel<kContraction, kE4m3, kE4m3, false, false, DType::f32, false, cooperative_128x128, false, BlockScales::block_block>(),
    kernel<kContraction, kE4m3, kE4m3, false, false, DType::f32, true, cooperative_128x128, false, BlockScales::block_block>(),
    kernel<kRows, kS8, kS8, false, false, DType::bf16, false, cooperative_128x256>(),
    kernel<kContraction, kS8, kS8, false, false, DType::f32, false, cooperative_128x256>(),
    kernel<kContraction, kS8, kS8, false, false, DType::f32, true, cooperative_128x256>(),
};

// Whether the tiling beats the next matching kernel of the table (measured on an H100).
bool suits(GroupedTiling tiling, const GroupedProduct& p) {
  if (tiling == cooperative_128x256_pairs_along_n) return device::ceil_div(p.n, 256) % 2 == 0;
  return tiling != pingpong_128x128 || p.k <= 1024;
}

// Null: use the portable kernel.
const TensorKernel* tensor_kernel(const GroupedProduct& p, const Device& device) {
  BlockScales blocks;
  if (!device.sm90 || !block_scales(p, blocks) || contraction_of(p) == 0) return nullptr;
  if (!rows_aligned16(p, 0) || !rows_aligned16(p, 1) || !aligned16(p.d, p.n * static_cast<int64_t>(size_of(p.d_type)))) return nullptr;
  for (const TensorKernel& k : kKernels) {
    if (k.ragged == p.ragged && k.a == p.a.numbers && k.b == p.b.numbers && k.transposed_a == p.a.transposed &&
        k.transposed_b == p.b.transposed && k.d_type == p.d_type && k.accumulate == p.accumulate && k.blocks == blocks &&
        (p.fast_accumulation || !k.fast) && suits(k.tiling, p)) {
      return &k;
    }
  }
  return nullptr;
}

// Scales applied after the sum, as the kernel reads them: in place, or multiplied together first.
GroupedCall::Factors plan_factors(const GroupedProduct& p, int which, float factor, FactorJob& job, Workspace& space) {
  const GroupedOperand& x = which == 0 ? p.a : p.b;
  const bool row = x.scales == Scales::row, tensor = x.scales == Scales::tensor, of_buffer = which == 0 && of_rows(p);
  const int64_t rows = row ? rows_of(p, which) : 1;
  GroupedCall::Factors f{nullptr, row, row && of_buffer ? 0 : rows};
  if (factor == 1 && !((row || tensor) && x.outer)) {
    f.scale = row || tensor ? x.scale : x.outer;
    return f;
  }
  job = {x, rows, row && of_buffer, factor, nullptr};
  job.to = space.take<float>(rows * (job.of_buffer ? 1 : p.groups.groups));
  f.scale = job.to;
  return f;
}

// Factors per row and 128 elements, one column of blocks after the other.
const float* plan_columns(const GroupedProduct& p, int which, ScaleJob& job, Workspace& space) {
  job.from = which == 0 ? p.a : p.b;
  if (job.from.scales != Scales::block128) job.from.scales = Scales::none;  // other scales are applied after the sum
  job.from.outer = nullptr;
  job.layout = ScaleLayout::column, job.rows = rows_of(p, which), job.blocks = device::ceil_div(contraction_of(p), 128);
  return job.to = space.take<float>(scale_count(job));
}

// Factors of B's macro tiles, for all groups.
const float* plan_tiles(const GroupedProduct& p, ScaleJob& job, int64_t of_group, Workspace& space) {
  job.from = ProductOperand{};
  job.from.macro = p.b.macro;
  job.layout = ScaleLayout::vector, job.rows = p.groups.groups * of_group, job.blocks = 1;
  return job.to = space.take<float>(scale_count(job));
}

struct Plan {
  GroupedCall call;
  GroupedPrepare before;
  ScaleJob scales[2];  // applied inside the sum
};
Plan make_plan(const GroupedProduct& p, BlockScales blocks, Workspace& space) {
  Plan plan;
  GroupedCall& c = plan.call;
  c.m = static_cast<int>(rows_of(p, 0)), c.n = static_cast<int>(p.n), c.k = static_cast<int>(contraction_of(p));
  c.groups = static_cast<int>(p.groups.groups), c.offsets = p.groups.offsets, c.ends = p.groups.ends;
  c.a = p.a.data, c.b = p.b.data, c.d = p.d;
  c.lda = row_step(p, 0), c.ldb = row_step(p, 1), c.stride_b = p.b.stride;
  c.scale_m = plan_factors(p, 0, p.alpha, plan.before.jobs[0], space);
  c.scale_n = plan_factors(p, 1, 1, plan.before.jobs[1], space);
  if (blocks != BlockScales::none) c.block_a = plan_columns(p, 0, plan.scales[0], space);
  if (blocks == BlockScales::block_block) c.block_b = plan_columns(p, 1, plan.scales[1], space);
  if (blocks == BlockScales::block_tile && p.b.macro) {
    c.block_stride_b = device::ceil_div(p.n, 128) * device::ceil_div(p.k, 128);
    c.block_b = plan_tiles(p, plan.scales[1], c.block_stride_b, space);
  } else if (blocks == BlockScales::block_tile) {
    c.block_b = p.b.scale, c.block_stride_b = p.b.scale_stride;
  }
  c.order = plan.before.order = space.take<int32_t>(of_rows(p) ? p.rows / kGroupRows : p.groups.groups);
  plan.before.product = p;
  return plan;
}

const char* run(const GroupedProduct& p, cudaStream_t stream) {
  if (const char* message = problem(p)) return message;
  if (p.n == 0 || rows_of(p, 0) == 0) return nullptr;
  Device device;
  if (const char* message = current_device(device)) return message;
  const TensorKernel* kernel = tensor_kernel(p, device);
  if (!kernel) return device::error_text(grouped_portable(p, stream));
  Workspace space(p.workspace, p.workspace_bytes);
  Plan plan = make_plan(p, kernel->blocks, space);
  if (!p.workspace || !space.fits()) {
    return "grouped product: the workspace is too small; ask halftone_cuda_grouped_product_workspace";
  }
  if (const char* message = device::error_text(grouped_prepare(plan.before, stream))) return message;
  if (plan.scales[0].to) {
    if (const char* message = device::error_text(arrange_scales(plan.scales[0], plan.scales[1], stream))) return message;
  }
  plan.call.sm_count = device.sm_count, plan.call.stream = stream;
  return kernel->run(plan.call);
}

}  // namespace
}  // namespace halftone::gemm

const char* halftone_cuda_grouped_product(const halftone::gemm::GroupedProduct* what, void* stream) {
  const char* message = halftone::gemm::run(*what, static_cast<cudaStream_t>(stream));
  if (message != nullptr) cudaGetLastError();  // clears errors of launches inside CUTLASS (error_text.h)
  return message;
}

int64_t halftone_cuda_grouped_product_workspace(const halftone::gemm::GroupedProduct* what) {
  using namespace halftone::gemm;
  Device device;
  if (problem(*what) || current_device(device)) return 0;
  const TensorKernel* kernel = tensor_kernel(*what, device);
  Workspace space(nullptr, 0);
  if (kernel) make_plan(*what, kernel->blocks, space);
  return space.used();
}
