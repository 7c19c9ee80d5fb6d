#pragma once
#include "halftone/config/field.h"

namespace halftone {

// [job], [profiling], [metrics], [comm], [debug], [sample], [data]

struct JobSection {
  std::optional<std::string> config_file;
  std::string dump_folder = "./outputs";
  std::string description = "default job";
  bool print_config = false;
  std::optional<std::string> save_config_file;

  static void fields(auto& self, auto&& field) {
    field("config_file", self.config_file, "the TOML file; --config is the short form");
    field("dump_folder", self.dump_folder, "root folder of all outputs");
    field("description", self.description, "logged at the start");
    field("print_config", self.print_config, "log the resolved configuration");
    field("save_config_file", self.save_config_file, "JSON file for the resolved configuration, under dump_folder");
  }
};

struct ProfilingConfig {
  bool enable_profiling = false;
  std::string save_traces_folder = "profile_traces";
  int64_t profile_freq = 10;
  int64_t profiler_active = 1;
  int64_t profiler_warmup = 3;
  bool enable_memory_snapshot = false;
  std::string save_memory_snapshot_folder = "memory_snapshot";
  std::optional<int64_t> memory_snapshot_freq;
  int64_t memory_snapshot_max_entries = 100000;

  static void fields(auto& self, auto&& field) {
    field("enable_profiling", self.enable_profiling, "write Kineto traces");
    field("save_traces_folder", self.save_traces_folder, "trace folder, under dump_folder");
    field("profile_freq", self.profile_freq, "steps per profiling cycle", {.min = 1});
    field("profiler_active", self.profiler_active, "steps recorded in a cycle", {.min = 1});
    field("profiler_warmup", self.profiler_warmup, "warmup steps of a cycle", {.min = 0});
    field("enable_memory_snapshot", self.enable_memory_snapshot,
          "GPU: write the allocator's history every profile_freq steps, and when memory runs out");
    field("save_memory_snapshot_folder", self.save_memory_snapshot_folder, "snapshot folder, under dump_folder");
    field("memory_snapshot_freq", self.memory_snapshot_freq, "steps between snapshots; none = profile_freq", {.mark = Mark::E, .min = 1});
    field("memory_snapshot_max_entries", self.memory_snapshot_max_entries, "events in the allocator's history",
          {.mark = Mark::E, .min = 1});
  }
};

struct MetricsConfig {
  int64_t log_freq = 10;
  bool enable_tensorboard = false;
  std::string save_tb_folder = "tb";
  bool save_for_all_ranks = false;
  bool disable_color_printing = false;
  bool enable_jsonl = true;
  bool log_quantization = false;

  static void fields(auto& self, auto&& field) {
    field("log_freq", self.log_freq, "steps between metrics; the first and the last step are always logged", {.min = 1});
    field("enable_tensorboard", self.enable_tensorboard, "write TensorBoard event files");
    field("save_tb_folder", self.save_tb_folder, "event folder, under dump_folder");
    field("save_for_all_ranks", self.save_for_all_ranks, "every rank writes its metrics, in rank_<r>/");
    field("disable_color_printing", self.disable_color_printing, "no colors on the console");
    field("enable_jsonl", self.enable_jsonl, "write metrics.jsonl", {.mark = Mark::E});
    field("log_quantization", self.log_quantization, "also log amax, saturated and flushed fractions and SQNR of every layer",
          {.mark = Mark::E});
  }
};

struct CommConfig {
  int64_t init_timeout_seconds = 300;
  int64_t train_timeout_seconds = 100;
  int64_t trace_buf_size = 20000;
  std::string save_traces_folder = "comm_traces";
  std::string save_traces_file_prefix = "rank_";
  std::string mode = "default";

  static void fields(auto& self, auto&& field) {
    field("init_timeout_seconds", self.init_timeout_seconds, "timeout of collectives until step 1 ends", {.min = 1});
    field("train_timeout_seconds", self.train_timeout_seconds, "timeout of collectives after step 1", {.min = 1});
    field("trace_buf_size", self.trace_buf_size, "operations kept by the flight recorder; 0 = off", {.min = 0});
    field("save_traces_folder", self.save_traces_folder, "flight recorder folder, under dump_folder");
    field("save_traces_file_prefix", self.save_traces_file_prefix, "file name of a flight recorder dump, before the rank");
    field("mode", self.mode, "fake_backend = predict memory and step time of NGPU processes, and exit",
          {.choices = {"default", "fake_backend"}});
  }
};

struct DebugConfig {
  std::optional<int64_t> seed;
  bool deterministic = false;
  bool deterministic_warn_only = false;
  bool batch_invariant = false;
  bool moe_force_load_balance = false;

  static void fields(auto& self, auto&& field) {
    field("seed", self.seed, "seed of all random numbers; none = drawn and logged", {.min = 0});
    field("deterministic", self.deterministic, "deterministic algorithms only: reruns are bit-identical");
    field("deterministic_warn_only", self.deterministic_warn_only, "warn when an operation has no deterministic algorithm");
    field("batch_invariant", self.batch_invariant,
          "a token's logits have the same bits in training and in halftone generate, whatever the batch, packing or chunks of the prompt",
          {.mark = Mark::E});
    field("moe_force_load_balance", self.moe_force_load_balance, "route tokens to experts round-robin");
  }
};

struct SampleConfig {
  std::optional<std::string> prompt;
  int64_t tokens = 160;

  static void fields(auto& self, auto&& field) {
    field("prompt", self.prompt, "text that the model continues at the end of a run with one process and a checkpoint; none = no sample",
          {.mark = Mark::E});
    field("tokens", self.tokens, "tokens of the sample", {.mark = Mark::E, .min = 1});
  }
};

struct DataConfig {
  NamedTables names;
  std::string endpoint_url;
  std::string region;
  bool anonymous = false;
  std::string cache_folder;
  double cache_gib = 20;
  int64_t read_ahead_mib = 32;

  static void fields(auto& self, auto&& field) {
    field("names", self.names, "own names for data sets: [data.names.NAME] with path, dataset, and options of training.dataloader",
          {.mark = Mark::E});
    field("endpoint_url", self.endpoint_url, "address of an S3-compatible server; empty = AWS_ENDPOINT_URL, else Amazon S3",
          {.mark = Mark::E});
    field("region", self.region, "S3 region; empty = AWS_REGION, else that of the profile", {.mark = Mark::E});
    field("anonymous", self.anonymous, "read public buckets without credentials", {.mark = Mark::E});
    field("cache_folder", self.cache_folder, "disk cache of remote files; empty = files/ in the token cache's folder", {.mark = Mark::E});
    field("cache_gib", self.cache_gib, "size to which the disk cache is held, in GiB; 0 = no cache", {.mark = Mark::E, .min = 0});
    field("read_ahead_mib", self.read_ahead_mib, "MiB read ahead of a remote file that is read from start to end",
          {.mark = Mark::E, .min = 0});
  }
};

}  // namespace halftone
