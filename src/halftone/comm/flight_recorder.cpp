#include "halftone/comm/flight_recorder.h"

#include <fmt/chrono.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <future>
#include <nlohmann/json.hpp>
#include <thread>

namespace halftone::comm {
namespace {

using Json = nlohmann::ordered_json;

std::string line(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace) + '\n'; }

// UTC, such as 2026-03-01T12:00:00.123Z
std::string stamp(std::chrono::system_clock::time_point t) { return fmt::format("{:%FT%T}Z", std::chrono::floor<Milliseconds>(t)); }

std::string replace_file(const std::filesystem::path& path, const std::string& text) {
  std::error_code ignored;
  std::filesystem::create_directories(path.parent_path(), ignored);
  const std::filesystem::path temporary = path.string() + ".tmp";
  errno = 0;
  std::ofstream file(temporary, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (file && std::rename(temporary.c_str(), path.c_str()) == 0) return "";
  const std::string why = std::strerror(errno);
  std::filesystem::remove(temporary, ignored);
  return why;
}

}  // namespace

int64_t FlightRecorder::begin(const Operation& operation) {
  if (!on()) return 0;
  const size_t at = static_cast<size_t>(count_++ % options_.entries);
  if (at == ring_.size()) ring_.emplace_back();
  ring_[at] = {operation, Wall::now(), {}};
  return count_;
}

void FlightRecorder::end(int64_t entry) {
  if (entry > 0 && entry > count_ - options_.entries) ring_[static_cast<size_t>((entry - 1) % options_.entries)].ended = Wall::now();
}

std::string FlightRecorder::text(int64_t rank, int64_t world_size, std::string_view reason) const {
  std::string lines;
  Json groups = Json::object();
  for (size_t i = 0; i < ring_.size(); ++i) {
    const Entry& entry = ring_[(static_cast<size_t>(count_) + i) % ring_.size()];
    const Operation& o = entry.operation;
    Json json = {{"group", o.group->key}, {"operation", o.what}};
    o.peer < 0 ? json["number"] = o.number : json["peer"] = o.peer;
    if (o.bytes > 0) json["bytes"] = o.bytes, json["dtype"] = o.dtype;
    json["begun"] = stamp(entry.begun);
    json["ended"] = entry.ended == Wall::time_point() ? "under way" : stamp(entry.ended);
    groups[o.group->key] = o.group->ranks;
    lines += line(json);
  }
  return line({{"rank", rank}, {"world_size", world_size}, {"time", stamp(Wall::now())}, {"reason", reason}, {"groups", groups}}) + lines;
}

std::string FlightRecorder::write(std::string text, Milliseconds limit) const {
  std::promise<std::string> promise;
  std::future<std::string> problem = promise.get_future();
  std::thread([path = options_.path, text = std::move(text), promise = std::move(promise)]() mutable {
    promise.set_value(replace_file(path, text));
  }).detach();
  return problem.wait_for(limit) == std::future_status::ready ? problem.get() : fmt::format("not within {} ms", limit.count());
}

}  // namespace halftone::comm
