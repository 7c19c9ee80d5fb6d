// Every kernel call of context parallelism, through each back-end and the CPU kernels.
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "halftone/ops/attention_core.h"
#include "halftone/parallel/context.h"
#include "ops/attention_reference.h"

namespace halftone::context_calls_test {
namespace {

using parallel::ContextBalance, parallel::ContextRows;

struct CallCase {
  const char* backend;
  bool documents;
  int64_t window, head_dim = 64, v_dim = 64;
};

constexpr int64_t kBatch = 2, kSeq = 192, kHeads = 4, kKvHeads = 2;

using ContextCalls = OnDeviceWith<CallCase>;

TEST_P(ContextCalls, AreThoseOfTheProcessor) {
  const CallCase& c = param();
  at::manual_seed(3);
  const AttentionArgs whole = args_of(kBatch, kSeq, kHeads, kKvHeads, c.head_dim, c.documents, c.window);
  const auto heads = [](int64_t n, int64_t dim) { return at::randn({kBatch, kSeq, n, dim}).to(at::kBFloat16); };
  const at::Tensor q = heads(kHeads, c.head_dim), k = heads(kKvHeads, c.head_dim), v = heads(kKvHeads, c.v_dim), d = heads(kHeads, c.v_dim);
  int64_t seen = 0;
  for (const int64_t processes : {2, 3}) {
    for (int64_t index = 0; index < processes; ++index) {
      for (const ContextBalance balance : {ContextBalance::none, ContextBalance::head_tail, ContextBalance::by_work}) {
        const auto rows_on = [&](c10::Device device, int64_t i) {
          return ContextRows(processes, i, {balance}, kBatch, kSeq, whole.documents.host_start, device);
        };
        const ContextRows host = rows_on(at::kCPU, index), device = rows_on(test_device(), index);
        for (int64_t holder = -1; holder < processes; ++holder) {
          const auto keys = [&](const at::Tensor& t) { return holder < 0 ? t : rows_on(at::kCPU, holder).own(t); };
          const auto& on_host = holder < 0 ? host.calls(c.window) : host.calls(holder, c.window);
          const auto& on_device = holder < 0 ? device.calls(c.window) : device.calls(holder, c.window);
          for (size_t i = 0; i < on_host.size(); ++i, ++seen) {
            const ContextRows::Call& call = on_host[i];
            const auto part = [&](const at::Tensor& t, int64_t first, int64_t n) {
              return t.narrow(0, call.row, call.rows).narrow(1, first, n);
            };
            AttentionArgs a = whole;
            a.batch = call.rows, a.seq = call.queries, a.gap = call.gap, a.documents = call.documents;
            const at::Tensor cq = part(host.own(q), call.query, call.queries), ck = part(keys(k), call.key, call.keys);
            const at::Tensor cv = part(keys(v), call.key, call.keys), cd = part(host.own(d), call.query, call.queries);
            aten::AttentionState expected = attend_once(cq, ck, cv, a);
            AttentionArgs b = a;
            b.documents = on_device[i].documents;
            const auto there = [](const at::Tensor& t) { return t.to(test_device()); };
            aten::AttentionState found = aten::attention(there(cq), there(ck), there(cv), b, c.backend);
            const std::string what =
                fmt::format("{} processes, {}, balance {}, keys of {}, call {}", processes, index, static_cast<int>(balance), holder, i);
            EXPECT_LT(relative(expected.attended, found.attended), 1e-2) << what;
            const at::Tensor lse = log_sum_exp(expected), none = lse.isinf(), other = log_sum_exp(found).to(at::kCPU, at::kFloat);
            EXPECT_TRUE(at::equal(none, other.isinf())) << what;
            EXPECT_LT(relative(lse.masked_fill(none, 1), other.masked_fill(none, 1)), 1e-3) << what;
            // As if each query had seen more keys on other ranks.
            expected.lse = expected.lse.masked_fill(expected.lse.isinf(), 0) + 0.5;
            found.lse = there(expected.lse), found.attended = there(expected.attended), found.backend = nullptr;
            const auto room = [](const at::Tensor& t) { return at::empty(t.sizes(), t.options()); };
            const auto e = attend_once_backward(cd, expected, a, {room(cq), room(ck), room(cv)});
            const auto f = aten::attention_backward(there(cd), found, b);
            EXPECT_LT(relative(e.q, f.q), 2e-2) << what;
            EXPECT_LT(relative(e.k, f.k), 2e-2) << what;
            EXPECT_LT(relative(e.v, f.v), 2e-2) << what;
          }
        }
      }
    }
  }
  EXPECT_GT(seen, 30);
}

std::string name_of(const testing::TestParamInfo<std::tuple<std::string, CallCase>>& info) {
  const auto& [device, c] = info.param;
  return fmt::format("{}_{}{}_window{}_d{}", device, c.backend[0] == 'f' ? "flash" : c.backend, c.documents ? "_documents" : "", c.window,
                     c.head_dim);
}

INSTANTIATE_TEST_SUITE_P(Cpu, ContextCalls,
                         testing::Combine(testing::Values(std::string("cpu")),
                                          testing::Values(CallCase{"math", false, 0}, CallCase{"math", true, 0},
                                                          CallCase{"math", false, 37}, CallCase{"math", true, 37})),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Cuda, ContextCalls,
                         testing::Combine(testing::Values(std::string("cuda")),
                                          testing::Values(CallCase{"cudnn", false, 0, 128, 128}, CallCase{"flash-2", false, 0},
                                                          CallCase{"flash-2", true, 0}, CallCase{"flash-2", false, 37},
                                                          CallCase{"flash-2", true, 37}, CallCase{"flash-2", true, 0, 192, 128},
                                                          CallCase{"math", true, 37})),
                         name_of);

}  // namespace
}  // namespace halftone::context_calls_test
