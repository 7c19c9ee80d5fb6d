#include "halftone/nn/recipe_schedule.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "halftone/base/error.h"
#include "halftone/config/load.h"
#include "halftone/nn/deoscillation.h"
#include "halftone/nn/layers.h"
#include "halftone/nn/parameter_store.h"

namespace halftone::nn::recipe_schedule_test {
namespace {

// Four blocks of one linear each, and a head.
class Net : public Module {
 public:
  struct Block : Module {
    Linear& wide = add<Linear>("wide", 64, 128, Init{Init::Kind::normal, 0.02});
  };
  Net() {
    for (int i = 0; i < 4; ++i) {
      blocks.push_back(&add<Block>("layers." + std::to_string(i)));
      blocks.back()->make_unit("layers." + std::to_string(i), i);
    }
    output = &add<Linear>("output", 64, 32, Init{});
    assign_names("");
  }
  Linear& at(int block) { return blocks.at(block)->wide; }
  std::vector<Block*> blocks;
  Linear* output;
};

struct Scheduled {
  explicit Scheduled(const std::string& toml, int64_t steps = 1000, std::optional<size_t> phase = {}) {
    JobConfig c = load_config_text(toml, "X.toml").config;
    c.quantize.phase = phase;
    schedule.emplace(net, c.quantize, c.model, Hardware::cpu_v3, 4, steps);
  }
  std::string schemes() {
    std::string all;
    for (int i = 0; i < 4; ++i) all += std::string(net.at(i).recipe().name) + " ";
    return all + std::string(net.output->recipe().name);
  }
  void enter(int64_t step) { schedule->enter(schedule->phase_of(step)); }
  Net net;
  std::optional<RecipeSchedule> schedule;
};

const std::string kFinish = R"(
[training]
steps = 1000
[quantize]
scheme = "mxfp4"
[[quantize.phases]]
last_layers = 0.26
scheme = "mxfp8_e4m3"
[[quantize.phases]]
from = "90%"
first_layers = 1
scheme = "bf16"
[[quantize.phases]]
from = 950
wgrad_hp = true
)";

TEST(RecipeSchedule, APhaseIsAFunctionOfTheStep) {
  Scheduled s(kFinish);
  EXPECT_EQ(s.schedule->phases().size(), 3u);
  EXPECT_EQ(s.schemes(), "mxfp4 mxfp4 mxfp8_e4m3 mxfp8_e4m3 none");
  EXPECT_EQ(s.schedule->phase_of(1), 0u);
  EXPECT_EQ(s.schedule->phase_of(900), 0u);
  EXPECT_EQ(s.schedule->phase_of(901), 1u);
  EXPECT_EQ(s.schedule->phase_of(949), 1u);
  EXPECT_EQ(s.schedule->phase_of(5000), 2u);
  s.enter(901);
  EXPECT_EQ(s.schemes(), "none mxfp4 mxfp8_e4m3 mxfp8_e4m3 none");
  s.enter(950);
  EXPECT_EQ(s.schemes(), "none mxfp4 mxfp8_e4m3 mxfp8_e4m3 none");
  for (const int block : {1, 2, 3}) EXPECT_FALSE(s.net.at(block).recipe().x_wgrad.quantized()) << block;
  EXPECT_TRUE(s.net.at(1).recipe().x_forward.quantized());
  s.enter(1);  // after a rollback
  EXPECT_EQ(s.schemes(), "mxfp4 mxfp4 mxfp8_e4m3 mxfp8_e4m3 none");
  EXPECT_TRUE(s.net.at(2).recipe().x_wgrad.quantized());
  s.schedule->set_steps(1020);
  EXPECT_EQ(s.schedule->phase_of(901), 0u);
  EXPECT_THROW(s.schedule->set_steps(2000), Error);  // 90% would begin behind step 950
}

TEST(RecipeSchedule, TheLastEntryOfALayerCounts) {
  const std::string head =
      "[training]\nsteps = 100\n[quantize]\nscheme = \"mxfp4\"\n[[quantize.phases]]\nlast_layers = 2\nscheme = \"mxfp8_e4m3\"\n";
  Scheduled s(head + "[[quantize.phases]]\nfrom = 50\nlast_layers = 2\nscheme = \"bf16\"\n");
  EXPECT_EQ(s.schemes(), "mxfp4 mxfp4 mxfp8_e4m3 mxfp8_e4m3 none");
  s.enter(50);
  EXPECT_EQ(s.schemes(), "mxfp4 mxfp4 none none none");
  Scheduled options(head + "[[quantize.phases]]\nlast_layers = 1\nwgrad_hp = true\n");  // of what the entry before it has set there
  EXPECT_EQ(options.schemes(), "mxfp4 mxfp4 mxfp8_e4m3 mxfp8_e4m3 none");
  EXPECT_TRUE(options.net.at(2).recipe().x_wgrad.quantized());
  EXPECT_FALSE(options.net.at(3).recipe().x_wgrad.quantized());
  EXPECT_TRUE(options.net.at(3).recipe().x_forward.quantized());
}

TEST(RecipeSchedule, PlanLinesHaveStepsSchemesAndLayers) {
  Scheduled s(kFinish);
  const auto lines = s.schedule->plan_lines(1000);
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0], "quantize: phase 1 of 3, steps 1 to 900: mxfp4 on 2 layers, mxfp8_e4m3 on 2 layers, 1 unquantised");
  EXPECT_EQ(lines[1], "quantize: phase 2 of 3, steps 901 to 949 (from 90%): mxfp4 on 1 layer, mxfp8_e4m3 on 2 layers, 2 unquantised");
  EXPECT_EQ(lines[2],
            "quantize: phase 3 of 3, steps 950 to 1000: mxfp4 (wgrad unquantised) on 1 layer, mxfp8_e4m3 (wgrad unquantised) on 2 layers, "
            "2 unquantised");
  EXPECT_NE(s.schedule->plan_lines(100)[1].find("beyond this run"), std::string::npos);
  EXPECT_TRUE(Scheduled("[quantize]\nscheme = \"int8\"\n").schedule->plan_lines(1000).empty());
}

TEST(RecipeSchedule, ParametersSuitEveryPhase) {
  const auto alone = [](const std::string& toml) { return Scheduled(toml).net.at(0).weight.codes_alone; };
  const auto rows = [](const std::string& toml) { return Scheduled(toml).net.at(0).weight.row_block; };
  const std::string head = "[training]\nsteps = 100\n[quantize]\nscheme = \"nvfp4\"\n";
  const std::string to_mxfp4 = head + "[[quantize.phases]]\nfrom = 50\nscheme = \"mxfp4\"\n",
                    to_bf16 = head + "[[quantize.phases]]\nfrom = 50\nscheme = \"bf16\"\n",
                    to_fp8 = head + "[[quantize.phases]]\nfrom = 50\nscheme = \"fp8_blockwise\"\n";
  EXPECT_TRUE(alone(head));
  EXPECT_TRUE(alone(to_mxfp4));
  EXPECT_FALSE(alone(to_bf16));
  EXPECT_EQ(rows(head), 16);
  EXPECT_EQ(rows(to_mxfp4), 32);
  EXPECT_EQ(rows(to_fp8), 128);
  EXPECT_EQ(rows(to_bf16), 16);
}

// A phase alone, as for an estimate, keeps the parameters of the whole run.
TEST(RecipeSchedule, OnePhaseAlone) {
  Scheduled s(kFinish, 1000, 1);
  ASSERT_EQ(s.schedule->phases().size(), 1u);
  EXPECT_EQ(s.schemes(), "none mxfp4 mxfp8_e4m3 mxfp8_e4m3 none");
  EXPECT_EQ(s.schedule->phase_of(1), 0u);
  EXPECT_FALSE(s.net.at(0).weight.codes_alone);
  EXPECT_TRUE(s.net.at(2).weight.codes_alone);
}

TEST(RecipeSchedule, AnEntryWithoutEffectIsAnError) {
  const std::string head = "[training]\nsteps = 100\n[quantize]\nscheme = \"int8\"\n";
  const auto said = [&](const std::string& entry) {
    try {
      Scheduled s(head + "[[quantize.phases]]\n" + entry);
      return std::string();
    } catch (const Error& e) {
      return std::string(e.what());
    }
  };
  EXPECT_NE(said("from = 50\nscheme = \"int8\"\n").find("begins at step 50 changes no layer"), std::string::npos);
  EXPECT_NE(said("from = 50\nuse_sr_grad = false\n").find("changes no layer"), std::string::npos);
  const std::string none = said("from = 50\nlast_layers = 1\ntargets = [\"re:layers.0.*\"]\nscheme = \"int4\"\n");
  EXPECT_NE(none.find("quantize.phases[0]: int4 is for no layer"), std::string::npos) << none;
}

TEST(RecipeSchedule, PreparedOperandsFollow) {
  Scheduled s(
      "[training]\nsteps = 100\n[quantize]\nscheme = \"int8\"\n[[quantize.phases]]\nfrom = 50\nscheme = \"mxfp4\"\npreset = \"alto\"\n");
  ParameterStore store;
  store.materialize(s.net, {});
  store.initialize(1);
  const at::Tensor x = at::ones({32, 64}, at::kBFloat16);
  const at::NoGradGuard guard;
  Siblings both({&s.net.at(0), &s.net.at(1)});
  const auto run = [&] { return at::cat({s.net.at(0)(x, {}), both(x, {})}, 1); };
  const at::Tensor first = run();
  s.enter(50);
  const at::Tensor second = run();
  s.enter(49);
  EXPECT_FALSE(at::equal(first, second));
  EXPECT_TRUE(at::equal(first, run()));
  Scheduled alone("[quantize]\nscheme = \"mxfp4\"\npreset = \"alto\"\n");
  ParameterStore other;
  other.materialize(alone.net, {});
  other.initialize(1);
  Siblings siblings({&alone.net.at(0), &alone.net.at(1)});
  EXPECT_TRUE(at::equal(second, at::cat({alone.net.at(0)(x, {}), siblings(x, {})}, 1)));
}

TEST(RecipeSchedule, DeoscillationIsThatOfThePhase) {
  Scheduled s("[training]\nsteps = 100\n[quantize]\nscheme = \"mxfp4\"\ndeosc_step = 10\n[[quantize.phases]]\nfrom = 50\ndeosc_step = 0\n");
  EXPECT_EQ(s.net.at(0).deoscillation().step, 10);
  s.enter(50);
  EXPECT_EQ(s.net.at(0).deoscillation().step, 0);
}

}  // namespace
}  // namespace halftone::nn::recipe_schedule_test
