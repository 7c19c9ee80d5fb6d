#include "halftone/cli/plan_choice.h"

#include <gtest/gtest.h>

#include <cmath>

#include "halftone/base/error.h"
#include "halftone/config/recipe_file.h"

namespace halftone::plan_choice_test {
namespace {

using namespace plan;

std::string error_of(const auto& run) {
  try {
    run();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

Group group(std::vector<std::string> layers, double seconds, const std::vector<std::pair<double, double>>& trials) {
  Group g{std::move(layers), 64, 64, 64, seconds};
  for (const auto& [time, loss] : trials) g.trials.push_back(time > 0 ? std::optional(Trial{time, loss}) : std::nullopt);
  return g;
}

// A step of 10 s; the candidates are a careful and a fast format.
std::vector<Group> three_groups() {
  return {group({"layers.0.attention.wq", "layers.0.attention.wk"}, 3, {{2, 0.01}, {1, 1}}),  // 100 and 2 s a percent
          group({"layers.0.feed_forward.w2"}, 3, {{1.5, 0.1}, {1, 0.11}}),                    // 15 and 18.2
          group({"layers.0.attention.wo"}, 1, {{1.5, 0.01}, {-1, 0}})};                       // slower; not taken
}

TEST(PlanChoice, StopsAtTheBudget) {
  const auto choose = [](double loss) { return choose_formats(three_groups(), 10, {.speedup = {}, .loss = loss}).formats; };
  EXPECT_EQ(choose(0), (std::vector<int>{-1, -1, -1}));
  EXPECT_EQ(choose(0.05), (std::vector<int>{0, -1, -1}));
  EXPECT_EQ(choose(0.115), (std::vector<int>{0, 0, -1})) << "the better rate does not fit";
  EXPECT_EQ(choose(0.2), (std::vector<int>{0, 1, -1}));
  EXPECT_EQ(choose(2), (std::vector<int>{1, 1, -1})) << "a slower format is never chosen";
  const Choice all = choose_formats(three_groups(), 10, {.speedup = {}, .loss = 2});
  EXPECT_DOUBLE_EQ(all.seconds, 10 - 2 - 2);
  EXPECT_DOUBLE_EQ(all.loss, 1.11);
}

TEST(PlanChoice, StopsAtTheSpeedup) {
  const auto choose = [](double speedup) { return choose_formats(three_groups(), 10, {.speedup = speedup, .loss = {}}); };
  EXPECT_EQ(choose(1).formats, (std::vector<int>{-1, -1, -1}));
  EXPECT_EQ(choose(1.1).formats, (std::vector<int>{0, -1, -1}));
  EXPECT_EQ(choose(1.4).formats, (std::vector<int>{0, 1, -1}));
  EXPECT_DOUBLE_EQ(choose(1.4).seconds, 7);
  EXPECT_EQ(error_of([&] { choose(1.7); }),
            "plan: --speedup 1.7: at most 1.667 is possible here: the linear layers are 70% of the step; ask for less");
  EXPECT_EQ(error_of([] { choose_formats(three_groups(), 10, {.speedup = 1.4, .loss = 0.05}); }),
            "plan: --speedup 1.4: at most 1.111 is possible here within --loss-budget 0.05: the linear layers are 70% of the step; ask for "
            "less, or raise --loss-budget");
}

TEST(PlanChoice, AnErrorThatIsNotFiniteIsNeverChosen) {
  const std::vector<Group> groups = {group({"layers.0.attention.wo"}, 3, {{1, NAN}, {2, 0.1}})};
  EXPECT_EQ(choose_formats(groups, 10, {.speedup = {}, .loss = 9}).formats, (std::vector<int>{1}));
}

TEST(PlanChoice, TheLossIsAMeanOverLayers) {
  const double one = loss_increase({{0.02, 0, 0}}, 1);
  EXPECT_GT(one, 0);
  EXPECT_DOUBLE_EQ(loss_increase({{0.02, 0, 0}, {0.02, 0, 0}}, 4), one / 2);
  EXPECT_DOUBLE_EQ(loss_increase({{0.02, 0.02, 0.02}}, 1), one / 0.75) << "a quarter comes from the backward products";
}

TEST(PlanChoice, TheRecipeReadsBack) {
  const std::vector<Group> groups = three_groups();
  const std::string text = recipe_yaml(groups, {{1, 0, -1}, 0, 0}, {"int8", "mxfp4"}, "first\nsecond");
  EXPECT_TRUE(text.starts_with("# first\n# second\ntraining_stage:\n")) << text;
  const std::vector<RecipeModifier> read = read_recipe(text, "plan.yaml");
  ASSERT_EQ(read.size(), 2);
  EXPECT_EQ(read[0].options.scheme.name, "int8");
  EXPECT_EQ(read[0].options.targets, (StringList{"layers.0.feed_forward.w2"}));
  EXPECT_EQ(read[1].options.scheme.name, "mxfp4");
  EXPECT_EQ(read[1].options.preset, "recommended");
  EXPECT_EQ(read[1].options.targets, (StringList{"layers.0.attention.wq", "layers.0.attention.wk"}));
  const std::vector<RecipeModifier> none = read_recipe(recipe_yaml(groups, {{-1, -1, -1}, 0, 0}, {"int8", "mxfp4"}, ""), "plan.yaml");
  ASSERT_EQ(none.size(), 1);
  EXPECT_EQ(none[0].options.scheme.name, "bf16");
}

}  // namespace
}  // namespace halftone::plan_choice_test
