#pragma once
#include <optional>
#include <string>

#include "halftone/config/training_config.h"
#include "halftone/data/source.h"

namespace halftone {

// Sets how conversations are read: the options of `loader`, and the template, which is dataloader.chat_template (a file), else the
// tokenizer's: chat_template.jinja, chat_template.json, or chat_template of tokenizer_config.json (a string, or a list of named ones, of
// which "default" is taken) in `tokenizer_folder`. Special tokens are those of tokenizer_config.json, else of special_tokens_map.json.
// Error for a named file that is missing or does not compile. A template of the tokenizer that does not compile is an error of the first
// conversation, because text needs none.
void set_chat(SourceOptions& options, const DataloaderConfig& loader, const std::string& tokenizer_folder);

// The text of the tokenizer's template, by the same rule; none without one.
std::optional<std::string> tokenizer_chat_template(const std::string& tokenizer_folder);

}  // namespace halftone
