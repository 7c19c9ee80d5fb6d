// halftone bench linear: forward and backward of one linear layer, with quantization, against bf16 in the same run.
#include <ATen/Context.h>

#include <deque>

#include "halftone/base/error.h"
#include "halftone/cli/bench_commands.h"
#include "halftone/cli/bench_layer.h"
#include "halftone/cli/bench_report.h"
#include "halftone/cli/bench_timer.h"
#include "halftone/ops/device.h"

namespace halftone::bench {
namespace {

constexpr const char* kLinearHelp =
    "X[M,K], W[N,K] and dY[M,N] are normally distributed, in bf16. X, W and dY are quantized every time, as in a step with one "
    "micro-batch;\n"
    "dW is accumulated in float32. Ratios are relative to `none`, halftone's bf16 layer; `aten_bf16` is LibTorch's three GEMMs with dW in\n"
    "bf16. bench/linear_torchao.py times torchao's compiled layers on the same shapes.\n\n"
    "  halftone bench linear --csv linear.csv\n"
    "  halftone bench linear --shapes 8192x8192x8192 --recipes fp8_tensorwise mxfp4 --profile-parts\n"
    "  halftone bench linear --device cpu --shapes 2048x512x1024\n";

std::string milliseconds(double seconds) { return number(seconds * 1e3, 4); }

// One column for each recipe, one row for each part.
std::string parts_table(const Stopwatch& watch, const std::deque<LinearRecipe>& recipes, const LayerData& data, int rounds, double turn) {
  std::vector<std::string> head = {"part, ms"};
  std::vector<Parts> works;
  std::vector<LayerPart> first;
  for (const LinearRecipe& r : recipes) {
    if (r.name == "aten_bf16") continue;
    head.emplace_back(r.name);
    works.emplace_back();
    first = layer_parts(r, data);
    for (const LayerPart& p : first) works.back().push_back(p.run);
  }
  const auto seconds = time_parts_in_turns(watch, works, rounds, turn);
  TextTable table(head);
  for (size_t p = 0; p <= first.size(); ++p) {
    std::vector<std::string> cells = {p < first.size() ? first[p].name : "sum"};
    for (const auto& times : seconds) {
      double t = 0;
      for (size_t i = 0; i < times.size(); ++i) t += i == p || p == first.size() ? times[i] : 0;
      cells.push_back(milliseconds(t));
    }
    table.row(cells);
  }
  return table.text();
}

}  // namespace

int linear_command(Arguments args) {
  CLI::App app{"One linear layer, forward and backward with quantization, relative to bf16.", "halftone bench linear"};
  Common common;
  std::vector<std::string> shapes, recipes;
  std::string preset = "recommended";
  bool parts = false;
  double turn = 0.1;
  app.add_option("--shapes", shapes,
                 "one or more MxNxK: tokens x outputs x inputs, or one number for all three; default 16384x14336x4096, on the CPU "
                 "1024x1024x512")
      ->delimiter(',');
  app.add_option("--recipes", recipes, "recipes of `halftone formats`, and aten_bf16; default all that quantize a master weight")
      ->delimiter(',');
  add_preset(app, preset);
  app.add_flag("--profile-parts", parts, "also print the time of each quantizer and each GEMM");
  app.add_option("--turn", turn, "seconds for each recipe in a turn, without its first quarter, in which the clock settles; 0 = one call")
      ->capture_default_str()
      ->check(between(0, 10));
  add_common(app, common);
  app.footer(kLinearHelp);
  if (!parse(app, args)) return 0;
  const std::vector<std::string> names = choose(recipes, layer_recipes(), "--recipes");
  const c10::Device device = select_device(common.device, 0);
  if (device.is_cpu() && app.get_option("--turn")->count() == 0) turn = 0;
  if (shapes.empty()) shapes = {device.is_cpu() ? "1024x1024x512" : "16384x14336x4096"};
  const std::vector<Shape> sizes = parse_shapes(shapes, "--shapes");
  std::deque<LinearRecipe> list = {bench_recipe("none", preset)};
  for (const std::string& name : names) list.push_back(bench_recipe(name, preset));

  Csv csv(common, description("linear", device),
          {"m", "n", "k", "recipe", "preset", "forward_ms", "backward_ms", "both_ms", "forward_ratio", "backward_ratio", "both_ratio",
           "tflops"});
  at::manual_seed(1);
  warm_up(device);
  const Stopwatch watch(device);
  for (const auto& [m, n, k] : sizes) {
    const LayerData data(m, n, k, device);
    std::vector<std::vector<double>> seconds;
    {
      std::deque<BenchLayer> layers;
      std::vector<Parts> works;
      for (const LinearRecipe& r : list) {
        BenchLayer& layer = layers.emplace_back(r, data);
        works.push_back({[&layer] { layer.forward(); }, [&layer] { layer.backward(); }});
      }
      seconds = time_parts_in_turns(watch, works, common.rounds_for(device), turn);
    }
    const double flop = 6.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
    const double forward = seconds[0][0], backward = seconds[0][1];
    TextTable table({fmt::format("{}x{}x{}", m, n, k), "forward ms", "backward ms", "both ms", "forward", "backward", "both", "TFLOP/s"});
    for (size_t i = 0; i < list.size(); ++i) {
      const double f = seconds[i][0], b = seconds[i][1];
      const std::vector<std::string> figures = {milliseconds(f),
                                                milliseconds(b),
                                                milliseconds(f + b),
                                                number(forward / f, 3),
                                                number(backward / b, 3),
                                                number((forward + backward) / (f + b), 3),
                                                number(flop / (f + b) * 1e-12, 4)};
      std::vector<std::string> cells = {std::string(list[i].name)};
      std::vector<std::string> record = {std::to_string(m), std::to_string(n), std::to_string(k), cells[0], preset};
      cells.insert(cells.end(), figures.begin(), figures.end()), record.insert(record.end(), figures.begin(), figures.end());
      table.row(cells), csv.row(record);
    }
    print("\n" + table.text());
    if (parts) print("\n" + parts_table(watch, list, data, common.rounds_for(device), turn));
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace halftone::bench
