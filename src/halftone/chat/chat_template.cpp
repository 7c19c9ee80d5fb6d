#include <algorithm>
#include <optional>

#include "halftone/base/error.h"
#include "halftone/base/philox.h"
#include "halftone/chat/conversation.h"
#include "halftone/chat/jinja/interpreter.h"

namespace halftone {

using jinja::Value;
using jinja::Values;

struct ChatTemplate::Impl {
  jinja::Template source;
  nlohmann::ordered_json special_tokens;

  Values prepare(const nlohmann::ordered_json& messages) const;
  std::string render(const Values& messages, const Value& tools, bool prompt, jinja::Spans* generated = nullptr) const;
};

namespace {

constexpr std::string_view kReasoning[] = {"reasoning_content", "thinking", "reasoning"};

// A message with other fields in place of some; a new field comes in the end.
Value with_fields(const jinja::Dict& message, std::vector<std::pair<Value, Value>> fields, jinja::Budget& budget) {
  auto items = message.items;
  for (auto& field : fields) items.push_back(std::move(field));
  return jinja::make_dict(std::move(items), budget);
}

size_t common_prefix(std::string_view a, std::string_view b) {
  return static_cast<size_t>(std::mismatch(a.begin(), a.begin() + static_cast<ptrdiff_t>(std::min(a.size(), b.size())), b.begin()).first -
                             a.begin());
}
size_t common_suffix(std::string_view a, std::string_view b) {
  return static_cast<size_t>(
      std::mismatch(a.rbegin(), a.rbegin() + static_cast<ptrdiff_t>(std::min(a.size(), b.size())), b.rbegin()).first - a.rbegin());
}
std::string_view without_newlines(std::string_view text) { return text.substr(0, text.find_last_not_of(" \t\r\n") + 1); }

// Finds the bytes of the assistant's turns in a rendered conversation. The text of a turn begins where the generation prompt of the
// conversation before it ends, and ends where the conversation up to it ends. Where these renderings are no prefixes of the whole (a
// template drops the reasoning of earlier turns, or places tools in the last message), the same text is looked for from an anchor: the
// end of a message's own words, which is found by rendering once more with a mark around them.
class TurnFinder {
 public:
  TurnFinder(const ChatTemplate::Impl& chat, const Values& messages, const Value& tools, const std::string& text)
      : chat_(chat), messages_(messages), tools_(tools), text_(text), budget_({}) {
    for (char c = 1; c < 9 && text.find(mark_) != std::string::npos; ++c) mark_ = c;
  }

  ByteRange find(size_t turn, size_t from) {
    const auto prompt = render(turn, true);
    const std::string suffix = prompt_suffix(turn, prompt);
    const size_t begin = begin_of(turn, from, prompt, suffix).value_or(std::string::npos);
    const size_t end = begin == std::string::npos ? begin : end_of(turn, suffix).value_or(std::string::npos);
    check(end != std::string::npos && begin >= from && end >= begin,
          "{}: messages[{}]: cannot find where this turn of the assistant {} in the rendered text; use a template with {{% generation %}} "
          "blocks, or "
          "dataloader.loss_on = \"all\"",
          chat_.source.name, turn, begin == std::string::npos ? "begins" : "ends");
    return {begin, end};
  }

 private:
  // The first n messages; marked: this one with a mark around its words.
  std::optional<std::string> render(size_t n, bool prompt, std::optional<size_t> marked = {}, bool names = false) {
    Values part(messages_.begin(), messages_.begin() + static_cast<ptrdiff_t>(n));
    if (marked) part[*marked] = mark_message(part[*marked], names);
    try {
      return chat_.render(part, tools_, prompt);
    } catch (const Error&) {
      return {};  // a template may refuse a part of a conversation
    }
  }

  Value mark_message(const Value& message, bool names) {
    const auto& dict = *jinja::as_dict(message);
    std::vector<std::pair<Value, Value>> fields;
    for (const auto& [key, value] : dict.items) {
      const std::string& name = *jinja::as_text(key);
      if (name == "content" || std::find(std::begin(kReasoning), std::end(kReasoning), name) != std::end(kReasoning)) {
        fields.emplace_back(key, mark(value, {"type"}));
      } else if (name == "tool_calls") {
        fields.emplace_back(key, names ? mark(value, {"id", "type"}) : mark(value, {"id", "type", "name"}));
      }
    }
    return with_fields(dict, std::move(fields), budget_);
  }
  // Every string, number and empty list or dict with the mark around it, except under the kept keys.
  Value mark(const Value& value, const std::vector<std::string_view>& kept) {
    const auto* list = jinja::as_list(value);
    const auto* dict = jinja::as_dict(value);
    if (!list && !dict) return jinja::text_value(mark_ + jinja::str(value, budget_) + mark_);
    if (list) {
      Values items;
      for (const Value& item : list->items) items.push_back(mark(item, kept));
      if (items.empty()) items.push_back(jinja::text_value(mark_));
      return jinja::make_list(std::move(items), budget_);
    }
    std::vector<std::pair<Value, Value>> items;
    for (const auto& [key, item] : dict->items) {
      const auto* name = jinja::as_text(key);
      const bool keep = name && std::find(kept.begin(), kept.end(), *name) != kept.end();
      items.emplace_back(key, keep ? item : mark(item, kept));
    }
    if (items.empty()) items.emplace_back(jinja::text_value(mark_), jinja::text_value(mark_));
    return jinja::make_dict(std::move(items), budget_);
  }

  // The text behind the words of a message in a rendering of the first n messages.
  std::optional<std::string> behind(size_t message, size_t n, bool prompt) {
    const auto plain = n == messages_.size() && !prompt ? std::optional(text_) : render(n, prompt);
    for (const bool names : {false, true}) {
      const auto marked = plain ? render(n, prompt, message, names) : std::nullopt;
      if (marked && *marked != *plain) return plain->substr(plain->size() - common_suffix(*plain, *marked));
    }
    return {};
  }

  // The text that add_generation_prompt adds; "" if none or unknown.
  std::string prompt_suffix(size_t turn, const std::optional<std::string>& prompt) {
    const auto longer = prompt ? prompt : render(messages_.size(), true);
    const auto shorter = prompt ? render(turn, false) : std::optional(text_);
    return longer && shorter && longer->starts_with(*shorter) ? longer->substr(shorter->size()) : "";
  }

  std::optional<size_t> begin_of(size_t turn, size_t from, const std::optional<std::string>& prompt, const std::string& suffix) {
    if (prompt && prompt->size() >= from && text_.starts_with(*prompt)) return prompt->size();
    if (turn > 0) {
      const auto in_prompt = behind(turn - 1, turn, true), in_text = behind(turn - 1, messages_.size(), false);
      if (in_prompt && in_text) {
        size_t same = common_prefix(*in_prompt, *in_text);
        // A prompt that also opens the reasoning: the part that both have, up to the end of a marker such as <|Assistant|>.
        if (same < in_prompt->size()) {
          same = in_prompt->find_last_of(">]} \n", same == 0 ? 0 : same - 1);
          same = same == std::string::npos || same >= common_prefix(*in_prompt, *in_text) ? 0 : same + 1;
        }
        if (same > 0 && text_.size() - in_text->size() >= from) return text_.size() - in_text->size() + same;
      }
    }
    const auto marked = render(messages_.size(), false, turn);
    if (suffix.empty() || !marked) return {};
    const size_t words = common_prefix(text_, *marked);
    const size_t at = words < suffix.size() ? std::string::npos : text_.rfind(suffix, words - suffix.size());
    if (at == std::string::npos || at < from) return {};
    return at + suffix.size();
  }

  std::optional<size_t> end_of(size_t turn, const std::string& suffix) {
    const auto whole = turn + 1 == messages_.size() ? std::optional(text_) : render(turn + 1, false);
    if (whole && text_.starts_with(without_newlines(*whole))) return without_newlines(*whole).size();
    const auto in_text = behind(turn, messages_.size(), false);
    if (!in_text) return {};
    std::optional<size_t> longest;
    size_t shared = in_text->size();  // what all continuations have in common
    for (const bool prompt : {false, true}) {
      const auto tail = behind(turn, turn + 1, prompt);
      shared = tail ? std::min(shared, common_prefix(*tail, *in_text)) : 0;
      if (!tail || (prompt && (suffix.empty() || !tail->ends_with(suffix)))) continue;
      const std::string_view marker = without_newlines(std::string_view(*tail).substr(0, tail->size() - (prompt ? suffix.size() : 0)));
      if (in_text->starts_with(marker)) longest = std::max(longest.value_or(0), marker.size());
    }
    if (!longest && shared > 0) {
      const size_t marker = in_text->find_last_of(">]}\n", shared - 1);
      if (marker != std::string::npos) longest = without_newlines(std::string_view(*in_text).substr(0, marker + 1)).size();
    }
    if (!longest) return {};
    return text_.size() - in_text->size() + *longest;
  }

  const ChatTemplate::Impl& chat_;
  const Values& messages_;
  const Value& tools_;
  const std::string& text_;
  jinja::Budget budget_;
  std::string mark_ = "\x1a";  // printed as it is by every filter, and in no text
};

bool is_assistant(const Value& message) {
  jinja::Budget budget({});
  const Value* role = jinja::find(*jinja::as_dict(message), "role", budget);
  const auto* name = role ? jinja::as_text(*role) : nullptr;
  return name && *name == "assistant";
}

Value tools_value(const nlohmann::ordered_json& tools) {
  jinja::Budget budget({});
  check(tools.is_null() || tools.is_array(), "tools: expected a list of objects, found {}", tools.type_name());
  for (const auto& tool : tools) check(tool.is_object(), "tools: expected a list of objects, found {} in it", tool.type_name());
  return jinja::from_json(tools, budget);
}

}  // namespace

// As transformers: fields that are null are dropped, and the names for reasoning are aliases.
Values ChatTemplate::Impl::prepare(const nlohmann::ordered_json& messages) const {
  check(messages.is_array() && !messages.empty(), "{}: expected a list of at least one message", source.name);
  jinja::Budget budget({});
  Values result;
  for (size_t i = 0; i < messages.size(); ++i) {
    check(messages[i].is_object(), "{}: messages[{}]: expected an object, found {}", source.name, i, messages[i].type_name());
    std::vector<std::pair<Value, Value>> items;
    const nlohmann::ordered_json* reasoning = nullptr;
    for (const auto name : kReasoning) {
      const auto found = messages[i].find(name);
      if (!reasoning && found != messages[i].end() && !found->is_null()) reasoning = &*found;
    }
    try {
      if (reasoning) items.emplace_back(jinja::text_value("thinking"), jinja::from_json(*reasoning, budget));
      for (const auto& [key, value] : messages[i].items()) {
        if (!value.is_null()) items.emplace_back(jinja::text_value(key), jinja::from_json(value, budget));
      }
      if (reasoning) items.emplace_back(jinja::text_value("reasoning_content"), jinja::from_json(*reasoning, budget));
      result.push_back(jinja::make_dict(std::move(items), budget));
    } catch (const jinja::Fault& error) {
      fail("{}: messages[{}]: {}", source.name, i, error.what());
    }
  }
  return result;
}

std::string ChatTemplate::Impl::render(const Values& messages, const Value& tools, bool prompt, jinja::Spans* generated) const {
  check(!messages.empty(), "{}: a conversation without messages", source.name);
  jinja::Interpreter interpreter(source, {});
  std::vector<std::pair<std::string_view, Value>> variables = {
      {"messages", interpreter.list(messages)}, {"tools", tools}, {"documents", jinja::None{}}, {"add_generation_prompt", prompt}};
  for (const auto& [name, value] : special_tokens.items()) {
    if (!value.is_null()) variables.emplace_back(name, jinja::from_json(value, interpreter.budget));
  }
  return interpreter.run(std::move(variables), generated);
}

ChatTemplate::ChatTemplate(std::string_view text, nlohmann::ordered_json special_tokens, std::string name)
    : impl_(std::make_unique<Impl>(Impl{jinja::parse(text, std::move(name)), std::move(special_tokens)})) {
  check(impl_->special_tokens.is_null() || impl_->special_tokens.is_object(), "{}: special tokens: expected an object", impl_->source.name);
}
ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;

std::string ChatTemplate::render(const nlohmann::ordered_json& messages, const nlohmann::ordered_json& tools,
                                 bool add_generation_prompt) const {
  try {
    return impl_->render(impl_->prepare(messages), tools_value(tools), add_generation_prompt);
  } catch (const jinja::Fault& error) {
    fail("{}: {}", impl_->source.name, error.what());
  }
}

RenderedChat ChatTemplate::render_for_training(const nlohmann::ordered_json& messages, const nlohmann::ordered_json& tools,
                                               LossOn loss_on) const {
  try {
    const Values values = impl_->prepare(messages);
    const Value tool_list = tools_value(tools);
    const bool blocks = impl_->source.has_generation && loss_on != LossOn::all;
    jinja::Spans generated;
    RenderedChat result{impl_->render(values, tool_list, false, blocks ? &generated : nullptr), {}};
    if (loss_on == LossOn::all) {
      result.learned = {{0, result.text.size()}};
      return result;
    }
    std::vector<size_t> turns;
    for (size_t i = 0; i < values.size(); ++i) {
      if (is_assistant(values[i])) turns.push_back(i);
    }
    if (loss_on == LossOn::last && turns.size() > 1) turns = {turns.back()};
    if (blocks) {
      size_t first = 0;  // block of the last turn
      if (loss_on == LossOn::last && !turns.empty() && turns[0] > 0) {
        jinja::Spans before;
        impl_->render({values.begin(), values.begin() + static_cast<ptrdiff_t>(turns[0])}, tool_list, false, &before);
        first = before.size();
      }
      for (size_t i = first; i < generated.size(); ++i) {
        if (generated[i].first < generated[i].second) result.learned.push_back({generated[i].first, generated[i].second});
      }
      return result;
    }
    TurnFinder finder(*impl_, values, tool_list, result.text);
    for (const size_t turn : turns) {
      const ByteRange range = finder.find(turn, result.learned.empty() ? 0 : result.learned.back().end);
      if (range.begin < range.end) result.learned.push_back(range);
    }
    return result;
  } catch (const jinja::Fault& error) {
    fail("{}: {}", impl_->source.name, error.what());
  }
}

std::string ChatTemplate::digest() const {
  const std::string tokens = impl_->special_tokens.dump(-1, ' ', true, nlohmann::ordered_json::error_handler_t::replace);
  return fmt::format("chat1-{:016x}-{:016x}", fnv1a64(impl_->source.source), fnv1a64(tokens));
}

}  // namespace halftone
