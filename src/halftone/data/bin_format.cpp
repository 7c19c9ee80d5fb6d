#include "halftone/data/bin_format.h"

#include <algorithm>

#include "halftone/base/error.h"

namespace halftone {
namespace {

constexpr int64_t kHeaderBytes = 1024;
struct LlmcHeader {
  uint32_t magic, version;
  int width;
};
constexpr LlmcHeader kLlmcHeaders[] = {{20240520, 1, 2}, {20240801, 7, 4}};
constexpr const char* kWidthOption = "dataloader.token_dtype";

// Statistics of pairs of uint16 sampled across the file.
struct Pairs {
  size_t looked_at = 0, low_zero = 0, high_zero = 0, both_ids = 0;
  bool nearly_all(size_t n) const { return looked_at >= 8 && n * 20 >= looked_at * 19; }
  // Nearly all upper halves are 0 and at most half of the lower ones: uint32 ids, which rarely need their upper half.
  bool are_uint32() const { return nearly_all(high_zero) && low_zero * 2 <= looked_at; }
  bool are_uint16() const { return nearly_all(both_ids) && high_zero * 2 <= looked_at; }
};

Pairs look_at(std::span<const std::byte> bytes, int64_t vocab_size) {
  constexpr size_t kMost = 4096;
  const size_t pairs = bytes.size() / 4;
  Pairs found;
  for (size_t i = 0; i < pairs; i += std::max<size_t>(1, pairs / kMost)) {
    const uint32_t low = stored_id(bytes, 2 * i, 2), high = stored_id(bytes, 2 * i + 1, 2);
    ++found.looked_at;
    found.low_zero += low == 0, found.high_zero += high == 0;
    found.both_ids += low < vocab_size && high < vocab_size;
  }
  return found;
}

template <int kWidth>
void scan(std::span<const std::byte> bytes, int64_t vocab_size, DocumentEnd end, const std::string& path,
          const std::function<void(size_t, size_t)>& visit) {
  const size_t n = bytes.size() / kWidth;
  for (size_t first = 0; first < n;) {
    const size_t length = end.length(n - first, [&](size_t i) {
      const uint32_t id = stored_id(bytes, first + i, kWidth);
      if (id >= vocab_size) {
        const bool other_width = kWidth == 4 && look_at(bytes, vocab_size).are_uint16();
        fail("{}: id {} at byte offset {} is outside the vocabulary of {}; {}", path, id, (first + i) * kWidth, vocab_size,
             other_width ? fmt::format("its halves are ids: these are uint16, set {} = \"uint16\"", kWidthOption)
                         : "was the file written with another tokenizer or token_dtype?");
      }
      return id;
    });
    visit(first, length);
    first += length;
  }
}

}  // namespace

int token_bytes_of(const std::string& token_dtype) {
  if (token_dtype == "uint16") return 2;
  if (token_dtype == "uint32") return 4;
  fail("dataloader.token_dtype = \"{}\": expected uint16 or uint32", token_dtype);
}

BinLayout bin_layout(std::span<const std::byte> first, int64_t size, int width, const std::string& path) {
  for (const LlmcHeader& h : kLlmcHeaders) {
    if (first.size() < 12 || stored_id(first, 0, 4) != h.magic) continue;
    const uint32_t version = stored_id(first, 1, 4), count = stored_id(first, 2, 4);
    check(version == h.version, "{}: a header of llm.c ({}) of version {}: expected version {}", path, h.magic, version, h.version);
    const int64_t bytes = int64_t{count} * h.width;
    check(size == kHeaderBytes + bytes, "{}: its header of llm.c names {} uint{} ids: expected {} bytes, found {}; is the file cut short?",
          path, count, 8 * h.width, kHeaderBytes + bytes, size);
    return {kHeaderBytes, bytes, h.width};
  }
  return {0, size, width};
}

void scan_bin(std::span<const std::byte> bytes, int width, int64_t vocab_size, DocumentEnd end, const std::string& path,
              const std::function<void(size_t, size_t)>& visit) {
  check(bytes.size() % static_cast<size_t>(width) == 0, "{}: {} bytes are not a whole number of uint{} ids; is the file cut short{}?", path,
        bytes.size(), 8 * width, width == 4 && bytes.size() % 2 == 0 ? fmt::format(", or does it hold uint16 ({})", kWidthOption) : "");
  if (width == 2) {
    const Pairs found = look_at(bytes, vocab_size);
    check(!found.are_uint32(), "{}: every second uint16 is 0 ({} of {} looked at): these are uint32 ids, set {} = \"uint32\"", path,
          found.high_zero, found.looked_at, kWidthOption);
    return scan<2>(bytes, vocab_size, end, path, visit);
  }
  scan<4>(bytes, vocab_size, end, path, visit);
}

}  // namespace halftone
