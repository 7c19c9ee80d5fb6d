#include "halftone/cli/tokenize_command.h"

#include "halftone/base/error.h"
#include "halftone/base/log.h"
#include "halftone/base/parallel.h"
#include "halftone/base/stopwatch.h"
#include "halftone/cli/parse.h"
#include "halftone/data/bin_format.h"
#include "halftone/data/bin_writer.h"
#include "halftone/data/chat_setup.h"
#include "halftone/data/loader.h"
#include "halftone/data/source.h"
#include "halftone/data/tokenise.h"
#include "halftone/data/tokenizer.h"

namespace halftone {
namespace {

struct Options {
  SourceOptions source;
  std::string tokenizer, output, token_dtype = "auto", loss_on = "assistant", chat_template;
  bool no_bos = false, special_tokens = false;
  int threads = 0;
};

int run(Options options) {
  const Stopwatch watch;
  const Tokenizer tokenizer = Tokenizer::load(options.tokenizer);
  check(tokenizer.eos_id().has_value(), "{}: the tokenizer names no EOS token, which ends the documents of a .bin file", options.tokenizer);
  const int32_t eos = *tokenizer.eos_id();
  DataloaderConfig config;
  config.add_bos = !options.no_bos, config.special_tokens_in_text = options.special_tokens;
  const TextCodec codec = make_text_codec(tokenizer, config);
  const int width = options.token_dtype == "auto" ? width_for(codec.vocab_size) : token_bytes_of(options.token_dtype);
  check(width >= width_for(codec.vocab_size), "--token_dtype uint16 holds ids below 65,536, the tokenizer has {}", codec.vocab_size);
  config.loss_on = options.loss_on, config.chat_template = options.chat_template;
  set_chat(options.source, config, options.tokenizer);
  options.source.vocab_size = codec.vocab_size;
  options.source.eos_id = eos;
  const std::unique_ptr<DocumentSource> source = open_source(options.source);
  BinWriter out(*source, options.output, width, eos, "--output");
  int64_t documents = 0, text_bytes = 0;
  BadLines bad;
  tokenise_source(*source, codec, width, options.threads > 0 ? options.threads : max_threads(), [&](TokenisedShard&& shard) {
    out.add(shard);
    documents += shard.documents;
    text_bytes += shard.text_bytes;
    bad.add(shard.bad_lines);
  });
  const std::string skipped = bad.count == 0 ? "" : skipped_lines(bad.count, bad.places());
  check(documents > 0, "{} holds no document with text{}", options.source.path, skipped.empty() ? "" : "; " + skipped);
  if (!skipped.empty()) log_warning("{}: {}", options.source.dataset, skipped);
  const std::string written = out.commit();
  const double seconds = watch.seconds();
  fmt::print("{} documents, {} tokens, {:.2f} bytes of text per token, {:.1f} s ({:.1f} MB/s)\n{}\n", with_commas(documents),
             with_commas(out.tokens()), static_cast<double>(text_bytes) / static_cast<double>(out.tokens()), seconds,
             static_cast<double>(text_bytes) / 1e6 / seconds, written);
  return 0;
}

}  // namespace

int tokenize_command(std::span<const std::string> args) {
  CLI::App app("Writes the documents of a source as a .bin file of token ids", "halftone tokenize");
  Options options;
  options.source.dataset = "auto";
  app.add_option("--dataset", options.source.dataset, "text, jsonl, parquet, mds or a C4 name; auto = by the files (default auto)");
  app.add_option("--dataset_path", options.source.path, "file, folder or glob, local or remote");
  app.add_option("--text_key", options.source.text_key, "field or column with the text; a.b for a nested one (default text)");
  app.add_option("--subset", options.source.subset, "configuration of a Hugging Face data set folder (default its default)");
  app.add_option("--split", options.source.split, "split of a Hugging Face data set folder (default train)");
  app.add_option("--text_split", options.source.text_split, "text: unit of one document: file, line, blank_line (default file)");
  app.add_option("--on_bad_line", options.source.on_bad_line, "on a line without a document: error or skip (default error)");
  app.add_option("--loss_on", options.loss_on, "conversations: must be all, because a .bin file holds no loss mask (default assistant)");
  app.add_option("--chat_template", options.chat_template, "conversations: file with a Jinja chat template (default the tokenizer's)");
  app.add_option("--tokenizer", options.tokenizer, "folder with tokenizer.json")->required();
  app.add_option("--output", options.output, "file to write")->required();
  app.add_option("--token_dtype", options.token_dtype, "uint16, uint32, or auto = by the vocabulary (default auto)");
  app.add_flag("--no_bos", options.no_bos, "no BOS before the documents");
  app.add_flag("--special_tokens_in_text", options.special_tokens, "read special tokens spelled out in texts as tokens");
  app.add_option("--threads", options.threads, "0: one per core")->capture_default_str()->check(CLI::Range(0, 4096));
  if (!parse(app, args)) return 0;
  return run(std::move(options));
}

}  // namespace halftone
