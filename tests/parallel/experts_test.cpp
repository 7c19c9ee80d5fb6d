// Expert parallelism trains as one process does.
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "halftone/parallel/expert.h"
#include "parallel/layouts.h"

namespace halftone::experts_test {
namespace {

using parallel::ExpertExchange, parallel::first_document, parallel::plan_exchange, parallel::return_rows, parallel::send_rows;

using Options = std::vector<std::string>;

constexpr double kRecipe = 1e-3;  // step 1 in low precision
const std::string kForced = "--debug.moe_force_load_balance", kWidths2 = "--parallelism.expert_tensor_parallel_degree=2";

Options scheme(const char* name) {
  return {std::string("--quantize.scheme=") + name, "--quantize.targets=Linear", "--quantize.targets=GroupedExperts"};
}
std::string ranks(int64_t n) { return fmt::format("--parallelism.expert_parallel_degree={}", n); }
std::string capacity(double c) { return fmt::format("--parallelism.expert_parallel_capacity={}", c); }

std::string dispatch(const char* type) { return fmt::format("--parallelism.expert_parallel_dispatch_dtype={}", type); }

struct ExpertsCase {
  const char* name;
  int64_t world;
  const char* family;
  Options options;
  nlohmann::json model = {};  // in addition to the small family's
  Options recipe = kFloat32;
  int64_t steps = 20, passes = 1;
  double first = 1e-6, others = 1e-4;
  bool padding = false;
};

void PrintTo(const ExpertsCase& c, std::ostream* out) { *out << c.name; }

const std::vector<ExpertsCase>& cases() {
  const std::string two = ranks(2), replicas = "--parallelism.data_parallel_replicate_degree=2";
  const Options cut = {two, kTensor2, kWidths2};
  const auto with = [](Options options, const std::string& more) {
    options.push_back(more);
    return options;
  };
  const nlohmann::json one_expert = {{"num_experts", 1}, {"experts_per_token", 1}}, wide = {{"expert_ffn_dim", 64}};
  const nlohmann::json losses = {{"route_aux_loss", 0.1}, {"route_z_loss", 0.1}, {"balance", 0.01}},
                       of_tokens = {{"route_z_loss", 0.1}, {"balance", 0.01}};
  static const std::vector<ExpertsCase> all = {
      {"qwen3_moe", 2, "qwen3_moe", {two}},
      {"deepseek_v3", 2, "deepseek_v3", {two}},
      {"gpt_oss", 2, "gpt_oss", {two}},
      {"recomputed", 2, "gpt_oss", {two, "--activation_checkpoint.mode=full"}, {}, kFloat32, 6},
      {"recomputed_ops",
       2,
       "deepseek_v3",
       {two, "--activation_checkpoint.mode=selective", "--activation_checkpoint.selective_ac_option=op"},
       {},
       kFloat32,
       6},
      {"passes", 2, "qwen3_moe", {two}, {}, kFloat32, 6, 3},
      {"never", 2, "deepseek_v3", {two, "--parallelism.fsdp_reshard_after_forward=never"}, {}, kFloat32, 6, 3},
      {"losses", 2, "deepseek_v3", {two}, {{"route_aux_loss", 0.1}, {"route_z_loss", 0.01}, {"balance", 0.01}}, kFloat32, 6},
      {"one_choice", 2, "qwen3_moe", {two}, {{"experts_per_token", 1}, {"num_experts", 2}}, kFloat32, 6},
      {"forced_balance", 2, "gpt_oss", {two, kForced}, {}, kFloat32, 6},
      {"capacity_for_all", 2, "deepseek_v3", {two, capacity(2)}, {}, kFloat32, 6},
      {"int8", 2, "qwen3_moe", {two}, {}, scheme("int8"), 3, 1, kRecipe, 2e-2},
      {"fp8_rowwise", 2, "gpt_oss", {two}, {}, scheme("fp8_rowwise"), 3, 1, kRecipe, 2e-2},
      {"mxfp4", 2, "deepseek_v3", {two}, {}, scheme("mxfp4"), 3, 1, kRecipe, 5e-2},
      {"codes", 2, "qwen3_moe", {two, dispatch("fp8_rowwise")}, {}, kFloat32, 6, 1, 1e-2, 5e-2},
      {"block_codes", 2, "deepseek_v3", {two, dispatch("mxfp8"), capacity(2)}, {}, kFloat32, 6, 1, 1e-2, 5e-2},
      {"codes_of_recipe", 2, "gpt_oss", {two, dispatch("fp8_rowwise")}, {}, scheme("fp8_rowwise"), 3, 1, kRecipe, 2e-2},
      {"plain", 2, "qwen3_moe", {two}, {}, {"--quantize.scheme=none"}, 5, 1, kRecipe, 2e-2},
      {"tensor", 2, "qwen3_moe", {two, kTensor2}, {}, kFloat32, 6},
      {"tensor_alone", 2, "deepseek_v3", {kTensor2}, {{"route_aux_loss", 0.1}, {"route_z_loss", 0.01}, {"balance", 0.01}}, kFloat32, 6},
      {"tensor_alone_int8", 2, "qwen3_moe", {kTensor2}, {{"expert_ffn_dim", 64}}, scheme("int8"), 3, 1, kRecipe, 2e-2},
      {"tensor_whole_sequences", 2, "deepseek_v3", {two, kTensor2, "--parallelism.enable_sequence_parallel=false"}, {}, kFloat32, 6},
      {"parts_of_experts", 2, "qwen3_moe", {}, one_expert, kFloat32, 6},
      {"parts_of_experts_3", 3, "gpt_oss", {}, one_expert, kFloat32, 6},  // two of an expert, and a process without
      {"fsdp_tensor", 4, "deepseek_v3", {two, kTensor2}},
      {"cut_qwen3_moe", 4, "qwen3_moe", cut},
      {"cut_deepseek_v3", 4, "deepseek_v3", cut},
      {"cut_gpt_oss", 4, "gpt_oss", cut},
      {"cut_passes", 4, "gpt_oss", with(cut, "--activation_checkpoint.mode=full"), {}, kFloat32, 6, 3},
      {"cut_losses", 4, "deepseek_v3", cut, {{"route_aux_loss", 0.1}, {"route_z_loss", 0.01}, {"balance", 0.01}}, kFloat32, 6},
      {"cut_whole_sequences", 4, "gpt_oss", with(cut, "--parallelism.enable_sequence_parallel=false"), {}, kFloat32, 6},
      {"cut_capacity", 4, "gpt_oss", with(cut, capacity(2)), {}, kFloat32, 6},
      {"cut_codes", 4, "deepseek_v3", with(with(cut, dispatch("mxfp8")), capacity(2)), {}, kFloat32, 6, 1, 1e-2, 5e-2},
      {"cut_fp8_rowwise", 4, "gpt_oss", cut, wide, scheme("fp8_rowwise"), 3, 1, kRecipe, 2e-2},
      {"cut_mxfp4", 4, "qwen3_moe", cut, wide, scheme("mxfp4"), 3, 1, kRecipe, 5e-2},
      {"fsdp_tensor_all_ranks", 4, "qwen3_moe", {ranks(4), kTensor2}},
      {"fsdp_4", 4, "deepseek_v3", {two}},
      {"all_ranks", 4, "qwen3_moe", {ranks(4)}},
      {"hsdp", 4, "gpt_oss", {two, replicas}},
      {"hsdp_passes", 4, "qwen3_moe", {two, replicas}, {}, kFloat32, 20, 3},
      {"parts_of_own_experts", 4, "qwen3_moe", {two}, {{"num_experts", 2}, {"experts_per_token", 1}}},
      {"recomputed_4", 4, "deepseek_v3", {two, "--activation_checkpoint.mode=full"}, {}, kFloat32, 10, 3},
      {"capacity_4", 4, "gpt_oss", {two, capacity(2)}},
      {"fp8_rowwise_4", 4, "deepseek_v3", {two}, {}, scheme("fp8_rowwise"), 3, 1, kRecipe, 2e-2},
      {"eight", 8, "qwen3_moe", {ranks(4), replicas}, {{"num_experts", 8}}, kFloat32, 5},
      {"cut_eight", 8, "gpt_oss", cut, {{"num_experts", 2}}, kFloat32, 5},  // and these parts in two
      {"padding", 2, "deepseek_v3", {two}, losses, kFloat32, 6, 1, 1e-6, 1e-4, true},
      {"padding_capacity", 2, "gpt_oss", {two, capacity(2)}, losses, kFloat32, 6, 3, 1e-6, 1e-4, true},
      {"padding_codes", 2, "qwen3_moe", {two, dispatch("fp8_rowwise")}, losses, kFloat32, 6, 1, 1e-2, 5e-2, true},
      {"padding_forced", 2, "gpt_oss", {two, kForced}, losses, kFloat32, 6, 1, 1e-6, 1e-4, true},
      {"padding_tensor", 2, "qwen3_moe", {kTensor2}, losses, kFloat32, 6, 1, 1e-6, 1e-4, true},
      {"padding_tensor_ranks", 2, "gpt_oss", {two, kTensor2}, of_tokens, kFloat32, 6, 1, 1e-6, 1e-4, true},
      {"padding_whole_sequences",
       2,
       "deepseek_v3",
       {two, kTensor2, "--parallelism.enable_sequence_parallel=false"},
       of_tokens,
       kFloat32,
       6,
       1,
       1e-6,
       1e-4,
       true},
      {"padding_context", 2, "deepseek_v3", {two, kContext2}, of_tokens, kFloat32, 6, 1, 1e-6, 1e-4, true},
      {"padding_pipeline", 4, "gpt_oss", {two, kPipeline2, kZeroBubble}, losses, kFloat32, 6, 4, 1e-6, 1e-4, true},
      {"padding_cut", 4, "gpt_oss", with(cut, capacity(2)), losses, kFloat32, 6, 1, 1e-6, 1e-4, true},
      {"cut_pipeline", 8, "deepseek_v3", with(cut, "--parallelism.pipeline_parallel_degree=2"), {}, kFloat32, 5, 4},
  };
  return all;
}

Options model_of(const char* family, const nlohmann::json& more) {
  return model_options(family,
                       {{"dim", int64_t{64}},
                        {"n_heads", int64_t{2}},
                        {"n_kv_heads", int64_t{2}},
                        {"n_layers", int64_t{3}},
                        {"head_dim", int64_t{32}},
                        {"ffn_dim", int64_t{96}},
                        {"vocab_size", kSmallVocabulary}},
                       more);
}

// A case's runs, with several ranks and with one process.
std::pair<Results, Results> run_mesh(const Rank& rank, const ExpertsCase& c) {
  const Layout layout{c.name, c.options, c.passes, "", false, c.padding};
  Options options = c.recipe;
  for (std::string& option : model_of(c.family, c.model)) options.push_back(std::move(option));
  if (std::ranges::find(c.options, kForced) != c.options.end()) options.push_back(kForced);
  const JobConfig config = layout.together(options, rank.world);
  const int64_t rows = parallel::Mesh(config.parallelism, rank.world).size("batch");
  return {together(rank, layout, config, c.steps, at::kCPU), alone(layout.alone(options), c.steps, rows, layout, at::kCPU)};
}

double dropped(const StepResult& step) {
  double n = 0;
  for (const ExpertLoad& load : step.experts) n += load.dropped;
  return n;
}

constexpr const char* kCase = "HALFTONE_TEST_CASE";  // case to run in child processes; unset: all cases for this many ranks
const comm::Ranks kTrain("experts", [](const Rank& rank) {
  be_quiet();
  const char* one = std::getenv(kCase);
  for (const ExpertsCase& c : cases()) {
    if (c.world != rank.world || (one != nullptr && std::string_view(c.name) != one)) continue;
    const auto [results, reference] = run_mesh(rank, c);
    check_close(results, reference, c.first, c.others, c.name);
    const std::vector<ExpertLoad>&loads = results[0].experts, &expected = reference[0].experts;
    check(!loads.empty() && loads.size() == expected.size(), "{} layers of experts, {} in one process", loads.size(), expected.size());
    for (size_t i = 0; i < loads.size(); ++i) {
      const bool exact = c.first < kRecipe;
      check(!exact || loads[i].share == expected[i].share, "{}: other loads in {} than in one process", c.name, loads[i].layer);
      check(loads[i].dropped == 0, "{}: {} choices were dropped", c.name, loads[i].dropped);
    }
  }
});

// Insufficient capacity: drops are counted, and training continues.
const comm::Ranks kDrops("experts without room", [](const Rank& rank) {
  be_quiet();
  const ExpertsCase c{"drops", rank.world, "gpt_oss", {ranks(2), capacity(0.5)}};
  const auto [results, reference] = run_mesh(rank, c);
  const double choices = static_cast<double>(kRows * kSmallPositions * 2 * 3);
  for (const StepResult& step : results) {
    check(step.updated, "a step did not update");
    check(dropped(step) >= 0.5 * choices - 1e-9 && dropped(step) < choices, "{} of {} choices were dropped", dropped(step), choices);
  }
  const double begin = results.front().loss_sum, end = results.back().loss_sum;
  check(end < begin && std::abs(begin / reference.front().loss_sum - 1) < 0.1, "losses of {} and {}", begin, end);
});

// y[t] = sum over j of gates[t, j] * (choice[t, j] + 1) * x[t], by an exchange whose experts multiply rows by their index plus one.
void exchange(const Rank& rank, comm::Communicator& group, int64_t tokens, const at::Tensor& choice, double room, int64_t experts) {
  constexpr int64_t kWidth = 8;
  const int64_t top_k = choice.size(1), own = experts / rank.world;
  at::manual_seed(static_cast<uint64_t>(7 + rank.rank));
  const auto leaf = [](const at::Tensor& t) { return t.clone().set_requires_grad(true); };
  const at::Tensor x0 = at::randn({tokens, kWidth}), gates0 = at::rand({tokens, top_k}), dy = at::randn({tokens, kWidth});
  const at::Tensor x = leaf(x0), gates = leaf(gates0);
  const at::Tensor goes = choice.lt(experts);
  ExpertRows placed = place_experts(choice, experts, !goes.all().item<bool>());
  placed.tokens_in_row = tokens, placed.documents = at::arange(tokens, at::kInt).floor_divide(4) * 4;  // of four tokens each
  const ExpertExchange e = plan_exchange(placed, choice, group, room);
  const at::Tensor rows = gather_rows(send_rows(x, e), e.received);
  at::Tensor factor = at::zeros({e.received.rows, 1});
  for (int64_t i = 0; i < own; ++i) {
    const int64_t first = e.received.offsets[i].item<int32_t>(), end = e.received.ends[i].item<int32_t>();
    factor.narrow(0, first, end - first).fill_(static_cast<double>(rank.rank * own + i + 1));
  }
  const at::Tensor kept = e.kept.defined() ? e.kept : goes.to(at::kFloat);
  combine_rows(return_rows(sum_rows(rows * factor, e.received), e), (gates * kept).contiguous(), e.sent).backward(dy);

  const at::Tensor x1 = leaf(x0), gates1 = leaf(gates0);
  const at::Tensor y = (gates1 * kept * (choice + 1)).sum(1, true) * x1;
  y.backward(dy);
  const at::Tensor made = sum_rows(gather_rows(send_rows(x0, e), e.received) * factor, e.received);
  const at::Tensor again = combine_rows(return_rows(made, e), gates0 * kept, e.sent);
  const auto same = [&](const char* what, const at::Tensor& got, const at::Tensor& expected) {
    check(at::allclose(got, expected, 1e-5, 1e-6), "{} of {} tokens with room {} are up to {} off", what, tokens, room,
          (got - expected).abs().max().item<double>());
  };
  same("rows", again, y), same("gradients", x.grad(), x1.grad()), same("gradients of gates", gates.grad(), gates1.grad());
  // The document and rank of a row travel with it.
  const at::Tensor document = (placed.documents + rank.rank * 1000).to(at::kFloat).unsqueeze(1);
  const int64_t apart = first_document(1, rank.world);
  const at::Tensor own_documents = e.received.documents % apart + e.received.documents.floor_divide(apart) * 1000;
  same("documents", gather_rows(own_documents.to(at::kFloat).unsqueeze(1), e.received), gather_rows(send_rows(document, e), e.received));
  if (room == 0) return;
  const auto each = static_cast<int64_t>(std::ceil(room * static_cast<double>(tokens * top_k) / static_cast<double>(rank.world)));
  int64_t expected = 0;
  for (int64_t r = 0; r < rank.world; ++r) {
    expected += std::max<int64_t>(0, choice.floor_divide(own).eq(r).sum().item<int64_t>() - each);
  }
  check(e.dropped.item<int64_t>() == expected && kept.eq(0).logical_and(goes).sum().item<int64_t>() == expected,
        "{} choices dropped, expected {}", e.dropped.item<int64_t>(), expected);
}

const comm::Ranks kExchange("exchange", [](const Rank& rank) {
  be_quiet();
  comm::Watch watch = rank.watch();
  comm::Communicator group(watch, "ep", rank.all(), at::kCPU);
  const int64_t experts = 3 * rank.world;
  const auto any = [&](int64_t tokens) { return at::randint(experts, {tokens, 2}, at::kInt); };
  at::manual_seed(static_cast<uint64_t>(rank.rank));
  for (const int64_t tokens : {40, 1}) exchange(rank, group, tokens, any(tokens), 0, experts);
  exchange(rank, group, 5 + 3 * rank.rank, any(5 + 3 * rank.rank), 0, experts);                           // different numbers of tokens
  exchange(rank, group, 9, at::full({9, 1}, 1, at::kInt), 0, experts);                                    // all to the first rank
  exchange(rank, group, 9, at::full({9, 1}, static_cast<int64_t>(rank.rank * 3), at::kInt), 0, experts);  // none to others
  const at::Tensor some = any(40), none = at::full({5, 2}, experts, at::kInt);  // experts: padding's choice, of none
  some.narrow(0, 9, 20 + rank.rank).fill_(experts);
  exchange(rank, group, 40, some, 0, experts), exchange(rank, group, 5, none, 0, experts);
  for (const double room : {0.3, 1.0, static_cast<double>(rank.world)}) {
    exchange(rank, group, 40, any(40), room, experts);
    exchange(rank, group, 40, some, room, experts), exchange(rank, group, 5, none, room, experts);
    exchange(rank, group, 9, at::full({9, 1}, 1, at::kInt), room, experts);
  }
});

const comm::Ranks kIndivisible("experts that do not divide", [](const Rank& rank) {
  be_quiet();
  run_mesh(rank, {"indivisible", rank.world, "qwen3_moe", {ranks(2)}, {{"num_experts", 3}}});
});

class Experts : public testing::TestWithParam<ExpertsCase> {};
TEST_P(Experts, TrainAsOneProcess) {
  setenv(kCase, GetParam().name, 1);
  expect_success("experts", GetParam().world);
}
std::vector<ExpertsCase> of_worlds(int64_t least, int64_t most) {
  std::vector<ExpertsCase> some;
  std::ranges::copy_if(cases(), std::back_inserter(some), [&](const ExpertsCase& c) { return c.world >= least && c.world <= most; });
  return some;
}
std::string name_of(const testing::TestParamInfo<ExpertsCase>& info) { return info.param.name; }
// A single start of two processes, which takes a second.
TEST(ExpertsOfTwo, TrainAsOneProcess) {
  unsetenv(kCase);
  expect_success("experts", 2);
}
INSTANTIATE_TEST_SUITE_P(Distributed, Experts, testing::ValuesIn(of_worlds(3, 8)), name_of);

TEST(ExpertsExchange, BringsRowsBack) { expect_success("exchange", 2); }
TEST(ExpertsExchangeDistributed, BringsRowsBack) {
  for (const int64_t world : {3, 4}) expect_success("exchange", world);
}
TEST(ExpertsExchange, NumbersOfDocumentsStayInt32) {
  for (const int64_t ranks : {2, 128, 129, 4096}) {
    const int64_t apart = first_document(1, ranks);
    EXPECT_GE(apart, 500000) << ranks;  // tokens of a micro-batch
    EXPECT_LE(first_document(ranks - 1, ranks) + apart, std::numeric_limits<int32_t>::max()) << ranks;
  }
}
TEST(ExpertsExchange, DropsWhatFindsNoRoom) { expect_success("experts without room", 2); }
TEST(ExpertsExchange, RefusesWhatDoesNotDivide) {
  for (const comm::Outcome& outcome : comm::run_ranks("experts that do not divide", 2)) {
    EXPECT_EQ(outcome.status, 2);
    EXPECT_NE(outcome.said.find("parallelism.expert_parallel_degree must divide the model's num_experts"), std::string::npos)
        << outcome.said;
  }
}

}  // namespace
}  // namespace halftone::experts_test
