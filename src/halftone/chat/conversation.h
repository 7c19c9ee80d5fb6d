#pragma once
#include <cstddef>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace halftone {

// Range [begin, end) of bytes.
struct ByteRange {
  size_t begin, end;
  bool operator==(const ByteRange&) const = default;
};

// A conversation as a template renders it.
struct RenderedChat {
  std::string text;
  std::vector<ByteRange> learned;  // ascending, disjoint; bytes of `text` whose tokens have a loss
};

enum class ChatFormat { automatic, none, openai, sharegpt, alpaca };
enum class LossOn { assistant, last, all };
ChatFormat parse_chat_format(const std::string& name);
LossOn parse_loss_on(const std::string& name);

struct ChatOptions {
  ChatFormat format = ChatFormat::automatic;
  std::string messages_key = "messages";
  LossOn loss_on = LossOn::assistant;
  size_t max_turns = 0;  // > 0: only the first so many messages
};

// A compiled chat template (Jinja, as transformers.apply_chat_template runs it). Thread-safe.
class ChatTemplate {
 public:
  // `text`: the template; `special_tokens`: bos_token, eos_token, pad_token, ... as the tokenizer's configuration names them, and other
  // variables of the template (enable_thinking, date_string), as the keyword arguments of apply_chat_template. `name`: where the template
  // comes from, for messages. Error with line and column for syntax outside the supported subset.
  ChatTemplate(std::string_view text, nlohmann::ordered_json special_tokens, std::string name);
  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  // Equal to transformers' apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=...). Error when the template
  // raises, a limit of steps or of output is reached, or a value has the wrong type.
  std::string render(const nlohmann::ordered_json& messages, const nlohmann::ordered_json& tools, bool add_generation_prompt) const;
  // Renders a conversation and finds what is learned: the {% generation %} blocks if the template has them, else each assistant turn from
  // behind its generation prompt to the end of the turn: the end-of-turn token is learned, a line end behind it is not. Error naming the
  // turn whose place in the text cannot be decided.
  RenderedChat render_for_training(const nlohmann::ordered_json& messages, const nlohmann::ordered_json& tools, LossOn loss_on) const;
  // Digest of everything that decides the text.
  std::string digest() const;

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

// Whether a row with these top-level fields is a conversation in the given format (automatic: in any of them).
bool is_conversation(const nlohmann::ordered_json& row, const ChatOptions& options);
// A row in OpenAI's form (`messages`: role, content, tool_calls, ...; `tools`), ShareGPT's (`conversations`: from, value) or Alpaca's
// (instruction, input, output, history, system) as {messages, tools} in OpenAI's form, cut to max_turns. Error saying what is wrong.
struct Conversation {
  nlohmann::ordered_json messages, tools;  // tools: null or a list
};
Conversation read_conversation(const nlohmann::ordered_json& row, const ChatOptions& options);

}  // namespace halftone
