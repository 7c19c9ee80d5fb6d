#include <fmt/format.h>

#include <cstdio>

#include "halftone/base/environment.h"
#include "halftone/base/log.h"
#include "halftone/cli/parse.h"
#include "halftone/train/generate.h"
#include "halftone/train/processes.h"

namespace halftone {

int generate_command(Arguments args) {
  CLI::App app{"Continues a prompt with a checkpoint's model", "halftone generate"};
  GenerateOptions o;
  std::string recipe = "stored";
  bool endless = false, quiet = false;
  app.add_option("--checkpoint", o.checkpoint, "step folder, run folder or Hugging Face folder")->required();
  app.add_option("--prompt", o.prompt, "text to continue; special tokens such as <|begin_of_text|> are read as tokens")->required();
  app.add_option("--tokenizer", o.tokenizer, "tokenizer folder; default: the checkpoint's copy");
  app.add_option("--max-new-tokens", o.max_new_tokens, "tokens to generate")->capture_default_str();
  app.add_option("--temperature", o.sampling.temperature, "0 = greedy")->capture_default_str();
  app.add_option("--top-k", o.sampling.top_k, "sample from the k likeliest tokens; 0 = all")->capture_default_str();
  app.add_option("--top-p", o.sampling.top_p, "sample from the likeliest tokens that together reach this probability")
      ->capture_default_str();
  app.add_option("--seed", o.sampling.seed, "seed of the sampling")->capture_default_str();
  app.add_option("--device", o.device, "auto, cuda or cpu")->capture_default_str();
  app.add_option(
         "--dtype", o.dtype,
         "float32 or bfloat16, to compute in; default: that of the run, of a Hugging Face folder float32 where its weights are, else "
         "bfloat16")
      ->check(CLI::IsMember({"float32", "bfloat16"}));
  app.add_option("--recipe", recipe,
                 "stored = multiply as the weights are stored: a run's with the products that it trained with, a quantised Hugging Face "
                 "folder's by its codes; none = in the compute dtype")
      ->check(CLI::IsMember({"stored", "none"}))
      ->capture_default_str();
  app.add_option("--prefill-chunk", o.prefill_chunk, "tokens of the prompt that a pass reads; 0 = all")->capture_default_str();
  app.add_flag("--debug.batch_invariant", o.batch_invariant, "logits of the same bits for all chunks, as in a run with this option");
  ParallelismConfig& p = o.parallelism;
  app.add_option("--parallelism.tensor_parallel_degree", p.tensor_parallel_degree, "processes (torchrun) that share every layer");
  app.add_option("--parallelism.expert_parallel_degree", p.expert_parallel_degree, "processes that share the experts");
  app.add_option("--parallelism.pipeline_parallel_degree", p.pipeline_parallel_degree, "1: generate has no pipeline");
  app.add_option("--parallelism.context_parallel_degree", p.context_parallel_degree, "1: generate does not split rows");
  app.add_flag("--ignore-end", endless, "continue after an end-of-text token");
  app.add_flag("--quiet", quiet, "print only the text");
  if (!parse(app, args)) return 0;
  o.stop_at_end = !endless, o.recipe = recipe == "stored";
  const Environment environment = read_environment();
  set_log_level(LogLevel::warning);  // standard output is the text's
  Processes processes(environment, CommConfig{});
  GenerateResult r;
  processes.run([&] {
    r = generate(
        o, [](std::string_view text) { std::fwrite(text.data(), 1, text.size(), stdout), std::fflush(stdout); },
        [&](const std::string& products) {
          if (!quiet) fmt::print(stderr, "{}\n", products);
        },
        &processes);
  });
  if (!processes.first()) return 0;
  std::fputc('\n', stdout);
  if (!quiet)
    fmt::print(stderr, "{} tokens after {} of the prompt, {:.1f} tokens/s in {}; {} weights loaded in {:.2f} s with {:.2f} GiB\n",
               r.new_tokens, r.prompt_tokens, static_cast<double>(r.new_tokens) / r.seconds, r.computed, r.stored, r.load_seconds,
               r.load_gib);
  return 0;
}

}  // namespace halftone
