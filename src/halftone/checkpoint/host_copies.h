#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "halftone/checkpoint/step_writer.h"

namespace halftone {

// Copies of a step's tensors in host memory, from which it is written while training goes on. Tensors of a GPU go to page-locked
// memory, on a stream of their own, so that nobody waits for them but the next update; the memory is kept for the next save.
class HostCopies {
 public:
  ~HostCopies();
  // Locks memory for tensors like these on a thread, at some 3 GiB a second.
  void reserve(const StepState& like);
  // Nothing where the host has no room. The memory is that of the copies before.
  std::optional<StepState> copy(const StepState& state);
  void wait();           // until the copies hold the values
  void before_update();  // queued work of the current stream that comes after this waits for the copies

 private:
  at::Tensor place(const at::Tensor& like);
  void join();

  std::vector<at::Tensor> blocks_;  // bytes
  size_t block_ = 0;                // where the next copy is placed
  int64_t used_ = 0;                // bytes of it
  std::thread reserving_;
  std::string no_room_;  // why there is none, of the reserving thread
  bool told_ = false;
  std::vector<at::Tensor> sources_;    // live until they are copied
  std::optional<c10::Stream> stream_;  // that of the copies
  std::optional<c10::Event> copied_;
  bool updates_wait_ = false;  // for copied_
};

}  // namespace halftone
