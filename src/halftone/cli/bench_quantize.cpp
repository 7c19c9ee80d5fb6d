// halftone bench quantize: bandwidth of the quantizers against a copy of the same number of bytes in the same run.
#include <ATen/Context.h>
#include <ATen/ops/empty.h>

#include <cstring>

#include "halftone/base/error.h"
#include "halftone/base/parallel.h"
#include "halftone/base/philox.h"
#include "halftone/cli/bench_commands.h"
#include "halftone/cli/bench_products.h"
#include "halftone/cli/bench_report.h"
#include "halftone/cli/bench_traffic.h"
#include "halftone/ops/device.h"

namespace halftone::bench {
namespace {

struct QuantizeScheme {
  std::string name, meaning;
  OperandSpec spec;
  bool packed = false;  // else codes, unless there is a form
  ValueForm form = ValueForm::none, transposed_form = ValueForm::none;
  int hadamard = 0;  // of the transposed copy
};

OperandSpec forward_spec(std::string_view recipe) { return find_linear_recipe(recipe)->x_forward; }
OperandSpec weight_spec(std::string_view recipe) { return find_linear_recipe(recipe)->w_forward; }

std::vector<QuantizeScheme> make_schemes() {
  const auto bf16 = ValueForm::bf16, e4m3 = ValueForm::fold_e4m3;
  std::vector<QuantizeScheme> out = {
      {"fp8_tensor", "e4m3, one scale", forward_spec("fp8_tensorwise")},
      {"fp8_row", "e4m3, power-of-two scale a row", forward_spec("fp8_rowwise")},
      {"fp8_1x128", "e4m3, 1x128 blocks", forward_spec("fp8_blockwise")},
      {"fp8_128x128", "e4m3, 128x128 blocks", weight_spec("fp8_blockwise")},
      {"int8", "a scale a row", forward_spec("int8")},
      {"int4", "packed, a scale a row", forward_spec("int4"), true},
      {"mxfp8", "e4m3 codes, 1x32", forward_spec("mxfp8_e4m3")},
      {"mxfp8_32x32", "e4m3 codes, 32x32", weight_spec("mxfp8_e4m3")},
      {"mxfp8_e5m2", "e5m2 codes, 1x32", forward_spec("mxfp8_e5m2")},
      {"mxfp8_values", "bf16 values, 1x32", forward_spec("mxfp8_e4m3"), false, bf16, bf16},
      {"mxfp4", "packed, 1x32", forward_spec("mxfp4"), true},
      {"mxfp4_folded", "8-bit folded codes, 1x32", forward_spec("mxfp4"), false, e4m3, e4m3},
      {"mxfp4_32x32_folded", "8-bit folded codes, 32x32", weight_spec("mxfp4"), false, e4m3, e4m3},
      {"mxfp4_values", "bf16 values, 1x32", forward_spec("mxfp4"), false, bf16, bf16},
      {"mxfp4_folded_rotated", "Hadamard of 32 tokens", forward_spec("mxfp4"), false, e4m3, e4m3, 32},
      {"nvfp4", "packed, 1x16, outer scale", forward_spec("nvfp4"), true},
      {"nvfp4_values", "bf16 values, 1x16", forward_spec("nvfp4"), false, bf16, bf16},
      {"nvfp4_values_rotated", "Hadamard of 32 tokens", forward_spec("nvfp4"), false, bf16, bf16, 32},
      {"amdfp4", "packed, 1x16, outer scale", forward_spec("amdfp4"), true},
      {"amdfp4_values", "bf16 values, 1x16", forward_spec("amdfp4"), false, bf16, bf16},
      {"bitnet_x", "int8 rows", forward_spec("bitnet")},
      {"ternary", "one scale", weight_spec("bitnet")},
  };
  for (QuantizeScheme& s : out) s.spec.stored = s.spec.same_as_forward = false;
  // Stochastic rounding, for schemes of gradients.
  for (const char* name :
       {"fp8_1x128", "int8", "mxfp8", "mxfp4", "mxfp4_folded", "mxfp4_folded_rotated", "nvfp4_values", "nvfp4_values_rotated"}) {
    QuantizeScheme s = *std::find_if(out.begin(), out.end(), [&](const QuantizeScheme& x) { return x.name == name; });
    s.name += "_sr", s.meaning += ", stochastic", s.spec.stochastic = true;
    out.push_back(s);
  }
  return out;
}

CopyRequest request_of(const QuantizeScheme& s, bool transposed) {
  CopyRequest r;
  r.spec = s.spec, r.spec.hadamard = transposed ? s.hadamard : 0;
  r.form = transposed ? s.transposed_form : s.form;
  r.packed = r.form == ValueForm::none && s.packed, r.codes = r.form == ValueForm::none && !s.packed;
  r.signs = 0xB5297A4Du;
  r.rounding.stochastic = s.spec.stochastic, r.rounding.key = philox_key(1, transposed ? "dy.wgrad" : "dy.dgrad"), r.rounding.step = 3;
  return r;
}

struct Direction {
  const char* name;
  bool row, transposed;
};
constexpr Direction kDirections[] = {{"row", true, false}, {"transposed", false, true}, {"both", true, true}};

// Copies `bytes` / 2: reads and writes as many bytes as the quantizer moves.
Work copy_of(double bytes, c10::Device device) {
  const auto half = std::max<int64_t>(static_cast<int64_t>(bytes / 2), 1);
  const auto options = at::TensorOptions().device(device).dtype(at::kByte);
  const at::Tensor from = at::empty({half}, options).random_(0, 255), to = at::empty({half}, options).fill_(1);
  if (!device.is_cpu()) return [from, to](int64_t) { to.copy_(from); };
  return [from, to, half](int64_t) {
    const auto* source = from.const_data_ptr<uint8_t>();
    auto* target = to.mutable_data_ptr<uint8_t>();
    parallel_for(half, 1 << 16,
                 [&](int64_t begin, int64_t end) { std::memcpy(target + begin, source + begin, static_cast<size_t>(end - begin)); });
  };
}

std::string scheme_list(const std::vector<QuantizeScheme>& schemes) {
  std::string out = "Schemes:\n";
  for (const QuantizeScheme& s : schemes) out += fmt::format("  {:<26} {}\n", s.name, s.meaning);
  return out +
         "\nGB/s counts the bytes that a scheme must move: one read of the matrix, a second one if a scale of the tensor, of a column or "
         "of\n"
         "a two-level scheme must be known before the first code, and the writes. The share is relative to a copy of the same number of\n"
         "bytes in the same run: device to device, or memcpy by all threads. Several matrices take turns, so that caches do not help.\n\n"
         "  halftone bench quantize --csv quantize.csv\n"
         "  halftone bench quantize --device cpu --sizes 1024x4096 --schemes int8 mxfp4 --type fp32\n";
}

std::vector<std::array<int64_t, 2>> matrix_sizes(const std::vector<std::string>& words) {
  std::vector<std::array<int64_t, 2>> out;
  for (const std::string& word : words) {
    long long rows = 0, cols = 0;
    int used = 0;
    const bool read = std::sscanf(word.c_str(), "%lldx%lld%n", &rows, &cols, &used) == 2 && used == static_cast<int>(word.size());
    check(read && rows > 0 && cols > 0 && rows <= 1 << 20 && cols <= 1 << 20 && rows % 2 == 0 && cols % 2 == 0,
          "--sizes: expected ROWSxCOLS, even numbers from 2 to 1048576, found '{}'", word);
    out.push_back({rows, cols});
  }
  return out;
}

}  // namespace

int quantize_command(Arguments args) {
  const std::vector<QuantizeScheme> all = make_schemes();
  CLI::App app{"Quantizers: GB/s and share of a copy's speed; row-wise, transposed, and both from one read.", "halftone bench quantize"};
  Common common;
  std::vector<std::string> sizes, schemes, directions, known;
  std::string type = "bf16";
  app.add_option("--sizes", sizes, "one or more ROWSxCOLS; default 4096x8192 16384x14336, on the CPU 4096x4096")->delimiter(',');
  app.add_option("--schemes", schemes, "those below; default all")->delimiter(',');
  app.add_option("--directions", directions, "row, transposed, both; default all")->delimiter(',');
  app.add_option("--type", type, "of the matrix: bf16 or fp32")->capture_default_str()->check(CLI::IsMember({"bf16", "fp32"}));
  add_common(app, common);
  app.footer(scheme_list(all));
  if (!parse(app, args)) return 0;
  for (const QuantizeScheme& s : all) known.push_back(s.name);
  schemes = choose(schemes, known, "--schemes");
  directions = choose(directions, {"row", "transposed", "both"}, "--directions");
  const c10::Device device = select_device(common.device, 0);
  if (sizes.empty()) sizes = device.is_cpu() ? std::vector<std::string>{"4096x4096"} : std::vector<std::string>{"4096x8192", "16384x14336"};
  const auto shapes = matrix_sizes(sizes);

  Csv csv(common, description("quantize", device),
          {"rows", "cols", "type", "scheme", "direction", "bytes", "us", "gbs", "copy_gbs", "share"});
  at::manual_seed(1);
  warm_up(device);
  const Stopwatch watch(device);
  const auto listed = [](const std::vector<std::string>& list, const std::string& word) {
    return std::find(list.begin(), list.end(), word) != list.end();
  };
  for (const auto& [rows, cols] : shapes) {
    const double element = type == "bf16" ? 2 : 4, matrix = static_cast<double>(rows * cols) * element;
    const double beyond = device.is_cpu() ? double{256 << 20} : double{512 << 20};  // larger than any cache
    std::vector<at::Tensor> x;
    for (double held = 0; held < beyond && x.size() < 64; held += matrix)
      x.push_back(normal(rows, cols, type == "bf16" ? at::kBFloat16 : at::kFloat, device));
    TextTable table({fmt::format("{} {}x{}, {:.0f} MiB", type, rows, cols, matrix / (1 << 20)), "", "us", "GB/s", "copy GB/s", "share"});
    for (const QuantizeScheme& s : all) {
      if (!listed(schemes, s.name)) continue;
      for (const Direction& d : kDirections) {
        if (!listed(directions, d.name) || (s.hadamard != 0 && !d.transposed)) continue;
        const CopyRequest row = request_of(s, false), transposed = request_of(s, true);
        const CopyRequest *r = d.row ? &row : nullptr, *t = d.transposed ? &transposed : nullptr;
        const double bytes = quantiser_bytes(rows, cols, element, r, t);
        const Work work = [&](int64_t turn) { quantize(x[static_cast<size_t>(turn) % x.size()], r, t); };
        const auto seconds =
            time_in_turns(watch, {work, copy_of(bytes, device)}, common.rounds_for(device), device.is_cpu() ? 0.05 : 0.002);
        const double rate = bytes / seconds[0] * 1e-9, copy = bytes / seconds[1] * 1e-9;
        table.row(
            {s.name, d.name, number(seconds[0] * 1e6, 4), number(rate, 4), number(copy, 4), fmt::format("{:.0f}%", 100 * rate / copy)});
        csv.row({std::to_string(rows), std::to_string(cols), type, s.name, d.name, fmt::format("{:.0f}", bytes),
                 number(seconds[0] * 1e6, 4), number(rate, 4), number(copy, 4), number(rate / copy, 3)});
      }
    }
    print("\n" + table.text());
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace halftone::bench
