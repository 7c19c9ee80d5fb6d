#pragma once
#include <optional>
#include <vector>

#include "halftone/gemm/grouped_product.h"
#include "halftone/ops/grouped_linear.h"
#include "halftone/ops/product.h"

// Shared by the source files of ops/grouped_linear.h.
namespace halftone {

inline constexpr int64_t kDrawsPerToken =
    256;  // draw indices reserved per token for its rows of a buffer: more than a token's experts plus the padding

// The weights of all experts as the right operand of a grouped GEMM: [E * rows, k], or with `ld` the experts' copies side by side, [rows,
// E * k].
struct GroupedWeight {
  Operand operand;
  int64_t ld = 0;      // elements between rows, 0: k
  int64_t stride = 0;  // elements between experts; 0: not a weight, the rows of all groups form one matrix
};

namespace cuda {
// GEMMs over all groups of rows (gemm/grouped_product.h): out[R, N] or, contracting rows, out[E, M, N] (+)=.
void multiply_groups(const Operand& a, const GroupedWeight& b, const at::Tensor& out, gemm::Ragged ragged, const ExpertRows& rows,
                     const ProductOptions& options);
}  // namespace cuda

struct GroupedLinears::Prepared {
  // CPU: every expert as a dense layer.
  struct Expert {
    std::vector<Weight> parts;
    FusedLinears fused;
  };
  std::vector<Expert> experts;
  // GPU: the operands of all experts, one per weight, and the key they were made for (as in linear.cpp).
  struct MadeOf {
    uint64_t version = 0;
    std::optional<uint32_t> step;
    at::ScalarType x_type{};
    uint64_t capture = 0;
    bool operator==(const MadeOf&) const = default;
  };
  MadeOf made_of;
  std::vector<GroupedWeight> forward, dgrad;
};

GroupedCall grouped_linear_cuda(const BufferRows& x, GroupedLinears& grouped, const ExpertRows& rows, const LinearOptions& options);

// The rows as a tensor [R, N], and their d_gates. `products_alone`: computes only d_gates and returns an undefined tensor.
at::Tensor in_buffer(const BufferRows& of, const ExpertRows& rows, bool products_alone = false);
void check_gates(const at::Tensor& gates);
// out[t] = sum over j of weight[t, j] * (x + more)[slot[t, j]]; weight and more may be undefined.
at::Tensor combine(const at::Tensor& x, const at::Tensor& weight, const ExpertRows& rows, const at::Tensor& more = {});

}  // namespace halftone
