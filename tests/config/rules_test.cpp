#include <algorithm>
#include <tuple>

#include "config/helpers.h"
#include "halftone/config/walk.h"

namespace halftone {
namespace {

bool names(const std::string& text, std::initializer_list<const char*> words) {
  for (const char* w : words) {
    if (text.find(w) == std::string::npos) return false;
  }
  return !text.empty();
}

struct Case {
  Args args;
  int64_t world;
  std::vector<const char*> names;  // words of the message; none = legal
};

void expect(const std::vector<Case>& cases) {
  for (const Case& c : cases) {
    const std::string text = problems("", c.args, c.world);
    std::string line;
    for (const std::string& a : c.args) line += a + " ";
    if (c.names.empty()) {
      EXPECT_EQ(text, "") << line;
    } else {
      EXPECT_EQ(text.find('\n'), std::string::npos) << line << text;
    }
    for (const char* word : c.names)
      EXPECT_NE(text.find(word), std::string::npos) << line << "\n  said: " << text << "\n  expected: " << word;
  }
}

TEST(Rules, Mesh) {
  expect({
      {{"--parallelism.tensor_parallel_degree", "2"}, 4, {}},
      {{"--parallelism.tensor_parallel_degree", "2"}, 1, {"multiple of", "tensor_parallel_degree", "found 1"}},
      {{"--parallelism.tensor_parallel_degree", "2"}, 0, {}},
      {{"--parallelism.data_parallel_shard_degree", "2"}, 2, {}},
      {{"--parallelism.data_parallel_shard_degree", "2"}, 3, {"must equal the number of processes", "3 processes"}},
      {{"--parallelism.data_parallel_shard_degree", "0"}, 1, {"-1 or at least 1"}},
      {{"--parallelism.tensor_parallel_degree", "0"}, 1, {"at least 1"}},
      {{"--parallelism.tensor_parallel_degree", "4611686018427387904"}, 1, {"at most"}},
      {{"--parallelism.data_parallel_replicate_degree=2", "--parallelism.data_parallel_shard_degree=1",
        "--parallelism.tensor_parallel_degree=2"},
       4,
       {"DDP", "HSDP"}},
      {{"--parallelism.data_parallel_replicate_degree=2", "--parallelism.data_parallel_shard_degree=1",
        "--parallelism.context_parallel_degree=2"},
       4,
       {}},
      {{"--parallelism.expert_parallel_degree=3"}, 4, {"expert_parallel_degree", "divide"}},
      {{"--parallelism.expert_parallel_degree=2", "--parallelism.expert_tensor_parallel_degree=2"},
       4,
       {"expert_tensor_parallel_degree", "tensor_parallel_degree"}},
      {{"--parallelism.tensor_parallel_degree=4", "--parallelism.expert_tensor_parallel_degree=2"},
       4,
       {"expert_tensor_parallel_degree", "tensor_parallel_degree", "found 2 and 4"}},
      {{"--parallelism.expert_parallel_degree=2", "--parallelism.tensor_parallel_degree=2",
        "--parallelism.expert_tensor_parallel_degree=2"},
       2,
       {"expert_parallel_degree", "expert_tensor_parallel_degree", "divide"}},
      {{"--parallelism.expert_parallel_degree=2", "--parallelism.tensor_parallel_degree=2",
        "--parallelism.expert_tensor_parallel_degree=2"},
       4,
       {}},
      {{"--training.seq_len=1001", "--parallelism.tensor_parallel_degree=2"}, 2, {"training.seq_len", "tensor_parallel_degree"}},
      {{"--training.seq_len=1002", "--parallelism.context_parallel_degree=2"}, 2, {"training.seq_len", "load balancer"}},
      {{"--training.seq_len=1002", "--parallelism.context_parallel_degree=2", "--parallelism.context_parallel_load_balancer=None"}, 2, {}},
      {{"--parallelism.context_parallel_load_balancer="}, 1, {"headtail, ptrr"}},
  });
}

TEST(Rules, Batch) {
  expect({
      {{"--training.global_batch_size=32"}, 2, {}},
      {{"--training.global_batch_size=20"}, 1, {"training.global_batch_size", "training.local_batch_size"}},
      {{"--training.global_batch_size=0"}, 1, {"-1 or at least 1"}},
      {{"--training.local_batch_size=0"}, 1, {"at least 1"}},
  });
}

TEST(Rules, StreamsHaveNoIndex) {
  const Args named = {R"(--data.names={"web": {"path": "web.jsonl", "read": "streamed"}})", "--training.dataset=web"};
  for (const Args& streamed : {named, Args{"--training.dataloader.read=streamed"}}) {
    const auto with = [&](const char* more) {
      Args all = streamed;
      all.emplace_back(more);
      return all;
    };
    expect({
        {with("--training.dataloader.repeat=false"), 1, {"training.dataloader.repeat", "indexed"}},
        {with("--training.dataloader.shuffle_rows"), 1, {"training.dataloader.shuffle_rows", "indexed"}},
        {with("--validation.holdout=0.1"), 1, {"validation.holdout", "indexed"}},
    });
  }
}

TEST(Rules, Pipeline) {
  const Args pp = {"--parallelism.pipeline_parallel_degree=2"};
  const auto with = [&](std::initializer_list<std::string> more) {
    Args all = pp;
    all.insert(all.end(), more);
    return all;
  };
  expect({
      {pp, 2, {}},
      {with({"--parallelism.pipeline_parallel_microbatch_size=3"}), 2, {"pipeline_parallel_microbatch_size", "local_batch_size"}},
      {with({"--parallelism.pipeline_parallel_schedule=interleaved1f1b"}), 2, {}},
      {with({"--parallelism.pipeline_parallel_schedule=2F2B"}), 2, {"expected one of 1F1B"}},
      {with({"--parallelism.pipeline_parallel_schedule=PipelineScheduleMulti"}), 2, {"schedule_csv"}},
      {with({"--parallelism.module_fqns_per_model_part=[[\"a\"],[\"b\"],[\"c\"]]"}), 2, {"3 stages", "needs 2"}},
      {with({"--parallelism.module_fqns_per_model_part=[[\"a\"],[\"lm_head\"]]"}), 2, {}},
      {with({"--parallelism.pipeline_parallel_schedule=DualPipeV", "--parallelism.expert_parallel_degree=2",
             "--activation_checkpoint.mode=full"}),
       4,
       {}},
  });
  EXPECT_EQ(load(with({"--parallelism.pipeline_parallel_schedule=gpipe"}), 2).config.parallelism.pipeline_parallel_schedule, "GPipe");
}

TEST(Rules, Checkpoints) {
  expect({
      {{"--checkpoint.keep_latest_k=1"}, 1, {"keep_latest_k", "at least 2"}},
      {{"--checkpoint.keep_latest_k=0"}, 1, {}},
      {{"--checkpoint.initial_load_in_hf", "--checkpoint.no_initial_load_model_only"},
       1,
       {"initial_load_in_hf", "initial_load_model_only"}},
      {{"--checkpoint.last_save_in_hf", "--checkpoint.no_last_save_model_only"}, 1, {"last_save_in_hf", "last_save_model_only"}},
      {{"--checkpoint.exclude_from_loading=optimizer"}, 1, {"lr_scheduler"}},
      {{"--checkpoint.exclude_from_loading=optimizer,lr_scheduler"}, 1, {}},
      {{"--checkpoint.exclude_from_loading=model"}, 1, {"model cannot be excluded"}},
      {{"--checkpoint.create_seed_checkpoint"}, 1, {"create_seed_checkpoint", "checkpoint.enable"}},
      {{"--checkpoint.create_seed_checkpoint", "--checkpoint.enable"}, 1, {}},
      {{"--checkpoint.create_seed_checkpoint", "--checkpoint.enable"}, 2, {"one process"}},
  });
}

TEST(Rules, SingleFieldsAndData) {
  expect({
      {{"--validation.steps=0"}, 1, {"validation.steps"}},
      {{"--validation.holdout=1"}, 1, {"validation.holdout"}},
      {{"--validation.holdout=0.1", "--validation.dataset=c4"}, 1, {"validation.holdout", "validation.dataset"}},
      {{"--training.dataset=text"}, 1, {"training.dataset", "training.dataset_path"}},
      {{"--training.dataset=text", "--training.dataset_path=x"}, 1, {}},
      {{"--lr_scheduler.decay_ratio=1.5"}, 1, {"decay_ratio"}},
      {{"--optimizer.beta2=1"}, 1, {"beta2"}},
      {{"--activation_checkpoint.selective_ac_option=0"}, 1, {"selective_ac_option"}},
      {{"--activation_checkpoint.selective_ac_option=op"}, 1, {}},
      {{"--profiling.profiler_active=9"}, 1, {"profile_freq", "profiler_warmup"}},
      {{"--training.nonfinite=rollback"}, 1, {"checkpoint.enable"}},
      {{"--alarms.clipped.action=rollback", "--alarms.clipped.threshold=0.1"}, 1, {"alarms.clipped.action", "checkpoint.enable"}},
      {{"--alarms.underflowed.threshold=1"}, 1, {"alarms.underflowed.threshold", "a share"}},
      {{"--alarms.underflowed.threshold=inf"}, 1, {}},
      {{"--alarms.residual_norm.threshold=1e3"}, 1, {}},
      {{"--debug.deterministic_warn_only"}, 1, {"debug.deterministic"}},
      {{"--debug.batch_invariant", "--parallelism.expert_parallel_capacity=2"}, 1, {"debug.batch_invariant", "expert_parallel_capacity"}},
      {{"--debug.batch_invariant", "--parallelism.context_parallel_degree=2"},
       2,
       {"debug.batch_invariant", "context_parallel_degree to 1"}},
  });
}

// Runs that cannot learn anything.
TEST(Rules, SenselessRunsAreRefused) {
  const auto group = [](const char* kwargs) {
    return std::string(R"(--optimizer.param_groups=[{"pattern": "norm", "optimizer_name": "AdamW", "optimizer_kwargs": )") + kwargs + "}]";
  };
  expect({
      {{"--training.max_norm=0"}, 1, {"training.max_norm = 0", "nothing is learned"}},
      {{"--training.max_norm=-1"}, 1, {"training.max_norm"}},
      {{"--training.max_norm=inf"}, 1, {}},
      {{"--optimizer.lr=0"}, 1, {"optimizer.lr must be above 0"}},
      {{"--optimizer.lr=0", group(R"({"lr": 1e-3})")}, 1, {}},
      {{"--optimizer.lr=0", group(R"({"weight_decay": 1e-3})")}, 1, {"optimizer.param_groups", "every group has lr = 0"}},
      {{group(R"({"lr": 0})")}, 1, {"optimizer.param_groups", "freezes all parameters"}},
      {{"--optimizer.lr=1e-50"}, 1, {"optimizer.lr must be above 0"}},
      {{"--optimizer.lr=inf"}, 1, {"finite"}},
      {{group(R"({"lr": -1})")}, 1, {"optimizer.param_groups 'norm'", "at least 0"}},
      {{group(R"({"lr": 1, "weight_decay": 1.5})")}, 1, {"optimizer.param_groups 'norm'", "must be below 1"}},
      {{"--optimizer.lr=10"}, 1, {"lr = 10 times weight_decay = 0.1", "below 1"}},
      {{"--optimizer.lr=10", "--optimizer.name=Adam"}, 1, {}},
      {{"--optimizer.eps=0"}, 1, {"optimizer.eps"}},
      {{"--optimizer.eps=1e-50"}, 1, {"optimizer.eps"}},
      {{"--optimizer.eps=0", "--optimizer.name=SGD"}, 1, {}},
      {{"--training.spike_factor=1"}, 1, {"training.spike_factor"}},
      {{"--training.spike_factor=1.5"}, 1, {}},
  });
}

// The expected warning's fields, or none.
TEST(Rules, DoubtfulRunsGetAWarning) {
  const std::pair<Args, std::vector<const char*>> cases[] = {
      {{}, {}},
      {{"--training.seq_len=1"}, {"training.seq_len = 1"}},
      {{"--training.steps=20", "--lr_scheduler.total_steps=10"}, {"training.steps = 20", "lr_scheduler.total_steps = 10"}},
      {{"--training.steps=20", "--lr_scheduler.total_steps=1000"}, {"ends inside the warmup of 200 steps", "10%"}},
      {{"--training.steps=200", "--lr_scheduler.total_steps=1000"}, {}},
      {{"--validation.holdout=0.1"}, {"validation.holdout = 0.1", "validation.enable is false"}},
      {{"--validation.holdout=0.1", "--validation.enable"}, {}},
      {{"--validation.enable", "--validation.dataset=c4_test"}, {"validation reads the training data"}},
      {{"--validation.enable", "--validation.dataset=c4_test", "--training.dataset_path=x"}, {}},
      {{"--validation.enable", "--validation.dataset=text", "--validation.dataset_path=x", "--training.dataset=text",
        "--training.dataset_path=x"},
       {"validation reads the training data"}},
      {{"--checkpoint.initial_load_path=x"}, {"checkpoint.initial_load_path is ignored"}},
      {{"--checkpoint.initial_load_path=x", "--checkpoint.enable"}, {}},
      {{"--checkpoint.load_step=4"}, {"checkpoint.load_step is ignored"}},
      {{"--checkpoint.enable", "--training.steps=20"}, {"checkpoint.interval = 500", "no resumable step"}},
      {{"--checkpoint.enable", "--training.steps=20", "--checkpoint.no_last_save_model_only"}, {}},
      {{"--checkpoint.enable", "--training.steps=500", "--checkpoint.no_last_save_model_only", "--training.nonfinite=rollback"},
       {"no step to go back to"}},
      {{"--checkpoint.enable", "--checkpoint.load_only", "--training.nonfinite=rollback"}, {"no step to go back to", "load_only"}},
      {{"--checkpoint.enable", "--training.nonfinite=rollback"}, {}},
      {{"--checkpoint.enable", "--training.steps=500", "--checkpoint.no_last_save_model_only", "--alarms.clipped.threshold=0.1",
        "--alarms.clipped.action=rollback"},
       {"action of an alarm = rollback", "no step to go back to"}},
      {{"--alarms.expert_load.action=stop"}, {"alarms.expert_load.action = stop has no effect", "threshold is 0"}},
      {{"--alarms.expert_load.action=stop", "--alarms.expert_load.threshold=3"}, {}},
  };
  for (const auto& [args, words] : cases) {
    const std::vector<std::string> warnings = load(args).warnings;
    const std::string line = args.empty() ? "" : args.back();
    ASSERT_EQ(warnings.size(), words.empty() ? 0u : 1u) << line << (warnings.empty() ? "" : ": " + warnings[0]);
    for (const char* word : words) EXPECT_NE(warnings[0].find(word), std::string::npos) << warnings[0];
  }
  EXPECT_TRUE(load({"--training.seq_len=1"}).warnings[0].starts_with("command line: "));
}

TEST(Rules, QuantizeHasOneSource) {
  expect({
      {{"--quantize.scheme=int8"}, 1, {}},
      {{"--quantize.scheme=int88"}, 1, {"unknown scheme", "did you mean int8?"}},
      {{"--quantize.scheme=INT8"}, 1, {"unknown scheme", "did you mean int8?"}},
      {{"--quantize.scheme=int8", "--quantize.group_align=64"}, 1, {}},
      {{"--quantize.scheme=int8", "--quantize.fsdp_all_gather=scheme"}, 1, {"quantize.fsdp_all_gather", "not available"}},
      {{"--quantize.recipe=x.yaml", "--quantize.fsdp_precompute_scales"}, 1, {"quantize.fsdp_precompute_scales", "not available"}},
      {{"--quantize.scheme=mxfp8"}, 1, {"unknown scheme", "did you mean mxfp8_e4m3 or mxfp8_e5m2?"}},
      {{"--quantize.scheme=int8", "--model.converters=quantize.linear.mx"}, 1, {"quantize.scheme and model.converters"}},
      {{"--quantize.scheme=int8", "--quantize.recipe=x.yaml"}, 1, {"quantize.scheme and quantize.recipe"}},
      {{"--quantize.scheme={\"int8\": [\"Linear\"]}", "--quantize.targets=re:x"}, 1, {"quantize.targets"}},
      {{"--quantize.scheme={\"int8\": [\"re:x\"]}", "--quantize.targets=Linear"}, 1, {"quantize.targets"}},
      {{"--model.converters=quantize.linear.mx,quantize.grouped_mm.float8"}, 1, {"all float8 or all mx"}},
      {{"--model.converters=quantize.linear.mx,mx"}, 1, {"twice"}},
      {{"--model.converters=quantize.linear.fp8"}, 1, {"expected one of"}},
      {{"--model.converters=mx", "--quantize.linear.mx.filter_fqns=auto_filter_small_kn"}, 1, {"quantize.linear.mx.filter_fqns"}},
      {{"--model.converters=float8", "--quantize.linear.float8.recipe_name=rowwise",
        "--quantize.linear.float8.enable_fsdp_float8_all_gather"},
       1,
       {"tensorwise"}},
      {{"--model.converters=float8", "--quantize.linear.float8.recipe_name=rowwise_with_gw_hp",
        "--quantize.linear.float8.filter_fqns=auto_filter_small_kn"},
       1,
       {"quantize.linear.float8.filter_fqns", "auto_filter_small_kn has no thresholds for", "fp8_rowwise_with_gw_hp"}},
  });
}

TEST(Rules, OptionsBelongToSchemes) {
  expect({
      {{"--quantize.scheme=int8", "--quantize.use_sr_grad"}, 1, {}},
      {{"--quantize.scheme=int8", "--quantize.stochastic_rounding", "--quantize.no_grad_weight"}, 1, {}},
      {{"--quantize.scheme=int8", "--quantize.use_hadamard"}, 1, {"quantize.use_hadamard", "int8"}},
      {{"--quantize.scheme=int8", "--quantize.use_hadamard=false"}, 1, {}},
      {{"--quantize.scheme=mxfp4", "--quantize.use_hadamard"}, 1, {}},
      {{"--quantize.scheme=mxfp4", "--quantize.hadamard_width=128"}, 1, {}},
      {{"--quantize.scheme=mxfp4", "--quantize.hadamard_width=48"}, 1, {"hadamard_width", "16, 32, 64 or 128"}},
      {{"--quantize.scheme=mxfp4", "--quantize.use_hadamard=false", "--quantize.hadamard_width=64"}, 1, {"hadamard_width", "use_hadamard"}},
      {{"--quantize.scheme=nvfp4", "--quantize.style=torchao", "--quantize.hadamard_width=64"}, 1, {"hadamard_width", "style"}},
      {{"--quantize.scheme=nvfp4", "--quantize.hadamard_signs=torchao"}, 1, {"hadamard_signs", "hadamard_width"}},
      {{"--quantize.scheme=nvfp4", "--quantize.hadamard_signs=torchao", "--quantize.hadamard_width=16"}, 1, {}},
      {{"--quantize.scheme=quartet2", "--quantize.hadamard_width=32"}, 1, {}},
      {{"--quantize.scheme=quartet2", "--quantize.hadamard_signs=deterministic"}, 1, {"hadamard_signs", "quartet2"}},
      {{"--quantize.scheme=mxfp4", "--quantize.use_hadamard", "--quantize.use_2dblock_x"}, 1, {"use_hadamard", "use_2dblock_x"}},
      {{"--quantize.scheme=fp8_rowwise", "--quantize.use_2dblock_w"}, 1, {"use_2dblock_w"}},
      {{"--quantize.scheme=fp8_rowwise", "--quantize.no_output"}, 1, {"quantize.output"}},
      {{"--quantize.scheme=fp8_rowwise", "--quantize.wgrad_hp"}, 1, {}},
      {{"--quantize.scheme=mxfp4", "--quantize.x_hp", "--quantize.dy_hp"}, 1, {}},
      {{"--quantize.scheme=mxfp4", "--quantize.x_hp", "--quantize.w_hp", "--quantize.dy_hp"},
       1,
       {"command line: quantize.output", "x_hp, w_hp and dy_hp", "mxfp4 quantizes nothing"}},
      {{"--quantize.scheme=nvfp4", "--quantize.w_hp", "--quantize.no_grad_weight", "--quantize.dy_hp", "--quantize.no_output"},
       1,
       {"nvfp4 quantizes nothing"}},
      {{"--quantize.scheme=nvfp4", "--quantize.w_hp", "--quantize.no_grad_weight"}, 1, {}},
      {{"--quantize.scheme=mxfp4", "--quantize.use_hadamard", "--quantize.no_grad_weight"},
       1,
       {"quantize.use_hadamard does not go with quantize.grad_weight = false"}},
      {{"--quantize.scheme=mxfp8_e4m3", "--quantize.no_grad_weight", "--quantize.wgrad_hp"},
       1,
       {"quantize.grad_weight = false does not go with quantize.wgrad_hp"}},
      {{"--quantize.scheme=mxfp4", "--quantize.two_level_scaling=tensorwise"}, 1, {"tensorwise"}},
      {{"--quantize.scheme=nvfp4", "--quantize.two_level_scaling=tensorwise"}, 1, {}},
      {{"--quantize.scheme=mxfp4", "--quantize.use_uos", "--quantize.scale_mode=even"}, 1, {"use_uos", "scale_mode"}},
      {{"--quantize.scheme=mxfp4", "--quantize.lora_rank=16"}, 1, {"lora_rank", "32"}},
      {{"--quantize.scheme=nvfp4", "--quantize.lora_rank=16"}, 1, {}},
      {{"--quantize.scheme=mxfp4", "--quantize.preset=alto", "--quantize.clip_mode=dynamic"}, 1, {"clip_mode", "use_hadamard"}},
      {{"--quantize.scheme=mxfp4", "--quantize.preset=alto", "--quantize.deosc_period=100"}, 1, {"deosc_period", "deosc_step"}},
      {{"--quantize.scheme=mxfp4", "--quantize.deosc_period=100"}, 1, {}},
      {{"--quantize.scheme=mxfp4", "--quantize.deosc_period=100", "--quantize.deosc_step=1"}, 1, {}},
      {{"--quantize.scheme=nvfp4", "--quantize.style=torchao"}, 1, {}},
      {{"--quantize.scheme=nvfp4", "--quantize.style=torchao", "--quantize.scale_choice=four_over_six"}, 1, {}},
      {{"--quantize.scheme=amdfp4", "--quantize.scale_choice=four_over_six", "--quantize.scale_choice_error=largest"}, 1, {}},
      {{"--quantize.scheme=nvfp4", "--quantize.scale_choice_error=largest"}, 1, {}},
      {{"--quantize.scheme=nvfp4", "--quantize.scale_choice=none", "--quantize.scale_choice_error=largest"},
       1,
       {"quantize.scale_choice_error has no effect without quantize.scale_choice = four_over_six"}},
      {{"--quantize.scheme=mxfp4", "--quantize.scale_choice=four_over_six"}, 1, {"quantize.scale_choice", "legal with nvfp4, amdfp4 only"}},
      {{"--quantize.scheme=nvfp4", "--quantize.style=torchao", "--quantize.no_use_hadamard"}, 1, {"style", "use_hadamard"}},
      {{"--quantize.scheme=fp8_blockwise", "--quantize.fast_accum=forward"}, 1, {"fast_accum", "fp8_blockwise"}},
      {{"--quantize.scheme=fp8_rowwise", "--quantize.fast_accum=forward,wgrad"}, 1, {}},
      {{"--quantize.scheme=int8", "--quantize.fast_accum="}, 1, {"quantize.fast_accum", "found [] with quantize.scheme = int8"}},
      {{"--quantize.scheme=fp8_rowwise_with_gw_hp", "--quantize.fast_accum=wgrad"}, 1, {"quantize.fast_accum", "wgrad has no fp8 product"}},
      {{"--quantize.scheme=int8", "--quantize.two_level_scaling=tensorwise"}, 1, {"two_level_scaling", "mxfp4, nvfp4, amdfp4"}},
      {{"--quantize.scheme=mxfp4", "--quantize.two_level_scaling=blockwise", "--quantize.clip_mode=static"},
       1,
       {"clip_mode", "two_level_scaling"}},
      {{"--quantize.scheme=int8", "--quantize.no_output", "--quantize.no_grad_input", "--quantize.no_grad_weight"},
       1,
       {"quantize.output", "int8 quantizes nothing"}},
      {{"--quantize.scheme=int8", "--quantize.use_sr_grad", "--quantize.no_grad_input", "--quantize.no_grad_weight"},
       1,
       {"quantize.use_sr_grad", "no gradient is quantised"}},
      {{"--quantize.scheme=int8", "--quantize.use_sr_grad", "--quantize.no_grad_input"}, 1, {}},
      {{"--quantize.targets=re:x"}, 1, {"quantize.targets", "without quantize.scheme"}},
      {{"--quantize.ignore="}, 1, {"quantize.ignore", "without quantize.scheme"}},
      {{"--quantize.preset=alto"}, 1, {"quantize.preset", "without quantize.scheme"}},
      {{"--quantize.scheme=int8", "--quantize.skip_last_layers=1.5"}, 1, {"skip_last_layers"}},
      {{"--quantize.scheme=int8", "--quantize.skip_first_layers=inf"}, 1, {"skip_first_layers", "inf"}},
      {{"--quantize.scheme=int8", "--quantize.skip_last_layers=1e30"}, 1, {"skip_last_layers", "1000000"}},
      {{"--quantize.scheme=int8", "--quantize.skip_last_layers=0.15"}, 1, {}},
      {{"--quantize.stochastic_rounding"}, 1, {"stochastic_rounding", "none"}},
      {{"--quantize.scheme=mxfp4", "--quantize.deosc_ratio=inf"}, 1, {"quantize.deosc_ratio", "from 4 to 32, found inf"}},
      {{"--quantize.scheme=mxfp4", "--quantize.deosc_ratio=0"}, 1, {"quantize.deosc_ratio", "from 4 to 32, found 0"}},
      {{"--quantize.scheme=mxfp4", "--quantize.deosc_ratio=3.9"}, 1, {"quantize.deosc_ratio", "from 4 to 32, found 3.9"}},
      {{"--quantize.scheme=mxfp4", "--quantize.deosc_ratio=32"}, 1, {}},
      {{"--quantize.scheme=int4", "--quantize.stochastic_rounding", "--quantize.use_sr_grad"},
       1,
       {"quantize.use_sr_grad", "beside quantize.stochastic_rounding"}},
      {{"--quantize.scheme=int8", "--quantize.stochastic_rounding", "--quantize.no_use_sr_grad"},
       1,
       {"quantize.use_sr_grad", "beside quantize.stochastic_rounding"}},
  });
}

TEST(Rules, WhatQuantisesNothingTakesNoOptions) {
  const char* without = "has no effect without quantize.scheme";
  const char* bf16 = "has no effect with quantize.scheme = bf16";
  expect({
      {{"--quantize.scheme=none", "--quantize.emulate"}, 1, {"command line: quantize.emulate = true", without}},
      {{"--quantize.scheme=none", "--quantize.skip_first_layers=1"}, 1, {"quantize.skip_first_layers = 1", without}},
      {{"--quantize.skip_last_layers=0.15"}, 1, {"quantize.skip_last_layers = 0.15", without}},
      {{"--quantize.emulate=false", "--quantize.skip_first_layers=0"}, 1, {}},
      {{"--quantize.scheme=bf16", "--quantize.emulate"}, 1, {"quantize.emulate = true", bf16}},
      {{"--quantize.scheme={\"bf16\": [\"Linear\"]}", "--quantize.skip_last_layers=1"}, 1, {"quantize.skip_last_layers", bf16}},
      {{"--quantize.scheme={\"bf16\": [\"re:a\"], \"int8\": [\"re:b\"]}", "--quantize.emulate"}, 1, {}},
      {{"--quantize.scheme=bf16"}, 1, {}},
      {{"--quantize.scheme={\"none\": [\"re:a\"], \"int8\": [\"re:b\"]}"}, 1, {"quantize.scheme", "found none", "bf16"}},
  });
  EXPECT_TRUE(names(problems("[quantize]\nscheme = 'none'\nemulate = true\n"), {"X.toml:3: quantize.emulate = true", without}));
}

TEST(Rules, AttentionStaysInTheComputeDtype) {
  expect({
      {{"--quantize.scheme=mxfp4", "--quantize.attention=mxfp4"}, 1, {"command line: quantize.attention = \"mxfp4\"", "compute dtype"}},
      {{"--quantize.attention=fp8_blockwise"}, 1, {"quantize.attention", "leave it at \"bf16\""}},
      {{"--quantize.recipe=x.yaml", "--quantize.attention=mxfp4"}, 1, {"quantize.attention", "leave it at \"bf16\""}},
      {{"--quantize.scheme=mxfp4", "--quantize.attn_bwd=mxfp4"}, 1, {"quantize.attn_bwd = \"mxfp4\""}},
      {{"--quantize.scheme=mxfp4", "--quantize.pnq=false"}, 1, {"quantize.pnq = false"}},
      {{"--quantize.scheme=mxfp4", "--quantize.attention=bf16", "--quantize.attn_bwd=bf16", "--quantize.pnq"}, 1, {}},
  });
}

TEST(Rules, AValueThatCanNotBeReadSaysNothingOfOthers) {
  const std::string said = problems("[quantize]\nscheme = ['int8']\ntargets = ['re:x']\n");
  EXPECT_TRUE(names(said, {"X.toml:2: quantize.scheme: expected a scheme's name"})) << said;
  EXPECT_EQ(said.find('\n'), std::string::npos) << said;
}

// An option of one scheme in a table is no error beside a scheme that lacks it.
TEST(Rules, TablesTakeTheOptionsOfEachScheme) {
  const std::string both = "--quantize.scheme={\"mxfp4\": [\"re:.*w1\"], \"int8\": [\"re:.*w2\"]}";
  expect({
      {{both, "--quantize.use_hadamard", "--quantize.stochastic_rounding"}, 1, {}},
      {{both, "--quantize.use_hadamard", "--quantize.use_2dblock_x"}, 1, {"use_hadamard", "use_2dblock_x"}},
      {{both, "--quantize.activation=int8"}, 1, {"activation", "mxfp4, int8"}},
      {{"--quantize.scheme={\"mxfp4\": [\"a\"], \"nvfp4\": [\"b\"]}", "--quantize.two_level_scaling=tensorwise",
        "--quantize.clip_mode=static"},
       1,
       {}},
      {{"--quantize.scheme={\"mxfp4\": [\"a\"], \"nvfp4\": [\"b\"]}", "--quantize.lora_rank=16"}, 1, {"lora_rank", "32", "mxfp4"}},
      {{"--quantize.scheme={\"mxfp4\": [\"a\"], \"nvfp4\": [\"b\"]}", "--quantize.use_hadamard", "--quantize.wgrad_hp"},
       1,
       {"use_hadamard", "wgrad_hp"}},
  });
}

TEST(Rules, ConvertersAndRecipesTakeNoOptionsBesideThem) {
  expect({
      {{"--model.converters=quantize.linear.mx", "--quantize.emulate", "--quantize.skip_last_layers=1"}, 1, {}},
      {{"--model.converters=quantize.linear.mx", "--quantize.ignore=re:x"}, 1, {"quantize.ignore", "model.converters", "filter_fqns"}},
      {{"--model.converters=quantize.linear.mx", "--quantize.scale_mode=even"}, 1, {"quantize.scale_mode", "name a quantize.scheme"}},
      {{"--quantize.recipe=x.yaml", "--quantize.preset=alto"}, 1, {"quantize.preset", "write it in x.yaml"}},
  });
}

// The recipe's value would apply, not the default that the user requested.
TEST(Rules, OptionsBesideARecipeAreRefusedAtTheirDefaultToo) {
  const std::string recipe = "--quantize.recipe=x.yaml", none = "--quantize.scheme=none";
  const char* beside = "has no effect beside quantize.recipe";
  expect({
      {{none, recipe}, 1, {}},
      {{none, recipe, "--quantize.ignore=output"}, 1, {"command line: quantize.ignore", beside}},
      {{recipe, "--quantize.preset=recommended"}, 1, {"quantize.preset", beside}},
      {{recipe, "--quantize.targets=Linear"}, 1, {"quantize.targets", beside}},
      {{recipe, "--quantize.output=true"}, 1, {"quantize.output", beside}},
      {{recipe, "--quantize.use_hadamard=false"}, 1, {"quantize.use_hadamard", beside}},
      {{recipe, "--quantize.skip_first_layers=0", "--quantize.emulate=false"}, 1, {}},  // x.yaml is not looked at here
      {{"--model.converters=quantize.linear.float8", "--quantize.ignore=output"}, 1, {"quantize.ignore", "filter_fqns"}},
      {{"--model.converters=float8", "--quantize.linear.float8.emulate", "--quantize.emulate=false"}, 1, {"quantize.emulate = false"}},
      {{"--model.converters=mx", "--quantize.linear.mx.recipe_name=mxfp8_emulated", "--quantize.emulate=false"},
       1,
       {"quantize.emulate = false", "model.converters"}},
      {{"--model.converters=mx", "--quantize.emulate=false"}, 1, {}},
  });
  EXPECT_TRUE(names(problems("[quantize]\nrecipe = 'x.yaml'\nignore = ['output']\n"), {"X.toml:3: quantize.ignore", beside}));
}

TEST(Rules, ARecipesSchemeCanBeSwitchedOff) {
  const LoadedConfig loaded = load_toml("[quantize]\nscheme = 'int8'\nstochastic_rounding = true\n", {"--quantize.scheme", "none"});
  EXPECT_TRUE(loaded.config.quantize.scheme.is_none());
  ASSERT_EQ(loaded.compat_lines.size(), 1u);
  EXPECT_TRUE(names(loaded.compat_lines[0], {"[compat]", "quantize.stochastic_rounding"}));
  const LoadedConfig file = load_toml("[quantize]\nrecipe = 'x.yaml'\n", {"--quantize.scheme", "none"});
  EXPECT_EQ(file.config.quantize.recipe, "");
  ASSERT_EQ(file.compat_lines.size(), 1u);
  EXPECT_TRUE(names(file.compat_lines[0], {"[compat]", "quantize.recipe"}));
}

TEST(Rules, WhatNoSchemeAsksForGoesWithIt) {
  const LoadedConfig loaded =
      load_toml("[quantize]\nscheme = 'int8'\ntargets = ['re:x']\nignore = []\npreset = 'alto'\n", {"--quantize.scheme", "none"});
  ASSERT_EQ(loaded.compat_lines.size(), 3u);
  EXPECT_EQ(loaded.compat_lines[0], "[compat] quantize.targets=[\"re:x\"]: unused, because quantize.scheme is none");
}

TEST(Rules, OptionsOfTheRunGoWithTheSchemeToo) {
  const std::string toml = "[quantize]\nscheme = 'mxfp4'\nuse_hadamard = true\nemulate = true\nskip_last_layers = 1\nattn_bwd = 'bf16'\n";
  const LoadedConfig loaded = load_toml(toml, {"--quantize.scheme", "none"});
  EXPECT_EQ(loaded.compat_lines, (StringList{"[compat] quantize.use_hadamard=true: unused, because quantize.scheme is none",
                                             "[compat] quantize.emulate=true: unused, because quantize.scheme is none",
                                             "[compat] quantize.skip_last_layers=1.0: unused, because quantize.scheme is none"}));
  EXPECT_EQ(to_json(loaded.config), to_json(JobConfig{}));
  // A recipe on the command line has its own targets; emulation and skipped blocks still apply.
  const LoadedConfig recipe = load_toml(toml + "ignore = ['output']\n", {"--quantize.scheme=none", "--quantize.recipe=x.yaml"});
  EXPECT_EQ(recipe.compat_lines, (StringList{"[compat] quantize.ignore=[\"output\"]: unused, because quantize.scheme is none",
                                             "[compat] quantize.use_hadamard=true: unused, because quantize.scheme is none"}));
  EXPECT_TRUE(recipe.config.quantize.emulate);
  EXPECT_EQ(recipe.config.quantize.skip_last_layers, 1);
}

TEST(Compatibility, TheHeadHasTwoNames) {
  const LoadedConfig loaded = load({"--model.converters=float8", "--quantize.linear.float8.filter_fqns=lm_head,wq"});
  EXPECT_EQ(loaded.config.quantize.linear.float8.filter_fqns, (StringList{"output", "wq"}));
  ASSERT_EQ(loaded.compat_lines.size(), 2u);
  EXPECT_EQ(loaded.compat_lines[1], "[compat] quantize.linear.float8.filter_fqns=lm_head: the module is called output");
}

// As in torchtitan's own files.
TEST(Compatibility, SectionsOfOtherConvertersAreNamed) {
  const LoadedConfig loaded =
      load_toml("[quantize.linear.float8]\nfilter_fqns = ['output']\n[quantize.linear.mx]\nrecipe_name = 'mxfp8_emulated'\n",
                {"--model.converters=quantize.linear.mx"});
  ASSERT_EQ(loaded.compat_lines.size(), 1u);
  EXPECT_EQ(
      loaded.compat_lines[0],
      "[compat] quantize.linear.float8.filter_fqns=[\"output\"]: unused, because model.converters does not name quantize.linear.float8");
}

TEST(Compatibility, AcceptedFieldsGetOneLine) {
  const LoadedConfig loaded = load({"--compile.enable", "--metrics.enable_wandb", "--optimizer.implementation=foreach"});
  ASSERT_EQ(loaded.compat_lines.size(), 1u);
  EXPECT_EQ(loaded.compat_lines[0], "[compat] optimizer.implementation=foreach: the fused kernel is used");
  ASSERT_EQ(loaded.accepted.size(), 2u);
  EXPECT_EQ(loaded.accepted[1].name, "compile.enable");
  EXPECT_EQ(loaded.accepted[1].line, "[compat] compile.enable=true: there is no graph compiler; the kernels are fused already");
  EXPECT_TRUE(load({"--compile.enable=false"}).accepted.empty());
}

TEST(Compatibility, Aliases) {
  const LoadedConfig loaded = load({"--model.converters=float8", "--model.tokenizer_path=tok"});
  EXPECT_EQ(loaded.config.model.converters, StringList{"quantize.linear.float8"});
  EXPECT_EQ(loaded.config.model.hf_assets_path, "tok");
  EXPECT_EQ(loaded.compat_lines.size(), 2u);
  EXPECT_NE(problems("", {"--model.tokenizer_path=a", "--model.hf_assets_path=b"}), "");
  const LoadedConfig parts = load({"--parallelism.module_fqns_per_model_part", "layers.0", "lm_head"});
  EXPECT_EQ(parts.config.parallelism.module_fqns_per_model_part->at(1), StringList{"output"});
}

TEST(Compatibility, WhatCanNotApplyIsRefusedWithAReason) {
  EXPECT_TRUE(names(problems("[fault_tolerance]\nenable = true"), {"X.toml:2", "fault_tolerance.enable", "checkpoint"}));
  EXPECT_TRUE(names(problems("", {"--job.custom_config_module=my.module"}), {"job.custom_config_module", "Python"}));
  EXPECT_EQ(problems("", {"--job.custom_config_module=torchtitan.components.ft.config"}), "");
  EXPECT_TRUE(names(problems("", {"--experimental.custom_import=x"}), {"experimental.custom_import"}));
  for (const char* model : {"flux", "llama4", "llama3_ft"})
    EXPECT_TRUE(names(problems("", {"--model.name", model}), {"model.name", model}));
  EXPECT_TRUE(names(problems("", {"--comm.mode=local_tensor"}), {"comm.mode", "fake_backend"}));
  EXPECT_TRUE(names(problems("", {"--training.offload=optimizer,params"}), {"training.offload", "params cannot be offloaded"}));
  // Accepted in a file at their defaults, as torchtitan writes them.
  EXPECT_EQ(problems("[training]\nenable_cpu_offload = false\n[optimizer]\nearly_step_in_backward = false\n"), "");
}

// Values that are only refused appear in no list of choices, and are still refused with a reason.
TEST(Compatibility, WhatIsOnlyRefusedIsInNoList) {
  const std::string help = describe_fields(), printed = print_config(load({})), toml = to_toml(JobConfig{}), json = to_json({}, false);
  JobConfig config;
  int refused = 0;
  for (const FieldEntry& f : index_config(config).fields) {
    if (f.info.mark != Mark::N) continue;
    ++refused;
    if (leaf_of(f.name) == "enable") continue;  // others are called so, too
    EXPECT_EQ(help.find("--" + f.name + " "), std::string::npos) << f.name;
    for (const std::string* text : {&printed, &toml})
      EXPECT_EQ(text->find("\n" + std::string(leaf_of(f.name)) + " = "), std::string::npos) << f.name;
    EXPECT_EQ(json.find("\"" + std::string(leaf_of(f.name)) + "\""), std::string::npos) << f.name;
  }
  EXPECT_GE(refused, 11);
  for (const auto& [field, value, instead] :
       std::vector<std::tuple<std::string, std::string, const char*>>{{"optimizer.name", "Muon", "use AdamW, Adam or SGD"},
                                                                      {"optimizer.state_dtype", "int4", "float32 or bfloat16"},
                                                                      {"training.mixed_precision_reduce", "fp8_sr", "float32 or bfloat16"},
                                                                      {"training.offload", "grads", "[\"optimizer\"]"},
                                                                      {"training.offload", "activations", "[\"optimizer\"]"}}) {
    const FieldEntry& f = *index_config(config).find_field(field);
    EXPECT_EQ(std::ranges::count(f.info.choices, value), 0) << field;
    const std::string said = problems("", {"--" + field, value}), other = problems("", {"--" + field, "nothing"});
    EXPECT_TRUE(names(said, {field.c_str(), value.c_str(), instead})) << said;
    EXPECT_EQ(said.find("expected one of"), std::string::npos) << said;
    EXPECT_NE(other.find("expected one of"), std::string::npos) << other;
    EXPECT_EQ(other.find(value), std::string::npos) << other;
  }
}

}  // namespace
}  // namespace halftone
