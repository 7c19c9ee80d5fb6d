// halftone bench quantize: bandwidth of the quantizers against a copy of the same number of bytes in the same run.
#include <ATen/ops/empty.h>

#include <cstring>

#include "halftone/base/error.h"
#include "halftone/base/parallel.h"
#include "halftone/base/philox.h"
#include "halftone/cli/bench_commands.h"
#include "halftone/cli/bench_layer.h"
#include "halftone/ops/operand.h"

namespace halftone::bench {
namespace {

struct QuantizeScheme {
  std::string name, meaning;
  OperandSpec spec;
  bool packed = false;  // else codes, unless there is a form
  ValueForm form = ValueForm::none, transposed_form = ValueForm::none;
  int hadamard = 0;  // of the transposed copy; MS-EDEN: of both
};

OperandSpec forward_spec(std::string_view recipe) { return find_linear_recipe(recipe)->x_forward; }
OperandSpec weight_spec(std::string_view recipe) { return find_linear_recipe(recipe)->w_forward; }

OperandSpec nvfp4(Granularity granularity, ScaleChoice choice) {
  OperandSpec s = forward_spec("nvfp4");
  return s.granularity = granularity, s.choice = choice, s;
}

std::vector<QuantizeScheme> make_schemes() {
  const auto bf16 = ValueForm::bf16, e4m3 = ValueForm::fold_e4m3;
  const auto six = ScaleChoice::amax, four_over_six = ScaleChoice::squared;
  const auto block = Granularity::block, tile = Granularity::tile;
  OperandSpec mxfp4_tile = weight_spec("mxfp4");
  mxfp4_tile.granularity = tile;
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
      {"mxfp4_32x32_folded", "8-bit folded codes, 32x32", mxfp4_tile, false, e4m3, e4m3},
      {"mxfp4_values", "bf16 values, 1x32", forward_spec("mxfp4"), false, bf16, bf16},
      {"mxfp4_folded_rotated", "Hadamard of 32 tokens", forward_spec("mxfp4"), false, e4m3, e4m3, 32},
      {"nvfp4", "packed, 1x16, outer scale", nvfp4(block, six), true},
      {"nvfp4_values", "bf16 values, 1x16", nvfp4(block, six), false, bf16, bf16},
      {"nvfp4_values_rotated", "Hadamard of 32 tokens", nvfp4(block, six), false, bf16, bf16, 32},
      {"nvfp4_eden", "MS-EDEN, Hadamard of 128", find_linear_recipe("quartet2")->dy_wgrad, false, bf16, bf16, 128},
      {"nvfp4_eden_32", "MS-EDEN, Hadamard of 32", find_linear_recipe("quartet2")->dy_wgrad, false, bf16, bf16, 32},
      {"nvfp4_16x16_values", "bf16 values, 16x16", nvfp4(tile, six), false, bf16, bf16},
      {"nvfp4_4over6", "packed, four over six", nvfp4(block, four_over_six), true},
      {"nvfp4_4over6_values", "bf16 values, four over six", nvfp4(block, four_over_six), false, bf16, bf16},
      {"nvfp4_4over6_values_rotated", "Hadamard of 32 tokens", nvfp4(block, four_over_six), false, bf16, bf16, 32},
      {"nvfp4_4over6_16x16_values", "bf16 values, four over six", nvfp4(tile, four_over_six), false, bf16, bf16},
      {"nvint4", "packed, 1x16, outer scale", forward_spec("nvint4"), true},
      {"nvint4_values", "bf16 values, 1x16", forward_spec("nvint4"), false, bf16, bf16},
      {"mxint8", "codes, 1x32", forward_spec("mxint8")},
      {"mxint8_values", "bf16 values, 1x32", forward_spec("mxint8"), false, bf16, bf16},
      {"amdfp4", "packed, 1x16, outer scale", forward_spec("amdfp4"), true},
      {"amdfp4_values", "bf16 values, 1x16", forward_spec("amdfp4"), false, bf16, bf16},
      {"bitnet_x", "int8 rows", forward_spec("bitnet")},
      {"ternary", "one scale", weight_spec("bitnet")},
  };
  for (QuantizeScheme& s : out) s.spec.stored = s.spec.same_as_forward = false;
  // Stochastic rounding, for schemes of gradients.
  for (const char* name : {"fp8_1x128", "int8", "mxfp8", "mxfp4", "mxfp4_folded", "mxfp4_folded_rotated", "nvfp4_values",
                           "nvfp4_values_rotated", "nvfp4_4over6_values_rotated"}) {
    QuantizeScheme s = *std::find_if(out.begin(), out.end(), [&](const QuantizeScheme& x) { return x.name == name; });
    s.name += "_sr", s.meaning += ", stochastic", s.spec.stochastic = true;
    out.push_back(s);
  }
  return out;
}

CopyRequest request_of(const QuantizeScheme& s, bool transposed) {
  CopyRequest r;
  r.spec = s.spec, r.spec.hadamard = transposed || s.spec.eden ? s.hadamard : 0;
  r.form = transposed ? s.transposed_form : s.form;
  r.packed = r.form == ValueForm::none && s.packed, r.codes = r.form == ValueForm::none && !s.packed;
  r.signs = RotationSigns({0xB5297A4Du, 0x68E31DA4u, 0x1B56C4E9u, 0x9C4A30F7u});
  r.rounding.stochastic = s.spec.stochastic, r.rounding.key = philox_key(1, transposed ? "dy.wgrad" : "dy.dgrad"), r.rounding.step = 3;
  return r;
}

struct Direction {
  const char* name;
  bool row, transposed;
};
constexpr Direction kDirections[] = {{"row", true, false}, {"transposed", false, true}, {"both", true, true}};

// Copies `bytes` / 2: reads and writes as many bytes as the quantizer moves.
Part copy_of(double bytes, c10::Device device) {
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

}  // namespace

int quantize_command(Arguments args) {
  const std::vector<QuantizeScheme> all = make_schemes();
  Bench bench({"quantize",
               "Quantizers: GB/s and share of a copy's speed; row-wise, transposed, and both from one read.",
               scheme_list(all),
               {{"rows", nullptr, key<0>},
                {"cols", nullptr, key<1>},
                {"type", nullptr, key<2>},
                {"scheme", "", key<3>},
                {"direction", "", key<4>},
                {"bytes", nullptr, [](const Measured& r) { return fmt::format("{:.0f}", r.work); }},
                {"us", "us", microseconds},
                {"gbs", "GB/s", [](const Measured& r) { return number(r.work / r.seconds[0] * 1e-9, 4); }},
                {"copy_gbs", "copy GB/s", [](const Measured& r) { return number(r.work / r.reference[0] * 1e-9, 4); }},
                {"share", nullptr, ratio<>},
                {nullptr, "share", [](const Measured& r) { return fmt::format("{:.0f}%", 100 * r.reference[0] / r.seconds[0]); }}}});
  Words sizes, schemes, directions;
  std::string type = "bf16";
  bench.list("--sizes", sizes, "one or more ROWSxCOLS; default 4096x8192 16384x14336, on the CPU 4096x4096");
  bench.list("--schemes", schemes, "those below; default all");
  bench.list("--directions", directions, "row, transposed, both; default all");
  bench.app.add_option("--type", type, "of the matrix: bf16 or fp32")->capture_default_str()->check(CLI::IsMember({"bf16", "fp32"}));
  if (!bench.parse(args)) return 0;
  schemes = choose(schemes, names_of(all), "--schemes");
  directions = choose(directions, names_of(kDirections), "--directions");
  std::vector<std::array<int64_t, 2>> shapes;
  for (const std::string& word : bench.otherwise(sizes, {"4096x8192", "16384x14336"}, {"4096x4096"})) {
    const bool read = read_sizes(word, shapes.emplace_back());
    const auto good = [](int64_t size) { return size > 0 && size <= 1 << 20 && size % 2 == 0; };
    check(read && good(shapes.back()[0]) && good(shapes.back()[1]),
          "--sizes: expected ROWSxCOLS, even numbers from 2 to 1048576, found '{}'", word);
  }
  bench.open();
  const at::ScalarType dtype = type == "bf16" ? at::kBFloat16 : at::kFloat;
  for (const auto& [rows, cols] : shapes) {
    const auto element = static_cast<double>(c10::elementSize(dtype)), matrix = static_cast<double>(rows * cols) * element;
    const double beyond = bench.device.is_cpu() ? double{256 << 20} : double{512 << 20};  // larger than any cache
    std::vector<at::Tensor> x;
    for (double held = 0; held < beyond && x.size() < 64; held += matrix) x.push_back(normal(rows, cols, dtype, bench.device));
    std::vector<Measured> measured;
    for (const QuantizeScheme& s : all) {
      if (!contains(schemes, s.name)) continue;
      for (const Direction& d : kDirections) {
        if (!contains(directions, d.name) || (s.hadamard != 0 && !s.spec.eden && !d.transposed)) continue;
        const CopyRequest row = request_of(s, false), transposed = request_of(s, true);
        const CopyRequest *r = d.row ? &row : nullptr, *t = d.transposed ? &transposed : nullptr;
        const double bytes = quantiser_bytes(rows, cols, element, r, t);
        const Part work = [&](int64_t turn) { quantize(x[static_cast<size_t>(turn) % x.size()], r, t); };
        std::vector<Case> cases = {{{std::to_string(rows), std::to_string(cols), type, s.name, d.name}, {work}, bytes},
                                   {{}, {copy_of(bytes, bench.device)}, bytes}};
        measured.push_back(bench.measure(std::move(cases), {bench.rounds, bench.device.is_cpu() ? 0.05 : 0.002, true}, 1)[0]);
      }
    }
    bench.show(fmt::format("{} {}x{}, {:.0f} MiB", type, rows, cols, matrix / (1 << 20)), measured);
  }
  return 0;
}

}  // namespace halftone::bench
