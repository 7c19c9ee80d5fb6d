// links: base json compression
// sources: src/halftone/storage/byte_stream.cpp src/halftone/data/json_array.cpp src/halftone/data/jsonl_scan.cpp
// sources: src/halftone/data/line_reader.cpp src/halftone/data/unicode.cpp
// seeds: tests/fuzz/seeds/json_array
// dict: {"text": "a"} [ ] , \" \\ \\u00e9 \\ud83d\\ude00 null true -0.5 \xEF\xBB\xBF
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "fuzz/bytes.h"
#include "halftone/base/error.h"
#include "halftone/data/json_array.h"
#include "halftone/data/jsonl_scan.h"
#include "halftone/storage/byte_stream.h"

namespace {

const uint8_t* input = nullptr;
size_t input_size = 0;

}  // namespace

namespace halftone {
std::shared_ptr<const ByteFile> open_bytes(const std::string&) { return std::make_shared<Bytes>(input, input_size); }
}  // namespace halftone

// A file that is a JSON array: where a complete parser accepts it, its elements are those read one by one; and a line: what the quick scan
// takes is what the parser finds.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using Json = nlohmann::json;
  const std::string text(reinterpret_cast<const char*>(data), size);
  std::string found;
  if (halftone::scan_jsonl_text(text, "text", found)) {
    const Json parsed = Json::parse(text, nullptr, false);
    if (!parsed.is_object() || parsed.value("text", Json()) != Json(found)) std::abort();
  }
  input = data, input_size = size;
  Json elements = Json::array();
  bool read = false;
  try {
    halftone::JsonArrayReader reader(halftone::TextInput("x"), 1 << 20);
    for (std::string_view element; reader.next(element);) elements.push_back(Json::parse(element, nullptr, false));
    read = true;
  } catch (const halftone::Error&) {}
  // nlohmann::json ends a text at a zero byte.
  const Json whole = text.find('\0') == std::string::npos ? Json::parse(text, nullptr, false) : Json();
  if (whole.is_array() && (!read || elements != whole)) std::abort();
  return 0;
}
