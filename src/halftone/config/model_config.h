#pragma once
#include "halftone/config/field.h"
#include "halftone/optim/optimizer.h"

namespace halftone {

// [model], [optimizer], [lr_scheduler], [activation_checkpoint]

struct ModelConfig {
  std::string name = "llama3";
  std::string flavor = "debugmodel";
  std::string hf_assets_path = "./tests/assets/tokenizer";
  std::optional<std::string> tokenizer_path;
  int64_t train_tokenizer = 0;
  StringList converters;
  bool print_after_conversion = false;
  OptionTable overrides;
  std::optional<std::string> attn_mask_type;
  std::string rope_scaling_mode = "auto";

  static void fields(auto& self, auto&& field) {
    field("name", self.name, "model family; hf = the family and sizes in hf_assets_path/config.json",
          {.choices = {"hf", "llama3", "mistral", "qwen2", "qwen3", "qwen3_moe", "deepseek_v3", "gpt_oss"}});
    field("flavor", self.flavor, "named set of hyper-parameters");
    field("hf_assets_path", self.hf_assets_path, "folder with tokenizer files, config.json, *.safetensors");
    field("tokenizer_path", self.tokenizer_path, "deprecated name of hf_assets_path");
    field("train_tokenizer", self.train_tokenizer,
          "vocabulary size of a byte-level BPE tokenizer trained on the training text when hf_assets_path has none; 0 = never",
          {.mark = Mark::E, .min = 0});
    field("converters", self.converters, "torchtitan's quantization converters, in order",
          {.choices = {"quantize.linear.float8", "quantize.linear.mx", "quantize.grouped_mm.float8", "quantize.grouped_mm.mx", "float8",
                       "mx"}});
    field("print_after_conversion", self.print_after_conversion, "log each layer with its format");
    field(
        "overrides", self.overrides,
        "hyper-parameters that replace the flavor's: dim, n_layers, n_heads, n_kv_heads, head_dim, ffn_dim (the width itself), "
        "ffn_dim_multiplier, multiple_of, vocab_size (at least the tokenizer's), rope_theta, max_seq_len, norm_eps, tied, depth_init, init",
        {.mark = Mark::E});
    field("attn_mask_type", self.attn_mask_type, "causal (whole packed row) or block_causal (same document); none = the flavor's",
          {.mark = Mark::E, .choices = {"causal", "block_causal"}});
    field("rope_scaling_mode", self.rope_scaling_mode, "auto = torchtitan's rule, or on for weights of a Hugging Face folder",
          {.mark = Mark::E, .choices = {"auto", "on", "off"}});
  }
};

struct OptimizerConfig : optim::Options {
  std::string name = "AdamW";
  double lr = 8e-4;
  double weight_decay = 0.1;
  std::string implementation = "fused";
  std::vector<ParamGroup> param_groups;
  std::string state_dtype = "float32";
  bool stochastic_rounding = false;

  // Element type of the optimizer's states.
  bool bfloat16_states() const { return implementation == "fused_opt_states_bf16" || state_dtype == "bfloat16"; }

  static void fields(auto& self, auto&& field) {
    field("name", self.name, "optimizer", {.choices = optim::optimizer_names()});
    field("lr", self.lr, "peak learning rate", {.min = 0});
    field("weight_decay", self.weight_decay, "decoupled for AdamW; applies to all parameters, including norms and embeddings", {.min = 0});
    optim::Options::fields(self, field);
    field("implementation", self.implementation,
          "fused; fused_opt_states_bf16 = with bfloat16 moments; foreach and for-loop run the fused kernel",
          {.choices = {"fused", "foreach", "for-loop", "fused_opt_states_bf16"}});
    field("param_groups", self.param_groups, "tables {pattern, optimizer_name, optimizer_kwargs}; the first match wins", {.mark = Mark::E});
    field("state_dtype", self.state_dtype, "storage dtype of the moments", {.mark = Mark::E, .choices = {"float32", "bfloat16"}});
    field("stochastic_rounding", self.stochastic_rounding, "stochastic rounding of low-precision parameters", {.mark = Mark::E});
  }
};

struct LrSchedulerConfig {
  int64_t warmup_steps = 200;
  std::optional<int64_t> total_steps;
  std::optional<double> decay_ratio;
  std::string decay_type = "linear";
  double min_lr_factor = 0.0;

  static void fields(auto& self, auto&& field) {
    field("warmup_steps", self.warmup_steps, "steps of linear warmup", {.min = 0});
    field("total_steps", self.total_steps, "length of the schedule; none = training.steps", {.min = 1});
    field("decay_ratio", self.decay_ratio, "fraction of the schedule that decays, at its end; none = decay right after warmup", {.min = 0});
    field("decay_type", self.decay_type, "shape of the decay", {.choices = {"linear", "sqrt", "cosine"}});
    field("min_lr_factor", self.min_lr_factor, "floor as a fraction of lr", {.min = 0});
  }
};

struct ActivationCheckpointConfig {
  std::string mode = "selective";
  std::string selective_ac_option = "2";
  double memory_budget = 0.5;

  static void fields(auto& self, auto&& field) {
    field("mode", self.mode, "what the backward pass recomputes", {.choices = {"selective", "full", "memory_budget", "none"}});
    field("selective_ac_option", self.selective_ac_option, "op, or n = recompute every n-th block", {.lenient = true});
    field("memory_budget", self.memory_budget,
          "mode memory_budget: fraction of the activations that is saved; 0 = recompute whole blocks, 1 = save all", {.min = 0});
  }
};

}  // namespace halftone
