// Context-parallel rows are computed as in one process: attention itself, and training.
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "halftone/ops/latent_attention.h"
#include "halftone/parallel/context.h"
#include "ops/attention_reference.h"
#include "parallel/layouts.h"

namespace halftone {
namespace {

using parallel::ContextBalance, parallel::ContextOptions, parallel::ContextRows, parallel::ContextRun, parallel::share_places;

constexpr ContextBalance kBalances[] = {ContextBalance::none, ContextBalance::head_tail, ContextBalance::by_work};

// Positions.

int64_t work_of(const std::vector<ContextRun>& runs, const at::Tensor& starts, int64_t window) {
  int64_t work = 0;
  for (const ContextRun& run : runs) {
    for (int64_t row = 0; row < starts.size(0); ++row) {
      for (int64_t place = run.first; place < run.end; ++place) {
        const int64_t seen = place - starts[row][place].item<int32_t>() + 1;
        work += window > 0 ? std::min(window, seen) : seen;
      }
    }
  }
  return work;
}

TEST(ContextPlaces, EachProcessHasItsShareAndAllHaveTheRow) {
  const at::Tensor starts = at::zeros({1, 1536}, at::kInt);
  for (const ContextBalance balance : kBalances) {
    for (const int64_t processes : {2, 3, 4}) {
      std::vector<int> seen(1536);
      for (const std::vector<ContextRun>& runs : share_places(1536, processes, {balance}, starts)) {
        int64_t own = 0;
        for (const ContextRun& run : runs) {
          own += run.size();
          for (int64_t place = run.first; place < run.end; ++place) ++seen[static_cast<size_t>(place)];
        }
        EXPECT_EQ(own, 1536 / processes);
      }
      EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), 1536);
    }
  }
  const std::vector<std::vector<ContextRun>> two = share_places(64, 2, {}, {});
  EXPECT_EQ(two[0], (std::vector<ContextRun>{{0, 16}, {48, 64}}));
  EXPECT_EQ(two[1], (std::vector<ContextRun>{{16, 48}}));
  EXPECT_THROW(share_places(66, 2, {}, {}), Error);
  EXPECT_EQ(share_places(66, 2, {ContextBalance::none}, {})[1], (std::vector<ContextRun>{{33, 66}}));
}

// A long document in the first half, short ones after it: halves and head-tail chunks have unequal work.
TEST(ContextPlaces, WorkIsBalancedByTheMask) {
  at::Tensor starts = at::zeros({1, 4096}, at::kInt);
  for (int64_t place = 2048; place < 4096; ++place) starts[0][place] = place / 64 * 64;
  const auto imbalance = [&](ContextBalance balance, int64_t window) {
    int64_t most = 0, all = 0;
    for (const auto& runs : share_places(4096, 2, {balance, false, window}, starts)) {
      const int64_t work = work_of(runs, starts, window);
      most = std::max(most, work), all += work;
    }
    return 2.0 * static_cast<double>(most) / static_cast<double>(all);
  };
  EXPECT_GT(imbalance(ContextBalance::none, 0), 1.9);
  EXPECT_GT(imbalance(ContextBalance::head_tail, 0), 1.4);
  EXPECT_LT(imbalance(ContextBalance::by_work, 0), 1.05);
  EXPECT_LT(imbalance(ContextBalance::by_work, 256), 1.1);
}

// Attention.

struct Case {
  const char* name;
  bool documents = false;
  int64_t window = 0;
  bool sinks = false, norms = false, latent = false;
  int64_t heads = 4, kv_heads = 2;
  at::ScalarType type = at::kFloat;
};
constexpr Case kCases[] = {{"causal"},
                           {"documents", true},
                           {"window", false, 21},
                           {"long window", false, 60},
                           {"sinks", false, 0, true},
                           {"all", true, 21, true, true, false, 6, 1},
                           {"norms", false, 0, false, true, false, 3, 3},
                           {"latent", false, 0, false, false, true, 3, 3},
                           {"latent documents", true, 0, false, false, true, 3, 3},
                           {"bfloat16", true, 40, true, true, false, 4, 2, at::kBFloat16}};
constexpr int64_t kBatch = 2, kPlaces = 96, kDim = 16, kNope = 24, kRope = 8, kValues = 16;

struct Weights {
  Weight q_norm, k_norm, sinks;
  explicit Weights(const Case& c)
      : q_norm(make_weight((at::rand({kDim}) + 0.5).to(c.type))),
        k_norm(make_weight((at::rand({kDim}) + 0.5).to(c.type))),
        sinks(make_sinks(c.heads, c.type)) {}
  void give(AttentionArgs& a, const Case& c) {
    a.norm_eps = 1e-5;
    if (c.norms) a.q_norm = &q_norm, a.k_norm = &k_norm;
    if (c.sinks) a.sinks = &sinks;
  }
  std::vector<at::Tensor> gradients() const { return {q_norm.grad, k_norm.grad, sinks.grad}; }
};

// Output and gradients of the inputs.
std::vector<at::Tensor> run_case(const std::vector<at::Tensor>& inputs, const at::Tensor& d_out, const AttentionArgs& a, bool latent) {
  at::AutoGradMode grad(true);
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& t : inputs) leaves.push_back(t.detach().clone().set_requires_grad(true));
  const at::Tensor out = latent ? latent_attention(leaves[0] * 1.0, leaves[1], leaves[2], a) : causal_attention(leaves[0] * 1.0, a);
  torch::autograd::backward({out}, {d_out});
  std::vector<at::Tensor> found = {out.detach()};
  for (const at::Tensor& t : leaves) found.push_back(t.grad());
  return found;
}

void check_case(const Case& c, ContextBalance balance, bool ring, comm::Communicator& ranks) {
  at::manual_seed(7);
  const int64_t dim = c.latent ? kNope + kRope : kDim, v_dim = c.latent ? kValues : kDim;
  AttentionArgs whole = args_of(kBatch, kPlaces, c.heads, c.kv_heads, dim, c.documents, c.window, c.latent ? kRope : 0);
  if (c.latent) whole.v_dim = v_dim;
  std::vector<at::Tensor> inputs = {random(kBatch * kPlaces, (c.heads + 2 * c.kv_heads) * kDim, c.type)};
  if (c.latent) {
    inputs = {random(kBatch * kPlaces, c.heads * dim, c.type), random(kBatch * kPlaces, c.heads * (kNope + v_dim), c.type),
              random(kBatch * kPlaces, kRope, c.type)};
  }
  const at::Tensor d_out = random(kBatch * kPlaces, c.heads * v_dim, c.type);
  Weights of_whole(c);
  Weights of_part = of_whole;
  for (Weight* w : {&of_part.q_norm, &of_part.k_norm, &of_part.sinks}) w->grad = at::zeros_like(w->grad);
  of_whole.give(whole, c);
  const std::vector<at::Tensor> expected = run_case(inputs, d_out, whole, c.latent);

  ContextOptions options;
  options.balance = balance, options.ring = ring, options.window = c.window;
  AttentionArgs part = whole;
  const auto context = std::make_shared<ContextRows>(ranks, options, kBatch, kPlaces, whole.documents.host_start, at::kCPU);
  part.documents = {}, part.documents.port = context, part.seq = context->places();
  part.positions = context->own(at::arange(kPlaces, at::kInt).unsqueeze(0).expand({kBatch, kPlaces})).flatten();
  of_part.give(part, c);
  const auto own = [&](const at::Tensor& t) { return context->own(t.view({kBatch, kPlaces, -1})).flatten(0, 1); };
  std::vector<at::Tensor> own_inputs;
  for (const at::Tensor& t : inputs) own_inputs.push_back(own(t));
  const std::vector<at::Tensor> found = run_case(own_inputs, own(d_out), part, c.latent);

  const double limit = c.type == at::kFloat ? 1e-6 : 1e-2;
  const auto check_close = [&](const at::Tensor& e, const at::Tensor& f, const char* what, size_t i) {
    const double error = relative(e, f);
    check(error <= limit, "{}, balance {}, {}: {} {} is {} off that of one process", c.name, static_cast<int>(balance),
          ring ? "ring" : "gather", what, i, error);
  };
  for (size_t i = 0; i < expected.size(); ++i) check_close(own(expected[i]), found[i], "result", i);
  for (size_t i = 0; i < of_part.gradients().size(); ++i) {
    at::Tensor sum = of_part.gradients()[i];
    ranks.all_reduce(sum).wait();
    if (i < 2 ? c.norms : c.sinks) check_close(of_whole.gradients()[i], sum, "gradient of weight", i);
  }
}

const comm::Ranks kAttention("attention", [](const Rank& rank) {
  be_quiet();
  comm::Watch watch = rank.watch();
  comm::Communicator ranks(watch, "cp", rank.all(), at::kCPU);
  for (const Case& c : kCases) {
    for (const ContextBalance balance : kBalances) {
      for (const bool ring : {false, true}) check_case(c, balance, ring, ranks);
    }
  }
});
TEST(Context, AttentionIsThatOfOneProcess) { expect_success("attention", 2); }
TEST(ContextDistributed, AttentionIsThatOfOneProcess) { expect_success("attention", 4); }

// Training.

constexpr int64_t kStepRows = 4;

MicroBatch rows_of(int64_t step, int64_t first, int64_t count, bool documents) {
  at::manual_seed(1000 + static_cast<uint64_t>(step));
  const at::Tensor all = at::randint(kSmallVocabulary, {kStepRows, kSmallPositions + 1}, at::kLong);
  MicroBatch b;
  at::Tensor labels = all.narrow(1, 1, kSmallPositions).clone();
  labels.narrow(1, 0, 20).masked_fill_(all.narrow(1, 0, 20).lt(100), -100);
  b.labels = labels.narrow(0, first, count).contiguous();
  b.valid_labels = b.labels.ge(0).sum().item<int64_t>(), b.first_row = first * kSmallPositions;
  b.input.tokens = all.narrow(0, first, count).narrow(1, 0, kSmallPositions).contiguous();
  if (documents) b.input.documents = packed(count, kSmallPositions);
  return b;
}

std::vector<StepResult> train(Engine& engine, int64_t steps, int64_t index, int64_t processes, bool documents) {
  std::vector<StepResult> results;
  for (int64_t step = 1; step <= steps; ++step) {
    const int64_t valid = rows_of(step, 0, kStepRows, false).valid_labels, count = kStepRows / processes;
    engine.accumulate(std::vector<MicroBatch>{rows_of(step, index * count, count, documents)}, step, valid);
    engine.update(1);
    results.push_back(engine.result());
  }
  return results;
}

struct Run {
  std::string name;
  const char* family;
  std::vector<std::string> shared;   // also options of the single-process run
  std::vector<std::string> options;  // options of [parallelism]
  bool documents = false;
  int64_t steps = 20;
  double first = 1e-6, others = 1e-4;
};

JobConfig config_of(const Run& run, bool together, int64_t processes) {
  std::vector<std::string> arguments = run.shared;
  arguments.push_back(std::string("--model.name=") + run.family);
  if (together) arguments.insert(arguments.end(), run.options.begin(), run.options.end());
  JobConfig config = small_config(arguments, processes);
  OptionTable model = {{"dim", int64_t{64}},      {"n_heads", int64_t{2}},  {"n_kv_heads", int64_t{1}},      {"n_layers", int64_t{2}},
                       {"head_dim", int64_t{32}}, {"ffn_dim", int64_t{96}}, {"vocab_size", kSmallVocabulary}};
  for (const ModelFamily* f : model_families()) {
    if (f->name != run.family) continue;
    model = small_family(*f, model);
    if (f->decoder->windows != DecoderTraits::Windows::none) model["window"] = int64_t{24};
  }
  config.model.overrides = model;
  return config;
}

void train_as_one(const Rank& rank, const Run& run) {
  const JobConfig config = config_of(run, true, rank.world);
  comm::Watch watch = rank.watch();
  const parallel::Mesh mesh(config.parallelism, rank.world);
  parallel::Axes axes(watch, mesh, config.parallelism, {});
  Engine::Options options = small_options();
  options.axes = &axes;
  Engine engine(config, options), one(config_of(run, false, 1), small_options());
  engine.initialize(), one.initialize();
  const int64_t index = mesh.coordinate(rank.rank, "batch"), processes = mesh.size("batch");
  const std::vector<StepResult> found = train(engine, run.steps, index, processes, run.documents);
  // Its rows are in the same micro-batches, whose documents differ.
  std::vector<StepResult> expected;
  for (int64_t step = 1; step <= run.steps; ++step) {
    std::vector<MicroBatch> batches;
    for (int64_t i = 0; i < processes; ++i)
      batches.push_back(rows_of(step, i * (kStepRows / processes), kStepRows / processes, run.documents));
    expected.push_back(one.step(batches, step, 1));
  }
  check_close(found, expected, run.first, run.others, run.name);
  // Validation of this rank's rows; context-parallel ranks add up their parts.
  const MicroBatch rows = rows_of(run.steps + 1, index * (kStepRows / processes), kStepRows / processes, run.documents);
  at::Tensor loss = at::full({1}, engine.evaluate(rows), at::kDouble);
  axes.context()->all_reduce(loss).wait();
  const double error = std::abs(loss.item<double>() / one.evaluate(rows) - 1);
  check(error <= run.others, "{}: validation is {} off that of one process", run.name, error);
}

const std::vector<std::string> kTwo = {"--parallelism.context_parallel_degree=2"};
std::vector<std::string> operator+(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}
const std::vector<std::string> kRing = {"--parallelism.context_parallel_rotate_method=alltoall"};
const std::vector<std::string> kByWork = {"--parallelism.context_parallel_load_balancer=ptrr",
                                          "--parallelism.context_parallel_ptrr_mask_key=sliding_window_mask"};

const comm::Ranks kTraining("training", [](const Rank& rank) {
  be_quiet();
  const std::vector<std::string> recomputed = {"--activation_checkpoint.mode=full"},
                                 by_op = {"--activation_checkpoint.selective_ac_option=op"};
  for (const Run& run :
       {Run{"llama", "llama3", kFloat32, kTwo}, Run{"llama recomputed", "llama3", kFloat32, kTwo + kRing + recomputed, true, 3},
        Run{"qwen documents", "qwen3", kFloat32, kTwo + kByWork + by_op, true, 3}, Run{"gpt_oss", "gpt_oss", kFloat32, kTwo},
        Run{"gpt_oss documents", "gpt_oss", kFloat32, kTwo + kRing + kByWork, true, 3}, Run{"deepseek", "deepseek_v3", kFloat32, kTwo},
        Run{"deepseek documents", "deepseek_v3", kFloat32, kTwo + kRing, true, 3}}) {
    train_as_one(rank, run);
  }
});
TEST(Context, TrainsAsOneProcess) { expect_success("training", 2); }

const comm::Ranks kRecipes("recipes", [](const Rank& rank) {
  be_quiet();
  for (const char* scheme : {"none", "int8", "mxfp4", "nvfp4"}) {
    train_as_one(rank, {scheme, "llama3", {std::string("--quantize.scheme=") + scheme}, kTwo, true, 3, 1e-3, 2e-2});
  }
});
TEST(Context, TrainsInRecipes) { expect_success("recipes", 2); }

const comm::Ranks kWithShards("with shards", [](const Rank& rank) {
  be_quiet();
  const std::vector<std::string> replicas = {"--parallelism.data_parallel_replicate_degree=2"};
  for (const Run& run :
       {Run{"llama", "llama3", kFloat32, kTwo, true}, Run{"replicas", "llama3", kFloat32, kTwo + kRing + replicas, true, 5},
        Run{"gpt_oss", "gpt_oss", kFloat32, kTwo + kByWork, true, 5}, Run{"deepseek", "deepseek_v3", kFloat32, kTwo, false, 5},
        Run{"four", "gpt_oss", kFloat32, {"--parallelism.context_parallel_degree=4"}, true, 5}}) {
    train_as_one(rank, run);
  }
});
TEST(ContextDistributed, TrainsWithShards) { expect_success("with shards", 4); }

}  // namespace
}  // namespace halftone
