#include <array>
#include <csignal>
#include <cstdio>
#include <exception>
#include <functional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "halftone/base/error.h"
#include "halftone/cli/bus_error.h"
#include "halftone/cli/commands.h"
#include "halftone/cli/config_command.h"
#include "halftone/cli/data_command.h"
#include "halftone/cli/eval_command.h"
#include "halftone/cli/failure.h"
#include "halftone/cli/tokenize_command.h"
#include "halftone/cli/tokenizer_command.h"
#include "halftone/cli/version.h"
#include "halftone/storage/byte_file.h"

namespace {

using halftone::Arguments;

struct Command {
  const char *name, *help;
  std::function<int(Arguments)> run;
};

const std::array<Command, 13>& commands() {
  static const std::array<Command, 13> kCommands = {{
      {"train", "train a model: --config X.toml [--section.field value ...]", halftone::train_command},
      {"estimate", "predict memory and step time of a configuration: --config X.toml --device h100", halftone::estimate_command},
      {"plan", "measure which format suits which layer here, and write the recipe: --config X.toml --loss-budget 0.5",
       halftone::plan_command},
      {"generate", "continue a prompt: --checkpoint DIR --prompt TEXT", halftone::generate_command},
      {"eval", "judge a model on tasks as lm-evaluation-harness does: --checkpoint DIR --tasks hellaswag --data DIR",
       halftone::eval_command},
      {"logprobs", "write the log-probabilities of a text's tokens: --checkpoint DIR --text FILE", halftone::logprobs_command},
      {"convert", "convert from and to Hugging Face folders: --from DIR --to DIR", halftone::convert_command},
      {"data", "look at a data source before a run: sizes, lengths, duplicates, first rows", halftone::data_command},
      {"tokenizer", "train, encode, decode: byte-level BPE", halftone::tokenizer_command},
      {"tokenize", "turn text into .bin files of token ids", halftone::tokenize_command},
      {"config", "print the resolved configuration and the origin of each value", halftone::config_command},
      {"formats", "number formats, scale rules and recipes: --show mxfp4 explains one, --support says where they run",
       halftone::formats_command},
      {"bench", "measure training, layers, GEMMs and quantizers: bench --help", halftone::bench_command},
  }};
  return kCommands;
}

void print_help(std::FILE* out) {
  std::fprintf(out, "halftone %s: trains large language models in 8 and 4 bits\n\nusage: halftone COMMAND [options]\n\n",
               halftone::version());
  for (const Command& c : commands()) std::fprintf(out, "  %-10s %s\n", c.name, c.help);
  std::fprintf(out,
               "\nhalftone COMMAND --help explains a command; halftone train --help SECTION documents a section of the configuration.\n"
               "In option names - equals _.\n");
}

int run(const std::vector<std::string>& args) {
  if (args.empty() || args[0] == "--help" || args[0] == "-h" || args[0] == "help")
    return print_help(args.empty() ? stderr : stdout), args.empty() ? 2 : 0;
  if (args[0] == "--version") return std::printf("halftone %s\n", halftone::version()), 0;
  for (const Command& c : commands()) {
    if (args[0] == c.name) return c.run(Arguments(args).subspan(1));
  }
  halftone::fail("unknown command '{}'; see halftone --help", args[0]);
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // exceeding a file size limit fails the write, as a full disk does, instead of killing the process
  halftone::report_bus_errors();
  const halftone::StorageSession storage;
  halftone::Failure end{0, ""};
  try {
    end.status = run({argv + 1, argv + argc});
  } catch (const std::exception& e) {
    // fmt throws when a write fails; stdio only remembers it, which is reported below.
    const bool output_failed = std::ferror(stdout) != 0 && dynamic_cast<const std::system_error*>(&e) != nullptr;
    if (!output_failed) end = halftone::failure_of(e);
  }
  const std::string lost = halftone::write_problem(stdout, "standard output");
  if (end.line.empty() && !lost.empty()) end = {end.status == 0 ? 2 : end.status, lost};
  if (!end.line.empty()) std::fprintf(stderr, "halftone: %s\n", end.line.c_str());
  return end.status;
}
