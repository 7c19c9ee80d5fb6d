#pragma once
#include "halftone/formats/recipe.h"
#include "halftone/ops/activation.h"
#include "halftone/ops/head_loss.h"
#include "halftone/ops/row_exchange.h"

namespace halftone::nn {

struct Parameter;
enum class Way { in, out };

// Where rows enter a layer and leave it. This class does nothing: the layer has all rows and computes all of the result. The ports of
// parallel/ let several processes compute a layer together.
class Port {
 public:
  virtual ~Port() = default;
  // From the rows between layers, [t, D], to all that the layer computes with; and from its results, of which each process has an addend,
  // back to the rows between layers.
  virtual Activation enter(const Activation& x_td) const { return x_td; }
  virtual at::Tensor leave(const at::Tensor& y_td) const { return y_td; }
  // The same, fused into the GEMM after or before it, if one of this recipe can: linears get these shares, and then neither enter nor leave
  // is called. Otherwise no shares.
  virtual RowShares shares(Way /*way*/, const LinearRecipe& /*recipe*/) const { return {}; }
  // The part of a mask of all rows, bool [T], that belongs to the `rows` rows between layers.
  virtual at::Tensor own_rows(const at::Tensor& mask_t, int64_t /*rows*/) const { return mask_t; }
  // How many processes have the rows that enter returned, and this one's number among them.
  struct Copies {
    int64_t count = 1, index = 0;
  };
  virtual Copies copies() const { return {}; }
  // Sums over the columns of each row, [T, 1], from those over this process's columns.
  virtual at::Tensor column_sums(const at::Tensor& own_t1) const { return own_t1; }
  // The columns of a head's logits that this process computes from its rows of the table.
  virtual LogitColumns logit_columns(const Parameter& /*table*/) const { return {}; }
};

}  // namespace halftone::nn
