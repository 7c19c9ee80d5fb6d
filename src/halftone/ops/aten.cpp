#include "halftone/ops/aten.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <mutex>
#include <optional>
#include <vector>

#include "halftone/base/error.h"
#include "halftone/base/log.h"
#include "halftone/ops/attention_core.h"
#include "halftone/ops/batch_invariant.h"

namespace halftone::aten {
namespace {

// [B, S, heads, d] to [B, heads, S, d] and back, as a view.
at::Tensor turned(const at::Tensor& t) { return t.transpose(1, 2); }

// A window that reaches back to the first key masks nothing.
bool has_window(const AttentionArgs& args, int64_t keys) { return args.window > 0 && args.window < keys + args.gap; }

// Scores with masked positions at -inf.
at::Tensor masked_scores(const at::Tensor& q, const at::Tensor& k, const AttentionArgs& args) {
  const int64_t lq = q.size(2), lk = k.size(2), group = q.size(1) / k.size(1);
  at::Tensor scores = at::matmul(q.to(at::kFloat), k.to(at::kFloat).repeat_interleave(group, 1).transpose(2, 3)) * args.scale;
  const auto options = q.options().dtype(at::kLong);
  const int64_t first = lk + args.gap - lq;  // position of the first query
  const at::Tensor qi = at::arange(lq, options).unsqueeze(1) + first, kj = at::arange(lk, options).unsqueeze(0);
  at::Tensor hidden = (kj > qi).unsqueeze(0).unsqueeze(0);
  if (args.documents.start.defined()) {
    const at::Tensor start = args.documents.start.reshape({q.size(0), 1, first + lq, 1}).to(at::kLong).narrow(2, first, lq);
    hidden = hidden.logical_or(kj < start);
  }
  if (args.window > 0) hidden = hidden.logical_or(kj <= qi - args.window);
  return scores.masked_fill(hidden, -std::numeric_limits<float>::infinity());
}

// Overwrites the scores. The log-sum-exp [B, H, S] may cover more keys than these scores, or no key at all.
at::Tensor probabilities(const at::Tensor& scores, const at::Tensor& lse) {
  return scores.sub_(lse.clamp_min(std::numeric_limits<float>::lowest()).unsqueeze(3)).exp_();
}

void math_forward(AttentionState& s, const AttentionArgs& args) {
  const at::Tensor scores = masked_scores(turned(s.q), turned(s.k), args);
  s.lse = at::logsumexp(scores, -1);
  const at::Tensor p = probabilities(scores, s.lse);
  s.attended = turned(at::matmul(p, turned(s.v).to(at::kFloat).repeat_interleave(s.q.size(2) / s.k.size(2), 1)).to(s.q.scalar_type()));
}

AttentionGradients math_backward(const at::Tensor& grad, const AttentionState& s, const AttentionArgs& args) {
  const int64_t group = s.q.size(2) / s.k.size(2);
  const at::Tensor q = turned(s.q), k = turned(s.k), v = turned(s.v);
  const at::Tensor p = probabilities(masked_scores(q, k, args), s.lse), g = turned(grad).to(at::kFloat);
  const at::Tensor dp = at::matmul(g, v.to(at::kFloat).repeat_interleave(group, 1).transpose(2, 3));
  const at::Tensor ds = p * (dp - (g * turned(s.attended).to(at::kFloat)).sum(-1, true)) * args.scale;
  const auto of_group = [&](const at::Tensor& t) {
    return turned(t.reshape({t.size(0), k.size(1), group, t.size(2), t.size(3)}).sum(2)).to(grad.scalar_type());
  };
  return {turned(at::matmul(ds, k.to(at::kFloat).repeat_interleave(group, 1))).to(grad.scalar_type()),
          of_group(at::matmul(ds.transpose(2, 3), q.to(at::kFloat))), of_group(at::matmul(p.transpose(2, 3), g))};
}

// Both write in the layout of q: tokens before heads, contiguous. The log-sum-exp is kept in a pass without gradients too, so that a
// recomputed block runs the same plan as its first pass. If the keys end before the queries begin, nothing is masked.
void cudnn_forward(AttentionState& s, const AttentionArgs& args) {
  const auto r = at::_scaled_dot_product_cudnn_attention(turned(s.q), turned(s.k), turned(s.v), std::nullopt, true, 0.0, args.gap == 0,
                                                         false, args.scale);
  s.attended = turned(std::get<0>(r)), s.lse = std::get<1>(r);
  s.seed = std::get<6>(r), s.offset = std::get<7>(r);
}

AttentionGradients cudnn_backward(const at::Tensor& grad, const AttentionState& s, const AttentionArgs& args) {
  const at::Tensor none, lse = s.lse.dim() == 3 ? s.lse.unsqueeze(3) : s.lse;  // [B, H, S, 1]
  const auto r =
      at::_scaled_dot_product_cudnn_attention_backward(turned(grad), turned(s.q), turned(s.k), turned(s.v), turned(s.attended), lse, s.seed,
                                                       s.offset, none, none, none, args.seq, s.k.size(1), 0.0, args.gap == 0, args.scale);
  return {turned(std::get<0>(r)), turned(std::get<1>(r)), turned(std::get<2>(r))};
}

// The low-level calls share K and V among the heads of a group, which the functions named after scaled_dot_product do not. Documents are
// concatenated: [T, heads, d] plus offsets. Masks are aligned at the last query and key: with a gap between keys and queries, all keys
// precede all queries.
struct FlashShape {
  FlashShape(const AttentionArgs& a, const at::Tensor& k) : causal(a.gap == 0), longest(a.seq), longest_keys(k.size(1)) {
    if (has_window(a, longest_keys)) left = a.window - 1 - a.gap, right = causal ? 0 : -1;
    if (const Documents& d = a.documents; d.start.defined()) {
      const bool apart = d.key_offsets.defined();
      offsets = d.offsets, key_offsets = apart ? d.key_offsets : offsets;
      // Above 1: with one query per sequence flash-2 would take its decoding path.
      longest = std::max<int64_t>(d.longest, 2), longest_keys = apart ? std::max<int64_t>(d.longest_keys, 2) : longest;
    }
    const auto multiples = [&](int64_t n) { return at::arange(0, (a.batch + 1) * n, n, k.options().dtype(at::kInt)); };
    // The kernel for documents never splits the keys of a query, as the one for rows may.
    if (batch_invariant() && !offsets.defined()) {
      offsets = multiples(a.seq), key_offsets = multiples(longest_keys);
      longest = std::max<int64_t>(longest, 2), longest_keys = std::max<int64_t>(longest_keys, 2);
    }
    if (!left || causal || longest_keys >= longest) return;
    // With right = -1 flash-2 uses the key count as the right limit, so the first of many queries would see no key: pass a larger length.
    if (!offsets.defined()) {
      offsets = multiples(longest), key_offsets = multiples(longest_keys);
    }
    longest_keys = longest;
  }
  at::Tensor operator()(const at::Tensor& t) const { return offsets.defined() ? t.flatten(0, 1) : t; }
  // The log-sum-exp [B, H, S] in the layout that flash-2 expects.
  at::Tensor lse(const at::Tensor& t) const { return offsets.defined() && t.dim() == 3 ? t.transpose(0, 1).flatten(1).contiguous() : t; }
  bool causal;
  int64_t longest, longest_keys;
  at::Tensor offsets, key_offsets;
  std::optional<int64_t> left, right;  // positions that a query sees before and after its own; none: causal
};

// flash-2 needs one head size: narrower values are zero-padded, and so are their outputs.
at::Tensor widened(const at::Tensor& t, int64_t dim) { return t.size(3) == dim ? t : at::constant_pad_nd(t, {0, dim - t.size(3)}); }

void flash_forward(AttentionState& s, const AttentionArgs& args) {
  const FlashShape shape(args, s.k);
  const at::Tensor v = widened(s.v, s.q.size(3));
  const auto given = [&](const at::Tensor& t) { return shape.offsets.defined() ? std::optional(t) : std::nullopt; };
  const auto r =
      at::_flash_attention_forward(shape(s.q), shape(s.k), shape(v), given(shape.offsets), given(shape.key_offsets), shape.longest,
                                   shape.longest_keys, 0.0, shape.causal, false, args.scale, shape.left, shape.right);
  s.attended = std::get<0>(r).view(s.q.sizes()).narrow(3, 0, s.v.size(3)).contiguous(), s.lse = std::get<1>(r);
  s.seed = std::get<2>(r), s.offset = std::get<3>(r);
}

AttentionGradients flash_backward(const at::Tensor& grad, const AttentionState& s, const AttentionArgs& args) {
  const FlashShape shape(args, s.k);
  const auto wide = [&](const at::Tensor& t) { return shape(widened(t, s.q.size(3))); };
  const auto r = at::_flash_attention_backward(wide(grad), shape(s.q), shape(s.k), wide(s.v), wide(s.attended), shape.lse(s.lse),
                                               shape.offsets, shape.key_offsets, shape.longest, shape.longest_keys, 0.0, shape.causal,
                                               s.seed, s.offset, args.scale, shape.left, shape.right);
  return {std::get<0>(r).view(s.q.sizes()), std::get<1>(r).view(s.k.sizes()), std::get<2>(r).view(s.k.sizes()).narrow(3, 0, s.v.size(3))};
}

std::string fused_lacks(const AttentionQuery& q) {
  if (!q.cuda) return "not on the processor";
  if (q.dtype != at::kBFloat16) return fmt::format("{}, it supports BFloat16", c10::toString(q.dtype));
  return q.seq < 2 && !q.invariant ? "rows of one token" : "";
}

bool narrow_values(const AttentionQuery& q) { return q.v_dim != 0 && q.v_dim < q.head_dim; }

std::string unequal(const AttentionQuery& q) {
  return q.v_dim == 0 || q.v_dim == q.head_dim ? "" : fmt::format("value heads of {}, key heads of {}", q.v_dim, q.head_dim);
}

std::string cudnn_lacks(const AttentionQuery& q) {
  if (std::string lacks = fused_lacks(q); !lacks.empty()) return lacks;
  if (!q.cudnn) return "not in this LibTorch";
  if (q.documents) return "no document masks";
  if (q.window) return "no windows";
  if (q.last) return "no queries of the last keys only";
  if (q.deterministic) return "gradients do not repeat bit for bit";
  if (q.invariant) return "sums depend on the length of the row";
  if (std::string lacks = unequal(q); !lacks.empty()) return lacks;
  return q.head_dim == 64 || q.head_dim == 128 ? "" : fmt::format("head size {}, it supports 64 and 128", q.head_dim);
}

std::string flash_lacks(const AttentionQuery& q) {
  if (std::string lacks = fused_lacks(q); !lacks.empty()) return lacks;
  if (!narrow_values(q) && !unequal(q).empty()) return unequal(q);
  return q.head_dim % 8 == 0 && q.head_dim <= 256 ? "" : fmt::format("head size {}, it supports multiples of 8 up to 256", q.head_dim);
}

std::string flash_note(const AttentionQuery& q) {
  return narrow_values(q) ? fmt::format("values of {} padded to {}", q.v_dim, q.head_dim) : "";
}

std::string math_lacks(const AttentionQuery&) { return ""; }

}  // namespace

struct AttentionBackend {
  const char* name;
  std::string (*lacks)(const AttentionQuery&);  // why it cannot run the query; empty: it can
  void (*forward)(AttentionState&, const AttentionArgs&);
  AttentionGradients (*backward)(const at::Tensor& grad, const AttentionState&, const AttentionArgs&);  // all [B, S, heads, d]
  std::string (*note)(const AttentionQuery&) = nullptr;  // how it modifies the query, or empty
};

namespace {

constexpr AttentionBackend kBackends[] = {{"cudnn", cudnn_lacks, cudnn_forward, cudnn_backward},
                                          {"flash-2", flash_lacks, flash_forward, flash_backward, flash_note},
                                          {"math", math_lacks, math_forward, math_backward}};

const AttentionBackend& first_of(const AttentionQuery& query) {
  return *std::find_if(std::begin(kBackends), std::end(kBackends) - 1, [&](const AttentionBackend& b) { return b.lacks(query).empty(); });
}

// Logs once per kind of query, from any thread.
void announce(const AttentionQuery& query) {
  static std::mutex mutex;
  static std::vector<AttentionQuery> announced;
  const std::lock_guard lock(mutex);
  if (std::find(announced.begin(), announced.end(), query) != announced.end()) return;
  announced.push_back(query);
  log_info("attention: {}", describe_attention(query));
}

// Error if only the materialised scores can run a query whose bits must not depend on others'.
void require_invariance(const AttentionQuery& query) {
  check(
      !query.cuda || !query.invariant || flash_lacks(query).empty(),
      "debug.batch_invariant: attention on a GPU needs flash-2, which lacks {}; use bfloat16 and heads that are multiples of 8 up to 256, "
      "or the CPU",
      flash_lacks(query));
}

const AttentionBackend& choose(const AttentionQuery& query, std::string_view name) {
  if (name.empty()) {
    require_invariance(query);
    if (query.cuda) announce(query);
    return first_of(query);
  }
  const auto* b = std::find_if(std::begin(kBackends), std::end(kBackends), [&](const AttentionBackend& x) { return x.name == name; });
  check(b != std::end(kBackends), "attention: expected cudnn, flash-2 or math, found '{}'", name);
  const std::string lacks = b->lacks(query);
  check(lacks.empty(), "attention: {} was requested ({}); leave the choice to halftone", name, lacks);
  return *b;
}

AttentionQuery query_of(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionArgs& args) {
  AttentionQuery query;
  query.cuda = !q.is_cpu(), query.cudnn = q.is_meta() || (query.cuda && at::globalContext().hasCuDNN());
  query.deterministic = at::globalContext().deterministicAlgorithms(), query.documents = args.documents.start.defined();
  query.window = has_window(args, k.size(1)), query.last = args.gap == 0 && k.size(1) != q.size(1);
  query.invariant = batch_invariant();
  query.dtype = q.scalar_type(), query.head_dim = q.size(3), query.v_dim = v.size(3), query.seq = args.seq;
  return query;
}

}  // namespace

std::string describe_attention(const AttentionQuery& query) {
  const AttentionBackend& first = first_of(query);
  std::string text = first.note != nullptr ? first.note(query) : "";
  for (const AttentionBackend* b = kBackends; b != &first; ++b) {
    text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", b->name, b->lacks(query));
  }
  return text.empty() ? first.name : fmt::format("{} ({})", first.name, text);
}

AttentionState attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionArgs& args,
                         std::string_view backend) {
  AttentionState s;
  s.backend = &choose(query_of(q, k, v, args), backend);
  s.q = q, s.k = k, s.v = v;
  s.backend->forward(s, args);
  s.out = as_rows(s.attended);
  return s;
}

AttentionGradients attention_backward(const at::Tensor& d_out, const AttentionState& s, const AttentionArgs& args) {
  const AttentionBackend& backend = s.backend != nullptr ? *s.backend : choose(query_of(s.q, s.k, s.v, args), {});
  return backend.backward(d_out, s, args);
}

AttentionState attention_cached(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionArgs& args) {
  AttentionState s;
  s.q = q, s.k = k, s.v = v;
  const AttentionQuery query = query_of(q, k, v, args);
  require_invariance(query);
  first_of(query).forward(s, args);
  s.out = as_rows(s.attended);
  return s;
}

}  // namespace halftone::aten
