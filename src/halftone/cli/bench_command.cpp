#include <fmt/format.h>

#include "halftone/base/error.h"
#include "halftone/cli/bench_commands.h"

namespace halftone {
namespace {

constexpr struct {
  const char *name, *summary;
  int (*run)(Arguments);
} kBenchmarks[] = {
    {"train", "training steps of a configuration on random tokens: tokens/s, memory, time to the first step", bench::train_command},
    {"linear", "one linear layer, forward and backward with quantization: every recipe against bf16", bench::linear_command},
    {"experts", "the experts of a layer, forward and backward with permutation: every recipe against bf16", bench::experts_command},
    {"mm", "GEMMs of every format and layout against bf16 and LibTorch", bench::mm_command},
    {"quantize", "quantizers: GB/s against a copy", bench::quantize_command},
    {"roofline", "sizes M, K, N at which a recipe beats bf16: predicted and measured", bench::roofline_command},
};

std::string help() {
  std::string out = "halftone bench NAME [options]\n\n";
  for (const auto& b : kBenchmarks) out += fmt::format("  {:<10} {}\n", b.name, b.summary);
  return out +
         "\nhalftone bench NAME --help explains the options.\n\n"
         "  halftone bench train --config recipes/demo.toml --quantize.scheme int8\n"
         "  halftone bench linear --device cpu --recipes int8 fp8_rowwise --profile-parts\n"
         "  halftone bench mm --sizes 4096 --csv mm.csv\n"
         "  halftone bench quantize --schemes int8 mxfp4_folded\n"
         "  halftone bench roofline --csv roofline.csv && python3 tools/plot_roofline.py roofline.svg roofline.csv\n";
}

}  // namespace

int bench_command(Arguments args) {
  if (!args.empty() && (args[0] == "--help" || args[0] == "-h")) return print(help()), 0;
  for (const auto& b : kBenchmarks)
    if (!args.empty() && args[0] == b.name) return b.run(args.subspan(1));
  fail("bench: expected train, linear, experts, mm, quantize or roofline{}; see halftone bench --help",
       args.empty() ? "" : fmt::format(", found '{}'", args[0]));
}

}  // namespace halftone
