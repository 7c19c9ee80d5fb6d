#include <chrono>
#include <memory>
#include <string>
#include <vector>

// LibTorch's header names these types of Gloo, whose headers the wheel lacks (CMakeLists.txt has empty ones). Only pointers to them are
// used.
namespace gloo {
struct Context {
  void setTimeout(std::chrono::milliseconds);
};
namespace transport {
class Device;
class UnboundBuffer;
}  // namespace transport
namespace rendezvous {
struct Store {
  virtual ~Store();
  virtual void set(const std::string&, const std::vector<char>&) = 0;
  virtual std::vector<char> get(const std::string&) = 0;
  virtual void wait(const std::vector<std::string>&) = 0;
  virtual void wait(const std::vector<std::string>&, const std::chrono::milliseconds&) = 0;
};
}  // namespace rendezvous
}  // namespace gloo

#define USE_C10D_GLOO
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "halftone/comm/backends.h"

namespace halftone::comm {

c10::intrusive_ptr<c10d::Backend> make_gloo(const BackendArguments& a) {
  auto options = c10d::ProcessGroupGloo::Options::create_default(a.timeout);
  return c10::make_intrusive<c10d::ProcessGroupGloo>(a.store, a.rank, a.size, std::move(options));
}

}  // namespace halftone::comm
