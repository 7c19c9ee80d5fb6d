#include "halftone/checkpoint/host_copies.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <chrono>

#include "halftone/base/error.h"
#include "halftone/base/log.h"
#include "halftone/ops/device.h"
#include "halftone/ops/host_memory.h"

namespace halftone {
namespace {

constexpr int64_t kBlock = int64_t{256} << 20;  // page-locked piece by piece: each one blocks the driver only briefly
// Left free for others: the processes of a host see the same figure before each takes a block.
constexpr int64_t kSpare = 8 * kBlock;
constexpr int64_t kAlignment = 64;

c10::impl::VirtualGuardImpl guard_of(c10::Device device) { return c10::impl::VirtualGuardImpl(device.type()); }

// The device of the tensors on a GPU; otherwise the CPU.
c10::Device device_of(const StepState& state) {
  for (const auto* list : {&state.model, &state.optim})
    for (const NamedTensor& t : *list)
      if (!t.tensor.device().is_cpu()) return t.tensor.device();
  return at::kCPU;
}

}  // namespace

HostCopies::~HostCopies() { join(); }

void HostCopies::join() {
  if (reserving_.joinable()) reserving_.join();
}

// A view into the blocks. The same tensors in the same order get the same addresses.
at::Tensor HostCopies::place(const at::Tensor& like) {
  const int64_t bytes = static_cast<int64_t>(like.nbytes()), taken = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  for (; block_ < blocks_.size() && used_ + taken > blocks_[block_].numel(); ++block_) used_ = 0;
  if (block_ == blocks_.size()) {
    const int64_t size = std::max(kBlock, taken), available = available_memory();
    check(size + kSpare <= available, "{:.1f} GiB of host memory are available beyond the {:.1f} GiB that copies already hold",
          static_cast<double>(available) / (1 << 30), static_cast<double>(blocks_.size() * kBlock) / (1 << 30));
    used_ = 0;
    blocks_.push_back(host_zeros(size, at::kByte, like.device(), "saves continue without them"));
  }
  const at::Tensor memory = blocks_[block_].narrow(0, used_, bytes);
  used_ += taken;
  return memory.view(like.scalar_type()).view(like.sizes());
}

void HostCopies::reserve(const StepState& like) {
  const c10::Device device = device_of(like);
  if (device.is_cpu()) return;
  join();
  std::vector<at::Tensor> tensors;
  for (const auto* list : {&like.model, &like.optim})
    for (const NamedTensor& t : *list)
      if (!t.tensor.device().is_cpu()) tensors.push_back(t.tensor);
  reserving_ = std::thread([this, device, tensors = std::move(tensors)] {
    try {
      const c10::DeviceGuard guard(device);
      block_ = 0, used_ = 0;
      for (const at::Tensor& t : tensors) place(t);
    } catch (const std::exception& error) {
      no_room_ = error.what();
    }
  });
}

std::optional<StepState> HostCopies::copy(const StepState& state) {
  join();
  const c10::Device device = device_of(state);
  StepState copies = state;
  std::optional<c10::StreamGuard> on_stream;
  if (!device.is_cpu() && no_room_.empty()) {
    if (!stream_) stream_ = guard_of(device).getStreamFromGlobalPool(device);
    c10::Event ready(device.type());
    ready.record(guard_of(device).getStream(device));
    ready.block(*stream_);
    on_stream.emplace(*stream_);
  }
  block_ = 0, used_ = 0;
  try {
    check(no_room_.empty(), "{}", no_room_);
    for (auto* list : {&copies.model, &copies.optim})
      for (NamedTensor& t : *list) {
        const at::Tensor source = t.tensor.detach();
        if (source.device().is_cpu()) {
          t.tensor = source.clone();
          continue;
        }
        t.tensor = place(source);
        t.tensor.copy_(source, /*non_blocking=*/true);
        sources_.push_back(source);
      }
  } catch (const Error& error) {
    no_room_ = error.what();
    if (!std::exchange(told_, true)) log_warning("checkpoint.async_mode: saves wait for the disk: {}", no_room_);
    if (on_stream) guard_of(device).synchronizeStream(*stream_);
    sources_.clear(), blocks_.clear();
    return std::nullopt;
  }
  if (!on_stream) return copies;
  copied_.emplace(device.type());
  copied_->record(*stream_);
  updates_wait_ = true;
  return copies;
}

void HostCopies::wait() {
  // Polled: waiting in the driver would keep a core busy.
  while (copied_ && !copied_->query()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  sources_.clear();
}

void HostCopies::before_update() {
  if (!std::exchange(updates_wait_, false)) return;
  copied_->block(guard_of(stream_->device()).getStream(stream_->device()));
}

}  // namespace halftone
