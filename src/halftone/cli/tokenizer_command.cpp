#include "halftone/cli/tokenizer_command.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>

#include "halftone/base/error.h"
#include "halftone/base/log.h"
#include "halftone/base/stopwatch.h"
#include "halftone/cli/parse.h"
#include "halftone/data/bpe_trainer.h"
#include "halftone/data/file_io.h"
#include "halftone/data/file_list.h"
#include "halftone/data/tokenizer.h"
#include "halftone/data/unicode.h"

namespace halftone {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxDocumentBytes = int64_t{1} << 31;

// All files that the patterns match, without duplicates, in the order of the patterns.
std::vector<SourceFile> list_files(const std::vector<std::string>& patterns) {
  std::vector<SourceFile> files;
  std::set<std::string> seen;
  for (const std::string& pattern : patterns) {
    for (SourceFile& file : find_files(pattern, {""}).files) {
      if (seen.insert(std::filesystem::weakly_canonical(file.path).string()).second) files.push_back(std::move(file));
    }
  }
  return files;
}

std::string read_standard_input() { return {std::istreambuf_iterator<char>(std::cin), {}}; }

struct TrainOptions {
  std::vector<std::string> files;
  std::string output;
  int64_t max_bytes = 0;
  BpeTrainerOptions trainer;
};

int run_train(TrainOptions options) {
  const std::vector<SourceFile> files = list_files(options.files);
  int64_t total = 0, read_bytes = 0;
  for (const SourceFile& file : files) total += file.size;
  if (options.max_bytes > 0) total = std::min(total, options.max_bytes);
  size_t next = 0;
  auto next_document = [&](std::string& text) {
    if (next == files.size() || read_bytes >= total) return false;
    const SourceFile& file = files[next++];
    const int64_t wanted = std::min(file.size, total - read_bytes);
    check(wanted <= kMaxDocumentBytes, "{}: expected documents of up to {} bytes, found {}; cut it, or set --max-bytes", file.path,
          kMaxDocumentBytes, file.size);
    text.resize(static_cast<size_t>(wanted));
    text.resize(InputFile(file.path).read(0, text.data(), text.size()));
    read_bytes += static_cast<int64_t>(text.size());
    return true;
  };
  const bool terminal = isatty(STDERR_FILENO) != 0;
  Stopwatch last;
  std::string_view last_phase;
  options.trainer.progress = [&](std::string_view phase, double fraction) {
    const bool new_phase = phase != last_phase;
    if (!new_phase && last.seconds() < (terminal ? 0.1 : 5)) return;
    last = {};
    if (terminal && new_phase && !last_phase.empty()) fmt::print(stderr, "\n");
    last_phase = phase;
    const double done = fraction < 0 ? static_cast<double>(read_bytes) / static_cast<double>(std::max<int64_t>(total, 1)) : fraction;
    fmt::print(stderr, "{}tokenizer: {} {:3.0f}%{}", terminal ? "\r" : "", phase, 100 * done, terminal ? "" : "\n");
  };
  std::error_code failed;
  std::filesystem::create_directories(options.output, failed);
  check(!failed, "--output {}: cannot create the folder: {}", options.output, failed.message());
  const Stopwatch watch;
  const Tokenizer tokenizer = train_bpe(next_document, options.trainer);
  if (terminal && !last_phase.empty()) fmt::print(stderr, "\n");
  tokenizer.save(options.output);
  fmt::print("{} files, {:.1f} MB, {:.2f} s\n{}\nwritten to {}\n", next, static_cast<double>(read_bytes) / 1e6, watch.seconds(),
             tokenizer.description(), options.output);
  return 0;
}

std::vector<int32_t> ids_from_json(const std::string& line, int64_t number) {
  const Json json = Json::parse(line, nullptr, false);
  std::vector<int32_t> ids;
  bool good = json.is_array();
  for (size_t i = 0; good && i < json.size(); ++i) {
    good = json[i].is_number_integer() && json[i].get<int64_t>() >= 0 && json[i].get<int64_t>() <= INT32_MAX;
    if (good) ids.push_back(json[i].get<int32_t>());
  }
  check(good, "line {}: expected a JSON array of token ids", number);
  return ids;
}

int run_encode(const std::string& path, const std::vector<std::string>& words, const std::string& file, bool special, bool jsonl) {
  const Tokenizer tokenizer = Tokenizer::load(path);
  if (jsonl) {
    std::string line;
    for (int64_t number = 1; std::getline(std::cin, line); ++number) {
      const Json json = Json::parse(line, nullptr, false);
      check(json.is_string(), "line {}: expected a JSON string", number);
      fmt::print("[{}]\n", fmt::join(tokenizer.encode(json.get_ref<const std::string&>(), special), ","));
    }
    return 0;
  }
  std::string text = fmt::format("{}", fmt::join(words, " "));
  if (words.empty()) text = file.empty() ? read_standard_input() : read_file(file, kMaxDocumentBytes);
  fmt::print("{}\n", fmt::join(tokenizer.encode(text, special), " "));
  return 0;
}

int run_decode(const std::string& path, std::vector<int32_t> ids, bool skip_special, bool jsonl) {
  const Tokenizer tokenizer = Tokenizer::load(path);
  if (jsonl) {
    std::string line;
    for (int64_t number = 1; std::getline(std::cin, line); ++number) {
      const std::string text = tokenizer.decode(ids_from_json(line, number), skip_special);
      fmt::print("{}\n", Json(replace_invalid_utf8(text)).dump());
    }
    return 0;
  }
  if (ids.empty()) {
    for (std::string word; std::cin >> word;) {
      int32_t id = 0;
      const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), id);
      check(error == std::errc() && end == word.data() + word.size(), "expected token ids with blanks between, found '{}'",
            replace_invalid_utf8(word));
      ids.push_back(id);
    }
  }
  const std::string text = tokenizer.decode(ids, skip_special);
  std::cout.write(text.data(), static_cast<std::streamsize>(text.size()));
  std::cout << '\n';
  return 0;
}

int run_bench(const std::string& path, const std::vector<std::string>& patterns, int repeats) {
  const Stopwatch load;
  const Tokenizer tokenizer = Tokenizer::load(path);
  const double load_seconds = load.seconds();
  std::vector<std::string> documents;
  double bytes = 0;
  for (const SourceFile& file : list_files(patterns)) {
    documents.push_back(read_file(file.path, kMaxDocumentBytes));
    bytes += static_cast<double>(documents.back().size());
  }
  double best = 0;
  size_t tokens = 0;
  std::vector<int32_t> ids;
  for (int r = 0; r < repeats; ++r) {
    const Stopwatch watch;
    tokens = 0;
    for (const std::string& text : documents) {
      ids.clear();
      tokenizer.encode_append(text, ids, false);
      tokens += ids.size();
    }
    const double seconds = watch.seconds();
    best = r == 0 ? seconds : std::min(best, seconds);
  }
  const Json result{{"documents", documents.size()}, {"bytes", bytes}, {"tokens", tokens}, {"seconds", best}, {"MB/s", bytes / best / 1e6},
                    {"load_seconds", load_seconds}};
  fmt::print("{}\n", result.dump());
  return 0;
}

}  // namespace

int tokenizer_command(std::span<const std::string> args) {
  CLI::App app{"Train and use byte-level BPE tokenizers (Hugging Face tokenizer.json).", "halftone tokenizer"};
  app.require_subcommand(1);

  TrainOptions train;
  CLI::App* train_app = app.add_subcommand("train", "learn a vocabulary from text files, one document each");
  train_app->add_option("--files", train.files, "files, folders or globs (** for any number of folders)")->required();
  train_app->add_option("--vocab-size", train.trainer.vocab_size, "ids in all: 256 bytes, merges, special tokens")->capture_default_str();
  train_app->add_option("--output", train.output, "folder for tokenizer.json and tokenizer_config.json")->required();
  train_app->add_option("--pattern", train.trainer.pattern, "pretokenizer: gpt2, llama3, qwen2")->capture_default_str();
  train_app->add_option("--threads", train.trainer.threads, "0: one per core")->capture_default_str()->check(CLI::Range(0, 4096));
  train_app->add_option("--special", train.trainer.special_tokens, "special tokens, in the order of their ids")->capture_default_str();
  train_app->add_flag("--special-tokens-in-text", train.trainer.special_tokens_in_text,
                      "read special tokens spelled out in texts as tokens, and learn nothing from them");
  train_app->add_option("--bos", train.trainer.bos_token, "the special token that begins a document")->capture_default_str();
  train_app->add_option("--eos", train.trainer.eos_token, "the special token that ends a document")->capture_default_str();
  train_app->add_option("--min-frequency", train.trainer.min_frequency, "pairs seen less often are not merged")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  train_app->add_option("--max-bytes", train.max_bytes, "bytes to read at most; 0 = all")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);

  std::string path, file;
  std::vector<std::string> words, patterns;
  std::vector<int32_t> ids;
  bool no_special = false, skip_special = false, jsonl = false;
  int repeats = 3;
  auto tokenizer_option = [&](CLI::App* sub) {
    sub->add_option("--tokenizer", path, "folder with tokenizer.json, or that file")->required();
    return sub;
  };
  CLI::App* encode_app = tokenizer_option(app.add_subcommand("encode", "print the ids of a text (arguments, --file or standard input)"));
  CLI::Option* text = encode_app->add_option("text", words, "the text");
  CLI::Option* from_file = encode_app->add_option("--file", file, "read the text from a file")->excludes(text);
  encode_app->add_flag("--no-special", no_special, "omit what the post-processor adds (BOS, EOS)");
  encode_app->add_flag("--jsonl", jsonl, "read one JSON string a line from standard input; print one array a line")
      ->excludes(text)
      ->excludes(from_file);
  CLI::App* decode_app = tokenizer_option(app.add_subcommand("decode", "print the text of ids (arguments or standard input)"));
  decode_app->add_option("ids", ids, "token ids");
  decode_app->add_flag("--skip-special", skip_special, "omit special tokens");
  decode_app->add_flag("--jsonl", jsonl, "read one array of ids a line from standard input; print one JSON string a line");
  CLI::App* info_app = tokenizer_option(app.add_subcommand("info", "describe a tokenizer"));
  CLI::App* bench_app = tokenizer_option(app.add_subcommand("bench", "time encoding on one thread"));
  bench_app->add_option("--files", patterns, "files, folders or globs")->required();
  bench_app->add_option("--repeats", repeats, "runs, of which the best is printed")->capture_default_str()->check(CLI::Range(1, 1000));

  // CLI11 would parse [a,b] as a list; a leading character that no argument has prevents that.
  constexpr char kLiteral = '\x01';
  std::vector<std::string> literal(args.begin(), args.end());
  for (std::string& arg : literal) {
    if (arg.size() > 1 && arg.front() == '[' && arg.back() == ']') arg.insert(arg.begin(), kLiteral);
  }
  if (!parse(app, literal)) return 0;
  const auto restore = [](std::string& arg) {
    if (arg.starts_with(kLiteral)) arg.erase(0, 1);
  };
  for (auto* list : {&words, &patterns, &train.files, &train.trainer.special_tokens}) std::ranges::for_each(*list, restore);
  for (auto* one : {&path, &file, &train.output, &train.trainer.bos_token, &train.trainer.eos_token}) restore(*one);
  if (*train_app) return run_train(std::move(train));
  if (*encode_app || *decode_app) set_log_level(LogLevel::error);  // standard output is the result; `info` shows warnings
  if (*encode_app) return run_encode(path, words, file, !no_special, jsonl);
  if (*decode_app) return run_decode(path, std::move(ids), skip_special, jsonl);
  if (*info_app) fmt::print("{}\n", Tokenizer::load(path).description());
  if (*bench_app) return run_bench(path, patterns, repeats);
  return 0;
}

}  // namespace halftone
