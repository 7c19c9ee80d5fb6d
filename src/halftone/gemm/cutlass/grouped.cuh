#pragma once
#include "halftone/base/row_groups.h"
#include "halftone/gemm/cutlass/grouped.h"
#include "halftone/gemm/cutlass/scaled.cuh"
// after its dependencies
#include "cutlass/gemm/collective/sm90_mma_tma_gmma_ss_warpspecialized_fp8_blockwise_scaling.hpp"

namespace halftone::gemm {

// CUTLASS's single-matrix kernels with a scheduler that walks the groups. Groups begin at multiples of a tile, so the full buffer has one
// TMA descriptor; unlike the pointer-array kernels, none is written on the device. The batch index L is the group:
//   rows         A and D have stride 0 along L: the row of a tile selects the group's B
//   contraction  A and B have stride 0 along L: the group of a tile selects its range of k.
struct GroupTables {
  const int32_t *offsets = nullptr, *ends = nullptr, *order = nullptr;  // as in GroupedCall
  int groups = 0;
  int down = 0, across = 0;  // tiles of D, in clusters, along m and n (contraction: per group)
};

template <Ragged kRagged, class Tile, class Cluster>
class GroupScheduler : public cutlass::gemm::kernel::detail::PersistentTileSchedulerSm90 {
  using Base = cutlass::gemm::kernel::detail::PersistentTileSchedulerSm90;

 public:
  struct Arguments : Base::Arguments, GroupTables {};
  struct Params : Base::Params, GroupTables {};
  struct WorkTileInfo : Base::WorkTileInfo {
    int k_first = 0, k_count = 0;  // in tiles
  };
  static constexpr int kRows = cute::size<0>(Tile{}), kK = cute::size<2>(Tile{});
  static_assert(kGroupRows % kRows == 0 || kRagged == Ragged::contraction, "a tile must not lie in two groups");
  static_assert((kGroupRows % kK == 0 && kK % kContractionStep == 0) || kRagged == Ragged::rows);
  static_assert(cute::size<0>(Cluster{}) == 1 || kRagged == Ragged::contraction, "nor must the tiles of a cluster");

  template <class Problem>
  static Params to_underlying_arguments(Problem problem, Tile, Cluster, const cutlass::KernelHardwareInfo&, const Arguments& args, void*,
                                        uint32_t = 1, uint32_t = 1) {
    Params p{};
    static_cast<GroupTables&>(p) = args;
    p.down = clusters(cute::get<0>(problem), kRows * cute::size<0>(Cluster{}));
    p.across = clusters(cute::get<1>(problem), cute::size<1>(Tile{}) * cute::size<1>(Cluster{}));
    return p;
  }
  static int most_clusters(const Params& p) { return p.down * p.across * (kRagged == Ragged::rows ? 1 : p.groups); }

  CUTLASS_DEVICE explicit GroupScheduler(const Params& p) : p_(p), at_(cute::cluster_id_in_grid().x) {}
  template <class C>
  CUTLASS_DEVICE WorkTileInfo initial_work_tile_info(C) {
    return get_current_work();
  }
  CUTLASS_DEVICE void advance_to_next_work(uint32_t count = 1) { at_ += cute::cluster_grid_dims().x * count; }
  CUTLASS_DEVICE WorkTileInfo get_current_work() const {
    WorkTileInfo w;
    const auto in_cluster = cute::block_id_in_cluster();
    const uint32_t down = at_ / p_.across, column = at_ % p_.across;
    w.N_idx = column * cute::size<1>(Cluster{}) + in_cluster.y;
    if constexpr (kRagged == Ragged::rows) {
      if (down >= static_cast<uint32_t>(p_.down)) return w;
      w.M_idx = down;
      w.L_idx = p_.order[down * kRows / kGroupRows];
      w.is_valid_tile = w.L_idx < p_.groups;
    } else {
      const uint32_t place = down / p_.down;
      if (place >= static_cast<uint32_t>(p_.groups)) return w;
      w.M_idx = down % p_.down * cute::size<0>(Cluster{}) + in_cluster.x;
      w.L_idx = p_.order[place];
      const int begin = p_.offsets[w.L_idx];
      w.k_first = begin / kK;
      w.k_count = (p_.ends[w.L_idx] - begin + kK - 1) / kK;
      w.is_valid_tile = w.k_count > 0;  // groups are sorted by length: the following ones are empty as well
    }
    return w;
  }
  CUTLASS_DEVICE auto fetch_next_work(WorkTileInfo) {
    advance_to_next_work();
    return cute::make_tuple(get_current_work(), true);
  }
  template <class Pipeline, class State>
  CUTLASS_DEVICE auto fetch_next_work(WorkTileInfo w, Pipeline&, State) {
    return fetch_next_work(w);
  }
  template <class Problem, class T>
  CUTLASS_DEVICE static int get_work_k_tile_count(const WorkTileInfo& w, Problem problem, T) {
    return kRagged == Ragged::rows ? clusters(cute::get<2>(problem), kK) : w.k_count;
  }
  CUTLASS_DEVICE static uint32_t get_work_k_tile_start(const WorkTileInfo& w) { return w.k_first; }

 private:
  CUTLASS_HOST_DEVICE static int clusters(int length, int of) { return (length + of - 1) / of; }
  const Params& p_;
  uint32_t at_;
};

template <Ragged kRagged>
struct GroupSchedulerTag {};

}  // namespace halftone::gemm

template <halftone::gemm::Ragged kRagged, class Tile, class Cluster, uint32_t kStages>
struct cutlass::gemm::kernel::detail::TileSchedulerSelector<halftone::gemm::GroupSchedulerTag<kRagged>, cutlass::arch::Sm90, Tile, Cluster,
                                                            kStages> {
  using Scheduler = halftone::gemm::GroupScheduler<kRagged, Tile, Cluster>;
};

namespace halftone::gemm {

template <>
struct ElementOf<Numbers::e4m3> {
  using type = cutlass::float_e4m3_t;
};
template <>
struct ElementOf<Numbers::e5m2> {
  using type = cutlass::float_e5m2_t;
};

template <Ragged kRagged, class A, class B, bool kTransposedA, bool kTransposedB, class D, bool kAccumulate, bool kFast,
          BlockScales kBlocks, class T>
struct GroupedKernel {
  static constexpr bool of_rows = kRagged == Ragged::rows;
  using Zero = cute::_0;
  template <bool kTransposed, class L>
  using Stride = cute::conditional_t<kTransposed, cute::Stride<cute::_1, int64_t, L>, cute::Stride<int64_t, cute::_1, L>>;
  using StrideA = Stride<kTransposedA, Zero>;
  using StrideB = Stride<kTransposedB, cute::conditional_t<of_rows, int64_t, Zero>>;
  using StrideD = Stride<false, cute::conditional_t<of_rows, Zero, int64_t>>;

  // Block scales as in GroupedCall: one factor per row, or per 128 rows.
  static constexpr bool in_blocks = kBlocks != BlockScales::none;
  template <int kRows, class Strides>
  using BlockLayout = cute::Layout<cute::Shape<cute::Shape<cute::Int<kRows>, int>, cute::Shape<cute::Int<128>, int>, int>, Strides>;
  using Columns = BlockLayout<1, cute::Stride<cute::Stride<Zero, cute::_1>, cute::Stride<Zero, int>, Zero>>;
  using Tiles = BlockLayout<128, cute::Stride<cute::Stride<Zero, int>, cute::Stride<Zero, cute::_1>, int>>;
  using BlocksB = cute::conditional_t<of_rows, Tiles, Columns>;
  static_assert(!in_blocks || of_rows == (kBlocks == BlockScales::block_tile));
  template <class S, class Blocks>
  using Tag = cute::conditional_t<in_blocks, cute::tuple<S, Blocks>, S>;

  using Shape = cute::Shape<typename T::M, typename T::N, cute::Int<128 / sizeof(A)>>;
  using Cluster = typename T::Cluster;
  static constexpr bool is_int8 = cute::is_same_v<A, int8_t>, is_fp8 = sizeof(A) == 1 && !is_int8;
  using Accumulator = cute::conditional_t<is_int8, int32_t, float>;

  template <class... X>
  using Tree = cutlass::epilogue::fusion::Sm90EVT<X...>;
  template <template <class> class Op, class Out>
  using Compute = cutlass::epilogue::fusion::Sm90Compute<Op, Out, float, cutlass::FloatRoundStyle::round_to_nearest>;
  using ScaleM = cutlass::epilogue::fusion::Sm90ColBroadcast<0, Shape, float, float, cute::Stride<bool, Zero, int64_t>>;
  using ScaleN = cutlass::epilogue::fusion::Sm90RowBroadcast<0, Shape, float, float, cute::Stride<Zero, bool, int64_t>>;
  using Out = cute::conditional_t<kAccumulate, float, D>;
  using Scaled = Tree<Compute<cutlass::multiplies, Out>, ScaleN,
                      Tree<Compute<cutlass::multiplies, float>, ScaleM, cutlass::epilogue::fusion::Sm90AccFetch>>;
  using Added = Tree<Compute<cutlass::plus, D>, cutlass::epilogue::fusion::Sm90SrcFetch<D>, Scaled>;
  using Epilogue = cute::conditional_t<kAccumulate, Added, Scaled>;

  using C = cute::conditional_t<kAccumulate, D, void>;
  static constexpr int kAlign = 16 / sizeof(D);
  using EpilogueSchedule =
      cute::conditional_t<T::pingpong, cutlass::epilogue::TmaWarpSpecialized, cutlass::epilogue::TmaWarpSpecializedCooperative>;
  static_assert(of_rows || !T::pingpong, "the pingpong kernel has one length of k");
  // Without FastAccum fp8 kernels promote the tensor cores' sums to fp32 every 128 elements.
  using Cooperative =
      cute::conditional_t<in_blocks, cutlass::gemm::KernelTmaWarpSpecializedCooperativeFP8Blockwise,
                          cute::conditional_t<is_fp8 && kFast, cutlass::gemm::KernelTmaWarpSpecializedCooperativeFP8FastAccum,
                                              cutlass::gemm::KernelTmaWarpSpecializedCooperative>>;
  using Pingpong = cute::conditional_t<is_fp8 && kFast, cutlass::gemm::KernelTmaWarpSpecializedPingpongFP8FastAccum,
                                       cutlass::gemm::KernelTmaWarpSpecializedPingpong>;
  using Schedule = cute::conditional_t<T::pingpong, Pingpong, Cooperative>;
  using CollectiveEpilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Shape, Cluster, cutlass::epilogue::collective::EpilogueTileAuto, Accumulator,
      float, C, StrideD, kAlign, D, StrideD, kAlign, EpilogueSchedule, Epilogue>::CollectiveOp;
  using CollectiveMain = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, A, Tag<StrideA, Columns>, 16 / sizeof(A), B, Tag<StrideB, BlocksB>,
      16 / sizeof(B), Accumulator, Shape, Cluster,
      cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(sizeof(typename CollectiveEpilogue::SharedStorage))>,
      Schedule>::CollectiveOp;
  using Kernel =
      cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, CollectiveMain, CollectiveEpilogue, GroupSchedulerTag<kRagged>>;

  static const char* run(const GroupedCall& p) {
    typename Kernel::Arguments args{cutlass::gemm::GemmUniversalMode::kGemm, {p.m, p.n, p.k, p.groups}, {}, {}, {}, {}};
    args.mainloop.ptr_A = static_cast<const A*>(p.a), cute::get<kTransposedA>(args.mainloop.dA) = p.lda;
    args.mainloop.ptr_B = static_cast<const B*>(p.b), cute::get<kTransposedB>(args.mainloop.dB) = p.ldb;
    if constexpr (of_rows) cute::get<2>(args.mainloop.dB) = p.stride_b;
    if constexpr (in_blocks) {
      const int blocks = (p.k + 127) / 128;
      const auto columns = [&](int rows) {
        return Columns{{{cute::_1{}, rows}, {cute::Int<128>{}, blocks}, p.groups}, {{Zero{}, cute::_1{}}, {Zero{}, rows}, Zero{}}};
      };
      args.mainloop.ptr_SFA = p.block_a, args.mainloop.layout_SFA = columns(p.m);
      args.mainloop.ptr_SFB = p.block_b;
      if constexpr (of_rows)
        args.mainloop.layout_SFB = Tiles{{{cute::Int<128>{}, (p.n + 127) / 128}, {cute::Int<128>{}, blocks}, p.groups},
                                         {{Zero{}, blocks}, {Zero{}, cute::_1{}}, static_cast<int>(p.block_stride_b)}};
      else
        args.mainloop.layout_SFB = columns(p.n);
    }
    StrideD stride_d{};
    cute::get<0>(stride_d) = p.n;
    if constexpr (!of_rows) cute::get<2>(stride_d) = int64_t{p.m} * p.n;
    args.epilogue.ptr_D = static_cast<D*>(p.d), args.epilogue.dD = stride_d;
    if constexpr (kAccumulate) args.epilogue.ptr_C = static_cast<const D*>(p.d), args.epilogue.dC = stride_d;

    typename ScaleM::Arguments scale_m{p.scale_m.scale, 1.0f, {p.scale_m.vector, {}, p.scale_m.group}};
    typename ScaleN::Arguments scale_n{p.scale_n.scale, 1.0f, {{}, p.scale_n.vector, p.scale_n.group}};
    typename Scaled::Arguments scaled{scale_n, {scale_m, {}, {}}, {}};
    if constexpr (kAccumulate)
      args.epilogue.thread = {{}, scaled, {}};
    else
      args.epilogue.thread = scaled;
    static_cast<GroupTables&>(args.scheduler) = {p.offsets, p.ends, p.order, p.groups};
    args.hw_info.sm_count = p.sm_count;
    if (!Kernel::can_implement(args)) return "grouped product: expected rows of the operands and of D aligned to 16 bytes";
    return launch(Kernel::to_underlying_arguments(args, nullptr), p);
  }

  static const char* launch(const typename Kernel::Params& params, const GroupedCall& p) {
    constexpr int kShared = Kernel::SharedStorageSize, kM = cute::size<0>(Cluster{}), kN = cute::size<1>(Cluster{});
    const auto kernel = cutlass::device_kernel<Kernel>;
    const cudaError_t allowed = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);  // per device
    if (allowed != cudaSuccess) return cudaGetErrorString(allowed);
    const int clusters = std::min(p.sm_count / (kM * kN), Kernel::TileScheduler::most_clusters(params.scheduler));
    cudaLaunchAttribute cluster{};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {kM, kN, 1};
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(clusters * kM, kN, 1);
    config.blockDim = Kernel::get_block_shape();
    config.dynamicSmemBytes = kShared;
    config.stream = p.stream;
    config.attrs = &cluster;
    config.numAttrs = 1;
    const cudaError_t status = cudaLaunchKernelEx(&config, kernel, params);
    return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
  }
};

template <GroupedTiling kTiling>
struct GroupedTileOf;
template <>
struct GroupedTileOf<GroupedTiling::cooperative_128x256> : Tile<128, 256, false, 1, 1> {};
template <>
struct GroupedTileOf<GroupedTiling::cooperative_128x256_pairs_along_m> : Tile<128, 256, false, 2, 1> {};
template <>
struct GroupedTileOf<GroupedTiling::cooperative_128x256_pairs_along_n> : Tile<128, 256, false, 1, 2> {};
template <>
struct GroupedTileOf<GroupedTiling::cooperative_128x192> : Tile<128, 192, false, 1, 1> {};
template <>
struct GroupedTileOf<GroupedTiling::cooperative_128x128> : Tile<128, 128, false, 1, 1> {};
template <>
struct GroupedTileOf<GroupedTiling::pingpong_128x128> : Tile<128, 128, true, 1, 1> {};
template <Ragged kRagged, Numbers kA, Numbers kB, bool kTransposedA, bool kTransposedB, DType kD, bool kAccumulate, bool kFast,
          BlockScales kBlocks, GroupedTiling kTiling>
const char* grouped_product(const GroupedCall& call) {
  using D = cute::conditional_t<kD == DType::f32, float, cutlass::bfloat16_t>;
  return GroupedKernel<kRagged, typename ElementOf<kA>::type, typename ElementOf<kB>::type, kTransposedA, kTransposedB, D, kAccumulate,
                       kFast, kBlocks, GroupedTileOf<kTiling>>::run(call);
}

}  // namespace halftone::gemm
