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

// Arguments of a backend. Every rank of the group makes its own with the same store, whose keys no other group shares.
struct BackendArguments {
  c10::intrusive_ptr<c10d::Store> store;
  std::string name;
  int rank = 0, size = 1;
  std::chrono::milliseconds timeout{};
};

// LibTorch's Gloo. GLOO_SOCKET_IFNAME names the network; otherwise that of the host's name.
c10::intrusive_ptr<c10d::Backend> make_gloo(const BackendArguments& arguments);

// LibTorch's NCCL: functions of halftone_nccl.so (nccl_module.cpp). They are extern "C", so results are arguments.
using MakeNccl = void(const BackendArguments* arguments, c10::intrusive_ptr<c10d::Backend>* result);
inline constexpr const char* kMakeNccl = "halftone_make_nccl";
// The same operation without its tensors: a watched work would otherwise keep its outputs from being freed.
using WatchedNccl = void(const c10d::Work* work, c10::intrusive_ptr<c10d::Work>* result);
inline constexpr const char* kWatchedNccl = "halftone_watched_nccl";

}  // namespace halftone::comm
