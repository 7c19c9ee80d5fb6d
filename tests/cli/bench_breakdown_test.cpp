#include "halftone/cli/bench_breakdown.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <numeric>

#include "halftone/base/error.h"
#include "halftone/base/stopwatch.h"
#include "halftone/train/engine.h"
#include "ops/test_device.h"
#include "train/small_engine.h"

namespace halftone::bench {
namespace {

TEST(Breakdown, KernelsHaveKinds) {
  const std::pair<WorkKind, std::vector<const char*>> kinds[] = {
      {WorkKind::product,
       {"nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_NTT", "sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize128x128x128_warpgroupsize1x1x1",
        "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int, int, int>, halftone::Properties> >(Params)",
        "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float, __nv_bfloat16>(Params)",
        "halftone::(anonymous namespace)::block_rows_kernel(halftone::BlockRows)",
        "void halftone::(anonymous namespace)::finish_kernel<float>(halftone::Finish, long)"}},
      {WorkKind::attention,
       {"void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, false, false, cutlass::bfloat16_t> >(Params)",
        "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_7_64x128x128_4x1x1_kernel0_0",
        "void fmha_cutlassB_bf16_aligned_64x64_k128_sm80(Params)"}},
      {WorkKind::norm,
       {"void halftone::(anonymous namespace)::forward_kernel<float, 4, 2>(halftone::RmsNormForward)",
        "void halftone::(anonymous namespace)::backward_kernel<__nv_bfloat16, 8>(halftone::SwigluBackward)",
        "void halftone::(anonymous namespace)::rope_kernel<__nv_bfloat16, 8>(halftone::Rope)",
        "halftone::(anonymous namespace)::add_parts_kernel(float const*, int, long, float*)"}},
      {WorkKind::quantiser,
       {"void halftone::(anonymous namespace)::mxfp4_pair_kernel<__nv_bfloat16>(halftone::TileArgs, halftone::PairScale, "
        "halftone::PairScale)",
        "void halftone::row_kernel<__nv_bfloat16, (halftone::Coder)0, false, 4>(halftone::RowArgs)",
        "void halftone::(anonymous namespace)::amax_kernel<float>(float const*, long, long, long, unsigned int*)",
        "halftone::(anonymous namespace)::store_int8_kernel(halftone::StoreWeight)",
        "halftone::(anonymous namespace)::decode_kernel(halftone::DecodeCopy)"}},
      {WorkKind::head, {"void halftone::(anonymous namespace)::cross_entropy_kernel<float, __nv_bfloat16>(halftone::CrossEntropy)"}},
      {WorkKind::optimizer, {"void halftone::optimizer_kernel<float, float>(halftone::OptimizerWork)"}},
      {WorkKind::copy,
       {"Memcpy DtoD (Device -> Device)", "Memset (Device)",
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul> >(int)",
        "void at::native::elementwise_kernel<128, 2, at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}>(int)"}},
      {WorkKind::other, {"void at::native::reduce_kernel<512, 1, at::native::ReduceOp<double, at::native::sum_functor<double> > >(Op)"}},
  };
  for (const auto& [work, names] : kinds) {
    for (const char* name : names) EXPECT_EQ(work_of(name, ""), work) << name;
  }
}

TEST(Breakdown, RangesOfOnePurposeSayWhatKernelsAreFor) {
  EXPECT_EQ(work_of("nvjet_hsh_128x256", "head"), WorkKind::head);
  EXPECT_EQ(work_of("Memset (Device)", "optimizer"), WorkKind::optimizer);
  EXPECT_EQ(work_of("void at::native::reduce_kernel<512>", "gradient norm"), WorkKind::grad_norm);
  EXPECT_EQ(work_of("nvjet_hsh_128x256", "layers.0 forward"), WorkKind::product);
}

// Two steps of 10 ms; times in ms.
TEST(Breakdown, KindsAndIdleAddUpToTheStep) {
  std::vector<ProfileEvent> events;
  const auto add = [&](ProfileEvent::Kind kind, const char* name, double begin, double end, uint64_t launch = 0) {
    events.push_back({kind, name, static_cast<int64_t>(begin * 1e6), static_cast<int64_t>(end * 1e6), launch});
  };
  using Kind = ProfileEvent::Kind;
  uint64_t launch = 0;
  for (const double t : {100.0, 120.0}) {
    add(Kind::range, "step", t, t + 10);
    add(Kind::range, "layers.0 forward", t, t + 1);
    add(Kind::range, "head", t + 1, t + 2);
    add(Kind::launch, "cudaLaunchKernel", t + 0.5, t + 0.6, ++launch);
    add(Kind::device, "nvjet", t + 1, t + 3, launch);  // runs when the head's range is open already
    add(Kind::launch, "cuLaunchKernelEx", t + 1.5, t + 1.6, ++launch);
    add(Kind::device, "nvjet", t + 2.5, t + 5, launch);  // overlaps the previous one by half a millisecond
    add(Kind::launch, "cudaGraphLaunch", t + 2.5, t + 2.6, ++launch);
    add(Kind::device, "flash", t + 5, t + 6, launch);
    add(Kind::device, "what is this", t + 6, t + 6.5, launch);
    add(Kind::range, "all-gather on tp", t + 2.6, t + 2.8);
    add(Kind::launch, "cuLaunchKernelEx", t + 2.7, t + 2.75, ++launch);
    add(Kind::device, "ncclDevKernel_AllGather", t + 5, t + 7, launch);  // overlaps others by 1.5 ms
  }
  add(Kind::launch, "cudaMemcpyAsync", 115, 116, ++launch);  // between the steps
  add(Kind::device, "Memcpy HtoD", 115, 119, launch);
  const Breakdown b = break_down(events);
  EXPECT_EQ(b.steps, 2);
  EXPECT_DOUBLE_EQ(b.kernels, 5);
  EXPECT_DOUBLE_EQ(b.wall_ms, 10);
  const auto of = [&](WorkKind w) { return b.ms[static_cast<size_t>(w)]; };
  EXPECT_DOUBLE_EQ(of(WorkKind::product), 2);
  EXPECT_DOUBLE_EQ(of(WorkKind::head), 2);
  EXPECT_DOUBLE_EQ(of(WorkKind::attention), 1);
  EXPECT_DOUBLE_EQ(of(WorkKind::other), 0.5);
  EXPECT_DOUBLE_EQ(of(WorkKind::copy), 0);
  EXPECT_DOUBLE_EQ(of(WorkKind::collective), 0.5);
  EXPECT_DOUBLE_EQ(b.exposed.at("tp"), 0.5);
  EXPECT_DOUBLE_EQ(b.idle_ms, 4);
  ASSERT_EQ(b.largest.size(), 5u);
  EXPECT_EQ(b.largest[3].name, "what is this");
  EXPECT_DOUBLE_EQ(b.largest[3].calls, 1);
  const std::string text = breakdown_text(b, 1);
  EXPECT_NE(text.find("5 kernels and copies each"), std::string::npos) << text;
  EXPECT_NE(text.find("idle                    4.00       40.0"), std::string::npos) << text;
  EXPECT_EQ(text.find("what is this"), std::string::npos) << text;
  EXPECT_THROW(break_down({}), Error);
}

class BreakdownOnDevice : public OnDevice {};

TEST_P(BreakdownOnDevice, FindsTheKindsOfAStep) {
  Engine::Options options = small_options();
  options.device = test_device();
  Engine engine(small_config({"--quantize.scheme=int8"}), options);
  engine.initialize();
  std::vector<MicroBatch> batches = small_step();
  for (MicroBatch& b : batches) b.input.tokens = b.input.tokens.to(test_device()), b.labels = b.labels.to(test_device());
  int64_t step = 0;
  std::vector<double> ms;  // by the host's clock
  const Breakdown b = record_breakdown(test_device(), [&] {
    const Stopwatch watch;
    EXPECT_TRUE(engine.step(batches, ++step, 1.0).updated);
    synchronize(test_device());
    ms.push_back(watch.seconds() * 1e3);
  });
  const std::string text = breakdown_text(b, 1000);
  EXPECT_EQ(b.steps, 3) << text;
  const WorkKind all[] = {WorkKind::product, WorkKind::attention, WorkKind::norm,     WorkKind::quantiser,
                          WorkKind::head,    WorkKind::optimizer, WorkKind::grad_norm};
  for (const WorkKind w : all) EXPECT_GT(b.ms[static_cast<size_t>(w)], 0) << kWorkNames[static_cast<size_t>(w)] << '\n' << text;
  const double busy = std::accumulate(b.ms.begin(), b.ms.end(), 0.0);
  EXPECT_LT(busy, 1.01 * b.wall_ms) << text;
  ASSERT_EQ(ms.size(), 4u);  // the first one warms up
  const double host_ms = (ms[1] + ms[2] + ms[3]) / 3;
  EXPECT_NEAR(busy + b.idle_ms, host_ms, 0.1 * host_ms) << text;  // one interval measured by two clocks
  EXPECT_LT(b.ms[static_cast<size_t>(WorkKind::other)], 0.5 * busy) << text;
  EXPECT_GT(b.kernels, 100) << text;
}
INSTANTIATE_TEST_SUITE_P(Cuda, BreakdownOnDevice, testing::Values(std::string("cuda")), [](const auto& info) { return info.param; });

}  // namespace
}  // namespace halftone::bench
