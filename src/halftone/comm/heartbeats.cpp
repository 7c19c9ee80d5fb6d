#include "halftone/comm/heartbeats.h"

#include <fmt/format.h>

#include <sstream>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace halftone::comm {
namespace {

std::string key_of(int64_t rank) { return fmt::format("beat/{}", rank); }

Heartbeat parse(const std::string& written) {
  std::istringstream text(written);
  Heartbeat beat;
  int64_t ms = 0, count = 0;
  text >> beat.number >> ms >> beat.outside >> std::ws;
  beat.seconds = static_cast<double>(ms) / 1e3;
  std::getline(text, beat.doing);
  for (std::string key; text >> count >> std::ws && std::getline(text, key);) beat.begun[key] = count;
  return beat;
}

}  // namespace

bool Heartbeat::has_begun(const Operation& operation) const {
  const auto count = begun.find(operation.group->key);
  return count != begun.end() && count->second >= operation.number;
}

void Heartbeat::write(int64_t rank, c10d::Store& store) const {
  std::string text = fmt::format("{} {} {:d}\n{}\n", number, static_cast<int64_t>(seconds * 1e3), outside, doing);
  for (const auto& [key, count] : begun) text += fmt::format("{} {}\n", count, key);
  store.set(key_of(rank), text);
}

void Heartbeats::look(const std::vector<int64_t>& ranks, c10d::Store& store) {
  std::vector<std::string> keys, texts;
  for (const int64_t r : ranks) keys.push_back(key_of(r));
  if (keys.empty()) return;
  if (store.hasExtendedApi() && store.check(keys)) {  // one answer for all
    for (const std::vector<uint8_t>& value : store.multiGet(keys)) texts.emplace_back(value.begin(), value.end());
  } else {
    for (const std::string& key : keys) texts.push_back(store.check({key}) ? store.get_to_str(key) : "");
  }
  const auto now = Clock::now();
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (texts[i].empty()) continue;
    Heartbeat beat = parse(texts[i]);
    const auto [entry, first] = entries_.try_emplace(ranks[i]);
    if (first || entry->second.beat.number != beat.number) entry->second = {std::move(beat), now};
  }
}

std::optional<Heartbeats::Seen> Heartbeats::of(int64_t rank) const {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(rank);
  if (found == entries_.end()) return {};
  return Seen{found->second.beat, std::chrono::duration<double>(Clock::now() - found->second.since).count()};
}

void Heartbeats::restart() {
  const std::lock_guard lock(mutex_);
  for (auto& [rank, entry] : entries_) entry.since = Clock::now();
}

}  // namespace halftone::comm
