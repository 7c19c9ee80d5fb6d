#include <filesystem>
#include <set>

#include "config/helpers.h"
#include "source_dir.h"

namespace halftone {
namespace {

const std::filesystem::path kSource = source_dir();

LoadedConfig load_recipe(const std::string& name, int64_t world_size) {
  const Args args = {"--config", (kSource / "recipes" / (name + ".toml")).string()};
  return load_config(args, {world_size});
}

TEST(Recipes, AllLoadAndResolveToThemselves) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kSource / "recipes")) {
    if (entry.path().extension() != ".toml") continue;
    names.insert(entry.path().stem());
    const LoadedConfig loaded = load_recipe(entry.path().stem(), 0);
    EXPECT_TRUE(loaded.compat_lines.empty()) << entry.path();
    EXPECT_EQ(to_json(load_toml(to_toml(loaded.config), {}, 0).config), to_json(loaded.config)) << entry.path();
  }
  for (const char* name :
       {"demo", "bench_cpu", "llama3_debug", "llama3_8b", "llama3_8b_1gpu_bf16", "llama3_8b_1gpu_offload", "llama3_70b", "llama3_405b"})
    EXPECT_TRUE(names.contains(name)) << name;
}

TEST(Recipes, DemoAndBenchmarkAreOfTheStatedShape) {
  for (const char* name : {"demo", "bench_cpu"}) {
    const JobConfig c = load_recipe(name, 1).config;
    EXPECT_EQ(c.training.seq_len, 512);
    EXPECT_EQ(c.training.local_batch_size, 8);
    EXPECT_EQ(c.training.mixed_precision_param, "bfloat16");
    for (const auto& [key, value] : std::vector<std::pair<std::string, int64_t>>{
             {"dim", 256}, {"n_layers", 6}, {"n_heads", 8}, {"n_kv_heads", 4}, {"ffn_dim", 704}, {"vocab_size", 4096}})
      EXPECT_EQ(c.model.overrides.at(key), OptionValue(value)) << key;
    EXPECT_EQ(c.model.overrides.at("tied"), OptionValue(false));
  }
  EXPECT_EQ(load_recipe("demo", 1).config.quantize.scheme.name, "int8");
  EXPECT_GT(load_recipe("demo", 1).config.validation.holdout, 0);
  EXPECT_FALSE(load_recipe("bench_cpu", 1).config.checkpoint.enable);
}

// Values of torchtitan v0.2.2's presets.
TEST(Recipes, LlamaPresets) {
  const JobConfig small = load_recipe("llama3_8b", 8).config, middle = load_recipe("llama3_70b", 256).config,
                  large = load_recipe("llama3_405b", 512).config;
  EXPECT_EQ(small.optimizer.lr, 3e-4);
  EXPECT_EQ(middle.optimizer.lr, 1.5e-4);
  EXPECT_EQ(large.optimizer.lr, 8e-5);
  EXPECT_EQ(small.training.local_batch_size, 1);
  EXPECT_EQ(middle.training.local_batch_size, 8);
  EXPECT_EQ(large.training.local_batch_size, 2);
  EXPECT_EQ(small.activation_checkpoint.selective_ac_option, "op");
  EXPECT_EQ(middle.activation_checkpoint.mode, "full");
  EXPECT_EQ(middle.parallelism.tensor_parallel_degree, 8);
  EXPECT_TRUE(large.parallelism.enable_async_tensor_parallel);
  EXPECT_EQ(std::get<bool>(large.ignored.at("quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp")), true);
  EXPECT_EQ(large.training.steps, 3000);
  for (const JobConfig* c : {&small, &middle, &large}) {
    EXPECT_EQ(c->training.seq_len, 8192);
    EXPECT_EQ(c->training.max_norm, 1.0);
    EXPECT_EQ(c->optimizer.eps, 1e-8);
    EXPECT_FALSE(c->checkpoint.enable);
    EXPECT_FALSE(c->validation.enable);
  }
}

TEST(Recipes, PresetsOfModelsWithExperts) {
  struct Row {
    const char *recipe, *name, *flavor;
    double lr;
    int64_t warmup, rows, length, steps;
    const char* recompute;
  };
  for (const Row& r : {Row{"qwen3_moe_debug", "qwen3", "debugmodel_moe", 3e-4, 2, 4, 4096, 10, "selective"},
                       {"qwen3_30b_a3b", "qwen3", "30B-A3B", 8e-4, 600, 4, 4096, 3000, "full"},
                       {"deepseek_v3_debug", "deepseek_v3", "debugmodel", 8e-4, 2, 8, 2048, 10, "selective"},
                       {"deepseek_v3_16b", "deepseek_v3", "16B", 2.2e-4, 200, 4, 4096, 1000, "selective"},
                       {"deepseek_v3_671b", "deepseek_v3", "671B", 2.2e-4, 2000, 4, 4096, 10000, "selective"},
                       {"gpt_oss_debug", "gpt_oss", "debugmodel", 8e-4, 2, 8, 2048, 10, "none"},
                       {"gpt_oss_20b", "gpt_oss", "20b", 8e-4, 2000, 1, 8192, 10000, "full"},
                       {"gpt_oss_120b", "gpt_oss", "120b", 8e-4, 2000, 1, 8192, 10000, "full"}}) {
    SCOPED_TRACE(r.recipe);
    const JobConfig c = load_recipe(r.recipe, 8).config;
    EXPECT_EQ(c.model.name, r.name);
    EXPECT_EQ(c.model.flavor, r.flavor);
    EXPECT_EQ(c.optimizer.lr, r.lr);
    EXPECT_EQ(c.lr_scheduler.warmup_steps, r.warmup);
    EXPECT_EQ(c.training.local_batch_size, r.rows);
    EXPECT_EQ(c.training.seq_len, r.length);
    EXPECT_EQ(c.training.steps, r.steps);
    EXPECT_EQ(c.activation_checkpoint.mode, r.recompute);
  }
  EXPECT_EQ(load_recipe("deepseek_v3_16b", 8).config.parallelism.expert_parallel_degree, 8);
}

// The sections and fields in torchtitan v0.2.2's own Llama 3 files, with an old converter name as in its 405B file.
TEST(Recipes, ATorchtitanFileLoadsUnchanged) {
  const LoadedConfig loaded = load_toml(R"(
[job]
dump_folder = "./outputs"
description = "a run"
print_config = false
[profiling]
enable_profiling = true
save_traces_folder = "profile_trace"
profile_freq = 100
enable_memory_snapshot = false
save_memory_snapshot_folder = "memory_snapshot"
[metrics]
log_freq = 10
disable_color_printing = false
enable_tensorboard = true
save_tb_folder = "tb"
enable_wandb = false
[model]
name = "llama3"
flavor = "8B"
hf_assets_path = "./assets/hf/Llama-3.1-8B"
converters = ["float8"]
[optimizer]
name = "AdamW"
lr = 8e-5
eps = 1e-8
[lr_scheduler]
warmup_steps = 600
decay_ratio = 0.8
decay_type = "linear"
min_lr_factor = 0.0
[training]
local_batch_size = 2
seq_len = 8192
max_norm = 1.0
steps = 3_000
dataset = "c4"
[parallelism]
data_parallel_replicate_degree = 1
data_parallel_shard_degree = -1
fsdp_reshard_after_forward = "default"
tensor_parallel_degree = 8
enable_async_tensor_parallel = true
pipeline_parallel_degree = 1
pipeline_parallel_schedule = "Interleaved1F1B"
context_parallel_degree = 1
[checkpoint]
enable = false
folder = "checkpoint"
interval = 500
last_save_model_only = true
export_dtype = "float32"
async_mode = "disabled"
[activation_checkpoint]
mode = "selective"
selective_ac_option = 'op'
[compile]
enable=true
components = ["model", "loss"]
[quantize.linear.float8]
enable_fsdp_float8_all_gather = true
precompute_float8_dynamic_scale_for_fsdp = true
filter_fqns = ["output"]
[validation]
enable = false
dataset = "c4_validation"
freq = 500
steps = 1200
)",
                                        {}, 16);
  EXPECT_EQ(loaded.config.model.converters, StringList{"quantize.linear.float8"});
  EXPECT_EQ(loaded.config.training.steps, 3000);
  EXPECT_EQ(loaded.compat_lines.size(), 1u);  // the converter's name
  EXPECT_EQ(loaded.accepted.size(), 3u);      // compile.enable, two flags of gathers in fp8
}

}  // namespace
}  // namespace halftone
