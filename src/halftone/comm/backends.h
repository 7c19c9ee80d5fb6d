#pragma once
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <string>

namespace c10d {
class Backend;
class Store;
class Work;
}  // namespace c10d

namespace halftone::comm {

// What a backend is made from: every rank of the group makes its own with the same store, whose keys no other group shares.
struct BackendArguments {
  c10::intrusive_ptr<c10d::Store> store;
  std::string name;
  int rank = 0, size = 1;
  std::chrono::milliseconds timeout{};
};

// LibTorch's Gloo. GLOO_SOCKET_IFNAME names the network; otherwise that of the host's name.
c10::intrusive_ptr<c10d::Backend> make_gloo(const BackendArguments& arguments);

// LibTorch's NCCL: the functions of halftone_nccl.so (nccl_module.cpp), as extern "C", so results are arguments.
using MakeNccl = void(const BackendArguments* arguments, c10::intrusive_ptr<c10d::Backend>* result);
inline constexpr const char* kMakeNccl = "halftone_make_nccl";
// The same operation without its tensors: who watches a work would keep what it wrote from being used again.
using WatchedNccl = void(const c10d::Work* work, c10::intrusive_ptr<c10d::Work>* result);
inline constexpr const char* kWatchedNccl = "halftone_watched_nccl";

}  // namespace halftone::comm
