#include "halftone/torch_ops/layer.h"

#include <ATen/ops/zeros.h>

#include <sstream>

#include "halftone/ops/common.h"
#include "halftone/ops/cuda_module.h"
#include "halftone/ops/linear_cpu.h"
#include "halftone/ops/linear_scaled.h"
#include "halftone/ops/stored_weight.h"
#include "halftone/torch_ops/format.h"

namespace halftone::library {
namespace {

std::mutex& step_mutex() {
  static std::mutex one;
  return one;
}

std::string shape(const at::Tensor& t) {
  std::ostringstream out;
  out << t.sym_sizes();
  return out.str();
}

StepContext context(int64_t seed, const MaybeTensor& step, int64_t first_row) {
  check_step(step);
  StepContext c{static_cast<uint64_t>(seed), 0, first_row};
  if (!present(step)) return c;
  if (cuda::current_capture(step->device()) != 0) {
    c.device_step = static_cast<const uint32_t*>(step->const_data_ptr());  // the lower half, which comes first
  } else {
    c.step = static_cast<uint32_t>(step->item<int64_t>());
  }
  return c;
}

}  // namespace

Step::Step(int64_t seed, const MaybeTensor& step, int64_t first_row) : lock_(step_mutex()), before_(step_context()) {
  step_context() = context(seed, step, first_row);
}

Layer::Layer(const at::Tensor& w, const MaybeTensor& b, std::string_view recipe, std::string_view options, std::string_view name) {
  weight.name = std::string(name), weight.value = w.detach().contiguous();
  group.recipe = parse_recipe(std::string(recipe), std::string(options), weight.name);
  const int64_t n = w.size(0), k = w.size(1), multiple = group.recipe.dim_multiple;
  check(n % multiple == 0 && k % multiple == 0,
        "halftone.linear: recipe {} takes sizes that are multiples of {}, {} is [{}, {}]; use recipe none", recipe, multiple, name, n, k);
  group.weights = {&weight};
  if (group.recipe.w_forward.stored) {
    weight.stored = std::make_shared<StoredWeight>(allocate_stored(group.recipe.w_forward, n, k, w.device()));
    store(weight.value.to(at::kFloat), {}, *weight.stored);
  }
  if (present(b)) {
    bias.name = weight.name + ".bias", bias.value = b->detach().contiguous();
    group.biases = {&bias};
  }
}

void want_gradient(Weight& w) { w.grad = at::zeros(w.value.sizes(), w.value.options().dtype(at::kFloat)); }

LinearCall backward_call(const at::Tensor& x, LinearGroup& group) {
  LinearOptions o;
  o.out = x.scalar_type(), o.keep = true;
  if (x.is_cpu() && cpu::takes(x, group)) return cpu::linear_call(x, group, o, false);
  if (x.is_cpu() || cuda::module() != nullptr) return scaled::linear_call(x, group, o, false);
  return linear_call(x, group, o);
}

void check_step(const MaybeTensor& step) {
  check(!present(step) || (step->scalar_type() == at::kLong && step->dim() == 0),
        "halftone: expected step as an int64 number (torch.tensor(3)), found {} with {} dimensions",
        present(step) ? c10::toString(step->scalar_type()) : "none", present(step) ? step->dim() : 0);
}

void check_linear(const char* op, const at::Tensor& x, const at::Tensor& w, const MaybeTensor& bias) {
  if (w.dim() != 2 || x.dim() < 1 || x.sym_size(-1) != w.sym_size(1)) {
    fail("{}: expected x[..., K] and weight[N, K], found {} and {}", op, shape(x), shape(w));
  }
  kernel_dtype(x), kernel_dtype(w);
  check(x.device() == w.device(), "{}: expected x and weight on one device, found {} and {}", op, x.device().str(), w.device().str());
  if (!present(bias)) return;
  kernel_dtype(*bias);
  if (bias->dim() != 1 || bias->sym_size(0) != w.sym_size(0))
    fail("{}: expected a bias of one number per row of weight{}, found {}", op, shape(w), shape(*bias));
  check(bias->device() == w.device(), "{}: expected bias and weight on one device, found {} and {}", op, bias->device().str(),
        w.device().str());
}

}  // namespace halftone::library
