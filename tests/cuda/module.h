#pragma once
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstdio>
#include <filesystem>
#include <string>

namespace halftone {

// halftone_cuda.so beside the test program, and whether there is a GPU to run it on.
class CudaModule {
 public:
  CudaModule() {
    int devices = 0;
    if (const cudaError_t status = cudaGetDeviceCount(&devices); status != cudaSuccess || devices == 0) {
      reason_ = std::string("no CUDA device: ") + cudaGetErrorString(status);
      return;
    }
    const auto path = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "halftone_cuda.so";
    handle_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    // With a GPU present, a module that fails to load is a test failure: function() then returns null.
    if (handle_ == nullptr) std::fprintf(stderr, "%s\n", dlerror());
  }

  // Why the tests cannot run here; empty if they can.
  const std::string& reason() const { return reason_; }
  template <class F>
  F function(const char* name) const {
    return handle_ ? reinterpret_cast<F>(dlsym(handle_, name)) : nullptr;
  }

 private:
  std::string reason_;
  void* handle_ = nullptr;
};

}  // namespace halftone
