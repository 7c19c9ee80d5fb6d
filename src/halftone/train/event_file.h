#pragma once
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "halftone/checkpoint/file_io.h"
#include "halftone/train/metrics_file.h"

// TensorBoard event files without the tensorboard library: TFRecord frames (u64 length, masked crc32c of it, payload, masked crc32c of
// the payload) around protobuf messages Event{wall_time = 1, step = 2, file_version = 3, summary = 5} and
// Summary{value = 1: Value{tag = 1, simple_value = 2}}.
namespace halftone {

uint32_t crc32c(std::string_view data);
// As stored by TFRecord: rotr(crc, 15) + 0xa282ead8.
uint32_t masked_crc32c(std::string_view data);
std::string tfrecord(std::string_view payload);
std::string scalar_event(double wall_time, int64_t step, const Scalars& scalars);
std::string version_event(double wall_time);

class EventFile {
 public:
  EventFile() = default;
  // Creates folder/events.out.tfevents.<time>.<host>.<pid> with the version record.
  EventFile(const std::filesystem::path& folder, double now);
  bool is_open() const { return file_.is_open(); }
  void write(double wall_time, int64_t step, const Scalars& scalars);
  const std::filesystem::path& path() const { return file_.path(); }

 private:
  File file_;
};

}  // namespace halftone
