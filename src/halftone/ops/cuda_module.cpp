#include "halftone/ops/cuda_module.h"

#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>

#include <optional>

#include "halftone/base/error.h"
#include "halftone/base/module.h"
#include "halftone/ops/hardware.h"

namespace halftone::cuda {
namespace {

struct Loaded {
  std::optional<Module> module;
  std::string reason;
};

Loaded load() {
  const auto [handle, problem] = open_module("halftone_cuda.so", "build with HALFTONE_CUDA=ON");
  if (handle == nullptr) return {{}, problem};
  Loaded result{Module{}, ""};
  Module& m = *result.module;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(handle, name));
    if (function == nullptr) result.reason = fmt::format("halftone_cuda.so lacks {}; it belongs to another build", name);
  };
  find(m.quantize_operand, "halftone_cuda_quantize_operand"), find(m.quantize_workspace, "halftone_cuda_quantize_workspace");
  find(m.product, "halftone_cuda_product"), find(m.product_workspace, "halftone_cuda_product_workspace");
  find(m.grouped_product, "halftone_cuda_grouped_product");
  find(m.grouped_product_workspace, "halftone_cuda_grouped_product_workspace");
  find(m.recall_choices, "halftone_cuda_recall_choices"), find(m.made_choices, "halftone_cuda_made_choices");
  find(m.library_version, "halftone_cuda_library_version");
  find(m.decode, "halftone_cuda_decode"), find(m.dge_slopes, "halftone_cuda_dge_slopes");
  find(m.store_weight, "halftone_cuda_store_weight"), find(m.optimizer_step, "halftone_cuda_optimizer_step");
  find(m.partial_squares, "halftone_cuda_partial_squares"), find(m.judge_step, "halftone_cuda_judge_step");
  find(m.rms_norm_forward, "halftone_cuda_rms_norm_forward"), find(m.rms_norm_backward, "halftone_cuda_rms_norm_backward");
  find(m.rms_norm_partial, "halftone_cuda_rms_norm_partial"), find(m.random_fill, "halftone_cuda_random_fill");
  find(m.swiglu_forward, "halftone_cuda_swiglu_forward"), find(m.swiglu_backward, "halftone_cuda_swiglu_backward");
  find(m.norm_rope, "halftone_cuda_norm_rope"), find(m.norm_rope_backward, "halftone_cuda_norm_rope_backward");
  find(m.norm_rope_partial, "halftone_cuda_norm_rope_partial");
  find(m.place_experts, "halftone_cuda_place_experts");
  find(m.gather_rows, "halftone_cuda_gather_rows"), find(m.combine_rows, "halftone_cuda_combine_rows");
  find(m.group_bias, "halftone_cuda_group_bias"), find(m.group_sums, "halftone_cuda_group_sums");
  find(m.clamped_swiglu, "halftone_cuda_clamped_swiglu"), find(m.clamped_swiglu_backward, "halftone_cuda_clamped_swiglu_backward");
  find(m.rope, "halftone_cuda_rope"), find(m.cross_entropy, "halftone_cuda_cross_entropy");
  find(m.capture_id, "halftone_cuda_capture_id");
  find(m.lock_memory, "halftone_cuda_lock_memory"), find(m.unlock_memory, "halftone_cuda_unlock_memory");
  if (!result.reason.empty()) result.module.reset();
  return result;
}

const Loaded& loaded() {
  static const Loaded once = load();
  return once;
}

}  // namespace

const Module* module() {
  if (const SimulatedDevice* s = SimulatedDevice::current()) return &s->module;
  return loaded().module ? &*loaded().module : nullptr;
}

const std::string& missing_module() { return loaded().reason; }

const Module& required_module() {
  if (const SimulatedDevice* s = SimulatedDevice::current()) return s->module;
  check(loaded().module.has_value(), "{}", loaded().reason);
  return *loaded().module;
}

void* current_stream(c10::Device device) {
  return device.is_meta() ? nullptr : c10::impl::VirtualGuardImpl(device.type()).getStream(device).native_handle();
}

uint64_t current_capture(c10::Device device) {
  return device.is_cpu() || module() == nullptr ? 0 : module()->capture_id(current_stream(device));
}

void check_launch(const char* kernel, const char* problem) {
  check(problem == nullptr, "{} on the CUDA device: {}", kernel, problem != nullptr ? problem : "");
}

}  // namespace halftone::cuda
