#include "halftone/train/metrics.h"

#include <chrono>
#include <ctime>

#include "halftone/base/error.h"
#include "halftone/base/json_reader.h"
#include "halftone/base/log.h"

namespace halftone {
namespace {

std::string run_line(const RunDescription& run, double now, int rank, int64_t step) {
  nlohmann::ordered_json line{{"kind", "run"},          {"step", step},       {"time", now},      {"rank", rank},
                              {"version", run.version}, {"world", run.world}, {"mesh", run.mesh}, {"device", run.device}};
  parse_json(run.config_json, "the resolved configuration");
  line["config"] = nlohmann::ordered_json::parse(run.config_json);
  if (run.recipe_text) line["recipe"] = *run.recipe_text;
  return line.dump(-1, ' ', true, nlohmann::ordered_json::error_handler_t::replace);
}

// <YYYYmmdd-HHMM> in local time, as torchtitan names the folders of its event files.
std::string start_folder(double now) {
  const auto seconds = static_cast<std::time_t>(now);
  std::tm local{};
  localtime_r(&seconds, &local);
  char text[32];
  std::strftime(text, sizeof text, "%Y%m%d-%H%M", &local);
  return text;
}

}  // namespace

double wall_clock() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

MetricsLogger::MetricsLogger(MetricsOptions options, std::optional<int64_t> resumed_step, const RunDescription& run,
                             std::function<double()> clock)
    : options_(std::move(options)), clock_(std::move(clock)), colors_(colors_wanted(options_.config.disable_color_printing)) {
  if (!writes()) return;
  const double now = clock_();
  const std::string rank_folder = options_.config.save_for_all_ranks ? fmt::format("rank_{}", options_.rank) : "";
  if (options_.config.enable_jsonl) {
    // The main writer uses the plain name; other ranks write to their own folders.
    const bool main_writer = options_.rank == options_.writer_rank;
    jsonl_path_ = options_.dump_folder / (main_writer ? "" : rank_folder) / "metrics.jsonl";
    if (!resumed_step) {
      const std::filesystem::path kept = set_metrics_aside(jsonl_path_);
      if (!kept.empty()) log_info("{} belongs to an earlier run: renamed to {}", jsonl_path_.string(), kept.filename().string());
    } else if (const uint64_t dropped = truncate_metrics(jsonl_path_, *resumed_step)) {
      log_info("Truncated {} to step {} ({} bytes dropped)", jsonl_path_.string(), *resumed_step, dropped);
    }
    jsonl_ = MetricsWriter(jsonl_path_);
    jsonl_.write_text(run_line(run, now, options_.rank, resumed_step.value_or(0)));
  }
  if (options_.config.enable_tensorboard) {
    const std::filesystem::path folder =
        options_.dump_folder / options_.config.save_tb_folder / start_folder(options_.start.value_or(now)) / rank_folder;
    events_ = EventFile(folder, now);
    log_debug("TensorBoard event files: {}", folder.string());
  }
}

bool MetricsLogger::writes() const { return options_.config.save_for_all_ranks || options_.rank == options_.writer_rank; }

std::optional<Progress> MetricsLogger::progress(int64_t step, double now, const Scalars& scalars) {
  if (options_.total_steps <= 0) return std::nullopt;
  const auto left = static_cast<double>(std::max<int64_t>(options_.total_steps - step, 0));
  double pace = 0;
  if (!pace_start_) {
    pace_start_ = {step, now};
    const double* seconds = find_scalar(scalars, "time_metrics/end_to_end(s)");
    if (!seconds) return std::nullopt;
    pace = *seconds;
  } else if (step > pace_start_->first) {
    pace = (now - pace_start_->second) / static_cast<double>(step - pace_start_->first);
  }
  return Progress{.total_steps = options_.total_steps, .seconds_left = left * pace};
}

void MetricsLogger::append(const char* kind, int64_t step, double now, const Scalars& scalars, const std::string& message) {
  if (jsonl_.is_open())
    jsonl_.write({.kind = kind, .step = step, .time = now, .rank = options_.rank, .scalars = scalars, .message = message});
  if (events_.is_open() && message.empty()) events_.write(now, step, scalars);
}

void MetricsLogger::log_train(int64_t step, const Scalars& scalars) {
  const double now = clock_();
  const auto left = progress(step, now, scalars);
  if (options_.rank == options_.writer_rank) log_line(LogLevel::info, train_line(step, scalars, left, colors_));
  append("train", step, now, scalars, "");
}

void MetricsLogger::log_validate(int64_t step, const Scalars& scalars) {
  if (options_.rank == options_.writer_rank) log_line(LogLevel::info, validate_line(step, scalars, colors_));
  append("validate", step, clock_(), scalars, "");
}

void MetricsLogger::log_tasks(int64_t step, const Scalars& scalars) {
  if (options_.rank == options_.writer_rank) {
    std::string line = fmt::format("eval step: {:2}", step);
    for (const auto& [name, value] : scalars) line += fmt::format("  {}: {:.4f}", name.substr(name.find('/') + 1), plain_nan(value));
    log_line(LogLevel::info, line);
  }
  append("eval", step, clock_(), scalars, "");
}

void MetricsLogger::log_quantization(int64_t step, const Scalars& scalars, const std::string& summary) {
  if (options_.rank == options_.writer_rank) log_line(LogLevel::info, summary);
  append("quantization", step, clock_(), scalars, "");
}

void MetricsLogger::rewind(int64_t step, const std::string& message) {
  if (jsonl_.is_open()) truncate_metrics(jsonl_path_, step);  // appending continues at the new end
  pace_start_.reset();
  log_event(step, message);
}

void MetricsLogger::log_event(int64_t step, const std::string& message, const Scalars& scalars) {
  if (options_.rank == options_.writer_rank) log_line(LogLevel::info, message);
  append("event", step, clock_(), scalars, message);
}

}  // namespace halftone
