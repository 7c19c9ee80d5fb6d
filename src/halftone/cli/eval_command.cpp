#include "halftone/cli/eval_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <iostream>

#include "halftone/base/environment.h"
#include "halftone/base/error.h"
#include "halftone/base/log.h"
#include "halftone/cli/eval_serve.h"
#include "halftone/cli/parse.h"
#include "halftone/cli/text_table.h"
#include "halftone/cli/version.h"
#include "halftone/data/file_io.h"
#include "halftone/data/unicode.h"
#include "halftone/eval/run.h"
#include "halftone/storage/byte_file.h"
#include "halftone/train/eval_model.h"

namespace halftone {
namespace {

constexpr auto kReplace = eval::Json::error_handler_t::replace;

// The options that say which model runs, and how.
struct ModelArguments {
  EvalModelOptions model;
  std::string recipe = "stored";

  void add(CLI::App& app) {
    app.add_option("--checkpoint", model.checkpoint, "step folder, run folder or Hugging Face folder");
    app.add_option("--tokenizer", model.tokenizer, "tokenizer folder; default: the checkpoint's copy");
    app.add_option("--device", model.device, "auto, cuda or cpu")->capture_default_str();
    app.add_option("--dtype", model.dtype, "float32 or bfloat16, to compute in; default: as halftone generate")
        ->check(CLI::IsMember({"float32", "bfloat16"}));
    app.add_option("--recipe", recipe, "stored = multiply as the weights are stored; none = in the compute dtype")
        ->check(CLI::IsMember({"stored", "none"}))
        ->capture_default_str();
    app.add_option("--max-length", model.scorer.max_length, "tokens that the model reads at most; 0 = as many positions as it has")
        ->capture_default_str();
    app.add_flag("--debug.batch_invariant", model.batch_invariant, "the same bits in any batch, as in a run with this option");
  }
  EvalModelOptions read() {
    check(!model.checkpoint.empty(), "--checkpoint is required: a step folder, run folder or Hugging Face folder");
    model.recipe = recipe == "stored";
    return model;
  }
};

// Before hours of work: Error if write_whole could not write there. An empty path is none.
void check_writable(const std::string& path) {
  if (path.empty()) return;
  try {
    AtomicFile probe(path);
  } catch (const Error&) {
    fail("{}: cannot be written; choose a file in a folder that exists", path);
  }
}

void write_whole(const std::string& path, const std::string& text) {
  AtomicFile file(path);
  file.write(text.data(), text.size());
  file.commit();
}

std::string samples_text(const eval::Results& results) {
  std::string text;
  for (const eval::Json& sample : results.samples) text += sample.dump(-1, ' ', false, kReplace) + "\n";
  return text;
}

eval::Json config_json(const EvalModelOptions& m, const eval::RunOptions& o) {
  return {{"model", "halftone"},
          {"model_args", fmt::format("checkpoint={}", m.checkpoint.string())},
          {"limit", o.limit > 0 ? eval::Json(o.limit) : eval::Json(nullptr)},
          {"bootstrap_iters", o.bootstrap_iters},
          {"fewshot_seed", o.seed},
          {"halftone_version", version()}};
}

void show_task(const std::string& name) {
  const std::string_view table = eval::builtin_tasks();
  eval::find_tasks({name});  // its error for an unknown one
  const size_t begin = table.find("\n[" + name + "]\n") + 1;
  size_t end = begin;
  do end = std::min(table.find("\n[", end + 1), table.size());
  while (table.substr(end + 2, name.size() + 1) == name + ".");
  print(table.substr(begin, end - begin));
}

}  // namespace

int eval_command(Arguments args) {
  CLI::App app{"Judges a checkpoint's model on tasks, by the rules of lm-evaluation-harness", "halftone eval"};
  ModelArguments model;
  eval::RunOptions o;
  std::vector<std::string> tasks;
  std::string format = "text", out, samples, show;
  bool serves = false, separate = false, quiet = false;
  model.add(app);
  ParallelismConfig& p = model.model.parallelism;
  const CLI::Range degrees(int64_t{1}, int64_t{1} << 20);
  app.add_option("--parallelism.tensor_parallel_degree", p.tensor_parallel_degree, "processes (torchrun) that share every layer")
      ->check(degrees);
  app.add_option("--parallelism.expert_parallel_degree", p.expert_parallel_degree, "processes that share the experts")->check(degrees);
  app.add_option("--tasks", tasks, "names from halftone eval --list, or .toml files with tasks; with commas between them")->delimiter(',');
  app.add_option("--data", o.data, "folder with the data of the tasks, as they are published");
  app.add_option("--limit", o.limit, "documents of each task; 0 = all")->check(CLI::NonNegativeNumber)->capture_default_str();
  app.add_option("--shots", o.shots, "examples in front of each question; default: the task's")->check(CLI::NonNegativeNumber);
  app.add_flag("--first-shots", o.first_shots, "take the first rows as examples instead of drawing them");
  app.add_option("--seed", o.seed, "seed by which the examples are drawn")->capture_default_str();
  app.add_option("--bootstrap-iters", o.bootstrap_iters, "resamples for the standard error of a perplexity; 0 = none")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--batch-tokens", model.model.scorer.batch_tokens, "tokens of a pass; 0 = 4096 on a CPU, 32768 on a GPU")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_flag("--separate", separate, "compute each choice with its own copy of the context");
  app.add_option("--format", format, "text, or json as lm-evaluation-harness writes it")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
  app.add_option("--out", out, "file for the JSON, beside what is printed");
  app.add_option("--log-samples", samples, "file for every question with its answers, a JSON object a line");
  app.add_flag("--serve", serves, "answer requests, a JSON object a line, from standard input (python/halftone_lm_eval)");
  app.add_option("--show", show, "print a built-in task as TOML, to begin one's own from");
  bool list = false;
  app.add_flag("--list", list, "print the names of the built-in tasks");
  app.add_flag("--quiet", quiet, "no progress on standard error");
  if (!parse(app, args)) return 0;
  if (!show.empty()) return show_task(show), 0;
  if (list) {
    for (const eval::Task& t : eval::parse_tasks(eval::builtin_tasks(), "built-in tasks", "")) print(t.name);
    return 0;
  }
  EvalModelOptions m = model.read();
  check(serves || !tasks.empty(), "--tasks is required, such as --tasks hellaswag,arc_easy; halftone eval --list names them");
  const Environment environment = read_environment();
  set_log_level(LogLevel::warning);  // standard output is the result's
  Processes processes(environment, CommConfig{});
  check(!serves || !processes.many(), "--serve needs one process, found {}", processes.world());
  m.scorer.share_prefixes = !separate;
  int64_t shown = -1;
  if (!quiet && !serves && processes.first())
    m.scorer.report = [&shown](double share) {
      if (const auto tenth = static_cast<int64_t>(share * 10); tenth > shown)
        fmt::print(stderr, "{}%{}", 10 * tenth, tenth == 10 ? "\n" : " "), shown = tenth % 10;
    };
  processes.run([&] {
    if (processes.first()) check_writable(out), check_writable(samples);
    std::vector<eval::PreparedTask> prepared;
    if (!serves) prepared = eval::prepare(eval::find_tasks(tasks), o);
    for (const eval::PreparedTask& p : prepared)
      check(p.task.kind != eval::Kind::generate || !processes.many(), "task {} generates text, which needs one process, found {}",
            p.task.name, processes.world());
    EvalModel loaded(m, &processes);
    for (const eval::PreparedTask& p : prepared)
      if (p.task.kind == eval::Kind::generate) loaded.scorer().check_room(p.task.max_new_tokens);
    if (!quiet && processes.first()) fmt::print(stderr, "{}\n", loaded.products());
    if (serves) return serve(loaded, std::cin, std::cout);
    const eval::Results results = eval::run(prepared, loaded.scorer(), o, !samples.empty());
    if (!processes.first()) return;
    eval::Json j = eval::results_json(results);
    j["config"] = config_json(m, o);
    j["total_evaluation_time_seconds"] = fmt::format("{}", results.seconds);
    const std::string text = j.dump(2, ' ', false, kReplace) + "\n";
    if (!out.empty()) write_whole(out, text);
    if (!samples.empty()) write_whole(samples, samples_text(results));
    const ScorerWork& work = loaded.scorer().work();
    if (!quiet && work.seconds > 0)
      fmt::print(stderr, "{} tokens of questions, {} computed, in {:.2f} s: {:.0f} computed tokens/s\n", work.asked, work.computed,
                 work.seconds, static_cast<double>(work.computed) / work.seconds);
    if (format == "json") return print(text);
    std::vector<std::vector<std::string>> rows = eval::results_table(results);
    TextTable table(std::move(rows[0]));
    for (size_t i = 1; i < rows.size(); ++i) table.row(std::move(rows[i]));
    print(table.text());
  });
  return 0;
}

namespace {

// As vLLM's prompt_logprobs: for each token null, or the label and the likeliest tokens by id.
eval::Json prompt_logprobs(const TokenLogprobs& scored, const Tokenizer& tokenizer) {
  eval::Json all = eval::Json::array({nullptr});
  for (size_t t = 0; t < scored.logprobs.size(); ++t) {
    eval::Json one = eval::Json::object();
    const auto put = [&](int64_t id, float logprob, int64_t rank) {
      const std::string token(id < tokenizer.vocab_size() ? tokenizer.token_bytes(static_cast<int32_t>(id)) : "");
      one[fmt::format("{}", id)] = {{"logprob", logprob}, {"rank", rank}, {"decoded_token", replace_invalid_utf8(token)}};
    };
    put(scored.ids[t + 1], scored.logprobs[t], scored.ranks[t]);
    int64_t rank = 0;
    for (const auto& [id, logprob] : scored.top[t])
      if (++rank; id != scored.ids[t + 1]) put(id, logprob, rank);
    all.push_back(std::move(one));
  }
  return all;
}

eval::Json logprobs_json(EvalModel& model, const std::string& text, int64_t top) {
  const TokenLogprobs scored = token_logprobs(model, text, top);
  eval::Json tokens = eval::Json::array(), logprobs = eval::Json::array({nullptr});
  double sum = 0;
  for (const int32_t id : scored.ids) tokens.push_back(replace_invalid_utf8(model.tokenizer().token_bytes(id)));
  for (const float p : scored.logprobs) logprobs.push_back(p), sum += p;
  eval::Json j = {{"prompt_token_ids", scored.ids}, {"tokens", tokens}, {"token_logprobs", logprobs}, {"cumulative_logprob", sum}};
  if (top > 0) j["prompt_logprobs"] = prompt_logprobs(scored, model.tokenizer());
  return j;
}

}  // namespace

int logprobs_command(Arguments args) {
  CLI::App app{"Writes the log-probability of every token of texts, for comparison with a server", "halftone logprobs"};
  ModelArguments model;
  std::string text, jsonl, key = "text", out;
  int64_t top = 0;
  model.add(app);
  app.add_option("--text", text, "file whose contents are one text");
  app.add_option("--jsonl", jsonl, "rows with a text each: JSON lines or Parquet");
  app.add_option("--key", key, "their field with the text")->capture_default_str();
  app.add_option("--top-k", top, "also the k likeliest tokens at each place, as vLLM's prompt_logprobs")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--out", out, "file to write; default: standard output");
  if (!parse(app, args)) return 0;
  const EvalModelOptions m = model.read();
  check(text.empty() != jsonl.empty(), "give either --text FILE or --jsonl FILE");
  const int64_t processes = read_environment().world_size;
  check(processes == 1, "halftone logprobs needs one process, found {}", processes);
  check_writable(out);
  set_log_level(LogLevel::warning);
  std::vector<eval::Row> rows;
  constexpr int64_t kLongest = int64_t{64} << 20;
  if (!text.empty()) {
    rows.push_back({{{"text", read_file(text, kLongest)}}, text}), key = "text";
  } else {
    rows = eval::read_rows(jsonl, "", "train");
  }
  const eval::Template field("{" + key + "}", "--key");
  EvalModel loaded(m);
  std::string lines;
  for (size_t i = 0; i < rows.size(); ++i) {
    eval::Json j;
    try {
      j = logprobs_json(loaded, field.render(rows[i]), top);
    } catch (const Error& error) {
      fail("{}{}", std::string_view(error.what()).starts_with(rows[i].place) ? "" : rows[i].place + ": ", error.what());
    }
    eval::Json line = {{"index", i}};
    line.update(j);
    const std::string written = line.dump(-1, ' ', false, kReplace);
    out.empty() ? print(written) : void(lines += written + "\n");
  }
  if (!out.empty()) write_whole(out, lines);
  return 0;
}

}  // namespace halftone
