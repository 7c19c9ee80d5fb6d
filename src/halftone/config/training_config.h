#pragma once
#include "halftone/config/field.h"

namespace halftone {

// [training], [validation] and their dataloader sections

struct DataloaderConfig {
  int64_t num_workers = 0;
  std::optional<int64_t> prefetch_factor;
  bool pin_memory = false;
  bool persistent_workers = false;
  std::string packing = "concat";
  int64_t num_packing_bins = 8;
  std::optional<bool> document_positions;
  int64_t seed = 42;
  bool shuffle = false;
  bool shuffle_rows = false;
  int64_t shuffle_buffer = 1000;
  std::string text_key = "text";
  std::string text_split = "file";
  std::string on_bad_line = "error";
  std::string token_dtype = "uint16";
  std::optional<bool> add_bos;
  std::optional<bool> add_eos;
  bool special_tokens_in_text = false;
  std::optional<bool> repeat;

  static void fields(auto& self, auto&& field) {
    field("num_workers", self.num_workers, "tokenizer threads; 0 = one, in the background", {.min = 0});
    field("prefetch_factor", self.prefetch_factor, "batches ahead of each worker; none = 2", {.min = 1});
    field("pin_memory", self.pin_memory, "pinned batches (always on CUDA)");
    field("persistent_workers", self.persistent_workers, "keep workers between epochs",
          {.mark = Mark::A, .note = "threads always persist"});
    field("packing", self.packing, "how documents become rows",
          {.mark = Mark::E, .choices = {"concat", "concat_documents", "first_fit", "none"}});
    field("num_packing_bins", self.num_packing_bins, "open rows of first_fit", {.mark = Mark::E, .min = 1});
    field("document_positions", self.document_positions,
          "RoPE positions restart at every document; none = only for concat_documents and first_fit", {.mark = Mark::E});
    field("seed", self.seed, "seed of the shuffle", {.mark = Mark::E, .min = 0});
    field("shuffle", self.shuffle, "shuffle documents", {.mark = Mark::E});
    field("shuffle_rows", self.shuffle_rows, "shuffle the packed rows of an epoch too, so that a long document is not trained on at once",
          {.mark = Mark::E});
    field("shuffle_buffer", self.shuffle_buffer, "documents in the shuffle of a stream", {.mark = Mark::E, .min = 1});
    field("text_key", self.text_key, "JSONL field or column of the text", {.mark = Mark::E});
    field("text_split", self.text_split, "what a document of a text file is", {.mark = Mark::E, .choices = {"file", "line", "blank_line"}});
    field("on_bad_line", self.on_bad_line,
          "a line of JSONL without a document, or of text that is not UTF-8: end with its place, or leave it out and count it",
          {.mark = Mark::E, .choices = {"error", "skip"}});
    field("token_dtype", self.token_dtype, "element type of .bin files", {.mark = Mark::E, .choices = {"uint16", "uint32"}});
    field("add_bos", self.add_bos, "put BOS before a document; none = if the tokenizer defines one and does not add it itself",
          {.mark = Mark::E});
    field("add_eos", self.add_eos, "put EOS after a document; none = if the tokenizer defines one and does not add it itself",
          {.mark = Mark::E});
    field("special_tokens_in_text", self.special_tokens_in_text,
          "letters of special tokens in texts (<|end_of_text|>) are these tokens; false = they are text like any other", {.mark = Mark::E});
    field("repeat", self.repeat, "start over at the end; none = training does, validation does not", {.mark = Mark::E});
  }
};

struct TrainingConfig {
  std::string dataset = "c4_test";
  std::optional<std::string> dataset_path;
  int64_t local_batch_size = 8;
  int64_t global_batch_size = -1;
  int64_t seq_len = 2048;
  double max_norm = 1.0;
  int64_t steps = 10000;
  double minutes = 0;
  bool enable_cpu_offload = false;
  std::string dtype = "float32";
  std::string mixed_precision_param = "bfloat16";
  std::string mixed_precision_residual = "float32";
  std::string mixed_precision_reduce = "float32";
  int64_t gc_freq = 50;
  bool gc_debug = false;
  DataloaderConfig dataloader;
  bool disable_cuda_graphs = false;
  StringList offload;
  std::string nonfinite = "abort";
  double spike_factor = 0.0;
  double z_loss = 0.0;
  std::string device = "auto";

  static void fields(auto& self, auto&& field) {
    field("dataset", self.dataset, "c4, c4_test, c4_validation, text, jsonl, parquet, bin, megatron, mix",
          {.choices = {"c4", "c4_test", "c4_validation", "text", "jsonl", "parquet", "bin", "megatron", "mix"}});
    field("dataset_path", self.dataset_path, "local file, folder or glob");
    field("local_batch_size", self.local_batch_size, "rows per data-parallel rank and forward pass", {.min = 1});
    field("global_batch_size", self.global_batch_size, "rows per optimizer step; -1 = local_batch_size * data-parallel degree");
    field("seq_len", self.seq_len, "tokens per row", {.min = 1});
    field("max_norm", self.max_norm, "global L2 clip of the gradients; inf = measure only", {.min = 0});
    field("steps", self.steps, "optimizer steps; 0 = load and validate only", {.min = 0});
    field("minutes", self.minutes, "> 0: a new run takes as many of the steps as fit into this time here, at least 200",
          {.mark = Mark::E, .min = 0});
    field("enable_cpu_offload", self.enable_cpu_offload, "parameters, gradients and optimizer state in host memory");
    field("dtype", self.dtype, "storage of parameters (bfloat16: no fp32 masters)", {.choices = {"float32", "bfloat16"}});
    field("mixed_precision_param", self.mixed_precision_param, "dtype that products compute in", {.choices = {"bfloat16", "float32"}});
    field("mixed_precision_residual", self.mixed_precision_residual,
          "dtype of the residual stream, where it is wider than mixed_precision_param",
          {.mark = Mark::E, .choices = {"float32", "bfloat16"}});
    field("mixed_precision_reduce", self.mixed_precision_reduce, "dtype of gradient reduction",
          {.choices = {"float32", "bfloat16", "fp8_sr", "int8_sr"}});
    field("gc_freq", self.gc_freq, "Python garbage collector", {.mark = Mark::A, .note = "there is no garbage collector"});
    field("gc_debug", self.gc_debug, "Python garbage collector", {.mark = Mark::A, .note = "there is no garbage collector"});
    field("dataloader", self.dataloader, "data loading");
    field("disable_cuda_graphs", self.disable_cuda_graphs, "no CUDA graphs over forward and backward");
    field("offload", self.offload, "what stays in host memory; optimizer = its states, which the GPU reads and writes over PCIe",
          {.mark = Mark::E, .choices = {"params", "grads", "optimizer", "activations"}});
    field("nonfinite", self.nonfinite, "on a non-finite loss or gradient: abort; skip the update; rollback to the last checkpoint",
          {.mark = Mark::E, .choices = {"abort", "skip", "rollback"}});
    field("spike_factor", self.spike_factor, "> 0: a loss above this multiple of its running median counts as non-finite",
          {.mark = Mark::E, .min = 0});
    field("z_loss", self.z_loss,
          "> 0: trains on the loss + z_loss * logsumexp(logits)^2 per token, which keeps logits small; losses are reported without it",
          {.mark = Mark::E, .min = 0});
    field("device", self.device, "where to train; --device is the short form", {.mark = Mark::E, .choices = {"auto", "cuda", "cpu"}});
  }
};

struct ValidationConfig {
  bool enable = false;
  std::string dataset = "c4_validation";
  std::optional<std::string> dataset_path;
  int64_t local_batch_size = 8;
  int64_t seq_len = 2048;
  int64_t freq = 10;
  int64_t steps = -1;
  DataloaderConfig dataloader;
  double holdout = 0.0;

  static void fields(auto& self, auto&& field) {
    field("enable", self.enable, "validate at step 1, every freq steps and at the end");
    field("dataset", self.dataset, "as training.dataset",
          {.choices = {"c4", "c4_test", "c4_validation", "text", "jsonl", "parquet", "bin", "megatron", "mix"}});
    field("dataset_path", self.dataset_path, "local file, folder or glob");
    field("local_batch_size", self.local_batch_size, "rows per data-parallel rank", {.min = 1});
    field("seq_len", self.seq_len, "tokens per row", {.min = 1});
    field("freq", self.freq, "steps between validations", {.min = 1});
    field("steps", self.steps, "batches of one validation; -1 = one pass over the data");
    field("dataloader", self.dataloader, "data loading");
    field("holdout", self.holdout, "share of the training documents, chosen by hash, kept for validation instead of a dataset",
          {.mark = Mark::E, .min = 0});
  }
};

}  // namespace halftone
