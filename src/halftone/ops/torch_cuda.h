#pragma once
#include <dlfcn.h>

#include "halftone/base/error.h"

namespace halftone {

// A function of LibTorch's CUDA half, which the program does not link, by its mangled name.
template <class F>
F* of_torch_cuda(const char* name) {
  void* found = dlsym(RTLD_DEFAULT, name);
  check(found != nullptr, "LibTorch's CUDA half lacks {}; expected LibTorch 2.11", name);
  return reinterpret_cast<F*>(found);
}

}  // namespace halftone
