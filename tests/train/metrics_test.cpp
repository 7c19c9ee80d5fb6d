#include "halftone/train/metrics.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cmath>
#include <limits>
#include <regex>

#include "checkpoint/support.h"
#include "halftone/base/json_reader.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;
using testing::read_file;
using testing::TemporaryFolder;
using testing::write_file;

const Scalars kExample{{"loss_metrics/global_avg_loss", 8.137561},
                       {"grad_norm", 1.97312},
                       {"memory/max_reserved(GiB)", 1.6349},
                       {"memory/max_reserved(%)", 1.1749},
                       {"throughput(tps)", 41230.4},
                       {"tflops", 2.9512},
                       {"mfu(%)", 0.298}};

TEST(Console, TrainLineAsTorchtitan) {
  const std::string plain = "step:  1  loss:  8.13756  grad_norm:  1.9731  memory:  1.63GiB(1.17%)  tps: 41,230  tflops: 2.95  mfu: 0.30%";
  EXPECT_EQ(train_line(1, kExample, std::nullopt, false), plain);
  EXPECT_EQ(train_line(1, kExample, Progress{.total_steps = 100, .seconds_left = 192}, false), plain + "  eta: 3m12s  1%");
  std::smatch match;
  EXPECT_TRUE(std::regex_search(plain, match, std::regex(R"(step:\s*(\d+)\s*loss:\s*(\d+\.\d+))")));
  EXPECT_EQ(train_line(12345, {{"loss_metrics/global_avg_loss", 12.5}}, std::nullopt, false), "step: 12345  loss: 12.50000");
}

// x86 produces NaN with the sign set; printed as "-nan" it would look like a different value.
TEST(Console, NanHasNoSign) {
  const double nan = std::copysign(std::nan(""), -1.0);
  EXPECT_EQ(train_line(3, {{"loss_metrics/global_avg_loss", nan}, {"grad_norm", nan}, {"throughput(tps)", nan}, {"mfu(%)", nan}},
                       std::nullopt, false),
            "step:  3  loss: nan       grad_norm: nan      tps: nan  mfu: nan%");
  EXPECT_EQ(validate_line(3, {{"validation_metrics/loss", nan}, {"validation_metrics/bits_per_byte", nan}}, false),
            "validate step:  3  loss: nan      bits_per_byte: nan");
  EXPECT_EQ(train_line(3, {{"grad_norm", -INFINITY}}, std::nullopt, false), "step:  3  grad_norm: -inf   ");
}

TEST(Console, Colors) {
  EXPECT_EQ(train_line(1, kExample, std::nullopt, true),
            "\033[31mstep:  1  \033[32mloss:  8.13756  \033[38;2;180;60;0mgrad_norm:  1.9731  \033[38;2;54;234;195mmemory:  "
            "1.63GiB(1.17%)  \033[34mtps: 41,230  \033[36mtflops: 2.95  \033[35mmfu: 0.30%\033[39m");
  EXPECT_FALSE(colors_wanted(true));
}

TEST(Console, ValidateLine) {
  const Scalars scalars{{"validation_metrics/loss", 7.09123},
                        {"validation_metrics/throughput(tps)", 88114},
                        {"validation_metrics/memory/max_reserved(GiB)", 1.63},
                        {"validation_metrics/memory/max_reserved(%)", 1.17}};
  EXPECT_EQ(validate_line(5, scalars, false), "validate step:  5  loss:  7.0912  memory:  1.63GiB(1.17%)  tps: 88,114");
  EXPECT_EQ(validate_line(5, {{"validation_metrics/loss", 1}, {"validation_metrics/bits_per_byte", 0.5}}, false),
            "validate step:  5  loss:  1.0000  bits_per_byte: 0.5000");
}

TEST(Console, NumbersAndDurations) {
  EXPECT_EQ(thousands(0), "0");
  EXPECT_EQ(thousands(999.6), "1,000");
  EXPECT_EQ(thousands(1234567), "1,234,567");
  EXPECT_EQ(thousands(-123456), "-123,456");
  EXPECT_EQ(thousands(1234.567, 2), "1,234.57");
  EXPECT_EQ(duration_text(0), "0s");
  EXPECT_EQ(duration_text(59.6), "1m00s");
  EXPECT_EQ(duration_text(192), "3m12s");
  EXPECT_EQ(duration_text(7500), "2h05m");
  EXPECT_EQ(duration_text(3 * 86400 + 4 * 3600), "3d04h");
  EXPECT_EQ(duration_text(std::numeric_limits<double>::infinity()), "?");
}

TEST(MetricsFile, DoublesReadBackExactly) {
  for (const double value :
       {0.1, 1.0 / 3, 2.2250738585072014e-308, 5e-324, 1.7976931348623157e308, -0.0, 8.137561321258545, 9007199254740993.0, 1e22}) {
    const auto line = parse_metrics_line(format_metrics_line({.kind = "train", .step = 3, .time = 1.5, .scalars = {{"x", value}}}));
    ASSERT_TRUE(line.has_value());
    EXPECT_EQ(std::bit_cast<uint64_t>(*find_scalar(line->scalars, "x")), std::bit_cast<uint64_t>(value)) << value;
  }
  for (const double value : {std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()})
    EXPECT_EQ(*find_scalar(parse_metrics_line(format_metrics_line({.kind = "train", .step = 3, .scalars = {{"x", value}}}))->scalars, "x"),
              value);
  const std::string nan = format_metrics_line({.kind = "train", .step = 3, .scalars = {{"x", std::nan("")}}});
  EXPECT_TRUE(std::isnan(*find_scalar(parse_metrics_line(nan)->scalars, "x")));
  EXPECT_TRUE(Json::accept(nan));
}

TEST(MetricsFile, FormOfALine) {
  EXPECT_EQ(format_metrics_line({.kind = "train", .step = 3, .time = 1700000000.25, .rank = 1, .scalars = {{"a/b(%)", 0.5}, {"n", 1024}}}),
            R"x({"kind":"train","step":3,"time":1700000000.250,"rank":1,"a/b(%)":0.5,"n":1024.0})x");
  EXPECT_EQ(format_metrics_line({.kind = "event", .step = 3, .message = "said \"x\"\n"}),
            R"({"kind":"event","step":3,"time":0.000,"rank":0,"message":"said \"x\"\n"})");
}

TEST(MetricsFile, ForeignAndTornLinesAreNone) {
  for (const char* text : {"", "{", "null", "[]", "{}", R"({"kind":"train"})", R"({"kind":"train","step":-1,"time":1})",
                           R"({"kind":1,"step":1,"time":1})", R"({"kind":"train","step":1,"time":"x"})", R"({"kind":"train","step":1,"ti)",
                           R"({"kind":"train","step":1,"time":1,"step":2})", "{\"kind\":\"\xff\",\"step\":1,\"time\":1}"})
    EXPECT_FALSE(parse_metrics_line(text).has_value()) << text;
}

TEST(MetricsFile, CutBackToAStep) {
  const auto line = [](const char* kind, int64_t step) { return format_metrics_line({.kind = kind, .step = step, .time = 1}) + "\n"; };
  const std::string run = R"({"kind":"run","time":1,"config":{"a":[1]}})"
                          "\n";
  const std::string kept = run + line("train", 1) + line("train", 5) + line("validate", 5) + line("event", 5);
  const TemporaryFolder folder;
  const fs::path path = folder / "metrics.jsonl";
  const std::vector<std::string> tails{"",
                                       line("train", 6),
                                       line("train", 6) + line("train", 7) + run + line("train", 6),
                                       line("train", 6).substr(0, 20),  // torn
                                       line("train", 5).substr(0, line("train", 5).size() - 1),
                                       "garbage\n",
                                       std::string(100, '\0'),
                                       line("train", 10) + "garbage\n" + line("train", 5)};
  for (const std::string& tail : tails) {
    SCOPED_TRACE(tail);
    write_file(path, kept + tail);
    EXPECT_EQ(truncate_metrics(path, 5), tail.size());
    EXPECT_EQ(read_file(path), kept);
  }
  write_file(path, kept + run);  // a run that ended before its first step
  EXPECT_EQ(truncate_metrics(path, 5), 0u);
  write_file(path, run + line("train", 1) + "garbage\n" + line("train", 5));  // damage in the middle is kept
  EXPECT_EQ(truncate_metrics(path, 5), 0u);
  EXPECT_EQ(read_metrics(path).size(), 3u);
  EXPECT_EQ(truncate_metrics(path, 0), line("train", 1).size() + 8 + line("train", 5).size());
  EXPECT_EQ(read_file(path), run);
  EXPECT_EQ(truncate_metrics(folder / "absent", 0), 0u);
}

// Files are read in pieces: lines across piece boundaries, and one longer than any of ours.
TEST(MetricsFile, CutBackInALongFile) {
  const TemporaryFolder folder;
  const fs::path path = folder / "metrics.jsonl";
  const auto line = [](int64_t step, size_t size) {
    return format_metrics_line({.kind = "event", .step = step, .time = 1, .message = std::string(size, 'x')}) + "\n";
  };
  std::string text;
  size_t kept = 0;
  for (int64_t step = 1; step <= 40; ++step) {
    text += line(step, 99'991 + static_cast<size_t>(step));
    if (step == 31) text += std::string(size_t{17} << 20, 'y') + "\n" + line(step, 3), kept = text.size();
  }
  write_file(path, text + "torn");
  EXPECT_EQ(read_metrics(path).size(), 41u);
  EXPECT_EQ(truncate_metrics(path, 31), text.size() + 4 - kept);
  EXPECT_EQ(read_file(path), text.substr(0, kept));
}

TEST(MetricsFile, AnEarlierRunsFileIsKept) {
  const TemporaryFolder folder;
  EXPECT_EQ(set_metrics_aside(folder / "metrics.jsonl"), "");
  for (const char* content : {"a", "b"}) {
    write_file(folder / "metrics.jsonl", content);
    EXPECT_EQ(read_file(set_metrics_aside(folder / "metrics.jsonl")), content);
  }
  EXPECT_EQ(read_file(folder / "metrics-1.jsonl"), "a");
  EXPECT_EQ(read_file(folder / "metrics-2.jsonl"), "b");
  EXPECT_FALSE(fs::exists(folder / "metrics.jsonl"));
}

MetricsOptions options_in(const fs::path& folder) {
  MetricsOptions options;
  options.dump_folder = folder;
  options.total_steps = 100;
  return options;
}

std::string captured_output(const std::function<void()>& action) {
  ::testing::internal::CaptureStdout();
  try {
    action();
  } catch (...) {
    ::testing::internal::GetCapturedStdout();
    throw;
  }
  return ::testing::internal::GetCapturedStdout();
}

TEST(MetricsLogger, WritesAndGoesOnAfterARestart) {
  const TemporaryFolder folder;
  double now = 1000;
  const RunDescription run{.config_json = R"({"optimizer":{"lr":0.001}})", .version = "1.2", .device = "cpu", .mesh = {{"tp", 1}}};
  const auto start = [&](int64_t step) { return MetricsLogger(options_in(folder.path()), step, run, [&] { return now; }); };
  const std::string output = captured_output([&] {
    MetricsLogger logger = start(0);
    logger.log_train(1, {{"loss_metrics/global_avg_loss", 8.0}, {"time_metrics/end_to_end(s)", 2.0}});
    now += 10;
    logger.log_train(11, {{"loss_metrics/global_avg_loss", 7.0}, {"time_metrics/end_to_end(s)", 0.5}});
    logger.log_validate(11, {{"validation_metrics/loss", 7.5}});
    logger.log_event(11, "checkpoint saved", {{"seconds", 0.25}});
    logger.log_train(12, {{"loss_metrics/global_avg_loss", 6.9}});
  });
  EXPECT_NE(output.find("INFO - step:  1  loss:  8.00000  eta: 3m18s  1%\n"), std::string::npos) << output;   // 99 steps of 2 s
  EXPECT_NE(output.find("INFO - step: 11  loss:  7.00000  eta: 1m29s  11%\n"), std::string::npos) << output;  // 89 steps of 1 s
  EXPECT_NE(output.find("INFO - validate step: 11  loss:  7.5000\n"), std::string::npos) << output;
  EXPECT_NE(output.find("INFO - checkpoint saved\n"), std::string::npos) << output;
  captured_output([&] { start(11).log_train(12, {{"loss_metrics/global_avg_loss", 6.8}}); });

  const std::vector<MetricsLine> lines = read_metrics(folder / "metrics.jsonl");
  ASSERT_EQ(lines.size(), 7u);
  const std::vector<std::string> kinds{"run", "train", "train", "validate", "event", "run", "train"};
  for (size_t i = 0; i < kinds.size(); ++i) EXPECT_EQ(lines[i].kind, kinds[i]);
  EXPECT_EQ(*find_scalar(lines[6].scalars, "loss_metrics/global_avg_loss"), 6.8);
  EXPECT_EQ(lines[4].message, "checkpoint saved");
  const std::string text = read_file(folder / "metrics.jsonl");
  const Json first = Json::parse(text.substr(0, text.find('\n')));
  EXPECT_EQ(first["config"]["optimizer"]["lr"], 0.001);
  EXPECT_EQ(first["version"], "1.2");
  EXPECT_EQ(first["world"], 1);
  EXPECT_EQ(first["mesh"]["tp"], 1);
  EXPECT_EQ(first["device"], "cpu");
  EXPECT_FALSE(fs::exists(folder / "tb"));
}

TEST(MetricsLogger, ARewindLeavesEveryStepOnce) {
  const TemporaryFolder folder;
  captured_output([&] {
    MetricsLogger logger(options_in(folder.path()), 0, {}, [] { return 1000.0; });
    for (int64_t step = 1; step <= 6; ++step) logger.log_train(step, {{"grad_norm", static_cast<double>(step)}});
    logger.rewind(3, "back to step 3");
    for (int64_t step = 4; step <= 5; ++step) logger.log_train(step, {{"grad_norm", 10.0 * static_cast<double>(step)}});
  });
  std::vector<std::pair<std::string, int64_t>> found;
  for (const MetricsLine& line : read_metrics(folder / "metrics.jsonl")) found.emplace_back(line.kind, line.step.value_or(-1));
  const std::vector<std::pair<std::string, int64_t>> expected{{"run", 0},   {"train", 1}, {"train", 2}, {"train", 3},
                                                              {"event", 3}, {"train", 4}, {"train", 5}};
  EXPECT_EQ(found, expected);
  EXPECT_EQ(*find_scalar(read_metrics(folder / "metrics.jsonl").back().scalars, "grad_norm"), 50.0);
}

TEST(MetricsLogger, SettingsAndRanks) {
  const TemporaryFolder folder;
  MetricsOptions options = options_in(folder.path());
  options.config.enable_jsonl = false;
  options.config.enable_tensorboard = true;
  options.config.save_tb_folder = "events";
  options.rank = 1;
  const auto log = [&] { return captured_output([&] { MetricsLogger(options, 0, {}).log_train(1, kExample); }); };
  EXPECT_EQ(log(), "");  // another rank writes nothing
  EXPECT_TRUE(fs::is_empty(folder.path()));
  options.config.save_for_all_ranks = true;
  log();
  EXPECT_FALSE(fs::exists(folder / "metrics.jsonl"));
  size_t files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder / "events"))
    if (entry.is_regular_file()) {
      ++files;
      EXPECT_EQ(entry.path().parent_path().filename(), "rank_1");
      EXPECT_TRUE(entry.path().filename().string().starts_with("events.out.tfevents."));
    }
  EXPECT_EQ(files, 1u);
  // Hosts whose clocks differ use the folder of one start.
  options.config.save_tb_folder = "skewed", options.start = 1.8e9;
  for (const double clock : {1.8e9, 1.8e9 + 3600}) MetricsLogger(options, 0, {}, [clock] { return clock; });
  EXPECT_EQ(std::distance(fs::directory_iterator(folder / "skewed"), fs::directory_iterator()), 1);
  write_file(folder / "file", "x");
  options.dump_folder = folder / "file";
  testing::expect_error([&] { log(); }, "cannot create the folder");
}

TEST(MetricsLogger, AnUnreadableConfigurationIsAnError) {
  const TemporaryFolder folder;
  testing::expect_error([&] { MetricsLogger(options_in(folder.path()), 0, {.config_json = "{"}); }, "not valid JSON");
}

}  // namespace
}  // namespace halftone
