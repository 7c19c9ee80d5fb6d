// Renders conversations for chat_templates.py. Each line of the input is {"template", "variables", "messages", "tools", "prompt"} in
// JSON, or, for a rendering for training, {..., "loss_on"}; a template stays compiled until another follows. Each line of the output is
// {"text"}, {"text", "learned"} or {"error"}.
#include <iostream>
#include <optional>

#include "halftone/base/error.h"
#include "halftone/chat/conversation.h"

int main() {
  using namespace halftone;
  using Fields = nlohmann::ordered_json;
  std::optional<ChatTemplate> chat;
  std::string compiled, line;
  while (std::getline(std::cin, line)) {
    Fields answer;
    try {
      const Fields request = Fields::parse(line);
      const std::string key = request["template"].dump() + request["variables"].dump();
      if (!chat || key != compiled) {
        chat.reset();
        chat.emplace(request["template"].get<std::string>(), request["variables"], "template");
        compiled = key;
      }
      if (request.contains("loss_on")) {
        const RenderedChat rendered = chat->render_for_training(request["messages"], request["tools"], parse_loss_on(request["loss_on"]));
        answer = {{"text", rendered.text}, {"learned", Fields::array()}};
        for (const ByteRange& range : rendered.learned) answer["learned"].push_back({range.begin, range.end});
      } else {
        answer = {{"text", chat->render(request["messages"], request["tools"], request["prompt"].get<bool>())}};
      }
    } catch (const Error& error) {
      answer = {{"error", error.what()}};
    }
    std::cout << answer.dump(-1, ' ', true) << '\n' << std::flush;
  }
}
