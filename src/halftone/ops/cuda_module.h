#pragma once
#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "halftone/fused/cross_entropy.h"
#include "halftone/fused/dge_slopes.h"
#include "halftone/fused/expert_rows.h"
#include "halftone/fused/grad_norm.h"
#include "halftone/fused/norm_rope.h"
#include "halftone/fused/random_fill.h"
#include "halftone/fused/rms_norm.h"
#include "halftone/fused/stored_weight.h"
#include "halftone/fused/swiglu.h"
#include "halftone/gemm/decode.h"
#include "halftone/gemm/grouped_product.h"
#include "halftone/gemm/product.h"
#include "halftone/gemm/product_choice.h"
#include "halftone/optim/step.h"
#include "halftone/quantize/operand.h"

namespace halftone::cuda {

// The functions of halftone_cuda.so (device/launch.h): each queues its work on the stream and returns null, or an error message.
struct Module {
  const char* (*quantize_operand)(const QuantizeOperand*, void* workspace, size_t bytes, void* stream) = nullptr;
  size_t (*quantize_workspace)(const QuantizeOperand*) = nullptr;
  const char* (*product)(const gemm::Product*, void* stream) = nullptr;
  int64_t (*product_workspace)(const gemm::Product*) = nullptr;
  const char* (*grouped_product)(const gemm::GroupedProduct*, void* stream) = nullptr;
  int64_t (*grouped_product_workspace)(const gemm::GroupedProduct*) = nullptr;
  void (*recall_choices)(const gemm::ProductChoice* from, int64_t count) = nullptr;
  int64_t (*made_choices)(gemm::ProductChoice* to, int64_t room) = nullptr;
  int64_t (*library_version)() = nullptr;
  const char* (*decode)(const gemm::DecodeCopy*, void* stream) = nullptr;
  const char* (*dge_slopes)(const DgeSlopes*, void* stream) = nullptr;
  const char* (*store_weight)(const StoreWeight*, void* stream) = nullptr;
  const char* (*optimizer_step)(const OptimizerStep*, void* stream) = nullptr;
  const char* (*partial_squares)(const PartialSquares*, void* stream) = nullptr;
  const char* (*judge_step)(const JudgeStep*, void* stream) = nullptr;
  const char* (*random_fill)(const RandomFill*, void* stream) = nullptr;
  const char* (*rms_norm_forward)(const RmsNormForward*, void* stream) = nullptr;
  const char* (*rms_norm_backward)(const RmsNormBackward*, float* partial, void* stream) = nullptr;
  int64_t (*rms_norm_partial)(int64_t cols) = nullptr;
  const char* (*swiglu_forward)(const SwigluForward*, void* stream) = nullptr;
  const char* (*swiglu_backward)(const SwigluBackward*, void* stream) = nullptr;
  const char* (*place_experts)(const PlaceExperts*, void* stream) = nullptr;
  const char* (*gather_rows)(const GatherRows*, void* stream) = nullptr;
  const char* (*combine_rows)(const CombineRows*, void* stream) = nullptr;
  const char* (*group_bias)(const GroupBias*, void* stream) = nullptr;
  const char* (*group_sums)(const GroupSums*, void* stream) = nullptr;
  const char* (*clamped_swiglu)(const ClampedSwiglu*, void* stream) = nullptr;
  const char* (*clamped_swiglu_backward)(const ClampedSwigluBackward*, void* stream) = nullptr;
  const char* (*rope)(const Rope*, void* stream) = nullptr;
  const char* (*norm_rope)(const NormRope*, void* stream) = nullptr;
  const char* (*norm_rope_backward)(const NormRopeBackward*, float* partial, void* stream) = nullptr;
  int64_t (*norm_rope_partial)(int64_t head_dim) = nullptr;
  const char* (*cross_entropy)(const CrossEntropy*, void* stream) = nullptr;
  uint64_t (*capture_id)(void* stream) = nullptr;
  const char* (*lock_memory)(void* data, size_t bytes) = nullptr;
  void (*unlock_memory)(void* data) = nullptr;
};

// The module next to the executable (or next to the library that holds this code), loaded on first use; null if it cannot be loaded, with
// the reason in one line.
const Module* module();
const std::string& missing_module();

// The same; Error with the reason if it cannot be loaded.
const Module& required_module();

// cudaStream_t of LibTorch's current stream of the device.
void* current_stream(c10::Device device);

// Id of the graph capture on the device's current stream; 0 outside a capture, on the CPU and without a module.
uint64_t current_capture(c10::Device device);

// Throws Error naming the kernel if it returned a problem.
void check_launch(const char* kernel, const char* problem);

// Queues a kernel on the device's current stream: launch("rope", &Module::rope, p, device). Error without a module, or with the kernel's
// problem.
template <class P>
void launch(const char* kernel, const char* (*Module::*function)(const P*, void*), const P& p, c10::Device device) {
  check_launch(kernel, (required_module().*function)(&p, current_stream(device)));
}

}  // namespace halftone::cuda
