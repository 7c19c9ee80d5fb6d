// halftone bench experts: forward and backward of a layer's experts, with permutation and quantization, against bf16 in the same run.
#include <ATen/Functions.h>

#include <deque>

#include "halftone/base/error.h"
#include "halftone/cli/bench_commands.h"
#include "halftone/cli/bench_layer.h"
#include "halftone/cli/bench_products.h"
#include "halftone/cli/bench_report.h"
#include "halftone/cli/bench_timer.h"
#include "halftone/ops/device.h"
#include "halftone/ops/grouped_linear.h"
#include "halftone/ops/swiglu.h"

namespace halftone::bench {
namespace {

constexpr const char* kExpertsHelp =
    "Tokens choose their experts at random. A step sorts the rows by expert, runs two grouped GEMMs with SwiGLU between them, combines "
    "the\n"
    "rows by their gates, and runs the backward pass, which accumulates dW in float32. Weights are quantized every time, as in a step "
    "with\n"
    "one micro-batch. bench/peers/moe_layer.py times the grouped GEMMs of LibTorch and torchao on the same shapes.\n\n"
    "  halftone bench experts --csv experts.csv\n"
    "  halftone bench experts --shapes deepseek-16b --recipes fp8_rowwise int8\n";

struct ExpertShape {
  const char* name;
  int64_t experts, top_k, dim, hidden, tokens;
};
constexpr ExpertShape kShapes[] = {
    {"qwen3-30b-a3b", 128, 8, 2048, 768, 32768}, {"deepseek-16b", 64, 6, 2048, 1408, 32768}, {"demo", 16, 2, 256, 128, 2048}};

struct Weights {
  Weight w1, w2, w3;
  Weights(const ExpertShape& s, c10::Device device) {
    const auto make = [&](Weight& w, const char* name, int64_t n, int64_t k) {
      w.name = std::string("layers.0.moe.experts.") + name;
      w.value = normal(s.experts * n, k, at::kBFloat16, device).mul_(0.02).view({s.experts, n, k}).set_requires_grad(true);
      w.grad = at::zeros({s.experts, n, k}, w.value.options().dtype(at::kFloat).requires_grad(false));
    };
    make(w1, "w1", s.hidden, s.dim), make(w2, "w2", s.dim, s.hidden), make(w3, "w3", s.hidden, s.dim);
  }
};

class Layer {
 public:
  Layer(const LinearRecipe& recipe, const ExpertShape& shape, Weights& w) : experts_(shape.experts) {
    gate_up_.weights = {&w.w1, &w.w3}, down_.weights = {&w.w2}, gate_up_.recipe = down_.recipe = recipe;
  }
  void forward(const at::Tensor& x, const at::Tensor& chosen, const at::Tensor& gates) {
    for (FusedLinears* g : {&gate_up_, &down_}) {
      for (Weight* w : g->weights) ++w->version;
    }
    const ExpertRows rows = place_experts(chosen, experts_);
    const std::vector<at::Tensor> gu = gathered_linear(x, gate_up_, rows, {});
    y_ = combined_linear(swiglu(gu[0], gu[1]), down_, rows, gates, {});
  }
  void backward(const at::Tensor& dy) {
    y_.backward(dy);
    y_ = at::Tensor();
  }

 private:
  int64_t experts_;
  FusedLinears gate_up_, down_;
  at::Tensor y_;
};

void run(const ExpertShape& s, const std::deque<LinearRecipe>& list, c10::Device device, const Common& common, double turn, Csv& csv) {
  Weights weights(s, device);
  const at::Tensor x = normal(s.tokens, s.dim, at::kBFloat16, device).set_requires_grad(true);
  const at::Tensor dy = normal(s.tokens, s.dim, at::kBFloat16, device);
  const at::Tensor chosen =
      std::get<1>(at::rand({s.tokens, s.experts}, x.options().dtype(at::kFloat).requires_grad(false)).topk(s.top_k, 1));
  const at::Tensor ids = chosen.to(at::kInt).contiguous();
  const at::Tensor gates = at::rand({s.tokens, s.top_k}, dy.options().dtype(at::kFloat)).set_requires_grad(true);
  std::deque<Layer> layers;
  std::vector<Parts> works;
  for (const LinearRecipe& r : list) {
    Layer& layer = layers.emplace_back(r, s, weights);
    works.push_back({[&] { layer.forward(x, ids, gates); }, [&] { layer.backward(dy); }});
  }
  const Stopwatch watch(device);
  const auto seconds = time_parts_in_turns(watch, works, common.rounds_for(device), turn);
  const double flop = 18.0 * static_cast<double>(s.tokens * s.top_k * s.dim * s.hidden);
  TextTable table({s.name, "forward ms", "backward ms", "both ms", "both", "TFLOP/s"});
  for (size_t i = 0; i < list.size(); ++i) {
    const double both = seconds[i][0] + seconds[i][1], bf16 = seconds[0][0] + seconds[0][1];
    const std::vector<std::string> cells = {std::string(list[i].name), number(seconds[i][0] * 1e3, 4), number(seconds[i][1] * 1e3, 4),
                                            number(both * 1e3, 4),     number(bf16 / both, 3),         number(flop / both * 1e-12, 4)};
    std::vector<std::string> record = {s.name};
    record.insert(record.end(), cells.begin(), cells.end());
    table.row(cells), csv.row(record);
  }
  fmt::print("{}\n", table.text());
}

}  // namespace

int experts_command(Arguments args) {
  CLI::App app{"The experts of a layer, forward and backward with quantization, relative to bf16.", "halftone bench experts"};
  Common common;
  std::vector<std::string> shapes, recipes;
  std::string preset = "recommended";
  int64_t tokens = 0;
  double turn = 0.1;
  std::vector<std::string> known;
  for (const ExpertShape& s : kShapes) known.emplace_back(s.name);
  app.add_option("--shapes", shapes, "any of qwen3-30b-a3b, deepseek-16b and demo; default the first two, on the CPU demo")->delimiter(',');
  app.add_option("--tokens", tokens, "tokens; default the shape's, 32768");
  app.add_option("--recipes", recipes,
                 "recipes of `halftone formats`; default fp8_rowwise, fp8_blockwise, mxfp8_e4m3, mxfp4, nvfp4 and int8")
      ->delimiter(',');
  add_preset(app, preset);
  app.add_option("--turn", turn, "seconds of each recipe in a turn, as in bench linear")->capture_default_str()->check(between(0, 10));
  add_common(app, common);
  app.footer(kExpertsHelp);
  if (!parse(app, args)) return 0;
  const c10::Device device = select_device(common.device, 0);
  if (device.is_cpu() && app.get_option("--turn")->count() == 0) turn = 0;
  if (shapes.empty()) shapes = device.is_cpu() ? std::vector<std::string>{"demo"} : std::vector<std::string>{known[0], known[1]};
  if (recipes.empty()) recipes = {"fp8_rowwise", "fp8_blockwise", "mxfp8_e4m3", "mxfp4", "nvfp4", "int8"};
  std::vector<std::string> allowed;
  for (const std::string& name : layer_recipes()) {
    if (find_linear_recipe(name) && name != "bitnet") allowed.push_back(name);
  }
  std::deque<LinearRecipe> list = {bench_recipe("none", preset)};
  for (const std::string& name : choose(recipes, allowed, "--recipes")) list.push_back(bench_recipe(name, preset));
  Csv csv(common, description("experts", device), {"shape", "recipe", "forward_ms", "backward_ms", "both_ms", "both_ratio", "tflops"});
  at::manual_seed(1);
  warm_up(device);
  for (const std::string& name : choose(shapes, known, "--shapes")) {
    ExpertShape s = *std::find_if(std::begin(kShapes), std::end(kShapes), [&](const ExpertShape& of) { return name == of.name; });
    if (tokens > 0) s.tokens = tokens;
    run(s, list, device, common, turn, csv);
  }
  return 0;
}

}  // namespace halftone::bench
