#include "halftone/data/megatron_index.h"

#include <cstring>
#include <string_view>

#include "halftone/base/error.h"

namespace halftone {
namespace {

using namespace std::string_view_literals;

constexpr std::string_view kMagic = "MMIDIDX\0\0"sv;
constexpr int64_t kHeader = 9 + 8 + 1 + 8 + 8;

struct IdType {
  const char* name;
  int width;  // 0: not an integer, or unknown
  bool is_signed;
};
// By code, as in Megatron-LM's DType.
constexpr IdType kIdTypes[] = {{"unknown", 0, false}, {"uint8", 1, false},  {"int8", 1, true},    {"int16", 2, true},  {"int32", 4, true},
                               {"int64", 8, true},    {"float64", 0, true}, {"float32", 0, true}, {"uint16", 2, false}};

template <class T>
T index_value(std::span<const std::byte> bytes, int64_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

}  // namespace

MegatronIndex::MegatronIndex(std::span<const std::byte> bytes, int64_t bin_bytes, const std::string& path) : bytes_(bytes) {
  const auto size = static_cast<int64_t>(bytes.size());
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  check(text.starts_with(kMagic), "{}: expected an index of Megatron-LM, which begins with MMIDIDX", path);
  check(size >= kHeader, "{}: expected {} bytes of header, found {}; is the file cut short?", path, kHeader, size);
  const auto version = index_value<uint64_t>(bytes, 9);
  check(version == 1, "{}: a Megatron index of version {}: expected version 1", path, version);
  const auto code = index_value<uint8_t>(bytes, 17);
  const IdType type = kIdTypes[code < std::size(kIdTypes) ? code : 0];
  check(type.width > 0, "{}: expected integer token ids, found dtype code {} ({})", path, code, type.name);
  width_ = type.width, signed_ = type.is_signed;
  const auto n = index_value<uint64_t>(bytes, 18), m = index_value<uint64_t>(bytes, 26);
  const auto limit = static_cast<uint64_t>(size);
  check(n <= limit / 12 && m <= limit / 8 && m > 0, "{}: names {} sequences and {} documents, too many for its {} bytes, or none", path, n,
        m, size);
  sequences_ = static_cast<int64_t>(n), documents_ = static_cast<int64_t>(m);
  const int64_t expected = kHeader + 12 * sequences_ + 8 * documents_;
  check(size == expected || size == expected + sequences_,
        "{}: {} sequences and {} documents take {} bytes, found {}; is the file cut short?", path, n, m, expected, size);
  for (int64_t i = 0; i < sequences_; ++i) {
    check(length(i) >= 0 && offset(i) >= 0 && offset(i) <= bin_bytes && length(i) <= (bin_bytes - offset(i)) / width_,
          "{}: sequence {} of {} tokens at byte {} leaves its .bin file of {} bytes", path, i, length(i), offset(i), bin_bytes);
    contiguous_ = contiguous_ && offset(i) == tokens_ * width_;
    tokens_ += length(i);
    check(tokens_ <= INT64_MAX / 16, "{}: its sequences hold too many tokens", path);
  }
  contiguous_ = contiguous_ && tokens_ * width_ == bin_bytes;
  for (int64_t d = 0; d < documents_; ++d) {
    const int64_t before = d == 0 ? 0 : first_sequence(d - 1), first = first_sequence(d);
    check(first >= before && first <= sequences_, "{}: document {} starts at sequence {}: expected one from {} to {}", path, d, first,
          before, sequences_);
  }
  check(first_sequence(0) == 0 && first_sequence(documents_ - 1) == sequences_,
        "{}: its documents cover the sequences {} to {}: expected 0 to {}", path, first_sequence(0), first_sequence(documents_ - 1),
        sequences_);
}

int64_t MegatronIndex::length(int64_t sequence) const { return index_value<int32_t>(bytes_, kHeader + 4 * sequence); }
int64_t MegatronIndex::offset(int64_t sequence) const { return index_value<int64_t>(bytes_, kHeader + 4 * sequences_ + 8 * sequence); }
int64_t MegatronIndex::first_sequence(int64_t document) const {
  return index_value<int64_t>(bytes_, kHeader + 12 * sequences_ + 8 * document);
}

void MegatronIndex::each_sequence(int64_t document, const std::function<void(int64_t, int64_t)>& visit) const {
  for (int64_t i = first_sequence(document); i < first_sequence(document + 1); ++i) visit(offset(i), length(i));
}

int64_t megatron_id(std::span<const std::byte> bytes, size_t i, int width, bool is_signed) {
  const auto at = static_cast<int64_t>(i) * width;
  switch (width) {
    case 1:
      return is_signed ? index_value<int8_t>(bytes, at) : index_value<uint8_t>(bytes, at);
    case 2:
      return is_signed ? index_value<int16_t>(bytes, at) : index_value<uint16_t>(bytes, at);
    case 4:
      return index_value<int32_t>(bytes, at);
    default:
      return index_value<int64_t>(bytes, at);
  }
}

}  // namespace halftone
