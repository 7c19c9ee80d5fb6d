// Every shipped recipe trains every family: a reduced debug model memorizes one batch.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <numeric>

#include "models/small_family.h"
#include "recipe_files.h"
#include "train/small_engine.h"

namespace halftone {
namespace {

std::vector<std::string> recipes() {
  std::vector<std::string> names = recipe_names();
  names.emplace_back("none");
  return names;
}

std::vector<std::string> families() {
  std::vector<std::string> names;
  for (const ModelFamily* family : model_families()) names.emplace_back(family->name);
  return names;
}

class Families : public ::testing::TestWithParam<std::tuple<std::string, std::string>> {};

TEST_P(Families, LearnABatch) {
  const auto& [family, recipe] = GetParam();
  OptionTable model = {{"dim", int64_t{64}},      {"n_heads", int64_t{2}},  {"n_kv_heads", int64_t{1}},
                       {"head_dim", int64_t{32}}, {"ffn_dim", int64_t{96}}, {"vocab_size", kSmallVocabulary}};
  model["n_layers"] = int64_t{recipe == "mixed_depth" ? 6 : 2};  // that recipe names its layers
  for (const ModelFamily* f : model_families()) {
    if (f->name != family) continue;
    if (f->decoder->clamped && recipe == "mixed") GTEST_SKIP() << "it names layers of dense blocks, of which this family has none";
    const bool experts = f->decoder->experts != DecoderTraits::Experts::none;
    if (!experts && needs_experts(recipe)) GTEST_SKIP() << "it names layers of experts, of which this family has none";
    model = small_family(*f, model);
    if (f->decoder->windows != DecoderTraits::Windows::none) model["window"] = int64_t{24};
  }
  std::vector<std::string> arguments = {"--model.name=" + family, "--quantize.scheme=none", "--optimizer.lr=3e-3"};
  if (recipe != "none") arguments.push_back("--quantize.recipe=" + recipe_file(recipe).string());
  JobConfig config = small_config(arguments);
  config.model.overrides = model;
  const int threads = at::get_num_threads();
  at::set_num_threads(1);  // fastest here
  Engine engine(config, small_options());
  engine.initialize();
  at::manual_seed(5);
  const std::vector<MicroBatch> batches = small_step();
  std::vector<double> losses;
  for (int64_t step = 1; step <= 20; ++step) {
    const StepResult result = engine.step(batches, step, 1);
    ASSERT_TRUE(result.finite && result.updated) << "step " << step;
    losses.push_back(result.loss_sum / static_cast<double>(result.valid_labels));
  }
  at::set_num_threads(threads);
  const double first = std::accumulate(losses.begin(), losses.begin() + 3, 0.0) / 3;
  const double last = std::accumulate(losses.end() - 3, losses.end(), 0.0) / 3;
  EXPECT_LT(last, first - 0.5);
}
INSTANTIATE_TEST_SUITE_P(All, Families, ::testing::Combine(::testing::ValuesIn(families()), ::testing::ValuesIn(recipes())),
                         [](const auto& info) { return std::get<0>(info.param) + "_" + std::get<1>(info.param); });

}  // namespace
}  // namespace halftone
