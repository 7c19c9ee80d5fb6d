// halftone_nccl.so (cmake/cuda.cmake): the only file that needs the headers of NCCL and CUDA.
#define USE_C10D_NCCL
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "halftone/comm/backends.h"

extern "C" [[gnu::visibility("default")]] void halftone_make_nccl(const halftone::comm::BackendArguments* arguments,
                                                                  c10::intrusive_ptr<c10d::Backend>* result) {
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = arguments->timeout;
  options->group_name = arguments->name;
  auto backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(arguments->store, arguments->rank, arguments->size, std::move(options));
  backend->setGroupUid(arguments->name);
  *result = std::move(backend);
}

extern "C" [[gnu::visibility("default")]] void halftone_watched_nccl(const c10d::Work* work, c10::intrusive_ptr<c10d::Work>* result) {
  *result = c10::make_intrusive<c10d::ProcessGroupNCCL::WorkNCCL>(static_cast<const c10d::ProcessGroupNCCL::WorkNCCL&>(*work));
}
