#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "halftone/comm/watch.h"

namespace c10d {
class Backend;
}

namespace halftone::comm {

enum class Reduce { sum, max };

// An operation in progress. Do not touch its tensors before wait(). On a GPU the current stream waits, not the host.
class [[nodiscard]] Pending {
 public:
  Pending(Pending&&) noexcept;
  ~Pending();
  // Ends the process in one line when peers have not joined after Watch::timeout(), or when one has failed.
  void wait();
  bool ended() const;  // wait() would return at once; false where the backend does not know

 private:
  friend class Communicator;
  Pending(Watch& watch, Operation operation, c10::intrusive_ptr<c10d::Work> work, bool on_host);
  Pending then(std::function<void()> last) &&;  // what wait() does at its end
  Watch& watch_;
  Operation operation_;
  c10::intrusive_ptr<c10d::Work> work_;
  bool on_host_;
  std::function<void()> last_;
};

// Operations among the ranks of one group: NCCL for CUDA tensors, Gloo for CPU tensors. All ranks of the group make the same calls in the
// same order. Operations of one communicator run in order; use two where gathers and reductions should overlap. Tensors are contiguous
// and on the communicator's device. Data that is only moved may have any dtype and travels as bytes. Sums are equal bit for bit on all
// ranks and in every run. On the CPU they add in rank order, in float32 for bfloat16 tensors, however an operation splits its tensors. On
// a GPU the backend chooses the order.
class Communicator {
 public:
  // Collective over the group. `ranks` are ranks of the job; each of them uses the name once. The watch outlives the communicator.
  Communicator(Watch& watch, const std::string& name, std::vector<int64_t> ranks, at::Device device);
  // Does not close the backend when this rank or another has failed: a pending operation would block it.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int64_t size() const { return static_cast<int64_t>(group_->ranks.size()); }
  int64_t index() const { return index_; }  // of this rank in the group; so are the ranks below

  // In place; float32, float64 or bfloat16.
  Pending all_reduce(at::Tensor& t, Reduce how = Reduce::sum);
  // All tensors in one operation. out[i] has size() times the elements of in[i], in rank order. `in[i]` may be this rank's part of
  // `out[i]`.
  Pending all_gather(const std::vector<at::Tensor>& out, const std::vector<at::Tensor>& in);
  Pending all_gather(at::Tensor& out, const at::Tensor& in) { return all_gather(std::vector{out}, std::vector{in}); }
  // All tensors in one operation. out[i] is this rank's part of the sum of in[i], which has size() times its elements. float32, float64 or
  // bfloat16, all of one dtype.
  Pending reduce_scatter(const std::vector<at::Tensor>& out, const std::vector<at::Tensor>& in);
  Pending reduce_scatter(at::Tensor& out, const at::Tensor& in) { return reduce_scatter(std::vector{out}, std::vector{in}); }
  Pending broadcast(at::Tensor& t, int64_t root);
  // Rows (dim 0) to and from each rank; the counts add up to the rows of the tensors.
  Pending all_to_all(at::Tensor& out, const at::Tensor& in, const std::vector<int64_t>& out_rows, const std::vector<int64_t>& in_rows);
  // Messages with the same tag arrive in order. NCCL has no tags: there, all messages from one rank to another arrive in order.
  Pending send(const at::Tensor& t, int64_t to, int tag = 0);
  Pending recv(at::Tensor& t, int64_t from, int tag = 0);
  void barrier();

 private:
  void check_parts(const char* what, const std::vector<at::Tensor>& whole, const std::vector<at::Tensor>& parts) const;
  // parts: [size() * n], n numbers for each rank. `use` gets this rank's sum, [n].
  Pending exchange_and_sum(const char* what, at::Tensor parts, std::function<void(const at::Tensor&)> use);
  // An operation's name, and what it moves in all, not only this rank's part.
  struct Task {
    Task(const char* what, at::TensorList moved = {});
    const char *what, *dtype = "";
    int64_t bytes = 0;
  };
  template <class Call>
  Pending start(Task task, Call&& call, int64_t peer = -1);

  Watch& watch_;
  std::shared_ptr<const Group> group_;
  int64_t index_;
  at::Device device_;
  c10::intrusive_ptr<c10d::Backend> backend_;
};

}  // namespace halftone::comm
