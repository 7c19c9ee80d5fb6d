#include <fmt/format.h>

#include <cstdio>

#include "halftone/cli/parse.h"
#include "halftone/train/generate.h"

namespace halftone {

int generate_command(Arguments args) {
  CLI::App app{"Continues a prompt with a checkpoint's model", "halftone generate"};
  GenerateOptions o;
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
  app.add_flag("--ignore-end", endless, "continue after an end-of-text token");
  app.add_flag("--quiet", quiet, "print only the text");
  if (!parse(app, args)) return 0;
  o.stop_at_end = !endless;
  const GenerateResult r =
      generate(o, [](std::string_view text) { std::fwrite(text.data(), 1, text.size(), stdout), std::fflush(stdout); });
  std::fputc('\n', stdout);
  if (!quiet)
    fmt::print(stderr, "{} tokens after {} of the prompt, {:.1f} tokens/s in {}; {} weights loaded in {:.2f} s with {:.2f} GiB\n",
               r.new_tokens, r.prompt_tokens, static_cast<double>(r.new_tokens) / r.seconds, r.computed, r.stored, r.load_seconds,
               r.load_gib);
  return 0;
}

}  // namespace halftone
