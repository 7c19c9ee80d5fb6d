#include "halftone/train/quantization_report.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "checkpoint/support.h"
#include "train/small_engine.h"

namespace halftone {
namespace {

struct Trained {
  std::vector<double> losses;
  std::vector<QuantizationFigures> figures;  // of the last step
  std::string line;
};

// Three steps of two micro-batches of a small Llama; `plant`: a weight with one large element per row.
Trained train(const std::string& scheme, const std::string& recompute, bool watched, const std::string& plant = "",
              MetricsLogger* metrics = nullptr) {
  Engine engine(small_config({"--quantize.scheme=" + scheme, "--activation_checkpoint.mode=" + recompute,
                              "--activation_checkpoint.selective_ac_option=op"}),
                small_options());
  engine.initialize();
  for (nn::Parameter* p : engine.store().parameters()) {
    if (p->fqn == plant) p->master.select(1, 7).fill_(5);
  }
  engine.store().masters_changed();
  at::manual_seed(4);
  Trained run;
  for (int64_t step = 1; step <= 3; ++step) {
    const std::vector<MicroBatch> batches = small_step();
    std::optional<QuantizationReport> report;
    if (watched) report.emplace();
    run.losses.push_back(engine.step(batches, step, 1.0).loss_sum);
    if (!watched) continue;
    run.figures = quantization_stats()->read();
    run.line = quantization_line(step, run.figures);
    if (metrics != nullptr) report->write(step, *metrics);
  }
  EXPECT_EQ(quantization_stats(), nullptr);
  return run;
}

TEST(QuantizationReport, LeavesTheLossAsItIs) {
  for (const char* scheme : {"int8", "mxfp4", "nvfp4", "fp8_tensorwise"}) {
    EXPECT_EQ(train(scheme, "none", true).losses, train(scheme, "none", false).losses) << scheme;
  }
}

TEST(QuantizationReport, IsTheSameWithRecomputation) {
  for (const char* scheme : {"int8", "mxfp4"}) {
    const Trained kept = train(scheme, "none", true);
    for (const char* mode : {"full", "selective"}) {
      const Trained again = train(scheme, mode, true);
      EXPECT_EQ(kept.line, again.line);
      ASSERT_EQ(kept.figures.size(), again.figures.size());
      EXPECT_EQ(quantization_scalars(kept.figures), quantization_scalars(again.figures)) << scheme << ", " << mode;
    }
  }
}

TEST(QuantizationReport, NamesThePlantedLayer) {
  const Trained plain = train("int8", "none", true), planted = train("int8", "none", true, "layers.1.feed_forward.w2.weight");
  const auto of = [](const Trained& run) {
    for (const QuantizationFigures& f : run.figures) {
      if (f.layer == "layers.1.feed_forward.w2" && f.operand == "w.fwd") return *f.sqnr;
    }
    return 0.0;
  };
  EXPECT_GT(of(plain), 38);
  EXPECT_LT(of(planted), 33);
  const size_t at = planted.line.find("w.fwd ");
  ASSERT_NE(at, std::string::npos) << planted.line;
  EXPECT_EQ(planted.line.substr(at, planted.line.find(',', at) - at), fmt::format("w.fwd {:.1f} layers.1.feed_forward.w2", of(planted)));
}

TEST(QuantizationReport, IsReadBackFromTheMetrics) {
  const testing::TemporaryFolder folder;
  Trained run;
  {
    MetricsOptions options;
    options.dump_folder = folder.path();
    MetricsLogger metrics(options, 0, {});
    run = train("mxfp4", "none", true, "", &metrics);
  }
  std::vector<MetricsLine> lines;
  for (const MetricsLine& line : read_metrics(folder.path() / "metrics.jsonl")) {
    if (line.kind == "quantization") lines.push_back(line);
  }
  ASSERT_EQ(lines.size(), 3);
  EXPECT_EQ(lines[2].step, 3);
  Scalars written = quantization_scalars(run.figures), found = lines[2].scalars;
  std::sort(written.begin(), written.end());
  std::sort(found.begin(), found.end());
  EXPECT_EQ(found, written);
  // 14 quantised layers with every figure; the head with the figures that exist without codes.
  for (const char* name : {"amax", "sat_frac", "flushed_frac", "sqnr", "nonfinite"}) {
    EXPECT_NE(find_scalar(lines[2].scalars, fmt::format("quant/layers.1.attention.wv/dy.wgrad/{}", name)), nullptr) << name;
  }
  for (const char* product : {"y", "dx", "dw"}) {
    EXPECT_NE(find_scalar(lines[2].scalars, fmt::format("quant/layers.0.feed_forward.w3/{}/sqnr", product)), nullptr) << product;
  }
  EXPECT_NE(find_scalar(lines[2].scalars, "quant/output/x.fwd/amax"), nullptr);
  EXPECT_EQ(find_scalar(lines[2].scalars, "quant/output/x.fwd/sqnr"), nullptr);
  EXPECT_EQ(run.figures.size(), 14 * 9 + 6);
}

// Rank 0 has the first and last stage, rank 1 those in between.
TEST(QuantizationReport, StagesAreOneReportInTheOrderOfTheLayers) {
  const Trained run = train("mxfp4", "none", true);
  std::vector<QuantizationFigures> first, second;
  for (const QuantizationFigures& f : run.figures) (f.layer.starts_with("layers.1.") ? second : first).push_back(f);
  ASSERT_FALSE(second.empty());
  second[2].sqnr = NAN, second[3].amax = INFINITY, second[3].nonfinite = 2;
  std::vector<QuantizationFigures> whole = run.figures;
  const auto at = std::find_if(whole.begin(), whole.end(), [](const auto& f) { return f.layer.starts_with("layers.1."); });
  std::copy(second.begin(), second.end(), at);
  const int64_t before = second.front().call;
  for (QuantizationFigures& f : second) f.call -= before - 1;  // as counted on that rank
  const std::vector<QuantizationFigures> joined = joined_figures({figures_text(first), figures_text(second)});
  ASSERT_EQ(joined.size(), whole.size());
  EXPECT_EQ(figures_text(joined_figures({figures_text(whole)})), figures_text(joined));
  EXPECT_EQ(quantization_line(3, joined), quantization_line(3, whole));
  for (size_t i = 0; i < whole.size(); ++i) {
    EXPECT_EQ(joined[i].layer, whole[i].layer);
    EXPECT_EQ(joined[i].operand, whole[i].operand);
    EXPECT_EQ(joined[i].saturated, whole[i].saturated);
    EXPECT_EQ(joined[i].flushed, whole[i].flushed);
    const size_t before_it = i > 0 ? i - 1 : 0;
    EXPECT_EQ(joined[i].call == joined[before_it].call, whole[i].call == whole[before_it].call) << joined[i].layer;
  }
}

TEST(QuantizationReport, LineOfNothingQuantisedAndOfWhatIsNotFinite) {
  QuantizationFigures f{"output", "x.fwd", 2, 0, {}, {}, {}};
  EXPECT_EQ(quantization_line(4, {f}), "quantization step:  4  no operand is quantised");
  QuantizationFigures a{"a", "y", 1, 0, {}, {}, 20.04}, b{"b", "y", NAN, 3, {}, {}, NAN}, c{"c", "y", 1, 2, {}, {}, 10.0};
  EXPECT_EQ(quantization_line(12, {a, c}), "quantization step: 12  lowest SQNR in dB: y 10.0 c  non-finite elements: 2, first in c y");
  EXPECT_EQ(quantization_line(12, {a, b, c}), "quantization step: 12  lowest SQNR in dB: y nan b  non-finite elements: 5, first in b y");
  b.sqnr = -NAN;
  EXPECT_NE(quantization_line(12, {b}).find("y nan b"), std::string::npos);
}

// Names the first non-finite figure in execution order: forward through the layers, then backward in reverse.
TEST(QuantizationReport, NamesWhereNonFiniteElementsBegan) {
  // a, then b and c in one joined GEMM, then d.
  const std::vector<std::pair<std::string, int64_t>> layers = {{"a", 1}, {"b", 2}, {"c", 2}, {"d", 3}};
  const auto first = [&](const std::vector<std::string>& nonfinite) {
    std::vector<QuantizationFigures> figures;
    for (const auto& [layer, call] : layers) {
      for (const std::string_view operand : kWatched) {
        const bool bad = std::find(nonfinite.begin(), nonfinite.end(), fmt::format("{} {}", layer, operand)) != nonfinite.end();
        figures.push_back({layer, operand, 1, bad ? 1.0 : 0.0, {}, {}, {}, call});
      }
    }
    const std::string line = quantization_line(1, figures);
    return line.substr(line.find("first in ") + 9);
  };
  // Gradients only: the layer whose backward runs first.
  EXPECT_EQ(first({"a dy.dgrad", "a dy.wgrad", "d dy.dgrad", "d dy.wgrad", "d dx"}), "d dy.dgrad");
  EXPECT_EQ(first({"a dy.dgrad", "b dy.dgrad", "b dx", "c dx"}), "b dy.dgrad");  // dX of b and c is one sum
  EXPECT_EQ(first({"a dy.dgrad", "b dx", "c dx"}), "c dx");
  EXPECT_EQ(first({"b dy.wgrad", "c dy.wgrad"}), "c dy.wgrad");
  // Forward comes before every gradient, in layer order.
  EXPECT_EQ(first({"a dy.dgrad", "a dw", "c x.fwd", "d x.fwd", "d dy.dgrad"}), "c x.fwd");
  EXPECT_EQ(first({"a dy.dgrad", "d w.fwd", "d w.dgrad"}), "d w.fwd");
  EXPECT_EQ(first({"b y", "c w.fwd", "c y", "d x.fwd"}), "c w.fwd");
  EXPECT_EQ(first({"b y", "d x.fwd"}), "b y");
}

}  // namespace
}  // namespace halftone
