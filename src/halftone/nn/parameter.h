#pragma once
#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "halftone/ops/weight.h"

namespace halftone::nn {

// How a fresh parameter is filled (platform.md 4.6); draws are keyed by (seed, fqn) and the global element index.
struct Init {
  enum class Kind { ones, zeros, normal, truncated_normal } kind = Kind::ones;
  double std = 0;
  double cut = 0;  // truncated_normal: absolute values beyond it do not occur
};

// A parameter knows its name, shape and initial distribution from the start and its storage only after
// ParameterStore::materialize: a model of any size can be described without memory.
struct Parameter {
  std::string fqn;
  std::vector<int64_t> shape;
  Init init;
  at::Tensor master;  // storage dtype, view into its unit's flat buffer
  Weight weight;      // what ops see

  int64_t numel() const {
    int64_t n = 1;
    for (const int64_t s : shape) n *= s;
    return n;
  }
};

}  // namespace halftone::nn
