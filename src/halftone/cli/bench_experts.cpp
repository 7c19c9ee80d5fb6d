// halftone bench experts: forward and backward of a layer's experts, with permutation and quantization, against bf16 in the same run.
#include <ATen/Functions.h>

#include "halftone/cli/bench_commands.h"
#include "halftone/cli/bench_layer.h"
#include "halftone/ops/grouped_linear.h"
#include "halftone/ops/swiglu.h"

namespace halftone::bench {
namespace {

struct ExpertShape {
  const char* name;
  int64_t experts, top_k, dim, hidden, tokens;
};
constexpr ExpertShape kShapes[] = {
    {"qwen3-30b-a3b", 128, 8, 2048, 768, 32768}, {"deepseek-16b", 64, 6, 2048, 1408, 32768}, {"demo", 16, 2, 256, 128, 2048}};

struct ExpertData {
  ExpertData(const ExpertShape& s, c10::Device device) : experts(s.experts) {
    const auto make = [&](Weight& w, const char* name, int64_t n, int64_t k) {
      w.name = std::string("layers.0.moe.experts.") + name;
      w.value = normal(s.experts * n, k, at::kBFloat16, device).mul_(0.02).view({s.experts, n, k}).set_requires_grad(true);
      w.grad = at::zeros({s.experts, n, k}, w.value.options().dtype(at::kFloat).requires_grad(false));
    };
    make(w1, "w1", s.hidden, s.dim), make(w2, "w2", s.dim, s.hidden), make(w3, "w3", s.hidden, s.dim);
    x = normal(s.tokens, s.dim, at::kBFloat16, device).set_requires_grad(true), dy = normal(s.tokens, s.dim, at::kBFloat16, device);
    const auto options = dy.options().dtype(at::kFloat);
    chosen = std::get<1>(at::rand({s.tokens, s.experts}, options).topk(s.top_k, 1)).to(at::kInt).contiguous();
    gates = at::rand({s.tokens, s.top_k}, options).set_requires_grad(true);
  }
  int64_t experts;
  Weight w1, w2, w3;
  at::Tensor x, dy, chosen, gates;
};

// Forward and backward; the weights change between calls.
Parts experts_work(const LinearRecipe& recipe, ExpertData& d) {
  struct State {
    FusedLinears gate_up, down;
    at::Tensor y;
  };
  auto s = std::make_shared<State>();
  s->gate_up.weights = {&d.w1, &d.w3}, s->down.weights = {&d.w2}, s->gate_up.recipe = s->down.recipe = recipe;
  return {[s, &d](int64_t) {
            for (Weight* w : {&d.w1, &d.w3, &d.w2}) ++w->version;
            const ExpertRows rows = place_experts(d.chosen, d.experts);
            const std::vector<at::Tensor> gu = gathered_linear(d.x, s->gate_up, rows, {});
            s->y = combined_linear(swiglu(gu[0], gu[1]), s->down, rows, d.gates, {});
          },
          [s, &d](int64_t) {
            s->y.backward(d.dy);
            s->y = at::Tensor();
          }};
}

}  // namespace

int experts_command(Arguments args) {
  Bench bench({"experts",
               "The experts of a layer, forward and backward with quantization, relative to bf16.",
               "Tokens choose their experts at random. A step sorts the rows by expert, runs two grouped GEMMs with SwiGLU between them, "
               "combines the\n"
               "rows by their gates, and runs the backward pass, which accumulates dW in float32. Weights are quantized every time, as in "
               "a step with\n"
               "one micro-batch. bench/peers/moe_layer.py times the grouped GEMMs of LibTorch and torchao on the same shapes.\n\n"
               "  halftone bench experts --csv experts.csv\n"
               "  halftone bench experts --shapes deepseek-16b --recipes fp8_rowwise int8\n",
               {{"shape", nullptr, key<0>},
                {"recipe", "", key<1>},
                {"forward_ms", "forward ms", milliseconds<0>},
                {"backward_ms", "backward ms", milliseconds<1>},
                {"both_ms", "both ms", milliseconds<>},
                {"both_ratio", "both", ratio<>},
                {"tflops", "TFLOP/s", rate}}});
  Words shapes, recipes;
  int64_t tokens = 0;
  bench.list("--shapes", shapes, "any of qwen3-30b-a3b, deepseek-16b and demo; default the first two, on the CPU demo");
  bench.app.add_option("--tokens", tokens, "tokens; default the shape's, 32768");
  bench.list("--recipes", recipes, "recipes of `halftone formats`; default fp8_rowwise, fp8_blockwise, mxfp8_e4m3, mxfp4, nvfp4 and int8");
  bench.add_preset();
  bench.add_turn("seconds of each recipe in a turn, as in bench linear");
  if (!bench.parse(args)) return 0;
  shapes = choose(bench.otherwise(shapes, {kShapes[0].name, kShapes[1].name}, {"demo"}), names_of(kShapes), "--shapes");
  if (recipes.empty()) recipes = {"fp8_rowwise", "fp8_blockwise", "mxfp8_e4m3", "mxfp4", "nvfp4", "int8"};
  Words allowed = layer_recipes();
  std::erase_if(allowed, [](const std::string& name) {
    const auto row = find_linear_recipe(name);
    return !row || !row->family->experts;
  });
  const std::vector<LinearRecipe> list = bench_recipes(choose(recipes, allowed, "--recipes"), bench.preset);
  bench.open();
  for (ExpertShape s : kShapes) {
    if (!contains(shapes, s.name)) continue;
    if (tokens > 0) s.tokens = tokens;
    ExpertData data(s, bench.device);
    std::vector<Case> cases;
    const double flop = 18.0 * static_cast<double>(s.tokens * s.top_k * s.dim * s.hidden);
    for (const LinearRecipe& r : list) cases.push_back({{s.name, std::string(r.name)}, experts_work(r, data), flop});
    bench.show(s.name, bench.measure(std::move(cases), {bench.rounds, bench.turn}));
  }
  return 0;
}

}  // namespace halftone::bench
