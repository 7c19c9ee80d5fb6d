// halftone bench mm: GEMMs of quantized operands against bf16 of the same size and layout in the same run.
#include "halftone/base/error.h"
#include "halftone/cli/bench_commands.h"
#include "halftone/cli/bench_products.h"

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

}  // namespace

int mm_command(Arguments args) {
  Bench bench({"mm",
               "GEMMs: time, TFLOP/s and speed relative to bf16; formats take turns on random data.",
               format_list(),
               {{"m", nullptr, key<0>},
                {"n", nullptr, key<1>},
                {"k", nullptr, key<2>},
                {"layout", nullptr, key<3>},
                {"format", "", key<4>},
                {"us", nullptr, microseconds},
                {nullptr, "us", [](const Measured& r) { return r.absent.empty() ? microseconds(r) : "n/a"; }},
                {"tflops", "TFLOP/s", rate},
                {"vs_bf16", "/ bf16", ratio<>},
                {"reads", nullptr, [](const Measured& r) { return r.reads; }},
                {nullptr, "reads", [](const Measured& r) { return r.reads + r.absent; }},
                {"note", nullptr, [](const Measured& r) { return r.absent; }}}});
  Words sizes, formats, layouts;
  bench.list("--sizes", sizes, "one or more MxNxK, or one number for all three; default 1024 2048 4096 8192, on the CPU 512 1024");
  bench.list("--formats", formats, "any of the formats below; default all");
  bench.list("--layouts", layouts, "any of TN, NN and NT; default all");
  if (!bench.parse(args)) return 0;
  formats = choose(formats, names_of(product_formats()), "--formats");
  layouts = choose(layouts, names_of(kLayouts), "--layouts");
  const std::vector<Shape> shapes = parse_shapes(bench.otherwise(sizes, {"1024", "2048", "4096", "8192"}, {"512", "1024"}), "--sizes");
  bench.open();
  for (const auto& [m, n, k] : shapes) {
    for (const Layout& layout : kLayouts) {
      if (!contains(layouts, layout.name)) continue;
      std::vector<Case> cases;
      for (const ProductFormat& f : product_formats()) {
        if (f.name != "bf16" && !contains(formats, f.name)) continue;
        Case c = product_case(f, m, n, k, layout, bench.device);
        c.keys = {std::to_string(m), std::to_string(n), std::to_string(k), layout.name, f.name};
        cases.push_back(std::move(c));
      }
      check(cases[0].absent.empty(), "bench mm: bf16 {}x{}x{} {}: {}", m, n, k, layout.name, cases[0].absent);
      const double seconds = bench.device.is_cpu() ? 0.02 : 0.002;
      bench.show(fmt::format("{}x{}x{} {}", m, n, k, layout.name), bench.measure(std::move(cases), {bench.rounds, seconds, true}));
    }
  }
  return 0;
}

}  // namespace halftone::bench
