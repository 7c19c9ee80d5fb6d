#include "halftone/data/bin_format.h"

#include "halftone/base/error.h"

namespace halftone {
namespace {

constexpr uint32_t kLlmcMagic = 20240520;

template <int kWidth>
void scan(std::span<const std::byte> bytes, int64_t vocab_size, std::optional<int32_t> eos_id, const std::string& path,
          const std::function<void(size_t, size_t)>& visit) {
  const size_t n = bytes.size() / kWidth;
  const int64_t eos = eos_id.value_or(-1);
  size_t first = 0;
  for (size_t i = 0; i < n; ++i) {
    const uint32_t id = stored_id(bytes, i, kWidth);
    check(id < vocab_size,
          "{}: id {} at byte offset {} is outside the vocabulary of {}; was the file written with another tokenizer or token_dtype?", path,
          id, i * kWidth, vocab_size);
    if (id == eos) {
      visit(first, i + 1 - first);
      first = i + 1;
    }
  }
  if (first < n) visit(first, n - first);
}

}  // namespace

int token_bytes_of(const std::string& token_dtype) {
  if (token_dtype == "uint16") return 2;
  if (token_dtype == "uint32") return 4;
  fail("dataloader.token_dtype = \"{}\": expected uint16 or uint32", token_dtype);
}

void scan_bin(std::span<const std::byte> bytes, int width, int64_t vocab_size, std::optional<int32_t> eos_id, const std::string& path,
              const std::function<void(size_t, size_t)>& visit) {
  check(bytes.size() < 4 || stored_id(bytes, 0, 4) != kLlmcMagic,
        "{}: starts with the header of llm.c (20240520); expected ids only: cut the first 1024 bytes off", path);
  check(bytes.size() % static_cast<size_t>(width) == 0, "{}: {} bytes are not a whole number of uint{} ids; is the file cut short?", path,
        bytes.size(), 8 * width);
  if (width == 2) return scan<2>(bytes, vocab_size, eos_id, path, visit);
  scan<4>(bytes, vocab_size, eos_id, path, visit);
}

}  // namespace halftone
