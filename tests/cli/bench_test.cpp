#include <ATen/Context.h>
#include <gtest/gtest.h>

#include <set>

#include "halftone/base/error.h"
#include "halftone/cli/bench_commands.h"
#include "halftone/cli/bench_layer.h"
#include "halftone/cli/bench_products.h"

namespace halftone::bench {
namespace {

CopyRequest request_for(std::string_view recipe, ValueForm form, bool tile = false) {
  CopyRequest r;
  r.spec = find_linear_recipe(recipe)->x_forward, r.form = form, r.codes = form == ValueForm::none;
  if (tile) r.spec.granularity = Granularity::tile;
  return r;
}

// A matrix of 256 x 512 in bf16: 262,144 bytes to read.
TEST(BenchTraffic, CountsWhatASchemeHasToMove) {
  constexpr double kRead = 262144, kCodes = 131072;
  const CopyRequest int8 = request_for("int8", ValueForm::none), tensor = request_for("fp8_tensorwise", ValueForm::none);
  EXPECT_EQ(quantiser_bytes(256, 512, 2, &int8, nullptr), kRead + kCodes + 4 * 256);
  EXPECT_EQ(quantiser_bytes(256, 512, 2, nullptr, &int8), 2 * kRead + kCodes + 4 * 512);  // a pass for the columns' scales first
  EXPECT_EQ(quantiser_bytes(256, 512, 2, &int8, &int8), 2 * kRead + 2 * kCodes + 4 * (256 + 512));
  EXPECT_EQ(quantiser_bytes(256, 512, 4, &tensor, nullptr), 4 * kRead + kCodes + 4);  // fp32, read twice
  const CopyRequest mx = request_for("mxfp8_e4m3", ValueForm::none), tile = request_for("mxfp8_e4m3", ValueForm::none, true);
  EXPECT_EQ(quantiser_bytes(256, 512, 2, &mx, &mx), kRead + 2 * (kCodes + kCodes / 32));
  EXPECT_EQ(quantiser_bytes(256, 512, 2, &tile, nullptr), kRead + kCodes + kCodes / 1024);
  const CopyRequest values = request_for("mxfp8_e4m3", ValueForm::bf16), fold = request_for("mxfp4", ValueForm::fold_e4m3);
  EXPECT_EQ(quantiser_bytes(256, 512, 2, &values, nullptr), kRead + 2 * kCodes);  // the values include the scales
  EXPECT_EQ(quantiser_bytes(256, 512, 2, &fold, nullptr), kRead + kCodes + 4 * 256);
  EXPECT_EQ(quantiser_bytes(256, 512, 2, nullptr, &fold), 2 * kRead + kCodes + 4 * 512);
  const CopyRequest fold_tiles = request_for("mxfp4", ValueForm::fold_e4m3, true);
  EXPECT_EQ(quantiser_bytes(256, 512, 2, &fold_tiles, nullptr), 2 * kRead + kCodes + 4 * 256);  // a pass for the amax of 32-row tiles first
  EXPECT_EQ(quantiser_bytes(256, 512, 2, nullptr, nullptr), 0);
}

TEST(BenchReport, ReadsShapes) {
  EXPECT_EQ(parse_shapes({"64", "32x64x96"}, "--sizes"), (std::vector<Shape>{{64, 64, 64}, {32, 64, 96}}));
  for (const char* bad : {"", "0", "100", "-32", "64x64", "64x64x64x64", "64 ", "1e9", "33554432", "64x64x64k"}) {
    EXPECT_THROW(parse_shapes({bad}, "--sizes"), Error) << bad;
  }
}

std::string refusal(auto&& call) {
  try {
    call();
    return "";
  } catch (const Error& e) {
    return e.what();
  }
}

TEST(BenchReport, ReadsSizes) {
  EXPECT_EQ(parse_sizes({"64", "1048576"}, "--m", "a count of tokens"), (std::vector<int64_t>{64, 1048576}));
  for (const char* bad : {"", "0", "100", "-32", "64x64x64", "64 ", "1e9", "33554432", "99999999999999999999"}) {
    EXPECT_EQ(refusal([&] { parse_sizes({bad}, "--m", "a count of tokens"); }),
              fmt::format("--m: expected a count of tokens, a multiple of 32 from 32 to 1048576, found '{}'", bad));
  }
}

// Each option of the roofline is rejected by the name of what it counts, before anything is measured.
TEST(BenchRoofline, SizesAreCalledWhatTheyCount) {
  const auto roofline = [](std::vector<std::string> args) {
    args.insert(args.end(), {"--device", "cpu"});
    return refusal([&] { roofline_command(args); });
  };
  EXPECT_EQ(roofline({"--m", "0"}), "--m: expected a count of tokens, a multiple of 32 from 32 to 1048576, found '0'");
  EXPECT_EQ(roofline({"--k", "32x64x96"}), "--k: expected a count of inputs, a multiple of 32 from 32 to 1048576, found '32x64x96'");
  EXPECT_EQ(roofline({"--n", "5"}), "--n: expected a count of outputs, a multiple of 32 from 32 to 1048576, found '5'");
  EXPECT_EQ(roofline({"--peak-size", "5"}), "--peak-size: expected the edge of a cube, a multiple of 32 from 32 to 1048576, found '5'");
}

TEST(BenchReport, RefusesFilesThatCannotBeWritten) {
  Csv csv;
  csv.open("/dev/full");
  EXPECT_EQ(refusal([&] { csv.row({"a"}); }), "--csv /dev/full: cannot be written: No space left on device");
}

// Each is rejected in one line that starts with the command, before anything is measured.
TEST(BenchReport, RefusesValuesThatMeanNothing) {
  const auto said = [](auto&& command, std::vector<std::string> args) {
    args.insert(args.end(), {"--device", "cpu"});
    return refusal([&] { command(args); });
  };
  for (const char* bad : {"nan", "0", "-1", "inf", "1e16", "", "4x"}) {
    EXPECT_EQ(said(roofline_command, {"--bandwidth", bad}),
              fmt::format("bench roofline: --bandwidth: expected a number from 0.001 to 1e+15, found '{}' ", bad) +
                  "(see halftone bench roofline --help)");
  }
  for (const char* bad : {"nan", "11", "-1"}) {
    EXPECT_EQ(said(linear_command, {"--turn", bad}),
              fmt::format("bench linear: --turn: expected a number from 0 to 10, found '{}' (see halftone bench linear --help)", bad));
  }
  EXPECT_EQ(said(mm_command, {"--csv", ""}),
            "bench mm: --csv: expected the name of a file, found an empty one (see halftone bench mm --help)");
  EXPECT_EQ(said(roofline_command, {"--peak", "int8=1", "int8=2"}), "--peak: int8 is given twice");
  EXPECT_EQ(said(roofline_command, {"--peak", "int8=inf"}), "--peak: expected RECIPE=TFLOPS, found 'int8=inf'");
  EXPECT_EQ(said(roofline_command, {"--peak-size", "0"}),
            "--peak-size: expected the edge of a cube, a multiple of 32 from 32 to 1048576, found '0'");
}

TEST(BenchTrain, AsksForAConfiguration) {
  const auto train = [](const std::vector<std::string>& args) { return refusal([&] { bench_command(args); }); };
  EXPECT_EQ(train({"train"}), "bench train: expected --config FILE, found none; for example --config recipes/demo.toml");
  testing::internal::CaptureStdout();
  const std::vector<std::string> help = {"train", "--config", "none.toml", "--help"};
  EXPECT_EQ(bench_command(help), 0);
  EXPECT_NE(testing::internal::GetCapturedStdout().find("--own-amax"), std::string::npos);
}

TEST(BenchReport, WritesNumbers) {
  EXPECT_EQ(number(0, 3), "");
  EXPECT_EQ(number(1234.5, 3), "1234");
  EXPECT_EQ(number(1.2345, 3), "1.23");
  EXPECT_EQ(number(0.012345, 3), "0.0123");
}

TEST(BenchProducts, EveryFormatHasAProductOnTheCpu) {
  std::set<std::string> names;
  for (const ProductFormat& f : product_formats()) {
    EXPECT_TRUE(names.insert(f.name).second) << f.name << " is there twice";
    for (const Layout& layout : kLayouts) {
      const Case w = product_case(f, 64, 96, 128, layout, at::kCPU);
      const bool ours = f.reference == Reference::none || f.reference == Reference::mm;
      EXPECT_TRUE(!ours || w.absent.empty()) << f.name << " " << layout.name << ": " << w.absent;
      EXPECT_EQ(w.parts.empty(), !w.absent.empty()) << f.name;
    }
  }
}

// The separately timed parts are those of the layer: they produce the same gradient, bit for bit.
TEST(BenchLayer, PartsDoTheWorkOfTheLayer) {
  at::manual_seed(3);
  LayerData data(96, 64, 128, at::kCPU);
  for (const char* name : {"none", "fp8_tensorwise", "fp8_blockwise", "mxfp8_e4m3", "int4", "fp8_rowwise_with_gw_hp", "bitnet"}) {
    const LinearRecipe recipe = bench_recipe(name, "recommended");
    data.dw.zero_();
    for (const Part& part : layer_work(recipe, data)) part(0);
    const at::Tensor expected = data.dw.clone();
    EXPECT_GT(expected.abs().max().item<float>(), 0) << name;
    data.dw.zero_();
    double flop = 0;
    for (const LayerPart& part : layer_parts(recipe, data)) {
      part.run(0);
      flop += part.flop;
    }
    EXPECT_TRUE(data.dw.equal(expected)) << name;
    EXPECT_EQ(flop, 6.0 * 96 * 64 * 128);
  }
}

}  // namespace
}  // namespace halftone::bench
