// links: tokenizer
// seeds: tests/fuzz/seeds/tokenizer_json
// dict: { } [ ] " : , "model" "vocab" "merges" "BPE" "added_tokens" "id" "content" "ByteLevel" "Split" "Regex" "NFC" "ids" \x00 -1 1e9 null
// dict: true
#include <cstdlib>
#include <string_view>

#include "halftone/base/error.h"
#include "halftone/base/log.h"
#include "halftone/data/tokenizer.h"
#include "halftone/data/tokenizer_json.h"

// Input: tokenizer.json, tokenizer_config.json and a text, separated by zero bytes; if it starts with V or T, vocab.json or vocab.txt and
// merges.txt instead. Any accepted input must encode the text to ids that can be decoded.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace halftone;
  set_log_level(LogLevel::error);
  std::string_view input(reinterpret_cast<const char*>(data), size);
  auto next = [&] {
    const size_t end = std::min(input.find('\0'), input.size());
    const std::string_view part = input.substr(0, end);
    input.remove_prefix(std::min(end + 1, input.size()));
    return part;
  };
  try {
    const std::string_view first = next(), second = next();
    const bool old_form = first.starts_with('V') || first.starts_with('T');
    const Tokenizer tokenizer = old_form ? Tokenizer::parse(tokenizer_json_from_vocab(
                                               first.substr(1), first[0] == 'V', second.empty() ? std::nullopt : std::optional(second)))
                                         : Tokenizer::parse(first, second);
    const std::vector<int32_t> ids = tokenizer.encode_document(input.substr(0, 4096), true, true);
    for (const int32_t id : ids) {
      if (id < 0 || id >= tokenizer.vocab_size()) std::abort();
    }
    tokenizer.decode(ids, true);
    tokenizer.description();
  } catch (const Error& e) {
    if (std::string_view(e.what()).find('\n') != std::string_view::npos) std::abort();  // messages are one line
  }
  return 0;
}
