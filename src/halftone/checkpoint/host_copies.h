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

// Copies of a step's tensors in host memory, which are written while training continues. GPU tensors are copied to page-locked memory on
// a separate stream, so that only the next update waits for them; the memory is reused by the next save.
class HostCopies {
 public:
  ~HostCopies();
  // Page-locks memory for such tensors on a thread, at about 3 GiB/s.
  void reserve(const StepState& like);
  // nullopt if the host lacks memory. Reuses the memory of the previous copies.
  std::optional<StepState> copy(const StepState& state);
  void wait();           // until the copies are complete
  void before_update();  // work queued later on the current stream waits for the copies

 private:
  at::Tensor place(const at::Tensor& like);
  void join();

  std::vector<at::Tensor> blocks_;  // bytes
  size_t block_ = 0;                // block of the next copy
  int64_t used_ = 0;                // bytes used of it
  std::thread reserving_;
  std::string no_room_;  // why memory is lacking, from the reserving thread
  bool told_ = false;
  std::vector<at::Tensor> sources_;    // kept alive until they are copied
  std::optional<c10::Stream> stream_;  // stream of the copies
  std::optional<c10::Event> copied_;
  bool updates_wait_ = false;  // for copied_
};

}  // namespace halftone
