#include "halftone/data/chat_setup.h"

#include <filesystem>
#include <optional>

#include "halftone/base/error.h"
#include "halftone/data/file_io.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;
using Fields = nlohmann::ordered_json;

constexpr int64_t kMostBytes = int64_t{64} << 20;  // a tokenizer_config.json lists all added tokens

// A JSON file of the tokenizer's folder; an empty object if there is none.
Fields read_object(const fs::path& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return Fields::object();
  const Fields fields = Fields::parse(read_file(path.string(), kMostBytes), nullptr, false);
  check(fields.is_object(), "{}: expected a JSON object", path.string());
  return fields;
}

// bos_token, eos_token, ... as strings, as transformers hands them to the template.
Fields special_tokens(const fs::path& folder) {
  Fields out = Fields::object();
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
    const Fields fields = read_object(folder / name);
    for (const auto& item : fields.items()) {
      if (!item.key().ends_with("_token") || out.contains(item.key())) continue;
      const Fields& token = item.value().is_object() && item.value().contains("content") ? item.value()["content"] : item.value();
      if (token.is_string()) out[item.key()] = token;
    }
  }
  return out;
}

struct TemplateText {
  std::string text, from;
};

std::optional<TemplateText> template_in(const fs::path& path) {
  const Fields fields = read_object(path);
  const auto found = fields.find("chat_template");
  if (found == fields.end() || found->is_null()) return std::nullopt;
  if (found->is_string()) return TemplateText{*found, path.string()};
  check(found->is_array(), "{}: chat_template: expected a string or a list of named templates", path.string());
  std::string names;
  for (const Fields& named : *found) {
    check(named.is_object() && named.contains("name") && named.contains("template") && named["name"].is_string() &&
              named["template"].is_string(),
          "{}: chat_template: expected a list of objects with name and template", path.string());
    if (named["name"] == "default") return TemplateText{named["template"], path.string() + " (default)"};
    names += (names.empty() ? "" : ", ") + named["name"].get<std::string>();
  }
  fail("{}: chat_template has no default (found {}): write one of them to a file and set dataloader.chat_template", path.string(),
       names.empty() ? "none" : names);
}

std::optional<TemplateText> tokenizer_template(const fs::path& folder) {
  std::error_code error;
  const fs::path jinja = folder / "chat_template.jinja";
  if (fs::is_regular_file(jinja, error)) return TemplateText{read_file(jinja.string(), kMostBytes), jinja.string()};
  if (auto text = template_in(folder / "chat_template.json")) return text;
  return template_in(folder / "tokenizer_config.json");
}

}  // namespace

std::optional<std::string> tokenizer_chat_template(const std::string& tokenizer_folder) {
  const std::optional<TemplateText> found = tokenizer_template(tokenizer_folder);
  return found ? std::optional(found->text) : std::nullopt;
}

void set_chat(SourceOptions& options, const DataloaderConfig& loader, const std::string& tokenizer_folder) {
  options.chat.format = parse_chat_format(loader.chat_format);
  options.chat.messages_key = loader.messages_key;
  options.chat.loss_on = parse_loss_on(loader.loss_on);
  options.chat.max_turns = static_cast<size_t>(loader.max_turns);
  if (options.chat.format == ChatFormat::none) return;
  std::error_code error;
  const fs::path given(tokenizer_folder), folder = fs::is_directory(given, error) ? given : given.parent_path();
  const auto compile = [&](const TemplateText& source) {
    options.chat_template = std::make_shared<const ChatTemplate>(source.text, special_tokens(folder), source.from);
  };
  if (!loader.chat_template.empty()) {
    check(fs::is_regular_file(loader.chat_template, error), "dataloader.chat_template = \"{}\": no such file", loader.chat_template);
    return compile({read_file(loader.chat_template, kMostBytes), loader.chat_template});
  }
  try {
    const std::optional<TemplateText> source = tokenizer_template(folder);
    if (source) compile(*source);
  } catch (const Error& problem) {
    options.chat_template_problem = problem.what();
  }
}

}  // namespace halftone
