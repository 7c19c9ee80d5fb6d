// links: data chat base
// seeds: tests/fuzz/seeds/jsonl_bin
// dict: "text" "input_ids" "labels" "loss_mask" "messages" -100 {"text": [1,2] \x01\x01 \x88\xD8\x34\x01
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "halftone/base/error.h"
#include "halftone/data/bin_format.h"
#include "halftone/data/jsonl_line.h"
#include "halftone/data/row_document.h"

// A line of JSONL and a .bin file: any input yields documents within bounds or an Error.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr int64_t kVocab = 300;
  try {
    const halftone::JsonlDocument d = halftone::parse_jsonl_line({reinterpret_cast<const char*>(data), size}, "text", kVocab);
    if (d.has_text && (d.has_ids || d.whole_row)) std::abort();
    if (!d.has_text && !d.has_ids && !d.whole_row) std::abort();
    for (const int32_t id : d.ids)
      if (id < 0 || id >= kVocab) std::abort();
    if (d.whole_row) {
      halftone::SourceOptions options;
      options.text_key = "a.b", options.vocab_size = kVocab;
      halftone::RowDocument row(options);
      const halftone::Document& document = row.read(halftone::parse_row({reinterpret_cast<const char*>(data), size}));
      if (!document.loss.empty() && document.loss.size() != document.ids.size()) std::abort();
      for (const int32_t id : document.ids)
        if (id < 0 || id >= kVocab) std::abort();
    }
  } catch (const halftone::Error&) {}
  for (const int width : {2, 4}) {
    size_t next = 0;
    try {
      halftone::scan_bin({reinterpret_cast<const std::byte*>(data), size}, width, kVocab, {257}, "x.bin", [&](size_t first, size_t count) {
        if (first != next || count == 0) std::abort();
        next = first + count;
      });
      if (next * static_cast<size_t>(width) != size) std::abort();
    } catch (const halftone::Error&) {}
  }
  return 0;
}
