// halftone bench mm: GEMMs of quantized operands against bf16 of the same size and layout in the same run.
#include <ATen/Context.h>

#include "halftone/base/error.h"
#include "halftone/cli/bench_commands.h"
#include "halftone/cli/bench_products.h"
#include "halftone/cli/bench_report.h"
#include "halftone/ops/device.h"

namespace halftone::bench {
namespace {

std::string format_list() {
  std::string out = "Formats:\n";
  for (const ProductFormat& f : product_formats()) out += fmt::format("  {:<22} {}\n", f.name, f.meaning);
  return out +
         "\nLayouts, of D[M,N] = A . B: TN A[M,K] B[N,K] (forward), NN A[M,K] B[K,N] (dgrad), NT A[K,M] B[K,N] (wgrad). GEMMs of\n"
         "quantized operands read codes along K: for the other layouts the quantizer writes a transposed copy, as in training\n"
         "(timed by halftone bench quantize). Operands are quantized and prepared before the timed part.\n\n"
         "  halftone bench mm --sizes 4096 8192 --csv mm.csv\n"
         "  halftone bench mm --device cpu --sizes 512 --formats bf16 int8 --layouts TN\n"
         "  halftone bench mm --sizes 16384x14336x4096 --layouts TN\n";
}

std::vector<std::string> names(auto&& list) {
  std::vector<std::string> out;
  for (const auto& x : list) out.emplace_back(x.name);
  return out;
}

bool contains(const std::vector<std::string>& list, const std::string& word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

}  // namespace

int mm_command(Arguments args) {
  CLI::App app{"GEMMs: time, TFLOP/s and speed relative to bf16; formats take turns on random data.", "halftone bench mm"};
  Common common;
  std::vector<std::string> sizes, formats, layouts;
  app.add_option("--sizes", sizes, "one or more MxNxK, or one number for all three; default 1024 2048 4096 8192, on the CPU 512 1024")
      ->delimiter(',');
  app.add_option("--formats", formats, "any of the formats below; default all")->delimiter(',');
  app.add_option("--layouts", layouts, "any of TN, NN and NT; default all")->delimiter(',');
  add_common(app, common);
  app.footer(format_list());
  if (!parse(app, args)) return 0;
  formats = choose(formats, names(product_formats()), "--formats");
  layouts = choose(layouts, names(kLayouts), "--layouts");
  const c10::Device device = select_device(common.device, 0);
  if (sizes.empty())
    sizes = device.is_cpu() ? std::vector<std::string>{"512", "1024"} : std::vector<std::string>{"1024", "2048", "4096", "8192"};
  const std::vector<Shape> shapes = parse_shapes(sizes, "--sizes");

  Csv csv(common, description("mm", device), {"m", "n", "k", "layout", "format", "us", "tflops", "vs_bf16", "reads", "note"});
  at::manual_seed(1);
  warm_up(device);
  const Stopwatch watch(device);
  for (const auto& [m, n, k] : shapes) {
    for (const Layout& layout : kLayouts) {
      if (!contains(layouts, layout.name)) continue;
      std::vector<const ProductFormat*> list;
      std::vector<ProductWork> products;
      std::vector<Work> works;
      for (const ProductFormat& f : product_formats()) {
        if (f.name != "bf16" && !contains(formats, f.name)) continue;
        list.push_back(&f);
        products.push_back(product_work(f, m, n, k, layout, device));
        if (products.back().work) works.push_back(products.back().work);
      }
      check(products[0].work != nullptr, "bench mm: bf16 {}x{}x{} {}: {}", m, n, k, layout.name, products[0].absent);
      const std::vector<double> seconds = time_in_turns(watch, works, common.rounds_for(device), device.is_cpu() ? 0.02 : 0.002);
      const double flop = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
      TextTable table({fmt::format("{}x{}x{} {}", m, n, k, layout.name), "us", "TFLOP/s", "/ bf16", "reads"});
      for (size_t i = 0, timed = 0; i < list.size(); ++i) {
        const ProductWork& p = products[i];
        if (!p.work) {
          table.row({list[i]->name, "n/a", "", "", p.absent});
          csv.row({std::to_string(m), std::to_string(n), std::to_string(k), layout.name, list[i]->name, "", "", "", "", p.absent});
          continue;
        }
        const double t = seconds[timed++];
        const std::string us = number(t * 1e6, 4), rate = number(flop / t * 1e-12, 4), ratio = number(seconds[0] / t, 3);
        table.row({list[i]->name, us, rate, ratio, p.reads});
        csv.row({std::to_string(m), std::to_string(n), std::to_string(k), layout.name, list[i]->name, us, rate, ratio, p.reads, ""});
      }
      print("\n" + table.text());
      std::fflush(stdout);
    }
  }
  return 0;
}

}  // namespace halftone::bench
