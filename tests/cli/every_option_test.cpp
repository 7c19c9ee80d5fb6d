// No option does nothing: every field of the configuration has a row (every_option_rows.h) with a value and the proof of its effect.
#include <ATen/Parallel.h>
#include <fcntl.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <regex>
#include <set>
#include <thread>

#include "checkpoint/support.h"
#include "cli/every_option_rows.h"
#include "halftone/base/error.h"
#include "halftone/base/log.h"
#include "halftone/cli/commands.h"
#include "halftone/config/load.h"
#include "halftone/config/value.h"
#include "halftone/data/loader.h"
#include "halftone/parallel/context.h"
#include "source_dir.h"

namespace halftone::every_option {
namespace {

namespace fs = std::filesystem;
using testing::read_file;
using testing::write_file;
using Strings = std::vector<std::string>;

const fs::path kSource = source_dir();

struct Result {
  int status = 0;
  std::string said;     // on standard output, and the error
  std::string numbers;  // of metrics.jsonl, without times and memory
  std::set<std::string> files;
  fs::path folder;
};

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) text.replace(at, from.size(), to);
  return text;
}

std::string numbers_of(const fs::path& file) {
  std::string out, line;
  std::ifstream in(file);
  while (std::getline(in, line)) {
    nlohmann::json j = nlohmann::json::parse(line);
    if (j.at("kind") == "run" || j.at("kind") == "event") continue;
    for (const char* part : {"time", "memory", "throughput", "tflops", "mfu"})
      std::erase_if(j.get_ref<nlohmann::json::object_t&>(), [&](const auto& item) { return item.first.find(part) != std::string::npos; });
    out += j.dump() + "\n";
  }
  return out;
}

// Inputs in one folder, and runs in others beside it; a run that was made once is not made again.
class Lab {
 public:
  Lab() {
    at::set_num_threads(1);
    std::mt19937 random(1);
    const auto bin = [&](const char* name, auto id, size_t count) {
      std::string bytes;
      for (size_t i = 0; i < count; ++i) {
        const auto token = static_cast<decltype(id(i))>(id(i));
        bytes.append(reinterpret_cast<const char*>(&token), sizeof token);
      }
      write_file(folder_ / name, bytes);
    };
    bin(
        "rows.bin", [&](size_t) { return static_cast<uint16_t>(300 + random() % 100); }, 2048);
    bin(
        "other.bin", [&](size_t) { return static_cast<uint16_t>(500 + random() % 100); }, 2048);
    bin(
        "wide.bin", [&](size_t) { return static_cast<uint32_t>(300 + random() % 100); }, 2048);
    bin(
        "spike.bin", [&](size_t i) { return static_cast<uint16_t>(i / 32 < 23 ? 300 + i % 4 : 300 + random() % 1600); }, 26 * 32);
    fs::create_directory(folder_ / "words");
    std::string lines;
    for (int file = 0; file < 24; ++file) {
      std::string text = file == 0 ? "one <|end_of_text|> two\n" : "";
      for (int i = 0; i < 2 + file % 4; ++i) text += std::to_string(random() % 1000) + (i % 3 == 2 ? "\n" : " ");
      write_file(folder_ / "words" / (std::to_string(file) + ".txt"), text);
      lines += nlohmann::json{{"text", text}, {"other", "x " + text}}.dump() + "\n";
    }
    write_file(folder_ / "other.txt", lines.substr(0, 400));
    write_file(folder_ / "docs.jsonl", lines), write_file(folder_ / "bad.jsonl", lines + "no document\n" + lines);
    fs::create_directories(folder_ / "folder/data"), fs::create_directories(folder_ / "folder/de");
    write_file(folder_ / "folder/data/train.jsonl", lines),
        write_file(folder_ / "folder/data/test.jsonl", lines.substr(lines.find('\n') + 1));
    write_file(folder_ / "folder/de/train.jsonl", lines.substr(lines.find('\n', 500) + 1));
    write_file(folder_ / "large.jsonl", lines + nlohmann::json{{"text", std::string(1'200'000, 'x')}}.dump() + "\n");
    std::string chats;
    for (int i = 0; i < 40; ++i) {
      const auto talk = [&](const char* question) {
        nlohmann::json messages;
        for (const char* role : {"user", "assistant", "user", "assistant"})
          messages.push_back({{"role", role}, {"content", question + std::to_string(random() % 10)}});
        return messages;
      };
      chats += nlohmann::json{{"messages", talk("a")}, {"talk", talk("b")}}.dump() + "\n";
    }
    write_file(folder_ / "chats.jsonl", chats);
    write_file(folder_ / "chat.jinja", "{% for m in messages %}{{ m.content + eos_token }}{% endfor %}");
    write_file(folder_ / "other.jinja", "{% for m in messages %}{{ m.role[0] + m.content + eos_token }}{% endfor %}");
    write_file(folder_ / "poems.jsonl", "{\"poem\": \"12 90 3\"}\n{\"poem\": \"one two\"}\n");
    write_file(folder_ / "poems.toml", "[poems]\nkind = \"perplexity\"\nfile = \"poems.jsonl\"\ntext = \"{poem}\"\n");
    fs::create_directories(folder_ / "tasks/hellaswag");
    write_file(folder_ / "tasks/hellaswag/validation.jsonl",
               R"({"activity_label": "A", "ctx_a": "one", "ctx_b": "", "endings": ["two", "three"], "label": "0"})");
    write_file(folder_ / "lr.toml", "[optimizer]\nweight_decay = 0.5\n");
    write_file(folder_ / "schedule.csv", "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
    write_file(folder_ / "recipe.yaml", read_file(kSource / "recipes/precision/int8.yaml"));
    fs::copy(kSource / "tests/assets/tokenizer", folder_ / "tokenizer");
    run("saves", {"--checkpoint.last_save_model_only=false"}, "full");
    run("saves", {"--checkpoint.last_save_in_hf", "--checkpoint.last_save_model_only"}, "hf");
  }
  Lab(const Lab&) = delete;
  ~Lab() { at::set_num_threads(threads_); }

  std::string here(const std::string& text) const { return replaced(text, "@", folder_.path()); }
  fs::path operator/(const std::string& name) const { return folder_ / name; }

  Strings options(const std::string& context) const {
    if (context == "8B" || context == "experts") {
      const bool experts = context == "experts";
      const fs::path recipe = kSource / "recipes" / (experts ? "qwen3_30b_a3b.toml" : "llama3_8b.toml");
      return {"--config=" + recipe.string(), "--model.overrides.n_layers=4", "--device=h100", "--training.seq_len=4096"};
    }
    Strings all = {R"(--model.overrides={"dim":64,"n_layers":2,"n_heads":2,"n_kv_heads":2,"ffn_dim":128})",
                   "--model.hf_assets_path=" + (kSource / "tests/assets/tokenizer").string(),
                   "--training.dataset=bin",
                   "--training.dataset_path=@/rows.bin",
                   "--training.local_batch_size=2",
                   "--training.seq_len=31",
                   "--training.steps=3",
                   "--training.device=cpu",
                   "--lr_scheduler.warmup_steps=1",
                   "--optimizer.lr=1e-3",
                   "--metrics.log_freq=1",
                   "--debug.seed=42",
                   "--validation.seq_len=31",
                   "--validation.local_batch_size=2",
                   "--validation.freq=3"};
    const auto add = [&](const Strings& more) { all.insert(all.end(), more.begin(), more.end()); };
    if (context == "text") add({"--training.dataset=text", "--training.dataset_path=@/words"});
    if (context == "sources") add({"--training.dataset_path=None", "--training.sources={\"b\": {\"path\": \"@/other.txt\"}}"});
    if (context == "validated") add({"--validation.dataset=text", "--validation.dataset_path=@/words"});
    if (context == "saves" || context == "resume")
      add({"--checkpoint.enable", "--checkpoint.interval=2", "--checkpoint.last_save_model_only=false"});
    if (context == "resume") add({"--training.steps=5", "--lr_scheduler.total_steps=20"});
    if (context == "experts run")
      add({"--model.name=qwen3_moe",
           R"(--model.overrides={"dim":64,"n_layers":2,"n_heads":2,"n_kv_heads":2,"num_experts":4,"experts_per_token":2,"expert_ffn_dim":64})"});
    if (context == "spike")
      add({"--training.dataset_path=@/spike.bin", "--training.local_batch_size=1", "--training.steps=25", "--optimizer.lr=1e-2",
           "--training.nonfinite=skip", "--training.dataloader.shuffle=false"});
    return all;
  }

  const Result& run(const std::string& context, const Strings& more, const std::string& name = "") {
    const std::string key = context + "\n" + fmt::format("{}", fmt::join(more, "\n"));
    if (const auto at = runs_.find(key); at != runs_.end()) return at->second;
    Result& r = runs_[key];
    r.folder = folder_ / (name.empty() ? "run" + std::to_string(runs_.size()) : name);
    if (context == "resume") fs::copy(folder_ / "full", r.folder, fs::copy_options::recursive);
    const bool estimates = context == "8B" || context == "experts";
    Strings args = options(context);
    if (!estimates) args.push_back("--job.dump_folder=" + r.folder.string());
    args.insert(args.end(), more.begin(), more.end());
    for (std::string& arg : args) arg = here(arg);
    set_log_level(LogLevel::info);
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    std::string error;
    try {
      r.status = estimates ? estimate_command(args) : train_command(args);
    } catch (const std::exception& e) {
      r.status = 2, error = e.what();
    }
    r.said = ::testing::internal::GetCapturedStdout() + ::testing::internal::GetCapturedStderr() + error;
    set_log_level(LogLevel::info);
    if (fs::exists(r.folder / "metrics.jsonl")) r.numbers = numbers_of(r.folder / "metrics.jsonl");
    if (!fs::exists(r.folder)) return r;
    for (const auto& entry : fs::recursive_directory_iterator(r.folder)) {
      const std::string path = fs::relative(entry.path(), r.folder).string();
      if (path.starts_with("cache")) continue;
      const bool sized = entry.path().extension() == ".safetensors";
      const std::string shown = path.find("events.out") != path.npos || path.starts_with("tb") || path.starts_with("u/")
                                    ? std::regex_replace(path, std::regex("[0-9]{5,}"), "#")  // times
                                    : path;
      r.files.insert(shown + (sized ? fmt::format(" {}", entry.file_size()) : ""));
    }
    return r;
  }

 private:
  testing::TemporaryFolder folder_;
  std::map<std::string, Result> runs_;
  const int threads_ = at::get_num_threads();
};

Lab& lab() {
  static Lab* all = new Lab;  // NOLINT: deleted with the environment
  return *all;
}
class Cleaner : public ::testing::Environment {
  void TearDown() override { delete &lab(); }
};
const auto* const kCleaner = ::testing::AddGlobalTestEnvironment(new Cleaner);

std::string option_of(const Row& row) { return "--" + row.name + (row.value.empty() ? "" : "=" + row.value); }

// The rows with those of the two sections of a data loader.
std::vector<Row> all_rows() {
  std::vector<Row> all = rows();
  for (const char* section : {"training", "validation"}) {
    for (Row row : dataloader_rows()) {
      const std::string dataset = fmt::format("--{}.dataset", section), prefix = fmt::format("{}.dataloader.", section);
      const bool validates = std::string_view(section) == "validation";
      if (validates && row.name == "repeat") row.value = "true", row.proof = Proof::refused, row.says = "validation makes one pass";
      if (validates && (row.name == "read" || row.name == "shuffle_buffer" || row.name == "stream_lanes"))
        row.proof = Proof::refused, row.says = "every validation reads the same rows", row.more = {};
      row.name = prefix + row.name;
      Strings more;
      for (const std::string& m : row.more) {
        if (m == "dataset=jsonl" || m == "dataset=bad" || m == "dataset=chats")
          more.insert(more.end(),
                      {dataset + "=jsonl", dataset + "_path=@/" + (m == "dataset=jsonl" ? "docs" : m.substr(m.find('=') + 1)) + ".jsonl"});
        else if (m == "dataset=folder" || m == "dataset=large")
          more.insert(more.end(), {dataset + "=auto", dataset + "_path=@/" + (m == "dataset=folder" ? "folder" : "large.jsonl")});
        else if (m == "dataset=wide")
          more.insert(more.end(), {dataset + "=bin", dataset + "_path=@/wide.bin"});
        else
          more.push_back(m.starts_with("-") ? m : "--" + prefix + m);
      }
      // Validation reads the first batches of its rows, so another order shows.
      if (validates && row.proof != Proof::accepted && row.proof != Proof::refused)
        row.context = "validated", more.insert(more.end(), {"--validation.enable", "--validation.steps=2"});
      row.more = more;
      all.push_back(row);
    }
  }
  return all;
}

LoadedConfig load(const Row& row) {
  Strings args = with(with(lab().options(row.context), row.more), {option_of(row)});
  std::erase(args, "--device=h100"), std::erase(args, "-v");  // of the commands
  for (std::string& arg : args) arg = lab().here(arg);
  return load_config(args, {row.world});
}

// The part of the row's proof that fails; "" if it holds.
std::string failure_of(const Row& row) {
  LoadedConfig loaded;
  std::string error;
  try {
    loaded = load(row);
  } catch (const Error& e) {
    error = e.what();
  }
  if (row.proof == Proof::refused)
    return error.find(leaf_of(row.name)) != error.npos && error.find(row.says) != error.npos
               ? ""
               : fmt::format("expected an error with '{}', found '{}'", row.says, error);
  if (!error.empty()) return "is refused: " + error;
  JobConfig config = loaded.config;
  const FieldEntry& field = *index_config(config).find_field(row.name);
  const bool moved = row.name == "model.tokenizer_path";  // into the field that it is an alias of
  if (!moved && get_value(field) == default_value(row.name)) return "the value is the default";
  if (row.proof == Proof::own) return "";
  if (row.proof == Proof::accepted) {
    const bool named = std::ranges::any_of(loaded.accepted, [&](const AcceptedField& f) { return f.name == row.name; });
    return named ? "" : "is not among the accepted fields";
  }
  Strings without = row.more;
  if (row.proof == Proof::estimate) without.push_back(fmt::format("--world={}", row.world));
  const Result &a = lab().run(row.context, without), &b = lab().run(row.context, with(without, {option_of(row)}));
  const auto has = [&](const Result& r) { return r.said.find(lab().here(row.says)) != r.said.npos; };
  switch (row.proof) {
    case Proof::run:
      if (b.status != 0) return "ends with " + b.said.substr(b.said.size() - std::min<size_t>(b.said.size(), 600));
      return !b.numbers.empty() && a.numbers != b.numbers ? "" : "the run is the same";
    case Proof::estimate:
      if (b.status != 0 && b.status != 3) return "ends with " + b.said;
      return a.said != b.said ? "" : "the estimate is the same";
    case Proof::said:
      return has(b) && !has(a) ? "" : fmt::format("expected '{}' ({} without the option), found {}", row.says, has(a), b.said);
    case Proof::output: {
      if (b.status != 0) return "ends with " + b.said.substr(b.said.size() - std::min<size_t>(b.said.size(), 600));
      if (row.says.empty()) return a.files != b.files ? "" : "the same files";
      const size_t bar = row.says.find('|');
      const std::string file = row.says.substr(0, bar), text = bar == row.says.npos ? "" : row.says.substr(bar + 1);
      const auto writes = [&](const Result& r) {
        return fs::exists(r.folder / file) && (text.empty() || read_file(r.folder / file).find(text) != std::string::npos);
      };
      return writes(b) && !writes(a) ? "" : fmt::format("{}: found {}", row.says, fmt::join(b.files, ", "));
    }
    default:
      break;
  }
  return "no proof";
}

TEST(EveryOption, HasAnEffectOrIsRefused) {
  std::map<std::string, Row> by_name;
  for (const Row& row : all_rows()) EXPECT_TRUE(by_name.emplace(row.name, row).second) << row.name << " has two rows";
  JobConfig config;
  std::map<Proof, int> counts;
  for (const FieldEntry& field : index_config(config).fields) {
    const auto at = by_name.find(field.name);
    if (at == by_name.end()) {
      ADD_FAILURE() << field.name << " has no row in every_option_rows.h";
      continue;
    }
    const Row& row = at->second;
    EXPECT_EQ(row.proof == Proof::accepted, field.info.mark == Mark::A && field.name != "model.tokenizer_path") << field.name;
    EXPECT_TRUE(field.info.mark != Mark::N || row.proof == Proof::refused) << field.name;
    const std::string failure = failure_of(row);
    EXPECT_EQ(failure, "") << option_of(row);
    ++counts[row.proof];
    by_name.erase(at);
  }
  for (const auto& [name, row] : by_name) ADD_FAILURE() << name << " is no field";
  const char* names[] = {"run", "said", "output", "estimate", "accepted", "refused", "own"};
  for (const auto& [proof, count] : counts) fmt::print("{} fields: {}\n", count, names[static_cast<int>(proof)]);
}

// A run is repeatable, so that a difference proves an effect.
TEST(EveryOption, RunsRepeat) {
  for (const char* context : {"bin", "text", "experts run", "saves"}) {
    const Strings mxfp4 = {"--quantize.scheme=mxfp4"}, named = {"--job.description=x"};
    const Result &a = lab().run(context, mxfp4), &b = lab().run(context, with(mxfp4, named));
    EXPECT_FALSE(a.numbers.empty()) << a.said;
    EXPECT_EQ(a.numbers, b.numbers) << context;
    EXPECT_EQ(a.files, b.files) << context;
  }
  EXPECT_EQ(lab().run("8B", {}).said, lab().run("8B", {"--job.description=x"}).said);
}

// A choice that is listed exists: it may need other options, but no run says that there is no such thing.
TEST(EveryOption, EveryListedChoiceExists) {
  std::map<std::string, Row> by_name;
  for (const Row& row : all_rows()) by_name[row.name] = row;
  JobConfig config;
  int tried = 0;
  for (const FieldEntry& field : index_config(config).fields) {
    const Row& row = by_name[field.name];
    if (field.info.mark == Mark::A || field.info.mark == Mark::N || row.proof == Proof::own) continue;
    Strings more = row.more;
    if (row.proof == Proof::estimate) more.push_back(fmt::format("--world={}", row.world));
    for (const std::string_view choice : field.info.choices) {
      const Result& r = lab().run(row.context, with(more, {fmt::format("--{}={}", row.name, choice)}));
      ++tried;
      for (const char* part : {"not available", "this build", "expected one of", "internal error"})
        EXPECT_EQ(r.said.find(part), std::string::npos) << row.name << " = " << choice << ": " << r.said;
    }
  }
  EXPECT_GT(tried, 80);
}

// The fields without effect are named by one line, all of them.
TEST(EveryOption, AcceptedFieldsAreNamedByOneLine) {
  Strings options;
  std::string line = "without effect here (-v says why): ";
  JobConfig config;
  std::map<std::string, Row> by_name;
  for (const Row& row : all_rows()) by_name[row.name] = row;
  for (const FieldEntry& field : index_config(config).fields) {
    if (const Row& row = by_name[field.name]; row.proof == Proof::accepted) {
      options.push_back(option_of(row));
      line += (line.ends_with(": ") ? "" : ", ") + row.name;
    }
  }
  EXPECT_NE(lab().run("bin", options).said.find(line + "\n"), std::string::npos) << lab().run("bin", options).said;
}

// ---- rows that have a test of their own -----------------------------------------------------------------------------

TEST(EveryOption, DisableColorPrinting) {
  const auto prints_colors = [&](const Strings& more) {
    const int terminal = posix_openpt(O_RDWR | O_NOCTTY), kept = dup(STDOUT_FILENO);
    EXPECT_TRUE(terminal >= 0 && grantpt(terminal) == 0 && unlockpt(terminal) == 0);
    const int side = open(ptsname(terminal), O_RDWR | O_NOCTTY);
    std::string said;
    std::thread reader([&] {
      char buffer[4096];
      for (ssize_t n; (n = read(terminal, buffer, sizeof buffer)) > 0;) said.append(buffer, static_cast<size_t>(n));
    });
    Strings args = lab().options("bin");
    args.push_back("--job.dump_folder=" + (lab() / "colors").string());
    args.insert(args.end(), more.begin(), more.end());
    for (std::string& arg : args) arg = lab().here(arg);
    std::fflush(stdout);
    dup2(side, STDOUT_FILENO), close(side);
    EXPECT_EQ(train_command(args), 0);
    std::fflush(stdout);
    dup2(kept, STDOUT_FILENO), close(kept);  // the terminal's last writer goes: its reader ends
    reader.join();
    close(terminal);
    EXPECT_NE(said.find("step:  3"), std::string::npos);
    return said.find("\033[31m") != std::string::npos;
  };
  EXPECT_TRUE(prints_colors({}));
  EXPECT_FALSE(prints_colors({"--metrics.disable_color_printing"}));
}

// Runs of whole rows are shared by what a window of keys costs.
TEST(EveryOption, ContextParallelPtrrMaskKey) {
  ParallelismConfig p;
  p.context_parallel_load_balancer = "ptrr", p.context_parallel_ptrr_mask_key = "basic_mask";
  EXPECT_EQ(parallel::context_options(p, 128).window, 0);
  p.context_parallel_ptrr_mask_key = "sliding_window_mask";
  EXPECT_EQ(parallel::context_options(p, 128).window, 128);
}

// A byte of a checkpoint is damaged: the next start finds it unless it is told not to look, or nothing was kept to compare with.
TEST(EveryOption, ChecksumAndVerifyOnLoad) {
  const auto resumed = [&](const std::string& name, const Strings& saving, const Strings& loading) {
    Strings args = lab().options("saves");
    args.push_back("--job.dump_folder=" + (lab() / name).string());
    for (std::string& arg : args) arg = lab().here(arg);
    const auto train = [&](Strings all, const Strings& more) {
      all.insert(all.end(), more.begin(), more.end());
      ::testing::internal::CaptureStdout();
      train_command(all);
      return ::testing::internal::GetCapturedStdout();
    };
    train(args, saving);
    const fs::path weights = lab() / name / "checkpoint/step-3/model-0.safetensors";
    testing::flip_byte(weights, fs::file_size(weights) - 5000);
    args.push_back("--training.steps=4");
    return train(args, loading).find("Loaded checkpoint step 3") != std::string::npos;
  };
  EXPECT_FALSE(resumed("verified", {}, {}));
  EXPECT_TRUE(resumed("unverified", {}, {"--checkpoint.verify_on_load=false"}));
  EXPECT_TRUE(resumed("unsummed", {"--checkpoint.checksum=false"}, {}));
}

TEST(EveryOption, DeoscLogFreq) {
  const auto lines = [&](const std::string& freq) {
    const Result& r = lab().run("bin", with(kDeosc, {"--quantize.deosc_log_freq=" + freq}));
    return r.said.find("De-oscillation at step") != std::string::npos;
  };
  EXPECT_TRUE(lines("1"));
  EXPECT_FALSE(lines("0"));
}

// tests/storage and tests/parity/object_store.py test their effect.
TEST(EveryOption, DataPlaces) {
  using Of = std::function<std::string(const StorageOptions&)>;
  const std::map<std::string, std::pair<Of, std::string>> wanted = {
      {"data.endpoint_url", {[](const auto& o) { return o.endpoint_url; }, "http://127.0.0.1:9"}},
      {"data.region", {[](const auto& o) { return o.region; }, "eu-west-1"}},
      {"data.anonymous", {[](const auto& o) { return fmt::format("{}", o.anonymous); }, "true"}},
      {"data.cache_folder", {[](const auto& o) { return o.cache_folder; }, "/elsewhere"}},
      {"data.cache_gib", {[](const auto& o) { return fmt::format("{}", o.cache_bytes); }, "536870912"}},
      {"data.read_ahead_mib", {[](const auto& o) { return fmt::format("{}", o.read_ahead_bytes); }, "8388608"}}};
  const auto options = [](const Strings& more) {
    Strings args = {"--config", (kSource / "recipes/llama3_debug.toml").string()};
    args.insert(args.end(), more.begin(), more.end());
    return storage_options(load_config(args, {1, 1}).config);
  };
  for (const auto& [name, proof] : wanted) {
    const auto row = std::ranges::find(rows(), name, &Row::name);
    ASSERT_NE(row, rows().end()) << name;
    EXPECT_NE(proof.first(options({})), proof.second) << name;
    EXPECT_EQ(proof.first(options({"--" + name + "=" + row->value})), proof.second) << name;
  }
  EXPECT_TRUE(options({}).cache_folder.ends_with("/files"));
}

TEST(EveryOption, SampleTokens) {
  const auto sample = [&](const Strings& more) {
    const std::string& said = lab().run("saves", with({"--sample.prompt=Once"}, more)).said;
    const size_t begin = said.find("A sample of"), end = said.find("Try next");
    EXPECT_TRUE(begin < end && end != std::string::npos) << said;
    return said.substr(begin, end - begin);
  };
  EXPECT_LT(sample({"--sample.tokens=3"}).size() + 30, sample({}).size());
}

}  // namespace
}  // namespace halftone::every_option
