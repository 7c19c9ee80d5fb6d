#include "halftone/train/event_file.h"

#include <nmmintrin.h>
#include <unistd.h>

#include <bit>
#include <cstring>

#include "halftone/base/error.h"

namespace halftone {
namespace {

// Protobuf wire format: key = field << 3 | type, type 0 = varint, 1 = 8 bytes, 2 = length and bytes, 5 = 4 bytes.
void put_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}
template <class T>
void put_fixed(std::string& out, T value) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  out.append(bytes, sizeof value);
}
void put_double(std::string& out, int field, double value) {
  put_varint(out, static_cast<uint64_t>(field) << 3 | 1);
  put_fixed(out, value);
}
void put_float(std::string& out, int field, float value) {
  put_varint(out, static_cast<uint64_t>(field) << 3 | 5);
  put_fixed(out, value);
}
void put_bytes(std::string& out, int field, std::string_view bytes) {
  put_varint(out, static_cast<uint64_t>(field) << 3 | 2);
  put_varint(out, bytes.size());
  out += bytes;
}

std::string event_file_name(double now) {
  char host[256] = "host";
  ::gethostname(host, sizeof host - 1);
  return fmt::format("events.out.tfevents.{}.{}.{}", static_cast<int64_t>(now), host, ::getpid());
}

}  // namespace

uint32_t crc32c(std::string_view data) {
  uint64_t crc = 0xFFFFFFFFu;
  const char* p = data.data();
  size_t n = data.size();
  for (; n >= 8; n -= 8, p += 8) {
    uint64_t word;
    std::memcpy(&word, p, 8);
    crc = _mm_crc32_u64(crc, word);
  }
  uint32_t tail = static_cast<uint32_t>(crc);
  for (; n > 0; --n, ++p) tail = _mm_crc32_u8(tail, static_cast<uint8_t>(*p));
  return ~tail;
}

uint32_t masked_crc32c(std::string_view data) { return std::rotr(crc32c(data), 15) + 0xa282ead8u; }

std::string tfrecord(std::string_view payload) {
  std::string length;
  put_fixed(length, static_cast<uint64_t>(payload.size()));
  std::string record = length;
  put_fixed(record, masked_crc32c(length));
  record += payload;
  put_fixed(record, masked_crc32c(payload));
  return record;
}

std::string version_event(double wall_time) {
  std::string event;
  put_double(event, 1, wall_time);
  put_bytes(event, 3, "brain.Event:2");
  return event;
}

std::string scalar_event(double wall_time, int64_t step, const Scalars& scalars) {
  std::string summary;
  for (const auto& [name, value] : scalars) {
    std::string row;
    put_bytes(row, 1, name);
    put_float(row, 2, static_cast<float>(value));
    put_bytes(summary, 1, row);
  }
  std::string event;
  put_double(event, 1, wall_time);
  put_varint(event, 2 << 3);
  put_varint(event, static_cast<uint64_t>(step));
  put_bytes(event, 5, summary);
  return event;
}

EventFile::EventFile(const std::filesystem::path& folder, double now) {
  make_folder(folder);
  file_ = File::open_append(folder / event_file_name(now));
  const std::string record = tfrecord(version_event(now));
  file_.write(record.data(), record.size());
}

void EventFile::write(double wall_time, int64_t step, const Scalars& scalars) {
  const std::string record = tfrecord(scalar_event(wall_time, step, scalars));
  file_.write(record.data(), record.size());
}

}  // namespace halftone
