// halftone bench roofline: sizes at which a recipe's linear layer beats bf16, predicted and measured.
#include <ATen/Context.h>
#include <ATen/ops/empty.h>

#include <cmath>

#include "halftone/base/error.h"
#include "halftone/cli/bench_commands.h"
#include "halftone/cli/bench_layer.h"

namespace halftone::bench {
namespace {

// Rate and fixed time of each part of a recipe; a quantizer has rate 0.
struct Calibration {
  std::vector<double> fixed, rate;
};

double predicted(const std::vector<LayerPart>& parts, const Calibration& c, double bandwidth) {
  double seconds = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].bytes == 0) continue;  // nothing to quantize
    const double work = c.rate[i] > 0 ? parts[i].flop / c.rate[i] : 0;
    seconds += c.fixed[i] + std::max(work, parts[i].bytes / bandwidth);
  }
  return seconds;
}

// Seconds of a layer in a turn: there are hundreds of them.
constexpr double kTurn = 0.005;

// Bytes read and written a second by a copy.
double copy_bandwidth(const Bench& bench) {
  const int64_t bytes = int64_t{1} << (bench.device.is_cpu() ? 26 : 29);
  const auto options = at::TensorOptions().device(bench.device).dtype(at::kByte);
  const at::Tensor from = at::empty({bytes}, options).random_(0, 255), to = at::empty({bytes}, options).fill_(1);
  const auto seconds = time_in_turns(bench.device, {{[&](int64_t) { to.copy_(from); }}}, {bench.rounds, 0.005, true});
  return 2 * static_cast<double>(bytes) / seconds[0][0];
}

std::vector<Calibration> calibrate(const Bench& bench, const std::vector<LinearRecipe>& recipes, int64_t peak_size) {
  const LayerData tiny(64, 64, 64, bench.device), peak(peak_size, peak_size, peak_size, bench.device);
  const auto fixed = time_layer_parts(bench, recipes, tiny, kTurn), full = time_layer_parts(bench, recipes, peak, kTurn);
  std::vector<Calibration> out;
  for (size_t i = 0; i < recipes.size(); ++i) {
    Calibration c;
    const auto parts = layer_parts(recipes[i], peak);
    for (size_t p = 0; p < parts.size(); ++p) {
      c.fixed.push_back(fixed[i][p]);
      c.rate.push_back(parts[p].flop > 0 ? parts[p].flop / std::max(full[i][p] - fixed[i][p], 1e-9) : 0);
    }
    out.push_back(c);
  }
  return out;
}

// "fp8_tensorwise=1500": TFLOP/s of the recipe's GEMMs instead of the measured rate, by index of the recipe.
std::vector<std::pair<size_t, double>> parse_peaks(const std::vector<std::string>& words, const std::vector<LinearRecipe>& recipes) {
  std::vector<std::pair<size_t, double>> out;
  for (const std::string& word : words) {
    const size_t equals = word.find('=');
    char* end = nullptr;
    const double rate = equals == std::string::npos ? 0 : std::strtod(word.c_str() + equals + 1, &end);
    check(rate > 0 && std::isfinite(rate) && *end == 0, "--peak: expected RECIPE=TFLOPS, found '{}'", word);
    const auto it = std::find_if(recipes.begin(), recipes.end(), [&](const LinearRecipe& r) { return r.name == word.substr(0, equals); });
    check(it != recipes.end(), "--peak: '{}' is none of the recipes of this run", word.substr(0, equals));
    const auto index = static_cast<size_t>(it - recipes.begin());
    const bool again = std::any_of(out.begin(), out.end(), [&](const auto& given) { return given.first == index; });
    check(!again, "--peak: {} is given twice", it->name);
    out.emplace_back(index, rate * 1e12);
  }
  return out;
}

}  // namespace

int roofline_command(Arguments args) {
  Bench bench({"roofline",
               "Sizes M, K, N at which a recipe's forward and backward beat bf16: predicted and measured.",
               "A layer's step has six parts: quantization of X, W and dY, and three GEMMs. The model predicts for each\n"
               "    fixed + max(operations / rate, bytes / bandwidth)\n"
               "`fixed` is the part's time at 64x64x64, `rate` that of the recipe's GEMM at --peak-size cubed, `bandwidth` that of a copy, "
               "all measured\n"
               "in the same run or given (--bandwidth, --peak); `bytes` is what the part must move. Nothing is fitted: the model ignores "
               "partial\n"
               "waves, caches and the power limit, which the measured column shows.\n\n"
               "  halftone bench roofline --csv roofline.csv && python3 tools/plot_roofline.py roofline.svg roofline.csv\n"
               "  halftone bench roofline --recipes fp8_tensorwise --m 4096 --k 1024 4096 --n 1024 4096\n"
               "  halftone bench roofline --peak fp8_tensorwise=1500 --bandwidth 4000\n",
               {{"m", nullptr, key<0>},
                {"k", nullptr, key<1>},
                {"n", nullptr, key<2>},
                {"recipe", nullptr, key<3>},
                {"bf16_ms", nullptr, [](const Measured& r) { return number(r.reference[0] * 1e3, 4); }},
                {"recipe_ms", nullptr, milliseconds<>},
                {"measured", nullptr, ratio<>},
                {"predicted_bf16_ms", nullptr, key<4>},
                {"predicted_recipe_ms", nullptr, key<5>},
                {"predicted", nullptr, key<6>}}});
  Words recipes = {"fp8_tensorwise", "fp8_rowwise", "int8", "mxfp4"}, peaks, ms, ks, ns;
  std::string algorithms = "measured";
  double bandwidth = 0;
  int64_t peak_size = 0;
  bench.app.add_option("--recipes", recipes, "recipes of `halftone formats`")->capture_default_str()->delimiter(',');
  bench.list("--m", ms, "tokens, multiples of 32 like all sizes; default 1024 4096 16384, on the CPU 256 1024");
  bench.list("--k", ks, "inputs; default 1024 2048 4096 8192, on the CPU 256 512 1024");
  bench.list("--n", ns, "outputs; default as --k");
  bench.add_preset();
  bench.app.add_option("--algorithms", algorithms, "measured: choose among a library's algorithms by time; first: use its first one")
      ->capture_default_str()
      ->check(CLI::IsMember({"measured", "first"}));
  const CLI::Option* given_size =
      bench.app.add_option("--peak-size", peak_size, "edge of the cube at which rates are measured; default 4096, on the CPU 512");
  bench.list("--peak", peaks, "RECIPE=TFLOPS instead of the measured rate; none=TFLOPS for bf16");
  bench.app.add_option("--bandwidth", bandwidth, "GB/s instead of the measured bandwidth of a copy")->check(between(1e-3, 1e15));
  if (!bench.parse(args)) return 0;
  Words known = layer_recipes();
  known.pop_back();  // aten_bf16 has no model
  recipes = choose(recipes, known, "--recipes");
  const Words usual = bench.otherwise({}, {"1024", "2048", "4096", "8192"}, {"256", "512", "1024"});
  const auto m_list = parse_sizes(bench.otherwise(ms, {"1024", "4096", "16384"}, {"256", "1024"}), "--m", "a count of tokens");
  const auto k_list = parse_sizes(bench.otherwise(ks, usual, usual), "--k", "a count of inputs");
  const auto n_list = parse_sizes(bench.otherwise(!ns.empty() ? ns : ks, usual, usual), "--n", "a count of outputs");
  if (given_size->count() == 0) peak_size = bench.device.is_cpu() ? 512 : 4096;
  parse_sizes({std::to_string(peak_size)}, "--peak-size", "the edge of a cube");
  const std::vector<LinearRecipe> list = bench_recipes(recipes, bench.preset);
  const auto peak_rates = parse_peaks(peaks, list);

  if (algorithms == "first") {
    at::globalContext().setDeterministicAlgorithms(true, true);
    at::globalContext().setDeterministicFillUninitializedMemory(false);
  }
  bench.open(", algorithms " + algorithms);
  bandwidth = bandwidth > 0 ? bandwidth * 1e9 : copy_bandwidth(bench);
  std::vector<Calibration> calibrations = calibrate(bench, list, peak_size);
  for (const auto& [i, given] : peak_rates) {
    for (double& rate : calibrations[i].rate) rate = rate > 0 ? given : 0;
  }
  print(fmt::format("model: bandwidth {:.0f} GB/s", bandwidth * 1e-9));
  TextTable model({"recipe", "TFLOP/s: y", "dx", "dw", "fixed us, all parts"});
  for (size_t i = 0; i < list.size(); ++i) {
    Words cells = {std::string(list[i].name)};
    for (const double rate : calibrations[i].rate)
      if (rate > 0) cells.push_back(number(rate * 1e-12, 4));
    cells.push_back(number(seconds_of(calibrations[i].fixed, kAll) * 1e6, 3));
    model.row(cells);
  }
  print(model.text());

  Words head = {"M x K x N", "bf16 ms"};
  for (const std::string& name : recipes) head.push_back(name + " measured"), head.emplace_back("predicted");
  TextTable table(head);
  int points = 0, agreed = 0;
  std::vector<double> errors;
  for (const int64_t m : m_list) {
    for (const int64_t k : k_list) {
      for (const int64_t n : n_list) {
        const LayerData data(m, n, k, bench.device);
        std::vector<Case> cases;
        std::vector<double> model_seconds;
        for (size_t i = 0; i < list.size(); ++i) {
          const Parts work = layer_work(list[i], data);
          const Part both = [work](int64_t turn) { work[0](turn), work[1](turn); };
          model_seconds.push_back(predicted(layer_parts(list[i], data), calibrations[i], bandwidth));
          cases.push_back({{}, {both}});
          if (i == 0) continue;
          cases[i].keys = {std::to_string(m), std::to_string(k), std::to_string(n), std::string(list[i].name)};
          for (const double x : {model_seconds[0] * 1e3, model_seconds[i] * 1e3}) cases[i].keys.push_back(number(x, 4));
          cases[i].keys.push_back(number(model_seconds[0] / model_seconds[i], 3));
        }
        const std::vector<Measured> measured = bench.measure(std::move(cases), {bench.rounds, kTurn});
        Words cells = {fmt::format("{}x{}x{}", m, k, n), milliseconds(measured[0])};
        for (size_t i = 1; i < list.size(); ++i) {
          const double found = measured[0].seconds[0] / measured[i].seconds[0], expected = model_seconds[0] / model_seconds[i];
          ++points, agreed += (found >= 1) == (expected >= 1);
          errors.push_back(std::abs(expected / found - 1));
          cells.push_back(number(found, 3)), cells.push_back(number(expected, 3));
        }
        table.row(cells);
        bench.record(measured);
      }
    }
  }
  print("\n" + table.text());
  print(fmt::format("\nprediction and measurement agree on which is faster in {} of {} cases; median error of the ratio {:.0f}%", agreed,
                    points, 100 * median(errors)));
  return 0;
}

}  // namespace halftone::bench
