#pragma once
// Only the parts for sm_90: CUTLASS' own "universal" headers bring every architecture and triple the compile time.
// clang-format off: the order matters
#include "cutlass/cutlass.h"
#include "cutlass/device_kernel.h"
#include "cutlass/epilogue/collective/collective_builder.hpp"
#include "cutlass/gemm/collective/builders/sm90_gmma_builder.inl"
#include "cutlass/gemm/collective/collective_builder_decl.hpp"
#include "cutlass/gemm/collective/collective_mma_decl.hpp"
#include "cutlass/gemm/collective/sm90_mma_tma_gmma_ss_warpspecialized.hpp"
#include "cutlass/gemm/collective/sm90_mma_tma_gmma_ss_warpspecialized_fp8.hpp"
#include "cutlass/gemm/kernel/gemm_universal_decl.h"
#include "cutlass/gemm/kernel/sm90_gemm_tma_warpspecialized_cooperative.hpp"
#include "cutlass/gemm/kernel/sm90_gemm_tma_warpspecialized_pingpong.hpp"
#include "cutlass/gemm/kernel/tile_scheduler.hpp"
// clang-format on
#include "halftone/gemm/cutlass/scaled.h"

namespace halftone::gemm {

template <int kM, int kN, bool kPingpong, int kClusterM, int kClusterN>
struct Tile {
  using M = cute::Int<kM>;
  using N = cute::Int<kN>;
  using Cluster = cute::Shape<cute::Int<kClusterM>, cute::Int<kClusterN>, cute::_1>;
  static constexpr bool pingpong = kPingpong;
};
// Clusters measured to be the fastest on an H200.
template <Tiling kTiling>
struct TileOf;
template <>
struct TileOf<Tiling::pingpong_128x128> : Tile<128, 128, true, 2, 1> {};
template <>
struct TileOf<Tiling::pingpong_64x256> : Tile<64, 256, true, 2, 1> {};
template <>
struct TileOf<Tiling::pingpong_64x128> : Tile<64, 128, true, 1, 1> {};
template <>
struct TileOf<Tiling::cooperative_128x256> : Tile<128, 256, false, 1, 2> {};

template <Numbers kNumbers>
struct ElementOf;
template <>
struct ElementOf<Numbers::bf16> {
  using type = cutlass::bfloat16_t;
};
template <>
struct ElementOf<Numbers::s8> {
  using type = int8_t;
};

// int8_t accumulates in int32, bf16 in fp32.
template <class A, class B, class D, bool kAccumulate, class T>
struct ScaledKernel {
  using Shape = cute::Shape<typename T::M, typename T::N, cute::Int<128 / sizeof(A)>>;
  using Cluster = typename T::Cluster;
  static constexpr bool is_int8 = cute::is_same_v<A, int8_t>;
  using Accumulator = cute::conditional_t<is_int8, int32_t, float>;

  template <class... X>
  using Tree = cutlass::epilogue::fusion::Sm90EVT<X...>;
  template <template <class> class Op, class Out>
  using Compute = cutlass::epilogue::fusion::Sm90Compute<Op, Out, float, cutlass::FloatRoundStyle::round_to_nearest>;
  using ScaleM = cutlass::epilogue::fusion::Sm90ColBroadcast<0, Shape, float, float, cute::Stride<bool, cute::_0, cute::_0>>;
  using ScaleN = cutlass::epilogue::fusion::Sm90RowBroadcast<0, Shape, float, float, cute::Stride<cute::_0, bool, cute::_0>>;
  using Bias = cutlass::epilogue::fusion::Sm90RowBroadcast<0, Shape, float, float, cute::Stride<cute::_0, cute::_1, cute::_0>>;
  using Scaled = Tree<Compute<cutlass::multiplies, float>, ScaleN,
                      Tree<Compute<cutlass::multiplies, float>, ScaleM, cutlass::epilogue::fusion::Sm90AccFetch>>;
  using Biased = Tree<Compute<cutlass::plus, cute::conditional_t<kAccumulate, float, D>>, Bias, Scaled>;
  using Added = Tree<Compute<cutlass::plus, D>, cutlass::epilogue::fusion::Sm90SrcFetch<D>, Biased>;
  using Epilogue = cute::conditional_t<kAccumulate, Added, Biased>;

  using C = cute::conditional_t<kAccumulate, D, void>;
  static constexpr int kAlign = 16 / sizeof(D);
  using EpilogueSchedule =
      cute::conditional_t<T::pingpong, cutlass::epilogue::TmaWarpSpecialized, cutlass::epilogue::TmaWarpSpecializedCooperative>;
  using Schedule =
      cute::conditional_t<T::pingpong, cutlass::gemm::KernelTmaWarpSpecializedPingpong, cutlass::gemm::KernelTmaWarpSpecializedCooperative>;
  using CollectiveEpilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Shape, Cluster, cutlass::epilogue::collective::EpilogueTileAuto, Accumulator,
      float, C, cutlass::layout::RowMajor, kAlign, D, cutlass::layout::RowMajor, kAlign, EpilogueSchedule, Epilogue>::CollectiveOp;
  using CollectiveMain = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, A, cutlass::layout::RowMajor, 16 / sizeof(A), B, cutlass::layout::ColumnMajor,
      16 / sizeof(B), Accumulator, Shape, Cluster,
      cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(sizeof(typename CollectiveEpilogue::SharedStorage))>,
      Schedule>::CollectiveOp;
  using Kernel = cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, CollectiveMain, CollectiveEpilogue,
                                                      cutlass::gemm::PersistentScheduler>;

  static const char* run(const ScaledCall& p) {
    typename Kernel::StrideA stride_a;
    typename Kernel::StrideB stride_b;
    typename Kernel::StrideD stride_d;
    cute::get<0>(stride_a) = p.lda;
    cute::get<0>(stride_b) = p.ldb;
    cute::get<0>(stride_d) = p.ldd;
    typename Kernel::Arguments args{cutlass::gemm::GemmUniversalMode::kGemm, {p.m, p.n, p.k, 1}, {}, {}, {}, {}};
    args.mainloop.ptr_A = static_cast<const A*>(p.a), args.mainloop.dA = stride_a;
    args.mainloop.ptr_B = static_cast<const B*>(p.b), args.mainloop.dB = stride_b;
    args.epilogue.ptr_D = static_cast<D*>(p.d), args.epilogue.dD = stride_d;
    if constexpr (kAccumulate) args.epilogue.ptr_C = static_cast<const D*>(p.d), args.epilogue.dC = stride_d;

    typename ScaleM::Arguments scale_m{p.scale_m, 1.0f, {p.vector_m, {}, {}}};
    typename ScaleN::Arguments scale_n{p.scale_n, 1.0f, {{}, p.vector_n, {}}};
    typename Bias::Arguments bias{p.bias, -0.0f, {}};  // x + -0 is x for every x
    typename Biased::Arguments biased{bias, {scale_n, {scale_m, {}, {}}, {}}, {}};
    if constexpr (kAccumulate)
      args.epilogue.thread = {{}, biased, {}};
    else
      args.epilogue.thread = biased;

    using Raster = typename cutlass::gemm::kernel::detail::PersistentTileSchedulerSm90Params::RasterOrderOptions;
    args.scheduler.max_swizzle_size = p.swizzle;
    args.scheduler.raster_order = p.raster == ScaledCall::Raster::automatic ? Raster::Heuristic
                                  : p.raster == ScaledCall::Raster::along_n ? Raster::AlongN
                                                                            : Raster::AlongM;
    args.hw_info.sm_count = p.sm_count;
    if (!Kernel::can_implement(args)) return "product: expected k and n to be multiples of 16 and rows aligned to 16 bytes";
    return launch(Kernel::to_underlying_arguments(args, nullptr), p.stream);
  }

  static const char* launch(const typename Kernel::Params& params, cudaStream_t stream) {
    constexpr int kShared = Kernel::SharedStorageSize;
    const auto kernel = cutlass::device_kernel<Kernel>;
    const cudaError_t allowed = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);  // per device
    if (allowed != cudaSuccess) return cudaGetErrorString(allowed);
    cudaLaunchAttribute cluster{};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {cute::size<0>(Cluster{}), cute::size<1>(Cluster{}), 1};
    cudaLaunchConfig_t config{};
    config.gridDim = Kernel::get_grid_shape(params);
    config.blockDim = Kernel::get_block_shape();
    config.dynamicSmemBytes = kShared;
    config.stream = stream;
    config.attrs = &cluster;
    config.numAttrs = 1;
    const cudaError_t status = cudaLaunchKernelEx(&config, kernel, params);
    return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
  }
};

template <Numbers kA, Numbers kB, DType kD, bool kAccumulate, Tiling kTiling>
const char* scaled_product(const ScaledCall& call) {
  using D = cute::conditional_t<kD == DType::f32, float, cutlass::bfloat16_t>;
  return ScaledKernel<typename ElementOf<kA>::type, typename ElementOf<kB>::type, D, kAccumulate, TileOf<kTiling>>::run(call);
}

}  // namespace halftone::gemm
