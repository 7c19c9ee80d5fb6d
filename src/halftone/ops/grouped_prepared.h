#pragma once
#include <optional>
#include <vector>

#include "halftone/gemm/grouped_product.h"
#include "halftone/ops/grouped_linear.h"
#include "halftone/ops/product.h"

// What the files of ops/grouped_linear.h share.
namespace halftone {

inline constexpr int64_t kDrawsPerToken =
    256;  // rows of a buffer, counted from its first token's: more than a token's experts and the padding

// The weights of all experts as the right operand of a product of groups: [E * rows, k], or with `ld` the copies of all experts beside each
// other, [rows, E * k].
struct GroupedWeight {
  Operand operand;
  int64_t ld = 0;      // elements from row to row, 0: k
  int64_t stride = 0;  // from expert to expert; 0: not a weight, all groups' rows lie in one matrix
};

namespace cuda {
// Products of all groups of rows (gemm/grouped_product.h): out[R, N] or, contracting rows, out[E, M, N] (+)=.
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
  // A device: the operands of all experts, one a weight, and what they were made of (as in linear.cpp).
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

// The rows as a tensor [R, N], and their d_gates. With `products_alone` only these, and an undefined tensor.
at::Tensor in_buffer(const BufferRows& of, const ExpertRows& rows, bool products_alone = false);
void check_gates(const at::Tensor& gates);
// out[t] = sum over j of weight[t, j] * (x + more)[slot[t, j]]; weight and more may be undefined.
at::Tensor combine(const at::Tensor& x, const at::Tensor& weight, const ExpertRows& rows, const at::Tensor& more = {});

}  // namespace halftone
