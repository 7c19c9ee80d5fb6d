#include "halftone/chat/conversation.h"

#include <algorithm>
#include <string_view>

#include "halftone/base/error.h"
#include "halftone/base/json_reader.h"

namespace halftone {
namespace {

using Fields = nlohmann::ordered_json;

std::string found(const Fields& value) { return short_text(Json(value)); }

const Fields* set_member(const Fields& object, std::string_view key) {
  if (!object.is_object()) return nullptr;
  const auto at = object.find(key);
  return at == object.end() || at->is_null() ? nullptr : &*at;
}

std::string optional_text(const Fields& row, const char* key) {
  const Fields* value = set_member(row, key);
  if (!value) return {};
  check(value->is_string(), "{}: expected a string, found {}", key, found(*value));
  return value->get<std::string>();
}

// The list of messages under messages_key or `conversations`, if its messages have this field.
const Fields* message_list(const Fields& row, const ChatOptions& options, const char* field, std::string* key = nullptr) {
  for (const std::string& name : {options.messages_key, std::string("conversations")}) {
    const Fields* list = set_member(row, name);
    if (!list || !list->is_array() || (!list->empty() && (!list->front().is_object() || !list->front().contains(field)))) continue;
    if (key) *key = name;
    return list;
  }
  return nullptr;
}

ChatFormat format_of(const Fields& row, const ChatOptions& options) {
  if (options.format != ChatFormat::automatic) return options.format;
  if (message_list(row, options, "role")) return ChatFormat::openai;
  if (message_list(row, options, "from")) return ChatFormat::sharegpt;
  if (set_member(row, "instruction") && set_member(row, "output")) return ChatFormat::alpaca;
  return ChatFormat::none;
}

Fields text_message(const char* role, std::string text) { return Fields{{"role", role}, {"content", std::move(text)}}; }

// Text as JSON, null if it is none. Templates write the arguments of a call as JSON, so they are needed as an object.
Fields parsed(const std::string& text) {
  try {
    const Json checked = parse_json(text, "");  // limits of nesting
    return Fields::parse(text);
  } catch (const std::exception&) {
    return nullptr;
  }
}

void read_tool_call(Fields& call, const std::string& where) {
  check(call.is_object(), "{}: expected an object, found {}", where, found(call));
  Fields& function = set_member(call, "function") ? call["function"] : call;
  check(function.is_object(), "{}.function: expected an object, found {}", where, found(function));
  const Fields* name = set_member(function, "name");
  check(name && name->is_string(), "{}.function.name: expected a string, found {}", where, name ? found(*name) : "nothing");
  if (const Fields* arguments = set_member(function, "arguments"); arguments && arguments->is_string()) {
    if (Fields object = parsed(arguments->get<std::string>()); object.is_object()) function["arguments"] = std::move(object);
  }
}

void read_openai_message(Fields& message, const std::string& where) {
  check(message.is_object(), "{}: expected an object, found {}", where, found(message));
  const Fields* role = set_member(message, "role");
  check(role && role->is_string(), "{}.role: expected a string, found {}", where, role ? found(*role) : "nothing");
  if (const Fields* content = set_member(message, "content")) {
    check(content->is_string() || content->is_array(), "{}.content: expected a string or a list of parts, found {}", where,
          found(*content));
    for (size_t i = 0; content->is_array() && i < content->size(); ++i) {
      const Fields& part = (*content)[i];
      check(part.is_object() || part.is_string(), "{}.content[{}]: expected a part with a type, found {}", where, i, found(part));
    }
  } else {
    const bool other = set_member(message, "tool_calls") || set_member(message, "reasoning_content") || set_member(message, "thinking");
    check(*role == "assistant" && other, "{}.content: expected a string or a list of parts, found nothing", where);
  }
  if (!set_member(message, "tool_calls")) return;
  Fields& calls = message["tool_calls"];
  check(calls.is_array(), "{}.tool_calls: expected a list, found {}", where, found(calls));
  for (size_t i = 0; i < calls.size(); ++i) read_tool_call(calls[i], fmt::format("{}.tool_calls[{}]", where, i));
  if (calls.empty()) message.erase("tool_calls");
}

Fields read_sharegpt_message(const Fields& message, const std::string& where) {
  check(message.is_object(), "{}: expected an object, found {}", where, found(message));
  const Fields* from = set_member(message, "from");
  const Fields* value = set_member(message, "value");
  check(from && from->is_string(), "{}.from: expected a string, found {}", where, from ? found(*from) : "nothing");
  check(value && value->is_string(), "{}.value: expected a string, found {}", where, value ? found(*value) : "nothing");
  static constexpr struct {
    std::string_view from;
    const char* role;
  } kRoles[] = {
      {"human", "user"},        {"user", "user"},     {"gpt", "assistant"}, {"chatgpt", "assistant"}, {"assistant", "assistant"},
      {"model", "assistant"},   {"system", "system"}, {"tool", "tool"},     {"observation", "tool"},  {"function_response", "tool"},
      {"function_call", "call"}};
  const std::string name = from->get<std::string>();
  const auto role = std::find_if(std::begin(kRoles), std::end(kRoles), [&](const auto& r) { return r.from == name; });
  check(role != std::end(kRoles), "{}.from: expected human, gpt, system, tool, observation or function_call, found \"{}\"", where,
        name.substr(0, 40));
  if (name != "function_call") return text_message(role->role, value->get<std::string>());
  Fields calls = parsed(value->get<std::string>());
  if (calls.is_object()) calls = Fields::array({calls});
  check(calls.is_array() && !calls.empty(), "{}.value: expected a call in JSON, {{\"name\": ..., \"arguments\": ...}}, found {}", where,
        found(*value));
  Fields tool_calls = Fields::array();
  for (size_t i = 0; i < calls.size(); ++i) {
    Fields call{{"type", "function"}, {"function", calls[i]}};
    read_tool_call(call, fmt::format("{}.value[{}]", where, i));
    tool_calls.push_back(std::move(call));
  }
  return Fields{{"role", "assistant"}, {"content", ""}, {"tool_calls", std::move(tool_calls)}};
}

Fields read_tools(const Fields& row) {
  const Fields* value = set_member(row, "tools");
  if (!value || (value->is_string() && value->get_ref<const std::string&>().empty())) return nullptr;
  Fields tools = value->is_string() ? parsed(value->get<std::string>()) : *value;
  if (tools.is_array() && tools.empty()) return nullptr;
  check(tools.is_array(), "tools: expected a list, or a list in JSON, found {}", found(*value));
  for (size_t i = 0; i < tools.size(); ++i) check(tools[i].is_object(), "tools[{}]: expected an object, found {}", i, found(tools[i]));
  return tools;
}

Fields read_alpaca(const Fields& row) {
  Fields messages = Fields::array();
  if (std::string system = optional_text(row, "system"); !system.empty()) messages.push_back(text_message("system", std::move(system)));
  if (const Fields* history = set_member(row, "history")) {
    check(history->is_array(), "history: expected a list of pairs, found {}", found(*history));
    for (size_t i = 0; i < history->size(); ++i) {
      const Fields& pair = (*history)[i];
      const bool texts = pair.is_array() && pair.size() == 2 && pair[0].is_string() && pair[1].is_string();
      check(texts, "history[{}]: expected a pair of strings, found {}", i, found(pair));
      messages.push_back(text_message("user", pair[0]));
      messages.push_back(text_message("assistant", pair[1]));
    }
  }
  for (const char* key : {"instruction", "output"}) check(set_member(row, key), "{}: expected a string, found nothing", key);
  std::string question = optional_text(row, "instruction");
  if (const std::string input = optional_text(row, "input"); !input.empty()) question += (question.empty() ? "" : "\n") + input;
  messages.push_back(text_message("user", std::move(question)));
  messages.push_back(text_message("assistant", optional_text(row, "output")));
  return messages;
}

}  // namespace

ChatFormat parse_chat_format(const std::string& name) {
  static constexpr std::pair<std::string_view, ChatFormat> kNames[] = {{"auto", ChatFormat::automatic},
                                                                       {"none", ChatFormat::none},
                                                                       {"openai", ChatFormat::openai},
                                                                       {"sharegpt", ChatFormat::sharegpt},
                                                                       {"alpaca", ChatFormat::alpaca}};
  for (const auto& [known, format] : kNames) {
    if (known == name) return format;
  }
  fail("dataloader.chat_format = \"{}\": expected auto, none, openai, sharegpt or alpaca", name);
}

LossOn parse_loss_on(const std::string& name) {
  if (name == "assistant") return LossOn::assistant;
  if (name == "last") return LossOn::last;
  if (name == "all") return LossOn::all;
  fail("dataloader.loss_on = \"{}\": expected assistant, last or all", name);
}

bool is_conversation(const nlohmann::ordered_json& row, const ChatOptions& options) {
  switch (format_of(row, options)) {
    case ChatFormat::openai:
      return set_member(row, options.messages_key) || set_member(row, "conversations");
    case ChatFormat::sharegpt:
      return set_member(row, "conversations") || set_member(row, options.messages_key);
    case ChatFormat::alpaca:
      return set_member(row, "instruction") || set_member(row, "output");
    default:
      return false;
  }
}

Conversation read_conversation(const nlohmann::ordered_json& row, const ChatOptions& options) {
  check(row.is_object(), "expected a conversation, found {}", found(row));
  const ChatFormat format = format_of(row, options);
  Conversation result{Fields::array(), nullptr};
  if (format == ChatFormat::alpaca) {
    result.messages = read_alpaca(row);
  } else {
    check(format != ChatFormat::none,
          "expected a conversation: \"{}\" with role and content, \"conversations\" with from and value, or instruction and output",
          options.messages_key);
    const bool openai = format == ChatFormat::openai;
    std::string key;
    const Fields* list = message_list(row, options, openai ? "role" : "from", &key);
    check(list, "\"{}\": expected a list of messages with {}", openai ? options.messages_key : "conversations",
          openai ? "role and content" : "from and value");
    result.tools = read_tools(row);
    for (size_t i = 0; i < list->size(); ++i) {
      const std::string where = fmt::format("{}[{}]", key, i);
      if (openai) {
        result.messages.push_back((*list)[i]);
        read_openai_message(result.messages.back(), where);
      } else {
        result.messages.push_back(read_sharegpt_message((*list)[i], where));
      }
    }
    const std::string system = openai ? "" : optional_text(row, "system");
    if (!system.empty() && (result.messages.empty() || result.messages[0]["role"] != "system")) {
      result.messages.insert(result.messages.begin(), text_message("system", system));
    }
    check(!result.messages.empty(), "\"{}\": expected at least one message, found an empty list", key);
  }
  if (options.max_turns > 0 && result.messages.size() > options.max_turns) {
    result.messages.erase(result.messages.begin() + static_cast<ptrdiff_t>(options.max_turns), result.messages.end());
  }
  const bool learned =
      std::any_of(result.messages.begin(), result.messages.end(), [](const Fields& m) { return m["role"] == "assistant"; });
  check(learned || options.loss_on == LossOn::all,
        "none of the {} messages is of the assistant, so nothing would be learned; set dataloader.loss_on = \"all\" or drop the row",
        result.messages.size());
  return result;
}

}  // namespace halftone
