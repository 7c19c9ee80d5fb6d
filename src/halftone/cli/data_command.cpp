#include "halftone/cli/data_command.h"

#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "halftone/base/environment.h"
#include "halftone/base/error.h"
#include "halftone/base/log.h"
#include "halftone/base/parallel.h"
#include "halftone/base/stopwatch.h"
#include "halftone/cli/data_report.h"
#include "halftone/cli/data_rows.h"
#include "halftone/cli/parse.h"
#include "halftone/config/load.h"
#include "halftone/data/bin_writer.h"
#include "halftone/data/file_io.h"
#include "halftone/data/loader.h"
#include "halftone/data/row_packing.h"
#include "halftone/data/training_data.h"
#include "halftone/storage/byte_file.h"
#include "halftone/train/console.h"

namespace halftone {
namespace {

constexpr const char* kFooter =
    "PATH alone is read with the defaults of a run; with --tokenizer it is also tokenised, and its first rows are shown. With --config "
    "the\n"
    "configuration says what is read, how, and with which tokenizer; the options here override it. Other fields are set as for halftone\n"
    "train (--training.dataloader.shuffle true), behind PATH.\n\n"
    "Of more than 512 MB, parts are read that are spread evenly over the files; duplicates are then sought among these.\n\n"
    "A near duplicate resembles an earlier document: of 64 minimum hashes of its groups of 5 consecutive words 80% or more agree, which\n"
    "estimates the Jaccard similarity to about 5 points. Candidates share one of 16 bands of 4 hashes. Of more than 524,288 different\n"
    "documents a sample is compared.\n\n"
    "In the first rows [- and -] enclose tokens without a loss; on a terminal they are grey, and tokens with a loss are green.\n\n"
    "  halftone data tests/assets/c4_test\n"
    "  halftone data tests/assets/c4_test --tokenizer tests/assets/tokenizer --packing best_fit --seq_len 512\n"
    "  halftone data --config run.toml --all --json look.json\n"
    "  halftone data 'corpus/*.jsonl' --tokenizer my/tokenizer --write corpus.bin\n";

struct Options {
  std::string path, config, tokenizer, write, json;
  std::vector<std::string> fields;  // --section.field and values, for the configuration
  int64_t rows = 3, sample = 0;
  bool all = false;
  int threads = 0;
};

// Options of this command that are fields of the configuration under a short name.
struct ShortName {
  const char *name, *field, *help;
};
constexpr ShortName kShortNames[] = {
    {"--dataset", "--training.dataset", "kind of data: text, jsonl, parquet, bin, ... (default auto: by the files)"},
    {"--text_key", "--training.dataloader.text_key", "field or column with the text (default text)"},
    {"--text_split", "--training.dataloader.text_split", "plain text: what a document is: file, line, blank_line (default file)"},
    {"--subset", "--training.dataloader.subset", "configuration of a Hugging Face data set's folder"},
    {"--split", "--training.dataloader.split", "split of a Hugging Face data set's folder (default train)"},
    {"--seq_len", "--training.seq_len", "tokens in a row of training (default 2048)"},
    {"--packing", "--training.dataloader.packing", "how documents fill rows: concat, concat_documents, first_fit, best_fit, none"},
};

// Takes out the words --section.field with their values.
std::vector<std::string> take_fields(std::vector<std::string>& words) {
  std::vector<std::string> fields;
  for (size_t i = 0; i < words.size();) {
    const std::string name = words[i].substr(0, words[i].find('='));
    if (!name.starts_with("--") || name.find('.') == std::string::npos) {
      ++i;
      continue;
    }
    const bool joined = name.size() < words[i].size();
    const size_t end = i + (!joined && i + 1 < words.size() && !words[i + 1].starts_with("--") ? 2 : 1);
    const auto first = words.begin() + static_cast<std::ptrdiff_t>(i), last = words.begin() + static_cast<std::ptrdiff_t>(end);
    fields.insert(fields.end(), first, last);
    words.erase(first, last);
  }
  return fields;
}

JobConfig configuration(const Options& o) {
  std::vector<std::string> words;
  if (!o.config.empty()) words.insert(words.end(), {"--config", o.config});
  // A path without --dataset is not of the configuration's kind.
  const bool kind = std::ranges::find(o.fields, "--training.dataset") != o.fields.end();
  if (!o.path.empty()) words.insert(words.end(), {"--training.dataset_path", o.path});
  if (!o.path.empty() && o.config.empty() && !kind) words.insert(words.end(), {"--training.dataset", "auto"});
  if (!o.tokenizer.empty()) words.insert(words.end(), {"--model.hf_assets_path", o.tokenizer});
  words.insert(words.end(), o.fields.begin(), o.fields.end());
  const Environment environment = read_environment();
  LoadedConfig loaded = load_config(words, {.world_size = environment.launcher == "none" ? 0 : environment.world_size});
  check(!o.config.empty() || !o.path.empty() || kind, "data: expected a PATH or --config, found neither (see halftone data --help)");
  return std::move(loaded.config);
}

// One line on standard error, written over on a terminal; elsewhere a line every ten seconds.
class ProgressLine {
 public:
  explicit ProgressLine(std::string what) : what_(std::move(what)) {}
  ~ProgressLine() {
    if (terminal_ && shown_) fmt::print(stderr, "\r\x1b[K");
  }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;
  void show(const InspectProgress& p) {
    if (last_.seconds() < (terminal_ ? 0.1 : 10)) return;
    last_ = {};
    const double seconds = watch_.seconds(), rate = static_cast<double>(p.text_bytes) / std::max(seconds, 1e-9);
    const std::string read = fmt::format("reading {}: {}, {}/s", what_, bytes_text(p.text_bytes), bytes_text(static_cast<int64_t>(rate)));
    const std::string left = p.done <= 0 ? "" : fmt::format(", {:.0f}%, {} left", 100 * p.done, duration_text(seconds / p.done - seconds));
    fmt::print(stderr, "{}{}{}{}", terminal_ ? "\r" : "", read, left, terminal_ ? "\x1b[K" : "\n");
    std::fflush(stderr);
    shown_ = true;
  }

 private:
  std::string what_;
  bool terminal_ = ::isatty(STDERR_FILENO) != 0, shown_ = false;
  Stopwatch watch_, last_;
};

// Ids are not needed without a tokenizer, only a bound for those that a source holds ready-made.
TextCodec no_codec(const JobConfig& config) {
  TextCodec codec;
  codec.vocab_size = config.training.dataset == "bin" && config.training.dataloader.token_dtype == "uint16" ? 65536 : INT32_MAX;
  return codec;
}

struct Look {
  SourceReport report;
  std::string written;
};

// Whether the first rows may hold any documents, so that the index needs all of them.
bool needs_all(const RowOptions& rows) { return rows.shuffle || rows.shuffle_rows || rows.packing == Packing::best_fit; }

int64_t bytes_to_keep(const Options& o, const TrainingData& data, int64_t tokens_of_rows) {
  if (o.rows == 0) return 0;
  return std::max<int64_t>(needs_all(data.rows) ? int64_t{16} << 20 : int64_t{1} << 20, 8 * tokens_of_rows);
}

Look look_at(const Options& o, const TrainingData& data, const std::optional<Tokenizer>& tokenizer, const TextCodec& codec) {
  const Stopwatch watch;
  Look out;
  SourceOptions reading = data.reading;
  out.report.stops_at_bad = reading.on_bad_line == "error";
  out.report.reads_special = data.loader.special_tokens_in_text;
  reading.on_bad_line = "skip";
  reading.streamed = reading.streamed || is_remote(reading.path);
  const std::unique_ptr<DocumentSource> source = open_source(reading);
  check(tokenizer || source->stored_token_bytes() == 0, "{}: holds token ids; set --tokenizer FOLDER, whose EOS ends the documents",
        source->files().pattern);
  SourceReport& r = out.report;
  r.name = source->files().pattern, r.kind = source->kind();
  r.files = static_cast<int64_t>(source->files().files.size()), r.bytes = source->files().bytes(), r.others = source->files().others;
  InspectOptions inspect;
  inspect.threads = o.threads > 0 ? o.threads : max_threads();
  inspect.by_files = reading.streamed;
  inspect.sample_documents = o.sample;
  if (o.all) inspect.sample_bytes = 0;
  inspect.keep_bytes = bytes_to_keep(o, data, (o.rows + data.rows.bins) * data.rows.seq_len);
  if (tokenizer) {
    r.tokenizer = tokenizer->description();
    inspect.codec = &codec;
    if (!r.reads_special) inspect.find_special = [&](std::string_view text) { return tokenizer->find_special_token(text); };
  }
  std::optional<BinWriter> writer;
  if (!o.write.empty()) {
    writer.emplace(*source, o.write, width_for(codec.vocab_size), *codec.eos_id, "--write");
    inspect.take = [&](const TokenisedShard& shard) { writer->add(shard); };
  }
  {
    ProgressLine line(r.name);
    inspect.progress = [&](const InspectProgress& progress) { line.show(progress); };
    r.look = inspect_source(*source, inspect);
  }
  if (tokenizer) r.packing = pack_figures(r.look, data.rows, data.loader.packing);
  if (writer) {
    check(r.look.pieces > 0, "{} holds no document with text: {} is not written", r.name, o.write);
    out.written = writer->commit();
  }
  r.seconds = watch.seconds();
  return out;
}

nlohmann::ordered_json row_json(const ModelRow& row) {
  return {
      {"tokens", row.tokens}, {"labels", row.labels}, {"positions", row.positions}, {"doc_start", row.doc_start}, {"filled", row.filled}};
}

// The first rows, with the sentence that says which they are.
struct FirstRows {
  std::string title;
  std::vector<ModelRow> rows;
};
FirstRows first_rows(const Options& o, const JobConfig& config, const std::vector<TrainingData>& data, const std::vector<Look>& looks,
                     const Tokenizer& tokenizer, const TextCodec& codec) {
  for (const Look& one : looks) {
    const Inspection& look = one.report.look;
    const bool masked = look.conversations > 0 && look.learned_tokens < look.tokens;
    check(!masked || config.training.dataloader.packing != "concat", "{}", kConcatOfChats);
  }
  const bool mixture = data.size() > 1 || !config.training.sources.empty();
  const bool streamed = std::ranges::all_of(data, [](const TrainingData& d) { return d.reading.streamed; });
  if (mixture && !streamed && !o.all)
    return {"First rows: --all shows those of a mixture with indexed sources, which it tokenises whole", {}};
  if (mixture || streamed) return {"First rows, as the run reads them", loader_rows(config, tokenizer, o.rows)};
  const Inspection& look = looks[0].report.look;
  if (look.first == nullptr) return {"First rows: none, there is no document", {}};
  RowOptions rows = data[0].rows;
  const bool exact = look.first_is_all || !needs_all(rows);
  if (!exact) rows.shuffle = rows.shuffle_rows = false;
  const bool stops = looks[0].report.stops_at_bad && look.bad.count > 0;
  return {exact && stops ? "First rows, without the bad lines, at which the run stops"
          : exact        ? "First rows, as the run reads them"
                         : "First rows of the first documents; shuffled or packed by best_fit, those of the run depend on all",
          indexed_rows_of(*look.first, codec, rows, o.rows)};
}

int run(const Options& o) {
  check(o.write.empty() || o.sample == 0, "data: --write writes everything: leave out --sample");
  const JobConfig config = configuration(o);
  set_storage_options(storage_options(config));
  std::optional<Tokenizer> tokenizer;
  if (!o.tokenizer.empty() || !o.config.empty()) tokenizer = Tokenizer::load(config.model.hf_assets_path);
  check(o.write.empty() || tokenizer, "data: --write needs --tokenizer FOLDER");
  check(o.write.empty() || tokenizer->eos_id().has_value(), "{}: the tokenizer names no EOS token, which ends the documents of a .bin file",
        config.model.hf_assets_path);
  const std::vector<TrainingData> data = training_data(
      config, [&](const DataloaderConfig& loader) { return tokenizer ? make_text_codec(*tokenizer, loader) : no_codec(config); });
  check(o.write.empty() || data.size() == 1, "data: --write writes one source, the configuration mixes {}", data.size());
  const Terminal terminal = find_terminal();
  nlohmann::ordered_json json{{"sources", nlohmann::ordered_json::array()}};
  std::vector<Look> looks;
  for (const TrainingData& one : data) {
    const TextCodec codec = tokenizer ? make_text_codec(*tokenizer, one.loader) : no_codec(config);
    Look& look = looks.emplace_back(look_at(o, one, tokenizer, codec));
    if (data.size() > 1) look.report.name = fmt::format("{} ({})", one.name, look.report.name);
    print((looks.size() > 1 ? "\n" : "") + report_text(look.report, terminal));
    if (!look.written.empty()) fmt::print("\nwritten: {}\n", look.written);
    std::fflush(stdout);
    json["sources"].push_back(report_json(look.report));
  }
  std::string problem;  // of the rows; the figures are good without them
  if (tokenizer && o.rows > 0) {
    try {
      const FirstRows first = first_rows(o, config, data, looks, *tokenizer, make_text_codec(*tokenizer, data[0].loader));
      fmt::print("\n{}\n", first.title);
      json["first_rows"] = nlohmann::ordered_json::array();
      for (size_t i = 0; i < first.rows.size(); ++i) {
        print(row_text(first.rows[i], static_cast<int64_t>(i), config.training.dataloader.packing == "concat", *tokenizer, terminal));
        json["first_rows"].push_back(row_json(first.rows[i]));
      }
    } catch (const Error& error) {
      fmt::print("\nFirst rows: a run would stop: {}\n", error.what());
      json["rows_problem"] = error.what();
    }
  }
  if (!o.json.empty()) {
    const std::string text = json.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
    AtomicFile file(o.json);
    file.write(text.data(), text.size());
    file.commit();
  }
  return 0;
}

}  // namespace

int data_command(std::span<const std::string> args) {
  CLI::App app("Looks at a data source before a run: sizes, lengths, duplicates, damage, and the first rows as a model sees them.",
               "halftone data");
  Options o;
  std::vector<std::string> words(args.begin(), args.end());
  o.fields = take_fields(words);
  app.add_option("PATH", o.path, "file, folder or glob; local, s3://, gs:// or https://; default: the configuration's")->type_name("");
  app.add_option("--config", o.config, "TOML of a run: shows what it reads, with its tokenizer and its rows")->type_name("FILE");
  app.add_option("--tokenizer", o.tokenizer, "folder with tokenizer.json: counts tokens and shows rows")->type_name("FOLDER");
  std::vector<std::string> values(std::size(kShortNames));
  for (size_t i = 0; i < values.size(); ++i) app.add_option(kShortNames[i].name, values[i], kShortNames[i].help)->type_name("");
  app.add_option("--rows", o.rows, "first rows to show; 0: none")->capture_default_str()->check(CLI::Range(0, 1000))->type_name("N");
  CLI::Option* sample =
      app.add_option("--sample", o.sample, "documents to read, from places spread over the source")->check(CLI::PositiveNumber);
  app.add_flag("--all", o.all, "read everything, however large")->excludes(sample);
  app.add_option("--write", o.write, "also write the ids as a .bin file, as halftone tokenize does; reads everything")->type_name("FILE");
  app.add_option("--json", o.json, "also write the figures to a file, with the ids of the rows")->type_name("FILE");
  app.add_option("--threads", o.threads, "0: one per core")->capture_default_str()->check(CLI::Range(0, 4096))->type_name("N");
  app.footer(kFooter);
  if (!parse(app, words)) return 0;
  for (size_t i = 0; i < values.size(); ++i)
    if (!values[i].empty()) o.fields.insert(o.fields.end(), {kShortNames[i].field, values[i]});
  o.all = o.all || !o.write.empty();
  // The report says what the log would.
  struct Quiet {
    Quiet() { set_log_level(LogLevel::error); }
    ~Quiet() { set_log_level(LogLevel::info); }
  } const quiet;
  return run(o);
}

}  // namespace halftone
