#include "halftone/train/alarms.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>

#include "halftone/checkpoint/safetensors.h"
#include "halftone/train/metrics_file.h"
#include "halftone/train/processes.h"
#include "halftone/train/trainer.h"
#include "train/small_engine.h"
#include "train/small_run.h"

namespace halftone::alarms_test {
namespace {

using testing::expect_error;
using testing::SmallRuns;
using Options = std::vector<std::string>;

const Options kMeasured = {"--alarms.expert_load.threshold=inf", "--alarms.residual_norm.threshold=inf",
                           "--alarms.attention_logit.threshold=inf", "--alarms.clipped.threshold=inf",
                           "--alarms.underflowed.threshold=inf"};

Options with(Options a, const Options& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

struct Stepped {
  std::vector<double> losses;
  AlarmVerdict verdict;  // of the last step
};

// Three steps of two micro-batches of a small Llama, each watched if an alarm has a threshold.
Stepped steps(const Options& options, const std::function<void(Engine&)>& plant = nullptr) {
  const JobConfig config = small_config(options);
  Engine engine(config, small_options());
  engine.initialize();
  if (plant) plant(engine);
  engine.store().masters_changed();
  at::manual_seed(4);
  Stepped run;
  for (int64_t step = 1; step <= 3; ++step) {
    std::unique_ptr<AlarmProbe> probe;
    if (!alarms_text(config.alarms).empty()) probe = std::make_unique<AlarmProbe>(config.alarms, false);
    const StepResult r = engine.step(small_step(), step, 1.0);
    run.losses.push_back(r.loss_sum);
    if (!probe) continue;
    probe->stop();
    run.verdict = judge_alarms(config.alarms, step, {probe->read(config.alarms, r)});
  }
  EXPECT_EQ(activation_stats(), nullptr);
  EXPECT_EQ(quantization_stats(), nullptr);
  return run;
}

double value(const AlarmVerdict& v, const std::string& name) {
  const double* found = find_scalar(v.scalars, "alarms/" + name);
  EXPECT_NE(found, nullptr) << name;
  return found != nullptr ? *found : NAN;
}

void scale(Engine& engine, const std::string& name, double factor) {
  for (nn::Parameter* p : engine.store().parameters()) {
    if (p->fqn == name) p->master.mul_(factor);
  }
}

TEST(Alarms, ChangeNoLoss) {
  for (const char* scheme : {"mxfp4", "int8", "none"}) {
    for (const char* recompute : {"none", "full"}) {
      const Options options = {std::string("--quantize.scheme=") + scheme, std::string("--activation_checkpoint.mode=") + recompute};
      EXPECT_EQ(steps(with(kMeasured, options)).losses, steps(options).losses) << scheme << ", " << recompute;
    }
  }
}

TEST(Alarms, AreTheSameWithRecomputation) {
  const auto scalars = [](const char* mode) {
    return steps(with(kMeasured, {"--quantize.scheme=mxfp4", std::string("--activation_checkpoint.mode=") + mode})).verdict.scalars;
  };
  EXPECT_EQ(scalars("none"), scalars("full"));
  EXPECT_EQ(scalars("none").size(), 2 + 2 + 14 * 6 * 2)
      << "blocks, attentions, and 14 layers of six operands, each clipped and underflowed";
}

// The stream after the last block, from its definition: the head reads its RMSNorm.
TEST(Alarms, TheResidualNormIsTheStreamsRms) {
  const Options options = with(kMeasured, {"--quantize.scheme=none", "--training.mixed_precision_param=float32"});
  const AlarmVerdict plain = steps(options).verdict;
  const double rms = value(plain, "residual_norm/layers.1");
  EXPECT_GT(rms, 0.5);
  EXPECT_LT(rms, 2) << "embeddings of a unit normal distribution, and small branches";
  const AlarmVerdict planted = steps(options, [](Engine& e) { scale(e, "tok_embeddings.weight", 100); }).verdict;
  EXPECT_NEAR(value(planted, "residual_norm/layers.1"), 100 * rms, 3 * rms) << "the branches do not grow";
  const AlarmVerdict one = steps(options, [](Engine& e) { scale(e, "layers.1.feed_forward.w2.weight", 1e5); }).verdict;
  EXPECT_GT(value(one, "residual_norm/layers.1"), 50 * value(one, "residual_norm/layers.0")) << "from this block on";
}

TEST(Alarms, TheLogitBoundGrowsWithQAndKOnly) {
  const Options options = with(kMeasured, {"--quantize.scheme=none", "--training.mixed_precision_param=float32", "--optimizer.lr=1e-30"});
  const auto bound = [&](const char* name, double factor) {
    const AlarmVerdict v = steps(options, [&](Engine& e) { scale(e, name, factor); }).verdict;
    return std::pair(value(v, "attention_logit/layers.0.attention"), value(v, "attention_logit/layers.1.attention"));
  };
  const auto [first, second] = bound("layers.1.attention.wv.weight", 100);
  for (const char* name : {"layers.1.attention.wq.weight", "layers.1.attention.wk.weight"}) {
    const auto [unchanged, grown] = bound(name, 100);
    EXPECT_EQ(unchanged, first) << name;
    EXPECT_NEAR(grown, 100 * second, 1e-3 * grown) << name;
  }
  EXPECT_GT(first, 0);
}

// From the definition, in fp64: four query heads of 8 on two key heads.
TEST(Alarms, TheLogitBoundHoldsForEveryLogit) {
  at::manual_seed(5);
  AttentionArgs args;
  args.batch = 2, args.seq = 8, args.heads = 4, args.kv_heads = 2, args.head_dim = 8, args.scale = 0.5, args.norm_eps = 1e-5;
  const at::Tensor qkv = at::randn({16, (4 + 2 + 2) * 8});
  Weight q_norm, k_norm;
  q_norm.value = at::rand({8}) + 0.5, k_norm.value = at::rand({8}) + 0.5;
  const auto heads = [&](int64_t first, int64_t count, const Weight* norm) {
    at::Tensor x = qkv.narrow(1, first, count * 8).reshape({16, count, 8}).to(at::kDouble);
    if (norm != nullptr) x = x * at::rsqrt(x.square().mean(2, true) + 1e-5) * norm->value.to(at::kDouble);
    return x.transpose(0, 1);  // [H, T, d]
  };
  for (const bool norms : {false, true}) {
    if (norms) args.q_norm = &q_norm, args.k_norm = &k_norm;
    const at::Tensor q = heads(0, 4, args.q_norm), k = heads(32, 2, args.k_norm).repeat_interleave(2, 0);
    const auto norms_of = [](const at::Tensor& x) { return x.norm(2, 2).reshape({4, 2, 8}).amax(2); };  // by head and row
    const double bound = (0.5 * norms_of(q) * norms_of(k)).amax().item<double>();
    ActivationStats stats;
    stats.attention("layers.0.attention", qkv, args);
    ASSERT_EQ(stats.read().size(), 1);
    EXPECT_NEAR(stats.read()[0].value, bound, 1e-5 * bound);
    for (const int64_t row : {0, 8}) {
      const at::Tensor logits = 0.5 * q.narrow(1, row, 8).matmul(k.narrow(1, row, 8).transpose(1, 2));
      EXPECT_GE(stats.read()[0].value, logits.abs().amax().item<double>());
    }
  }
  // Latent attention: keys of a head's own 6 elements and 2 that all heads share, values of 4.
  AttentionArgs latent;
  latent.batch = 1, latent.seq = 16, latent.heads = 3, latent.head_dim = 8, latent.v_dim = 4, latent.scale = 2;
  const at::Tensor q = at::randn({16, 24}), kv = at::randn({16, 30}), rope = at::randn({16, 2});
  const at::Tensor keys = at::cat({kv.reshape({16, 3, 10}).narrow(2, 0, 6), rope.reshape({16, 1, 2}).expand({16, 3, 2})}, 2);
  const double bound = (2 * q.reshape({16, 3, 8}).norm(2, 2).amax(0) * keys.norm(2, 2).amax(0)).amax().item<double>();
  ActivationStats stats;
  stats.latent_attention("layers.0.attention", q, kv, rope, latent);
  EXPECT_NEAR(stats.read().at(0).value, bound, 1e-5 * bound);
}

TEST(Alarms, JudgeTheLargestOfAllRanks) {
  AlarmsConfig config;
  config.residual_norm = {10, "warn"}, config.clipped = {0.25, "rollback"};
  const std::string first = "residual_norm layers.0 3\nresidual_norm layers.1 12\nclipped layers.0.attention.wq/x.fwd 0.125\n",
                    second = "residual_norm layers.0 11\nresidual_norm layers.1 4\nclipped layers.0.attention.wq/x.fwd 0.25\n";
  const AlarmVerdict v = judge_alarms(config, 7, {first, second});
  EXPECT_EQ(v.scalars, (Scalars{{"alarms/residual_norm/layers.0", 11},
                                {"alarms/residual_norm/layers.1", 12},
                                {"alarms/clipped/layers.0.attention.wq/x.fwd", 0.25}}));
  EXPECT_EQ(v.action, "warn");
  ASSERT_EQ(v.lines.size(), 1);
  EXPECT_EQ(
      v.lines[0],
      "alarm residual_norm at step 7: RMS of the residual stream is 12 in layers.1, above alarms.residual_norm.threshold = 10 (2 of 2 "
      "above it, first layers.0)");
  const AlarmVerdict both = judge_alarms(config, 8, {first, "clipped layers.0.attention.wq/x.fwd nan\n"});
  EXPECT_EQ(both.action, "rollback");
  ASSERT_EQ(both.lines.size(), 2);
  EXPECT_NE(both.lines[1].find("share of clipped codes is nan in layers.0.attention.wq/x.fwd"), std::string::npos) << both.lines[1];
  EXPECT_EQ(judge_alarms(config, 9, {"residual_norm layers.0 10\n"}).action, "");
  config.residual_norm.threshold = INFINITY;
  const AlarmVerdict only_measured = judge_alarms(config, 10, {"residual_norm layers.0 nan\nresidual_norm layers.1 inf\n"});
  EXPECT_EQ(only_measured.action, "");
  EXPECT_EQ(only_measured.scalars.size(), 2);
}

TEST(Alarms, MeasureEveryFewStepsAndBeforeCheckpoints) {
  const SmallRuns runs;
  const auto measured = [&](const Options& more) {
    const JobConfig config = runs.config("never", with({"--training.steps=23"}, more)).config;
    std::vector<int64_t> found;
    for (int64_t step = 1; step <= 23; ++step)
      if (alarms_measure(config, step)) found.push_back(step);
    return found;
  };
  EXPECT_EQ(measured({"--alarms.freq=8"}), std::vector<int64_t>());
  EXPECT_EQ(measured({"--alarms.freq=8", "--alarms.clipped.threshold=0.5"}), (std::vector<int64_t>{8, 10, 16, 20, 23}));
  EXPECT_EQ(measured({"--alarms.freq=8", "--alarms.clipped.threshold=0.5", "--checkpoint.enable=false"}), (std::vector<int64_t>{8, 16}));
}

// Runs on SmallRuns' rows, of which those of step 24 have tokens that no other step has: their embeddings are planted into the seed
// checkpoint so that exactly one figure blows up there.
class Planted : public ::testing::TestWithParam<std::string> {
 protected:
  static constexpr int64_t kBad = 24, kDim = 32, kFirstBadToken = 304;

  static Options options(const std::string& alarm) {
    Options all = {"--quantize.scheme=mxfp4", "--quantize.use_2dblock_w=true", "--quantize.scale_mode=floor", "--checkpoint.no_checksum",
                   "--metrics.log_freq=1"};
    const std::string dense = R"(--model.overrides={"dim":32,"n_layers":2,"n_heads":2,"n_kv_heads":2,"ffn_dim":64})";
    const std::string experts = R"(--model.overrides={"dim":32,"n_layers":2,"n_heads":2,"n_kv_heads":2,"num_experts":8,)"
                                R"("experts_per_token":2,"expert_ffn_dim":32})";
    return with(all, alarm == "expert_load" ? Options{"--model.name=qwen3_moe", experts} : Options{dense});
  }

  static RunSummary train(const SmallRuns& runs, const std::string& name, const std::string& alarm, const Options& more) {
    Processes alone({}, {});
    return run_training(runs.config(name, with(options(alarm), more)), alone, "test");
  }

  // Embeddings by alarm, whose RMS is `size`: spread over 8 elements that mxfp4's floor clips (1.9, beside 0.36), or on one element that
  // makes the others vanish.
  static void plant(const SmallRuns& runs, const std::string& name, const std::string& alarm) {
    const std::filesystem::path path = runs / name / "checkpoint/step-0/model-0.safetensors";
    const SafetensorsFile file(path);
    std::string bytes = testing::read_file(path);
    const auto numbers = [&](const std::string& tensor) {
      const TensorEntry& t = file.at(tensor);
      EXPECT_EQ(t.dtype, FileDType::f32);
      return reinterpret_cast<float*>(bytes.data() + file.header().data_start + t.begin);
    };
    const auto element = [&](int64_t j) {
      if (alarm == "underflowed") return j == 0 ? 5.0F : 0.01F;
      return j < 8 ? 1.9F : 0.36F;
    };
    float* embedding = numbers("tok_embeddings.weight");
    const int64_t vocabulary = file.at("tok_embeddings.weight").shape[0];
    for (int64_t id = kFirstBadToken; id < vocabulary; ++id)
      for (int64_t j = 0; j < kDim; ++j) embedding[id * kDim + j] = element(j) * (alarm == "residual_norm" ? 1000.0F : 1.0F);
    if (alarm == "attention_logit") {  // along the planted direction
      for (const char* w : {"layers.0.attention.wq.weight", "layers.0.attention.wk.weight"})
        for (int64_t j = 0; j < 8; ++j) numbers(w)[j] += 2;
    }
    testing::write_file(path, bytes);
  }

  static std::vector<std::pair<int64_t, double>> losses(const SmallRuns& runs, const std::string& name) {
    std::vector<std::pair<int64_t, double>> found;
    for (const MetricsLine& line : read_metrics(runs / name / "metrics.jsonl"))
      if (line.kind == "train") found.emplace_back(*line.step, *find_scalar(line.scalars, "loss_metrics/global_avg_loss"));
    return found;
  }

  // The largest figure of each measured step.
  static std::map<int64_t, double> figures(const SmallRuns& runs, const std::string& name, const std::string& alarm) {
    std::map<int64_t, double> found;
    for (const MetricsLine& line : read_metrics(runs / name / "metrics.jsonl")) {
      if (line.kind != "alarms") continue;
      for (const auto& [scalar, value] : line.scalars)
        if (scalar.starts_with("alarms/" + alarm)) found[*line.step] = std::max(found[*line.step], value);
    }
    return found;
  }

  static int64_t events(const SmallRuns& runs, const std::string& name, const std::string& part) {
    const std::vector<MetricsLine> lines = read_metrics(runs / name / "metrics.jsonl");
    return std::count_if(lines.begin(), lines.end(), [&](const MetricsLine& l) { return l.message.find(part) != std::string::npos; });
  }
};

TEST_P(Planted, RaisesTheAlarmAndRollsBack) {
  const std::string alarm = GetParam();
  const SmallRuns runs({kBad});
  const std::string field = "--alarms." + alarm;
  const auto seeded = [&](const std::string& name, const Options& more) {
    train(runs, name, alarm, {"--checkpoint.create_seed_checkpoint", "--training.steps=26"});
    plant(runs, name, alarm);
    return train(runs, name, alarm, with({"--training.steps=26", "--alarms.freq=1"}, more));
  };
  seeded("measured", {field + ".threshold=inf"});
  std::map<int64_t, double> found = figures(runs, "measured", alarm);
  ASSERT_EQ(found.size(), 26);
  const double bad = found.at(kBad);
  found.erase(kBad);
  double usual = 0;
  for (const auto& [step, figure] : found) usual = std::max(usual, figure);
  ASSERT_GT(bad, 1.2 * usual);

  const std::string threshold = fmt::format("{}.threshold={}", field, (bad + usual) / 2);
  seeded("off", {}), seeded("warned", {threshold, field + ".action=warn"});
  EXPECT_EQ(losses(runs, "measured"), losses(runs, "off"));
  EXPECT_EQ(losses(runs, "warned"), losses(runs, "off"));
  EXPECT_EQ(events(runs, "warned", fmt::format("alarm {} at step {}: ", alarm, kBad)), 1);

  EXPECT_EQ(seeded("rolled", {threshold, field + ".action=rollback"}).step, 26);
  EXPECT_EQ(events(runs, "rolled", fmt::format("alarm {} at step {}: ", alarm, kBad)), 1);
  EXPECT_EQ(events(runs, "rolled", "in layers."), 1);
  EXPECT_EQ(events(runs, "rolled", "rolling back to the checkpoint of step 20 and skipping the rows of step 24"), 1);
  const auto off = losses(runs, "off"), rolled = losses(runs, "rolled");
  ASSERT_EQ(rolled.size(), 26);
  EXPECT_TRUE(std::equal(off.begin(), off.begin() + 23, rolled.begin()));
  EXPECT_NE(rolled[23], off[23]) << "other rows";

  expect_error([&] { seeded("stopped", {threshold, field + ".action=stop"}); }, fmt::format("alarm {} at step {}: ", alarm, kBad));
  EXPECT_EQ(losses(runs, "stopped").size(), 23);
}

INSTANTIATE_TEST_SUITE_P(Alarms, Planted, ::testing::Values("expert_load", "residual_norm", "attention_logit", "clipped", "underflowed"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace halftone::alarms_test
