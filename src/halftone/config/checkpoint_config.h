#pragma once
#include "halftone/config/field.h"

namespace halftone {

// [checkpoint]
struct CheckpointConfig {
  bool enable = false;
  std::string folder = "checkpoint";
  int64_t interval = 500;
  std::optional<std::string> initial_load_path;
  bool initial_load_model_only = true;
  bool initial_load_in_hf = false;
  bool last_save_model_only = true;
  bool last_save_in_hf = false;
  std::string export_dtype = "float32";
  std::string async_mode = "disabled";
  int64_t keep_latest_k = 10;
  int64_t load_step = -1;
  StringList exclude_from_loading;
  bool enable_first_step_checkpoint = false;
  bool create_seed_checkpoint = false;
  bool load_only = false;
  bool checksum = true;
  bool verify_on_load = true;
  int64_t max_shard_bytes = 5368709120;  // 5 GiB
  int64_t save_timeout_seconds = 1800;

  static void fields(auto& self, auto&& field) {
    field("enable", self.enable, "save and load checkpoints");
    field("folder", self.folder, "checkpoint folder, under dump_folder");
    field("interval", self.interval, "steps between saves", {.min = 1});
    field("initial_load_path", self.initial_load_path, "step folder to start from, while this run has no checkpoint of its own");
    field("initial_load_model_only", self.initial_load_model_only, "load only the model from initial_load_path");
    field("initial_load_in_hf", self.initial_load_in_hf,
          "load Hugging Face safetensors from initial_load_path, else from model.hf_assets_path");
    field("last_save_model_only", self.last_save_model_only, "the last save holds only the model, in export_dtype");
    field("last_save_in_hf", self.last_save_in_hf, "the last save is a Hugging Face folder; needs last_save_model_only");
    field("export_dtype", self.export_dtype,
          "dtype of the model-only last save; mxfp4 and fp8_blockwise write quantized Hugging Face files, the rest in bfloat16",
          {.choices = {"float32", "bfloat16", "float16", "fp8_blockwise", "mxfp4"}});
    field("async_mode", self.async_mode, "write checkpoints in the background; async_with_pinned_mem is the same as async",
          {.choices = {"disabled", "async", "async_with_pinned_mem"}});
    field("keep_latest_k", self.keep_latest_k, "checkpoints kept; 0 = all, 1 is an error", {.min = 0});
    field("load_step", self.load_step, "step to resume from; -1 = newest valid", {.min = -1});
    field("exclude_from_loading", self.exclude_from_loading, "parts of a checkpoint that are not loaded",
          {.choices = {"optimizer", "lr_scheduler", "dataloader", "train_state", "rng"}});
    field("enable_first_step_checkpoint", self.enable_first_step_checkpoint, "also save after step 1");
    field("create_seed_checkpoint", self.create_seed_checkpoint, "initialize, save step 0 and exit; one process");
    field("load_only", self.load_only, "never save");
    field("checksum", self.checksum, "store checksums", {.mark = Mark::E});
    field("verify_on_load", self.verify_on_load, "compare checksums when loading", {.mark = Mark::E});
    field("max_shard_bytes", self.max_shard_bytes, "largest checkpoint file in bytes", {.mark = Mark::E, .min = 1048576});
    field("save_timeout_seconds", self.save_timeout_seconds, "longest wait of a save for its peers", {.mark = Mark::E, .min = 1});
  }
};

}  // namespace halftone
