// halftone bench linear: forward and backward of one linear layer, with quantization, against bf16 in the same run.
#include "halftone/cli/bench_commands.h"
#include "halftone/cli/bench_layer.h"

namespace halftone::bench {
namespace {

// One column for each recipe, one row for each part.
std::string parts_table(const Bench& bench, std::vector<LinearRecipe> recipes, const LayerData& data) {
  std::erase_if(recipes, [](const LinearRecipe& r) { return r.name == "aten_bf16"; });
  const auto seconds = time_layer_parts(bench, recipes, data, bench.turn);
  const std::vector<LayerPart> parts = layer_parts(recipes[0], data);
  Words head = names_of(recipes);
  head.emplace(head.begin(), "part, ms");
  TextTable table(head);
  for (int p = 0; p <= static_cast<int>(parts.size()); ++p) {
    const bool sum = p == static_cast<int>(parts.size());
    Words cells = {sum ? "sum" : parts[static_cast<size_t>(p)].name};
    for (const auto& times : seconds) cells.push_back(number(seconds_of(times, sum ? kAll : p) * 1e3, 4));
    table.row(cells);
  }
  return table.text();
}

}  // namespace

int linear_command(Arguments args) {
  Bench bench({"linear",
               "One linear layer, forward and backward with quantization, relative to bf16.",
               "X[M,K], W[N,K] and dY[M,N] are normally distributed, in bf16. X, W and dY are quantized every time, as in a step with one "
               "micro-batch;\n"
               "dW is accumulated in float32. Ratios are relative to `none`, halftone's bf16 layer; `aten_bf16` is LibTorch's three GEMMs "
               "with dW in\n"
               "bf16. bench/linear_torchao.py times torchao's compiled layers on the same shapes.\n\n"
               "  halftone bench linear --csv linear.csv\n"
               "  halftone bench linear --shapes 8192x8192x8192 --recipes fp8_tensorwise mxfp4 --profile-parts\n"
               "  halftone bench linear --device cpu --shapes 2048x512x1024\n",
               {{"m", nullptr, key<0>},
                {"n", nullptr, key<1>},
                {"k", nullptr, key<2>},
                {"recipe", "", key<3>},
                {"preset", nullptr, key<4>},
                {"forward_ms", "forward ms", milliseconds<0>},
                {"backward_ms", "backward ms", milliseconds<1>},
                {"both_ms", "both ms", milliseconds<>},
                {"forward_ratio", "forward", ratio<0>},
                {"backward_ratio", "backward", ratio<1>},
                {"both_ratio", "both", ratio<>},
                {"tflops", "TFLOP/s", rate}}});
  Words shapes, recipes;
  bool parts = false;
  bench.list("--shapes", shapes,
             "one or more MxNxK: tokens x outputs x inputs, or one number for all three; default 16384x14336x4096, on the CPU "
             "1024x1024x512");
  bench.list("--recipes", recipes, "recipes of `halftone formats`, and aten_bf16; default all that quantize a master weight");
  bench.add_preset();
  bench.app.add_flag("--profile-parts", parts, "also print the time of each quantizer and each GEMM");
  bench.add_turn("seconds for each recipe in a turn, without its first quarter, in which the clock settles; 0 = one call");
  if (!bench.parse(args)) return 0;
  const std::vector<LinearRecipe> list = bench_recipes(choose(recipes, layer_recipes(), "--recipes"), bench.preset);
  const std::vector<Shape> sizes = parse_shapes(bench.otherwise(shapes, {"16384x14336x4096"}, {"1024x1024x512"}), "--shapes");
  bench.open();
  for (const auto& [m, n, k] : sizes) {
    const LayerData data(m, n, k, bench.device);
    const double flop = 6.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
    std::vector<Case> cases;
    for (const LinearRecipe& r : list) {
      cases.push_back(
          {{std::to_string(m), std::to_string(n), std::to_string(k), std::string(r.name), bench.preset}, layer_work(r, data), flop});
    }
    bench.show(fmt::format("{}x{}x{}", m, n, k), bench.measure(std::move(cases), {bench.rounds, bench.turn}));
    if (parts) print("\n" + parts_table(bench, list, data));
  }
  return 0;
}

}  // namespace halftone::bench
