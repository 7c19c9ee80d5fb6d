// links: chat base
// seeds: tests/fuzz/seeds/chat_template
// dict: {% %} {{ }} {%- -%} {# #} for in if elif else endfor endif set endset macro endmacro generation endgeneration namespace( messages
// dict: loop.index | tojson join map( select( sort replace( .split( .strip( .items() [::-1] is defined range( ~ ** // % \n "role" "content"
#include <cstdint>
#include <cstdlib>
#include <string>

#include "halftone/base/error.h"
#include "halftone/chat/conversation.h"
#include "halftone/chat/jinja/interpreter.h"

// A template, and after a zero byte a row: an Error of at most a page, or a text within the limits, whose learned bytes are in it.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace halftone;
  using Fields = nlohmann::ordered_json;
  const std::string input(reinterpret_cast<const char*>(data), size);
  const size_t end = input.find('\0');
  Fields row = end == std::string::npos ? Fields() : Fields::parse(input.substr(end + 1), nullptr, false);
  const Fields messages{{{"role", "user"}, {"content", "a <b> \xC3\xA9"}}, {{"role", "assistant"}, {"content", "c"}}};
  Conversation conversation{messages, nullptr};
  try {
    if (row.is_object()) conversation = read_conversation(row, {});
  } catch (const Error& error) {
    if (std::string_view(error.what()).size() > 20'000) std::abort();
  }
  try {
    const jinja::Template parsed = jinja::parse(input.substr(0, end), "t");
    jinja::Limits limits;
    limits.steps = 50'000, limits.bytes = 1 << 20;
    jinja::Interpreter interpreter(parsed, limits);
    jinja::Spans generated;
    const jinja::Value list = jinja::from_json(conversation.messages, interpreter.budget);
    const std::string text = interpreter.run({{"messages", list}, {"tools", jinja::None{}}, {"add_generation_prompt", true}}, &generated);
    if (text.size() > limits.bytes) std::abort();
    for (const auto& [begin, stop] : generated) {
      if (begin > stop || stop > text.size()) std::abort();
    }
    if (size % 8 != 0) return 0;  // what follows costs ten times as much
    const RenderedChat chat = ChatTemplate(input.substr(0, end), {{"bos_token", "<s>"}}, "t")
                                  .render_for_training(conversation.messages, nullptr, LossOn::assistant);
    size_t last = 0;
    for (const ByteRange& range : chat.learned) {
      if (range.begin < last || range.end <= range.begin || range.end > chat.text.size()) std::abort();
      last = range.end;
    }
  } catch (const Error& error) {
    if (std::string_view(error.what()).size() > 20'000) std::abort();
  } catch (const jinja::Fault&) {  // from_json of too deep a row
  }
  return 0;
}
