#include "halftone/train/prefix_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/full.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>

#include "halftone/base/error.h"

namespace halftone {
namespace {

using Run = SharedPrefixes::Run;
constexpr double kNone = std::numeric_limits<double>::infinity();

at::Tensor places(const at::Tensor& t, int64_t row, const Run& run) { return t.narrow(0, row, 1).narrow(1, run.begin, run.size()); }

}  // namespace

aten::AttentionState SharedPrefixes::attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                            const AttentionArgs& args) const {
  AttentionArgs own = args;
  own.documents = documents_;
  aten::AttentionState s = attend_once(q, k, v, own);
  const at::Tensor lse = log_sum_exp(s);  // [B, S, H], a view
  const at::Tensor behind = at::full(lse.sizes(), -kNone, lse.options()), out = at::zeros(s.attended.sizes(), s.attended.options());
  const auto add = [&](const SharedPrefixes::Group& g, const Run& queries, int64_t window) {
    AttentionArgs part = args;
    part.documents = {}, part.batch = 1, part.seq = queries.size(), part.gap = queries.size(), part.window = window;
    const aten::AttentionState more = attend_once(places(q, g.row, queries), places(k, g.row, g.prefix), places(v, g.row, g.prefix), part);
    places(behind, g.row, queries).copy_(log_sum_exp(more)), places(out, g.row, queries).copy_(more.attended);
  };
  for (const Group& g : groups_) {
    int64_t longest = 0;
    for (const Run& run : g.continuations) longest = std::max(longest, run.size());
    if (args.window > 0 && g.prefix.size() + longest > args.window) {  // how much of the prefix a query sees depends on its place
      for (const Run& run : g.continuations) add(g, run, args.window);
    } else {
      add(g, {g.continuations.front().begin, g.continuations.back().end}, 0);
    }
  }
  if (behind.is_cuda()) behind.masked_fill_(behind == kNone, -kNone);  // flash-2's value when a query sees no key
  // The softmax over both parts of the keys, in fp32.
  const at::Tensor all = at::logaddexp(lse, behind);
  s.attended.copy_(s.attended * at::exp(lse - all).unsqueeze(3) + out * at::exp(behind - all).unsqueeze(3));
  lse.copy_(all);
  return s;
}

aten::AttentionGradients SharedPrefixes::backward(const at::Tensor&, const aten::AttentionState&, const AttentionArgs&,
                                                  const aten::AttentionGradients&) const {
  fail("attention: rows with shared prefixes have no backward pass");
}

}  // namespace halftone
