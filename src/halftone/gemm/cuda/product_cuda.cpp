// Host code of the CUDA module: library or kernel selection and setup for GEMMs.
#include "halftone/gemm/product_cuda.h"

#include <algorithm>
#include <bit>

#include "halftone/device/error_text.h"
#include "halftone/gemm/cublaslt/matmul.h"
#include "halftone/gemm/cuda/block_rows.h"
#include "halftone/gemm/cuda/current_device.h"
#include "halftone/gemm/cuda/scaled_choice.h"
#include "halftone/gemm/cuda/scales.h"
#include "halftone/gemm/cuda/workspace.h"
#include "halftone/gemm/int8_sums.h"

namespace halftone::gemm {
namespace {

using device::ceil_div;
constexpr int64_t kLibraryWorkspace = int64_t{32} << 20;  // NVIDIA's recommendation for Hopper

bool one_factor(const ProductOperand& x) { return !x.macro && (x.scales == Scales::none || x.scales == Scales::tensor); }
bool is_one(const ProductOperand& x) { return one_factor(x) && x.scales == Scales::none && !x.outer; }

int64_t library_bytes(const Workspace& space) { return std::min(space.rest_bytes(), kLibraryWorkspace); }

int64_t row_step(const ProductOperand& x, int64_t rows, int64_t k) { return x.ld ? x.ld : x.transposed ? rows : k; }
bool rows_aligned16(const ProductOperand& x, int64_t rows, int64_t k) {
  return aligned16(x.data, row_step(x, rows, k) * bytes_of(x.numbers));
}

const char* problem(const Product& p) {
  const Numbers a = p.a.numbers, b = p.b.numbers;
  if (p.m < 0 || p.n < 0 || p.k < 0) return "product: expected m, n and k of at least 0";
  if (p.m > INT32_MAX || p.n > INT32_MAX || p.k > INT32_MAX) return "product: expected m, n and k below 2^31";
  if (is_fp8(a) ? !is_fp8(b) : a != b) return "product: expected operands of the same element type (e4m3 and e5m2 may be mixed)";
  if (!p.d || (p.k > 0 && (!p.a.data || !p.b.data))) return "product: expected both operands and an output";
  for (const ProductOperand* x : {&p.a, &p.b}) {
    if (x->scales != Scales::none && !x->scale) return "product: expected the scales that the operand names";
    if (in_blocks(*x) && !is_fp8(x->numbers)) return "product: scales of 128 elements go with fp8 codes only";
    if (x->macro && x->scales == Scales::tile128) return "product: macro blocks go with factors of rows or tensors";
    if (is_8bit(x->numbers) && x->transposed) return "product: 8-bit operands lie along the contraction; quantise the transposed copy";
  }
  if (p.d_type == DType::s32) {
    if (a != Numbers::s8 || !is_one(p.a) || !is_one(p.b) || p.bias || p.alpha != 1) return "product: int32 goes with plain int8 products";
  } else if (p.d_type != DType::bf16 && p.d_type != DType::f32) {
    return "product: expected an output of bf16, f32 or, for int8, s32";
  }
  if (p.bias && p.bias_type != DType::bf16 && p.bias_type != DType::f32) return "product: expected a bias of bf16 or f32";
  if (is_8bit(a)) {
    if (p.k % 16 != 0 || p.n % 16 != 0) return "product: 8-bit operands need k and n that are multiples of 16; append zeros";
    if (!rows_aligned16(p.a, p.m, p.k) || !rows_aligned16(p.b, p.n, p.k)) return "product: expected rows of 8-bit codes 16-byte aligned";
  }
  static_assert(kMostInt8Products == 133144, "the message below");
  if (a == Numbers::s8 && p.k > kMostInt8Products) {
    return "product: int32 sums of int8 products hold up to 133144 of them; shorten the contraction (for the gradient of a weight the "
           "tokens "
           "of a micro-batch: fewer rows or more accumulation), or use another format";
  }
  return nullptr;
}

// Execution plan of one GEMM: everything but the addresses that only a launch needs.
struct Plan {
  // in_two: GEMM writes raw sums, a second kernel applies the epilogue
  enum class Way { library, scaled, in_two } way = Way::library;
  ScaleJob jobs[2];               // for A and B
  int32_t mode[2] = {-1, -1};     // cublasLtMatmulMatrixScale_t
  const float* scale[2] = {};     // scales that the GEMM reads
  bool vector[2] = {};            // scaled: [rows], else one factor
  float* alpha_beta = nullptr;    // {alpha, beta} on the device
  bool factors_in_alpha = false;  // ... including the operands' scalar factors
  const void* bias = nullptr;
  DType bias_type = DType::bf16;
  void* converted_bias = nullptr;
  bool bias_first = false;  // the bias is added to D first, and the GEMM accumulates
  void* sum = nullptr;      // in_two: int32 or fp32 [m, n]
  bf16* decoded[2] = {};    // in_two: e5m2 codes decoded to bf16
  float alpha = 1;          // remaining alpha for the library
};

ScaleJob job(const Product& p, int which, ScaleLayout layout) {
  ScaleJob j;
  j.from = which == 0 ? p.a : p.b;
  j.layout = layout;
  j.rows = which == 0 ? p.m : p.n;
  j.blocks = ceil_div(p.k, 128);
  return j;
}

void plan_job(Plan& plan, int which, ScaleJob j, Workspace& space) {
  j.to = space.take<float>(scale_count(j));
  plan.jobs[which] = j;
  plan.scale[which] = j.to;
}

// Row scales, or a broadcast factor per row: [rows] as the GEMM reads them.
void plan_rows(Plan& plan, const Product& p, int which, float factor, bool vector_only, Workspace& space) {
  const ProductOperand& x = which == 0 ? p.a : p.b;
  const bool direct = !x.outer && factor == 1 && (x.scales == Scales::row || !vector_only);
  plan.vector[which] = x.scales == Scales::row || !direct;
  if (direct) {
    plan.scale[which] = x.scale;
    return;
  }
  ScaleJob j = job(p, which, ScaleLayout::vector);
  j.factor = factor;
  plan_job(plan, which, j, space);
}

// Both scales after the sum: one fused kernel of ours, or two steps.
void plan_beside(Plan& plan, const Product& p, bool fused, Workspace& space) {
  plan.way = fused ? Plan::Way::scaled : Plan::Way::in_two;
  plan_rows(plan, p, 0, p.alpha, !fused, space);
  plan_rows(plan, p, 1, 1, !fused, space);
  if (fused) return;
  plan.sum = space.take<int32_t>(p.m * p.n);
  if (p.a.numbers != Numbers::e5m2) return;
  plan.decoded[0] = space.take<bf16>(p.m * row_step(p.a, p.m, p.k));
  plan.decoded[1] = space.take<bf16>(p.n * row_step(p.b, p.n, p.k));
}

void plan_fp8(Plan& plan, const Product& p, Workspace& space) {
  if (in_blocks(p.a) || in_blocks(p.b)) {
    // A macro block or a row of another granularity becomes a factor per row and 128 elements. So does one of two tile-scaled operands:
    // cuBLASLt supports only one.
    for (int which = 0; which < 2; ++which) {
      const ProductOperand &x = which == 0 ? p.a : p.b, &other = which == 0 ? p.b : p.a;
      const bool tile = x.scales == Scales::tile128 && !(which == 0 && other.scales == Scales::tile128);
      plan.mode[which] = tile ? CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F : CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
      ScaleJob j = job(p, which, tile ? ScaleLayout::row_of_4 : ScaleLayout::column);
      if (!tile) j.rows = j.rows / 4 * 4;  // block_product computes the remaining rows
      plan_job(plan, which, j, space);
    }
    return;
  }
  if (one_factor(p.a) && one_factor(p.b)) {
    for (int which = 0; which < 2; ++which) {
      const ProductOperand& x = which == 0 ? p.a : p.b;
      if (x.scales == Scales::none && !x.outer) continue;
      plan.mode[which] = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
      plan.scale[which] = x.scale;
      if (!x.outer) continue;
      ScaleJob j = job(p, which, ScaleLayout::vector);
      j.rows = 1;
      plan_job(plan, which, j, space);
    }
    return;
  }
  for (int which = 0; which < 2; ++which) {
    plan.mode[which] = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    plan_rows(plan, p, which, 1, true, space);
  }
}

void plan_bias(Plan& plan, const Product& p, Workspace& space) {
  if (!p.bias) return;
  plan.bias = p.bias, plan.bias_type = p.bias_type;
  if (plan.way == Plan::Way::in_two) return;
  // cuBLASLt adds no bias to block-scaled GEMMs; for other fp8 GEMMs with fp32 output it adds a bf16 bias only.
  plan.bias_first = plan.way == Plan::Way::library && is_fp8(p.a.numbers) && (in_blocks(p.a) || in_blocks(p.b) || p.d_type == DType::f32);
  if (plan.bias_first) return;
  const DType wanted = plan.way == Plan::Way::scaled ? DType::f32 : p.d_type;
  if (p.bias_type == wanted) return;
  plan.converted_bias = wanted == DType::f32 ? static_cast<void*>(space.take<float>(p.n)) : space.take<bf16>(p.n);
  plan.bias = plan.converted_bias, plan.bias_type = wanted;
}

// For transposed operands with rows not aligned to 16 bytes, cuBLASLt rounds the result to bf16 before it adds the bias.
bool rounded_before_bias(const Product& p) {
  const auto odd = [](const ProductOperand& x, int64_t rows, int64_t k) { return x.transposed && row_step(x, rows, k) * 2 % 16 != 0; };
  return p.a.numbers == Numbers::bf16 && p.d_type == DType::bf16 && p.bias && (odd(p.a, p.m, p.k) || odd(p.b, p.n, p.k));
}

Plan make_plan(const Product& p, bool sm90, Workspace& space) {
  Plan plan;
  plan.alpha = p.alpha;
  const Numbers a = p.a.numbers, b = p.b.numbers;
  const bool factors = one_factor(p.a) && one_factor(p.b);
  const bool fused = sm90 && rows_aligned16(p.a, p.m, p.k) && rows_aligned16(p.b, p.n, p.k) &&
                     aligned16(p.d, (p.ldd ? p.ldd : p.n) * static_cast<int64_t>(size_of(p.d_type)));
  if (a == Numbers::s8) {
    if (p.d_type == DType::s32) return plan;
    plan_beside(plan, p, fused, space);
  } else if (a == Numbers::e5m2 && b == Numbers::e5m2 && !in_blocks(p.a) && !in_blocks(p.b)) {
    plan_beside(plan, p, false, space);  // cuBLASLt does not support e5m2 x e5m2: use bf16
  } else if (is_fp8(a)) {
    plan_fp8(plan, p, space);
  } else if (!factors) {
    plan_beside(plan, p, fused && a == Numbers::bf16 && !p.a.transposed && !p.b.transposed && !p.accumulate && p.k % 8 == 0 && p.n % 8 == 0,
                space);
  } else if ((a == Numbers::f32 && p.d_type == DType::bf16) || rounded_before_bias(p)) {
    plan_beside(plan, p, false, space);
  } else {
    plan.factors_in_alpha = !is_one(p.a) || !is_one(p.b);
  }
  // With host-side alpha = beta = 1 cuBLASLt rounds the result before it adds a bf16 D; with alpha and beta on the device it adds in fp32.
  const bool rounds_twice = plan.way == Plan::Way::library && p.accumulate && p.d_type == DType::bf16 && !in_blocks(p.a) && !in_blocks(p.b);
  if (plan.factors_in_alpha || rounds_twice) plan.alpha_beta = space.take<float>(2);
  plan_bias(plan, p, space);
  return plan;
}

int32_t library_type(Numbers t) {
  switch (t) {
    case Numbers::bf16:
      return CUDA_R_16BF;
    case Numbers::f32:
      return CUDA_R_32F;
    case Numbers::e4m3:
      return CUDA_R_8F_E4M3;
    case Numbers::e5m2:
      return CUDA_R_8F_E5M2;
    case Numbers::s8:
      return CUDA_R_8I;
  }
  return -1;
}
int32_t library_type(DType t) { return t == DType::f32 ? CUDA_R_32F : t == DType::bf16 ? CUDA_R_16BF : CUDA_R_32I; }

// log2 of the common alignment of address and row stride, at most 256 bytes.
uint8_t alignment(const void* at, int64_t row_bytes) {
  const auto bits = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(at)) | static_cast<uint64_t>(row_bytes) | 256;
  return static_cast<uint8_t>(std::countr_zero(bits));
}

lt::Problem library_problem(const Product& p, const Plan& plan, int device, int64_t workspace) {
  lt::Problem q;
  q.m = p.m, q.n = p.n, q.k = p.k;
  q.lda = row_step(p.a, p.m, p.k), q.ldb = row_step(p.b, p.n, p.k), q.ldd = p.ldd ? p.ldd : p.n;
  q.a_type = library_type(p.a.numbers), q.b_type = library_type(p.b.numbers), q.d_type = library_type(p.d_type);
  q.a_scale = plan.mode[0], q.b_scale = plan.mode[1];
  if (plan.bias && !plan.bias_first) q.bias_type = library_type(plan.bias_type);
  q.pointer_mode = plan.alpha_beta ? CUBLASLT_POINTER_MODE_DEVICE : CUBLASLT_POINTER_MODE_HOST;
  q.device = device;
  q.a_transposed = p.a.transposed, q.b_transposed = p.b.transposed;
  q.accumulate = p.accumulate || plan.bias_first;
  q.fast = p.fast_accumulation && is_fp8(p.a.numbers) && plan.mode[0] < CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
  q.align_a = alignment(p.a.data, q.lda * bytes_of(p.a.numbers)), q.align_b = alignment(p.b.data, q.ldb * bytes_of(p.b.numbers));
  q.align_d = alignment(p.d, q.ldd * static_cast<int64_t>(size_of(p.d_type)));
  q.workspace = static_cast<uint64_t>(workspace);
  return q;
}
lt::Pointers library_pointers(const Product& p, const Plan& plan, void* workspace) {
  lt::Pointers x;
  x.a = p.a.data, x.b = p.b.data, x.d = p.d;
  x.a_scale = plan.scale[0], x.b_scale = plan.scale[1];
  x.bias = plan.bias, x.alpha_beta = plan.alpha_beta, x.alpha = plan.alpha, x.workspace = workspace;
  return x;
}

ScaledCall scaled_call(const Product& p, const Plan& plan, const Device& device, cudaStream_t stream) {
  ScaledCall c;
  c.m = static_cast<int>(p.m), c.n = static_cast<int>(p.n), c.k = static_cast<int>(p.k);
  c.a = p.a.data, c.b = p.b.data, c.d = p.d;
  c.lda = row_step(p.a, p.m, p.k), c.ldb = row_step(p.b, p.n, p.k), c.ldd = p.ldd ? p.ldd : p.n;
  c.scale_m = plan.scale[0], c.scale_n = plan.scale[1];
  c.vector_m = plan.vector[0], c.vector_n = plan.vector[1];
  c.bias = static_cast<const float*>(plan.bias);
  c.sm_count = device.sm_count, c.stream = stream;
  return c;
}

#define HALFTONE_TRY(expression) \
  if (const char* message = device::error_text(expression)) return message

const char* prepare(const Product& p, const Plan& plan, cudaStream_t stream) {
  if (plan.jobs[0].to || plan.jobs[1].to) HALFTONE_TRY(arrange_scales(plan.jobs[0], plan.jobs[1], stream));
  if (plan.alpha_beta) {
    const bool all = plan.factors_in_alpha;
    HALFTONE_TRY(scalar_factor(all ? p.a : ProductOperand{}, all ? p.b : ProductOperand{}, p.alpha, p.accumulate, plan.alpha_beta, stream));
  }
  if (plan.converted_bias) HALFTONE_TRY(convert_bias(p.bias, p.bias_type, p.n, plan.converted_bias, plan.bias_type, stream));
  if (plan.bias_first) HALFTONE_TRY(finish({.product = p}, stream));
  return nullptr;
}

// 1x128 scales of A are laid out along its rows, and cuBLASLt requires a multiple of 4 rows: block_rows computes the last rows.
const char* block_product(const Product& p, const Plan& plan, const Device& device, Workspace& space, lt::Choice choice,
                          cudaStream_t stream) {
  const bool column_a = plan.mode[0] == CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
  const int64_t whole = column_a ? p.m / 4 * 4 : p.m;
  if (whole > 0) {
    Product part = p;
    part.m = whole;
    const char* message = lt::matmul(library_problem(part, plan, device.id, library_bytes(space)),
                                     library_pointers(part, plan, space.rest()), choice, stream);
    if (message) return message;
  }
  if (whole == p.m) return nullptr;
  BlockRows rest{p, whole, job(p, 0, ScaleLayout::column), job(p, 1, ScaleLayout::column)};
  rest.product.a.ld = row_step(p.a, p.m, p.k), rest.product.b.ld = row_step(p.b, p.n, p.k), rest.product.ldd = p.ldd ? p.ldd : p.n;
  rest.product.accumulate = p.accumulate || plan.bias_first;
  HALFTONE_TRY(block_rows(rest, stream));
  return nullptr;
}

const char* in_two(const Product& p, const Plan& plan, const Device& device, Workspace& space, lt::Choice choice, cudaStream_t stream) {
  const bool integer = p.a.numbers == Numbers::s8;
  Product sums = p;
  sums.d = plan.sum, sums.d_type = integer ? DType::s32 : DType::f32, sums.ldd = p.n, sums.accumulate = false;
  for (int which = 0; which < 2; ++which) {
    ProductOperand& x = which == 0 ? sums.a : sums.b;
    if (!plan.decoded[which]) continue;
    // Only up to the end of the last row: memory beyond it does not belong to the operand.
    HALFTONE_TRY(decode_e5m2(x.data, ((which == 0 ? p.m : p.n) - 1) * row_step(x, 0, p.k) + p.k, plan.decoded[which], stream));
    x.numbers = Numbers::bf16, x.data = plan.decoded[which];
  }
  Plan bare;
  const lt::Problem problem = library_problem(sums, bare, device.id, library_bytes(space));
  if (const char* message = lt::matmul(problem, library_pointers(sums, bare, space.rest()), choice, stream)) return message;
  HALFTONE_TRY(finish({plan.sum, integer, plan.scale[0], plan.scale[1], p}, stream));
  return nullptr;
}

const char* run(const Product& p, cudaStream_t stream) {
  if (const char* message = problem(p)) return message;
  if (p.m == 0 || p.n == 0) return nullptr;
  if (p.k == 0) {
    HALFTONE_TRY(finish({.product = p}, stream));
    return nullptr;
  }
  Device device;
  if (const char* message = current_device(device)) return message;
  Workspace space(p.workspace, p.workspace_bytes);
  const Plan plan = make_plan(p, device.sm90 && !p.portable, space);
  if (!space.fits()) return "product: the workspace is too small; ask halftone_cuda_product_workspace";
  if (const char* message = prepare(p, plan, stream)) return message;
  const lt::Choice choice = p.measure ? lt::Choice::measured : lt::Choice::heuristic;
  if (plan.way == Plan::Way::scaled) return scaled(p, scaled_call(p, plan, device, stream), p.measure);
  if (plan.way == Plan::Way::in_two) return in_two(p, plan, device, space, choice, stream);
  if (plan.mode[0] >= CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F || plan.mode[1] >= CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F) {
    return block_product(p, plan, device, space, choice, stream);
  }
  return lt::matmul(library_problem(p, plan, device.id, library_bytes(space)), library_pointers(p, plan, space.rest()), choice, stream);
}

}  // namespace
}  // namespace halftone::gemm

const char* halftone_cuda_product(const halftone::gemm::Product* what, void* stream) {
  const char* message = halftone::gemm::run(*what, static_cast<cudaStream_t>(stream));
  if (message != nullptr) cudaGetLastError();  // clears errors of launches inside the libraries (error_text.h)
  return message;
}

int64_t halftone_cuda_product_workspace(const halftone::gemm::Product* what) {
  using namespace halftone::gemm;
  Device device;
  if (what->m <= 0 || what->n <= 0 || what->k <= 0 || current_device(device)) return 0;
  Workspace space(nullptr, 0);
  const bool scaled = make_plan(*what, device.sm90 && !what->portable, space).way == Plan::Way::scaled;
  return space.used() + (scaled ? 0 : kLibraryWorkspace);
}
