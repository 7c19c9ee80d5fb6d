#pragma once
#include "halftone/config/field.h"

namespace halftone {

// [training], [validation] and their dataloader sections

struct DataloaderConfig {
  int64_t num_workers = 0;
  std::optional<int64_t> prefetch_factor;
  std::string packing = "concat";
  int64_t num_packing_bins = 8;
  std::optional<bool> document_positions;
  int64_t seed = 42;
  bool shuffle = false;
  bool shuffle_rows = false;
  std::string read = "indexed";
  int64_t shuffle_buffer = 10000;
  int64_t stream_lanes = 64;
  std::string text_key = "text";
  std::string subset;
  std::string split = "train";
  std::string chat_format = "auto";
  std::string messages_key = "messages";
  std::string chat_template;
  std::string loss_on = "assistant";
  int64_t max_turns = 0;
  int64_t max_document_mib = 256;
  std::string text_split = "file";
  std::string on_bad_line = "error";
  std::string token_dtype = "uint16";
  std::optional<bool> add_bos;
  std::optional<bool> add_eos;
  bool special_tokens_in_text = false;
  std::optional<bool> repeat;

  static void fields(auto& self, auto&& field) {
    field("num_workers", self.num_workers, "tokenizer threads; 0 = one for each core", {.min = 0});
    field("prefetch_factor", self.prefetch_factor, "batches prefetched for each worker; none = 2", {.min = 1});
    field("packing", self.packing, "how documents are packed into rows",
          {.mark = Mark::E, .choices = {"concat", "concat_documents", "first_fit", "best_fit", "none"}});
    field("num_packing_bins", self.num_packing_bins, "rows that first_fit fills at a time", {.mark = Mark::E, .min = 1});
    field("document_positions", self.document_positions, "restart RoPE positions at every document; none = for every packing but concat",
          {.mark = Mark::E});
    field("seed", self.seed, "seed of the shuffle", {.mark = Mark::E, .min = 0});
    field("shuffle", self.shuffle, "shuffle documents", {.mark = Mark::E});
    field("shuffle_rows", self.shuffle_rows, "also shuffle the packed rows of an epoch, which spreads long documents", {.mark = Mark::E});
    field("read", self.read,
          "indexed: tokenize everything first, shuffle exactly; streamed: start at once, shuffle in a window of shuffle_buffer documents",
          {.mark = Mark::E, .choices = {"indexed", "streamed"}});
    field("shuffle_buffer", self.shuffle_buffer, "documents in the shuffle window of a streamed set", {.mark = Mark::E, .min = 1});
    field("stream_lanes", self.stream_lanes,
          "independent sequences of a streamed set or a mixture, which ranks share; best a multiple or a divisor of the rows of a step",
          {.mark = Mark::E, .min = 1});
    field("text_key", self.text_key, "field or column with the text; a.b for a nested one", {.mark = Mark::E});
    field("subset", self.subset, "configuration of a Hugging Face data set folder; empty = its default", {.mark = Mark::E});
    field("split", self.split, "split of a Hugging Face data set folder", {.mark = Mark::E});
    field("chat_format", self.chat_format, "conversations in the rows; auto = by their fields, none = only text",
          {.mark = Mark::E, .choices = {"auto", "none", "openai", "sharegpt", "alpaca"}});
    field("messages_key", self.messages_key, "field or column with a conversation's messages", {.mark = Mark::E});
    field("chat_template", self.chat_template, "file with a Jinja chat template; empty = the tokenizer's", {.mark = Mark::E});
    field("loss_on", self.loss_on, "tokens of a conversation that are learned: of assistant turns, of the last one, or all",
          {.mark = Mark::E, .choices = {"assistant", "last", "all"}});
    field("max_turns", self.max_turns, "> 0: keep so many messages of a conversation, the first ones", {.mark = Mark::E, .min = 0});
    field("max_document_mib", self.max_document_mib, "largest document in MiB; a larger one is an error", {.mark = Mark::E, .min = 1});
    field("text_split", self.text_split, "unit of text that is one document", {.mark = Mark::E, .choices = {"file", "line", "blank_line"}});
    field("on_bad_line", self.on_bad_line,
          "on a JSONL line without a document, or text that is not UTF-8: stop and name it, or skip and count it",
          {.mark = Mark::E, .choices = {"error", "skip"}});
    field("token_dtype", self.token_dtype, "element type of .bin files", {.mark = Mark::E, .choices = {"uint16", "uint32"}});
    field("add_bos", self.add_bos, "put BOS before a document; none = when the tokenizer defines one and does not add it itself",
          {.mark = Mark::E});
    field("add_eos", self.add_eos, "put EOS after a document; none = when the tokenizer defines one and does not add it itself",
          {.mark = Mark::E});
    field("special_tokens_in_text", self.special_tokens_in_text,
          "read special tokens spelled out in texts (<|end_of_text|>) as tokens; false = as plain text", {.mark = Mark::E});
    field("repeat", self.repeat, "training only: start over when the data ends; none = yes", {.mark = Mark::E});
  }
};

// Kinds of data; any other name is one of [data.names].
inline const std::vector<std::string_view> kDatasets = {"auto",  "c4",      "c4_test", "c4_validation", "text",
                                                        "jsonl", "parquet", "bin",     "mds",           "megatron"};

struct TrainingConfig {
  std::string dataset = "c4_test";
  std::optional<std::string> dataset_path;
  NamedTables sources;
  int64_t local_batch_size = 8;
  int64_t global_batch_size = -1;
  int64_t seq_len = 2048;
  double max_norm = 1.0;
  int64_t steps = 10000;
  double minutes = 0;
  std::string dtype = "float32";
  std::string mixed_precision_param = "bfloat16";
  std::string mixed_precision_residual = "float32";
  std::string mixed_precision_reduce = "float32";
  DataloaderConfig dataloader;
  bool disable_cuda_graphs = false;
  StringList offload;
  std::string nonfinite = "abort";
  double spike_factor = 0.0;
  double z_loss = 0.0;
  std::string device = "auto";

  static void fields(auto& self, auto&& field) {
    field("dataset", self.dataset, "kind of data, or a name of [data.names]; auto = by the files");
    field("dataset_path", self.dataset_path, "file, folder or glob; local, s3://, gs:// or https://");
    field("sources", self.sources,
          "a mixture instead of dataset: [training.sources.NAME] with dataset, path, weight, and options of training.dataloader",
          {.mark = Mark::E});
    field("local_batch_size", self.local_batch_size, "rows per data-parallel rank and micro-batch", {.min = 1});
    field("global_batch_size", self.global_batch_size, "rows per optimizer step; -1 = local_batch_size * data-parallel degree");
    field("seq_len", self.seq_len, "tokens per row", {.min = 1});
    field("max_norm", self.max_norm, "gradient clipping by global L2 norm; inf = measure only", {.min = 0});
    field("steps", self.steps, "optimizer steps; 0 = validate only", {.min = 0});
    field("minutes", self.minutes, "> 0: a new run makes as many of the steps as fit into this time, at least 200",
          {.mark = Mark::E, .min = 0});
    field("dtype", self.dtype, "storage dtype of parameters; bfloat16 = without float32 master weights",
          {.choices = {"float32", "bfloat16"}});
    field("mixed_precision_param", self.mixed_precision_param, "compute dtype of unquantized GEMMs", {.choices = {"bfloat16", "float32"}});
    field("mixed_precision_residual", self.mixed_precision_residual, "dtype of the residual stream, if wider than mixed_precision_param",
          {.mark = Mark::E, .choices = {"float32", "bfloat16"}});
    field("mixed_precision_reduce", self.mixed_precision_reduce, "dtype in which gradients are reduced over ranks",
          {.choices = {"float32", "bfloat16"}});
    field("dataloader", self.dataloader, "data loading");
    field("disable_cuda_graphs", self.disable_cuda_graphs, "GPU: launch every kernel of a step instead of replaying a CUDA graph");
    field("offload", self.offload, "GPU: optimizer = keep its states in host memory, which the GPU reads and writes over PCIe",
          {.mark = Mark::E, .choices = {"optimizer"}});
    field("nonfinite", self.nonfinite, "on a non-finite loss or gradient norm: abort, skip the update, or rollback to the last checkpoint",
          {.mark = Mark::E, .choices = {"abort", "skip", "rollback"}});
    field("spike_factor", self.spike_factor, "> 0: a loss above this multiple of its running median counts as non-finite",
          {.mark = Mark::E, .min = 0});
    field("z_loss", self.z_loss,
          "> 0: adds z_loss * logsumexp(logits)^2 per token to the training loss, which keeps logits small; reported losses exclude it",
          {.mark = Mark::E, .min = 0});
    field("device", self.device, "training device; --device is the short form", {.mark = Mark::E, .choices = {"auto", "cuda", "cpu"}});
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
  StringList tasks;
  std::string tasks_data;
  int64_t tasks_limit = 0;
  int64_t tasks_freq = 1000;

  static void fields(auto& self, auto&& field) {
    field("enable", self.enable, "validate at step 1, every freq steps and at the end");
    field("dataset", self.dataset, "as training.dataset");
    field("dataset_path", self.dataset_path, "as training.dataset_path");
    field("local_batch_size", self.local_batch_size, "rows per data-parallel rank", {.min = 1});
    field("seq_len", self.seq_len, "tokens per row", {.min = 1});
    field("freq", self.freq, "steps between validations", {.min = 1});
    field("steps", self.steps, "batches of one validation; -1 = one pass over the data");
    field("dataloader", self.dataloader, "data loading");
    field("holdout", self.holdout, "fraction of the training documents, chosen by hash, held out for validation instead of a dataset",
          {.mark = Mark::E, .min = 0});
    field("tasks", self.tasks, "tasks of halftone eval that judge the model during the run (names, or a .toml file of tasks)",
          {.mark = Mark::E});
    field("tasks_data", self.tasks_data, "folder with the data of these tasks (halftone eval --data)", {.mark = Mark::E});
    field("tasks_limit", self.tasks_limit, "documents of each task; 0 = all", {.mark = Mark::E, .min = 0});
    field("tasks_freq", self.tasks_freq, "steps between their runs, which also follow the last step", {.mark = Mark::E, .min = 1});
  }
};

}  // namespace halftone
