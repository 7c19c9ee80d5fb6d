#include "halftone/torch_ops/layer.h"

#include <ATen/ops/zeros.h>

#include <sstream>

#include "halftone/ops/common.h"
#include "halftone/ops/cuda_module.h"
#include "halftone/ops/stored_weight.h"
#include "halftone/torch_ops/format.h"

namespace halftone::library {

StepContext step_context(int64_t seed, const MaybeTensor& step, int64_t first_row) {
  check(first_row >= 0, "halftone: expected first_row of at least 0, found {}", first_row);
  StepContext c{static_cast<uint64_t>(seed), 0, first_row};
  if (!present(step)) return c;
  if (cuda::current_capture(step->device()) != 0) {
    c.device_step = static_cast<const uint32_t*>(step->const_data_ptr());  // the low half, which comes first
  } else {
    c.step = checked_step("halftone", step->item<int64_t>());
  }
  return c;
}

Layer::Layer(const at::Tensor& w, const MaybeTensor& b, std::string_view recipe, std::string_view options, std::string_view name) {
  weight.name = std::string(name), weight.value = w.detach().contiguous();
  fused.recipe = parse_recipe(std::string(recipe), std::string(options), weight.name);
  check_multiples(fused.recipe, recipe, w, name);
  fused.weights = {&weight};
  if (fused.recipe.w_forward.stored) {
    weight.stored = std::make_shared<StoredWeight>(allocate_stored(fused.recipe.w_forward, w.size(0), w.size(1), w.device()));
    store(weight.value.to(at::kFloat), {}, *weight.stored);
  }
  if (present(b)) {
    bias.name = weight.name + ".bias", bias.value = b->detach().contiguous();
    fused.biases = {&bias};
  }
}

void want_gradient(Weight& w) { w.grad = at::zeros(w.value.sizes(), w.value.options().dtype(at::kFloat)); }

LinearCall backward_call(const at::Tensor& x, FusedLinears& fused, const StepContext& step) {
  LinearOptions o;
  o.step = step;
  o.out = x.scalar_type(), o.keep = true, o.product = false;
  return linear_call(x, fused, o);
}

void check_step(const MaybeTensor& step, const at::Tensor& x) {
  if (!present(step)) return;
  check(step->scalar_type() == at::kLong && step->dim() == 0,
        "halftone: expected step as an int64 number (torch.tensor(3)), found {} with {} dimensions", c10::toString(step->scalar_type()),
        step->dim());
  check(!step->is_meta() || x.is_meta(), "halftone: expected step on {} or the CPU, found it on {}", x.device().str(),
        step->device().str());
}
uint32_t checked_step(const char* op, int64_t step) {
  check(step >= 0 && step <= UINT32_MAX, "{}: expected a step from 0 to 4294967295, found {}", op, step);
  return static_cast<uint32_t>(step);
}

void check_beside(const char* op, const char* which, const at::Tensor& t, const at::Tensor& x) {
  check(t.device() == x.device(), "{}: expected {} on {}, like x, found it on {}", op, which, x.device().str(), t.device().str());
}

void check_multiples(const LinearRecipe& recipe, std::string_view scheme, const at::Tensor& w, std::string_view name) {
  const int64_t multiple = recipe.dim_multiple;
  const auto odd = [&](int axis) { return TORCH_GUARD_OR_FALSE((w.sym_size(axis) % multiple).sym_ne(0)); };
  if (odd(0) || odd(1)) {
    fail("halftone.linear: recipe {} needs sizes that are multiples of {}, {} is {}; use recipe none", scheme, multiple, name, shape(w));
  }
}

std::string shape(const at::Tensor& t) {
  std::ostringstream out;
  out << t.sym_sizes();
  return out.str();
}

at::Tensor rows_of(const at::Tensor& x) {
  const at::Tensor y = x.detach();
  return (y.dim() == 1 ? y.unsqueeze(0) : y.flatten(0, -2)).contiguous();
}

void check_linear(const char* op, const at::Tensor& x, const at::Tensor& w, const MaybeTensor& bias) {
  if (w.dim() != 2 || x.dim() < 1 || x.sym_size(-1) != w.sym_size(1)) {
    fail("{}: expected x[..., K] and weight[N, K], found {} and {}", op, shape(x), shape(w));
  }
  if (TORCH_GUARD_OR_FALSE(w.sym_numel().sym_eq(0))) fail("{}: expected a weight of at least one row and column, found {}", op, shape(w));
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
