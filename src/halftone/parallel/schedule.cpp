#include "halftone/parallel/schedule.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "halftone/base/error.h"

namespace halftone::parallel {
namespace {

constexpr int64_t kLargestNumber = 1 << 20;         // largest stage or micro-batch in a file
constexpr int64_t kLargestFile = int64_t{1} << 26;  // bytes

// Times by stage and micro-batch; -1: not yet known.
class Table {
 public:
  Table(int64_t stages, int64_t microbatches) : microbatches_(microbatches), at_(static_cast<size_t>(stages * microbatches), -1) {}
  int64_t& operator()(int64_t stage, int64_t microbatch) { return at_[static_cast<size_t>(stage * microbatches_ + microbatch)]; }

 private:
  int64_t microbatches_;
  std::vector<int64_t> at_;
};

std::string place(const std::string& source, size_t rank, const Action& a) {
  return fmt::format("{}, line {}, cell {}: {}", source, rank + 1, a.cell, action_text(a));
}

std::string_view trimmed(std::string_view s) {
  const size_t first = s.find_first_not_of(" \t\r\""), last = s.find_last_not_of(" \t\r\"");
  return first == std::string_view::npos ? std::string_view() : s.substr(first, last - first + 1);
}

// "3F0"
bool parse_action(std::string_view s, Action& a) {
  const char* end = s.data() + s.size();
  const auto [after, stage_error] = std::from_chars(s.data(), end, a.stage);
  if (stage_error != std::errc() || after == end || std::string_view("FIWB").find(*after) == std::string_view::npos) return false;
  a.kind = static_cast<Kind>(*after);
  const auto [last, error] = std::from_chars(after + 1, end, a.microbatch);
  return error == std::errc() && last == end && a.stage >= 0 && a.microbatch >= 0;
}

// Checks that every stage and micro-batch has a forward and a full backward pass or both of its parts, all on one rank.
void check_complete(const Schedule& s, const std::string& source) {
  for (const Kind kind : {Kind::forward, Kind::input, Kind::weight}) {
    Table seen(s.stages, s.microbatches);
    for (size_t r = 0; r < s.ranks.size(); ++r) {
      for (const Action& a : s.ranks[r]) {
        const int64_t holder = s.rank_of[static_cast<size_t>(a.stage)];
        if (holder != static_cast<int64_t>(r)) fail("{} belongs to a stage of line {}", place(source, r, a), holder + 1);
        const bool counts = a.kind == kind || (a.kind == Kind::full && kind != Kind::forward);
        if (counts && std::exchange(seen(a.stage, a.microbatch), 0) == 0) fail("{} appears twice", place(source, r, a));
      }
    }
    for (int64_t stage = 0; stage < s.stages; ++stage) {
      for (int64_t m = 0; m < s.microbatches; ++m) {
        if (seen(stage, m) != 0)
          fail("{}: {} is missing: every stage needs every micro-batch's F, and B or I and W", source, action_text({stage, kind, m}));
      }
    }
  }
}

}  // namespace

std::string action_text(const Action& a) { return fmt::format("{}{}{}", a.stage, static_cast<char>(a.kind), a.microbatch); }

int64_t time_of(const Action& a, const StageTimes& times) {
  if (times.empty()) return a.kind == Kind::full ? 2 : 1;
  const auto& [forward, input, weight] = times.at(static_cast<size_t>(a.stage));
  return a.kind == Kind::forward ? forward : a.kind == Kind::input ? input : a.kind == Kind::weight ? weight : input + weight;
}

Timeline simulate(const Schedule& s, const StageTimes& times, const std::string& source) {
  return simulate(s, source, [&](const Action& a) { return time_of(a, times); });
}

Timeline simulate(const Schedule& s, const std::string& source, const std::function<int64_t(const Action&)>& time) {
  check_complete(s, source);
  Table forward(s.stages, s.microbatches), backward(s.stages, s.microbatches);  // end times
  const size_t ranks = s.ranks.size();
  Timeline t;
  t.times.resize(ranks), t.most_alive.assign(ranks, 0);
  // End time of its dependency; -1: unknown.
  const auto ready = [&](const Action& a) -> int64_t {
    if (a.kind == Kind::forward) return a.stage == 0 ? 0 : forward(a.stage - 1, a.microbatch);
    if (a.kind == Kind::weight) return backward(a.stage, a.microbatch);
    const int64_t own = forward(a.stage, a.microbatch), next = a.stage + 1 == s.stages ? own : backward(a.stage + 1, a.microbatch);
    return own < 0 || next < 0 ? -1 : std::max(own, next);
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t r = 0; r < ranks; ++r) {
      while (t.times[r].size() < s.ranks[r].size()) {
        const Action& a = s.ranks[r][t.times[r].size()];
        const int64_t from = ready(a);
        if (from < 0) break;
        const int64_t begin = std::max(from, t.times[r].empty() ? 0 : t.times[r].back().second);
        const int64_t end = begin + time(a);
        t.times[r].emplace_back(begin, end);
        if (a.kind == Kind::forward) forward(a.stage, a.microbatch) = end;
        if (a.kind == Kind::input || a.kind == Kind::full) backward(a.stage, a.microbatch) = end;
        moved = true;
      }
    }
  }
  int64_t work = 0;
  for (size_t r = 0; r < ranks; ++r) {
    const size_t done = t.times[r].size();
    if (done < s.ranks[r].size()) fail("{} can never run: it waits for a later cell", place(source, r, s.ranks[r][done]));
    int64_t alive = 0;
    for (size_t i = 0; i < done; ++i) {
      const Kind kind = s.ranks[r][i].kind;
      work += t.times[r][i].second - t.times[r][i].first, t.length = std::max(t.length, t.times[r][i].second);
      alive += kind == Kind::forward ? 1 : kind == Kind::input ? 0 : -1;
      t.most_alive[r] = std::max(t.most_alive[r], alive);
    }
  }
  if (t.length > 0) t.bubble = 1 - static_cast<double>(work) / static_cast<double>(t.length * static_cast<int64_t>(ranks));
  return t;
}

Schedule parse_schedule(std::string_view csv, const std::string& source, int64_t ranks, int64_t stages) {
  Schedule s;
  s.stages = stages;
  s.rank_of.assign(static_cast<size_t>(stages), -1);
  while (!csv.empty()) {
    std::string_view line = csv.substr(0, csv.find('\n'));
    csv.remove_prefix(std::min(csv.size(), line.size() + 1));
    if (trimmed(line).empty() && csv.empty()) break;
    const auto rank = static_cast<int64_t>(s.ranks.size());
    check(rank < ranks, "{}: expected {} lines, one for each rank of the pipeline, found more", source, ranks);
    s.ranks.emplace_back();
    for (int64_t cell = 1; !line.empty() || cell == 1; ++cell) {
      const std::string_view word = line.substr(0, line.find(','));
      line.remove_prefix(std::min(line.size(), word.size() + 1));
      if (trimmed(word).empty()) continue;
      Action a;
      check(parse_action(trimmed(word), a), "{}, line {}, cell {}: expected <stage><F|I|W|B><microbatch> such as 0F3, found '{}'", source,
            rank + 1, cell, trimmed(word).substr(0, 40));
      check(a.stage < stages, "{}, line {}, cell {}: stage {} of {}; stages follow from [parallelism]", source, rank + 1, cell, a.stage,
            stages);
      check(a.microbatch < kLargestNumber, "{}, line {}, cell {}: expected a micro-batch below {}, found {}", source, rank + 1, cell,
            kLargestNumber, a.microbatch);
      a.cell = cell;
      s.ranks.back().push_back(a);
      s.microbatches = std::max(s.microbatches, a.microbatch + 1);
      int64_t& holder = s.rank_of[static_cast<size_t>(a.stage)];
      if (holder < 0) holder = rank;
    }
  }
  check(static_cast<int64_t>(s.ranks.size()) == ranks, "{}: expected {} lines, one for each rank of the pipeline, found {}", source, ranks,
        s.ranks.size());
  check(s.microbatches > 0, "{}: expected cells such as 0F0, found none", source);
  size_t actions = 0;
  for (const auto& rank : s.ranks) actions += rank.size();
  // Checked before tables of this size are allocated.
  check(static_cast<int64_t>(actions) >= 2 * s.stages * s.microbatches,
        "{}: {} stages and {} micro-batches take {} cells or more, found {}", source, s.stages, s.microbatches,
        2 * s.stages * s.microbatches, actions);
  simulate(s, {}, source);
  return s;
}

Schedule read_schedule(const std::string& path, int64_t ranks, int64_t stages) {
  const std::string source = "parallelism.pipeline_parallel_schedule_csv = " + path;
  std::error_code error;
  const auto bytes = std::filesystem::file_size(path, error);
  check(!error, "{}: {}", source, error.message());
  check(static_cast<int64_t>(bytes) <= kLargestFile, "{}: expected a file of {} MiB at most, found {} bytes", source, kLargestFile >> 20,
        bytes);
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  check(file.good(), "{}: cannot be read", source);
  return parse_schedule(text.str(), source, ranks, stages);
}

std::string schedule_csv(const Schedule& s) {
  std::string text;
  for (const auto& actions : s.ranks) {
    for (size_t i = 0; i < actions.size(); ++i) {
      if (i > 0) text += ',';
      text += action_text(actions[i]);
    }
    text += '\n';
  }
  return text;
}

Schedule repeated(const Schedule& s, int64_t times) {
  Schedule all = s;
  for (size_t r = 0; r < s.ranks.size(); ++r) {
    for (int64_t i = 1; i < times; ++i) {
      for (Action a : s.ranks[r]) {
        a.microbatch += i * s.microbatches;
        all.ranks[r].push_back(a);
      }
    }
  }
  all.microbatches *= times;
  return all;
}

Schedule forward_only(const Schedule& s) {
  Schedule forward = s;
  for (auto& actions : forward.ranks) std::erase_if(actions, [](const Action& a) { return a.kind != Kind::forward; });
  return forward;
}

}  // namespace halftone::parallel
