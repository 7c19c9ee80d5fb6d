#include "halftone/comm/communicator.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cctype>
#include <filesystem>

#include "comm/ranks.h"
#include "halftone/base/error.h"
#include "halftone/base/module.h"

namespace halftone::comm {
namespace {

// Values of a rank, the same wherever they are computed.
at::Tensor values(int64_t rank, int64_t count) { return (at::arange(count, at::kDouble) * 0.7 + static_cast<double>(rank) * 1.3).sin(); }

bool same(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.cpu().view(at::kByte).equal(b.cpu().view(at::kByte));
}

at::Tensor part(const at::Tensor& whole, int64_t index, int64_t size) {
  return whole.narrow(0, index * (whole.size(0) / size), whole.size(0) / size);
}

void reductions(Communicator& c, at::Device device) {
  const int64_t n = c.size(), count = 96 * n;
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    at::Tensor sum = at::zeros({count}, at::kDouble), largest = values(0, count).to(dtype);
    for (int64_t r = 0; r < n; ++r) {
      sum += values(r, count).to(dtype).to(at::kDouble);
      largest = largest.maximum(values(r, count).to(dtype));
    }
    at::Tensor x = values(c.index(), count).to(dtype).to(device), y = x.clone(), z = x.clone(), own = at::empty_like(part(x, 0, n));
    c.reduce_scatter(own, x).wait();
    c.all_reduce(y, Reduce::max).wait();
    c.all_reduce(z).wait();
    c.all_reduce(x).wait();
    const double bound = dtype == at::kDouble ? 1e-15 : dtype == at::kFloat ? 1e-6 : 0.02;
    check((x.cpu().to(at::kDouble) - sum).abs().max().item<double>() <= bound * static_cast<double>(n), "{}: the sum is wrong",
          c10::toString(dtype));
    check(same(y, largest), "{}: the maximum is wrong", c10::toString(dtype));
    check(same(x, z), "{}: the sum does not repeat", c10::toString(dtype));
    at::Tensor all = at::empty({n, count}, x.options());
    c.all_gather(all, x).wait();
    for (int64_t r = 0; r < n; ++r) check(same(all[r], x), "{}: the sums of ranks {} and {} differ", c10::toString(dtype), r, c.index());
    if (device.is_cpu()) check(same(own, part(x, c.index(), n)), "{}: reduce-scatter is no slice of all-reduce", c10::toString(dtype));
    check((own.cpu().to(at::kDouble) - part(sum, c.index(), n)).abs().max().item<double>() <= bound * static_cast<double>(n),
          "{}: reduce-scatter is wrong", c10::toString(dtype));
  }
}

void movements(Communicator& c, at::Device device) {
  const int64_t n = c.size(), own = c.index();
  // Several tensors of several dtypes in one operation.
  std::vector<at::Tensor> whole, expected;
  for (const at::ScalarType dtype : {at::kFloat, at::kFloat8_e4m3fn, at::kBFloat16, at::kByte}) {
    expected.push_back((values(0, 12 * n) * 100).abs().to(dtype).view({4 * n, 3}));
    whole.push_back(at::zeros({4 * n, 3}, at::kFloat).to(dtype).to(device));
    part(whole.back(), own, n).copy_(part(expected.back(), own, n));
  }
  std::vector<at::Tensor> own_parts;
  for (const at::Tensor& t : whole) own_parts.push_back(part(t, own, n));
  c.all_gather(whole, own_parts).wait();
  for (size_t i = 0; i < whole.size(); ++i) check(same(whole[i], expected[i]), "tensor {} of the gather is wrong", i);

  for (int64_t root = 0; root < n; ++root) {
    at::Tensor t = values(own, 7).to(device);
    c.broadcast(t, root).wait();
    check(same(t, values(root, 7)), "broadcast of rank {} is wrong", root);
  }

  // Rank a sends (a + 2 b) mod 3 rows to b: uneven, sometimes none. Row values encode source, target and row.
  const auto rows = [](int64_t from, int64_t to) { return (from + 2 * to) % 3; };
  const auto block = [&](int64_t from, int64_t to) {
    return at::arange(rows(from, to) * 2, at::kFloat).view({-1, 2}) + static_cast<double>(100 * from + 10 * to);
  };
  std::vector<int64_t> in_rows, out_rows;
  at::Tensor in = at::empty({0, 2}), out = at::empty({0, 2});
  for (int64_t r = 0; r < n; ++r) {
    in_rows.push_back(rows(own, r)), out_rows.push_back(rows(r, own));
    in = at::cat({in, block(own, r)}), out = at::cat({out, block(r, own)});
  }
  at::Tensor received = at::empty_like(out, device);
  c.all_to_all(received, in.to(device), out_rows, in_rows).wait();
  check(same(received, out), "all-to-all is wrong");

  if (n > 1) {  // around the ring
    at::Tensor message = values(own, 5).to(at::kFloat8_e5m2).to(device), from_left = at::empty_like(message);
    const int64_t left = (own + n - 1) % n, right = (own + 1) % n;
    if (own == 0) {
      c.send(message, right).wait(), c.recv(from_left, left).wait();
    } else {
      c.recv(from_left, left).wait(), c.send(message, right).wait();
    }
    check(same(from_left, values(left, 5).to(at::kFloat8_e5m2)), "the message of rank {} is wrong", left);
  }
  c.barrier();
}

void operations(const Rank& r, at::Device device) {
  Watch watch = r.watch();
  watch.run([&] {
    Communicator gathers(watch, "gathers", r.all(), device), reductions_of(watch, "reductions", r.all(), device);
    reductions(reductions_of, device);
    movements(gathers, device);
    // Two communicators overlap: started in one order, waited for in the other.
    at::Tensor sum = at::full({4}, static_cast<double>(r.rank), at::TensorOptions(device).dtype(at::kDouble)),
               all = at::empty({r.world}, sum.options());
    const at::Tensor own = sum.narrow(0, 0, 1).clone();
    Pending reduce = reductions_of.all_reduce(sum), gather = gathers.all_gather(all, own);
    gather.wait(), reduce.wait();
    const double expected = static_cast<double>(r.world * (r.world - 1) / 2);
    check(all.sum().item<double>() == expected && sum[3].item<double>() == expected, "overlapping operations are wrong");
    // Separate groups of even and odd ranks, with one name.
    std::vector<int64_t> like;
    for (int64_t other = r.rank % 2; other < r.world; other += 2) like.push_back(other);
    Communicator half(watch, "parity", like, device);
    at::Tensor one = at::full({1}, 1., at::TensorOptions(device).dtype(at::kFloat));
    half.all_reduce(one).wait();
    check(one.item<float>() == static_cast<float>(like.size()), "the group of like ranks is wrong");
  });
}
const Ranks kGloo("gloo", [](const Rank& r) { operations(r, at::kCPU); });
const Ranks kNccl("nccl", [](const Rank& r) {
  check(dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) != nullptr, "{}", dlerror());
  at::globalContext().lazyInitDevice(at::kCUDA);
  const at::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(r.rank));
  c10::impl::VirtualGuardImpl(at::kCUDA).setDevice(device);
  operations(r, device);
});

void expect_success(const std::vector<Outcome>& outcomes) {
  for (size_t i = 0; i < outcomes.size(); ++i) EXPECT_EQ(outcomes[i].status, 0) << "rank " << i << ": " << outcomes[i].said;
}

class Operations : public testing::TestWithParam<int> {};
TEST_P(Operations, EqualTheirDefinition) {
  const std::vector<Outcome> outcomes = run_ranks("gloo", GetParam());
  expect_success(outcomes);
  for (const Outcome& o : outcomes) EXPECT_EQ(o.said, "");
}
INSTANTIATE_TEST_SUITE_P(Two, Operations, testing::Values(1, 2));
INSTANTIATE_TEST_SUITE_P(Distributed, Operations, testing::Values(3, 4, 8));

TEST(Operations, EqualTheirDefinitionOnCudaDevices) {
  int64_t devices = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/dev")) {
    const std::string name = entry.path().filename();
    devices += name.starts_with("nvidia") && name.size() > 6 && std::isdigit(name[6]) != 0;
  }
  if (devices == 0) GTEST_SKIP() << "no CUDA device";
  const OpenModule module = open_module("halftone_nccl.so", "");
  if (module.handle == nullptr) GTEST_SKIP() << module.problem;
  expect_success(run_ranks("nccl", devices));
}

const Ranks kShapes("shapes", [](const Rank& r) {
  Watch watch = r.watch();
  Communicator c(watch, "fsdp", r.all(), at::kCPU);
  at::Tensor out = at::zeros({3}), in = at::zeros({2});
  c.all_gather(out, in).wait();
});
TEST(Operations, ShapesThatDoNotFitAreOneLine) {
  for (const Outcome& o : run_ranks("shapes", 2))
    EXPECT_EQ(o.said, "halftone: all-gather on fsdp: expected 2 times 2 elements of Float, found 3 of Float\n");
}

}  // namespace
}  // namespace halftone::comm
