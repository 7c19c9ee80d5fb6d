#pragma once
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "halftone/data/source.h"

namespace halftone {

// One JSON object of a file from outside. Error for anything else, for more than 256 levels and for more than 1000 fields in an object.
nlohmann::ordered_json parse_row(std::string_view json);

// For DocumentSource::chat(): the template and the options of conversations; empty without a template.
std::string describe_chat(const SourceOptions& options);

// The document in a row of named fields (a JSON line, a row of a Parquet file, a JSON sample of an MDS shard), with its buffers: the string
// under `text_key`; else the integers under `input_ids`, where `labels` (the id itself, or -100) or `loss_mask` (0 or 1, or booleans) of
// the same length select the tokens with a loss; else a conversation, rendered with the template. A chat format named in the options
// precedes them. A field that is null counts as missing.
class RowDocument {
 public:
  // Uses text_key, vocab_size, chat, chat_template and max_document_bytes.
  explicit RowDocument(const SourceOptions& options);
  // Valid until the next call. Error, without the row's place, if the row holds none of them, or one with wrong values.
  const Document& read(const nlohmann::ordered_json& row);

 private:
  const nlohmann::ordered_json* field(const nlohmann::ordered_json& row, std::string_view key) const;
  bool take_conversation(const nlohmann::ordered_json& row);
  bool take_text(const nlohmann::ordered_json& row);
  bool take_ids(const nlohmann::ordered_json& row);
  void take_mask(const nlohmann::ordered_json& list, const std::string& name);
  void set_text(Document::Kind kind, std::string_view text);
  std::string expected_and_found(const nlohmann::ordered_json& row) const;

  std::string text_key_;
  int64_t vocab_size_, max_bytes_;
  ChatOptions chat_;
  std::shared_ptr<const ChatTemplate> template_;
  std::string template_problem_;
  Document document_;
  RenderedChat rendered_;
  std::string text_;
  std::vector<int32_t> ids_;
  std::vector<uint8_t> loss_;
};

}  // namespace halftone
