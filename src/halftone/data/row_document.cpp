#include "halftone/data/row_document.h"

#include "halftone/base/error.h"
#include "halftone/base/ignored_label.h"
#include "halftone/base/utf8.h"
#include "halftone/base/zero_byte.h"

namespace halftone {
namespace {

using Row = nlohmann::ordered_json;

constexpr int kMostLevels = 256;
constexpr int kMostFields = 1000;  // of an object: a lookup takes time proportional to them

const char* kind_of(const Row& value) {
  if (value.is_null()) return "null";
  if (value.is_string()) return "a string";
  if (value.is_boolean()) return "a boolean";
  if (value.is_array()) return "a list";
  if (value.is_object()) return "an object";
  return value.is_number_float() ? "a number with a fraction" : "a number";
}

std::string names_of(const Row& object, const std::string& prefix = "") {
  std::string out;
  for (const auto& item : object.items()) {
    if (out.size() >= kMostShown) return out + ", ...";
    out += (out.empty() ? "" : ", ") + prefix + excerpt(item.key());
  }
  return out;
}

}  // namespace

Row parse_row(std::string_view json) {
  std::vector<int> fields;
  const auto limits = [&](int level, Row::parse_event_t event, const Row&) {
    check(level < kMostLevels, "the JSON object has more than {} levels", kMostLevels);
    const auto at = static_cast<size_t>(level) + (event == Row::parse_event_t::object_start ? 1 : 0);
    if (fields.size() <= at) fields.resize(at + 1);
    if (event == Row::parse_event_t::object_start) fields[at] = 0;
    if (event == Row::parse_event_t::key)
      check(++fields[at] <= kMostFields, "an object in the row has more than {} fields: expected a conversation, text or ids", kMostFields);
    return true;
  };
  check(zero_byte(json) == std::string_view::npos, "not valid JSON: byte {} of the row is zero", zero_byte(json) + 1);
  Row row;
  try {
    row = Row::parse(json, limits);
  } catch (const Row::exception& error) {
    const std::string what = error.what();
    const size_t colon = what.find(": ");
    fail("not valid JSON: {}", excerpt(colon == std::string::npos ? what : what.substr(colon + 2)));
  }
  check(row.is_object(), "expected a JSON object, found {}", kind_of(row));
  return row;
}

std::string describe_chat(const SourceOptions& options) {
  const ChatOptions& c = options.chat;
  if (options.chat_template == nullptr || c.format == ChatFormat::none) return "";
  return fmt::format("chat_format={} messages_key={} loss_on={} max_turns={} template={}", static_cast<int>(c.format), c.messages_key,
                     static_cast<int>(c.loss_on), c.max_turns, options.chat_template->digest());
}

RowDocument::RowDocument(const SourceOptions& options)
    : text_key_(options.text_key),
      vocab_size_(options.vocab_size),
      max_bytes_(options.max_document_bytes),
      chat_(options.chat),
      template_(options.chat_template),
      template_problem_(options.chat_template_problem) {}

const Document& RowDocument::read(const Row& row) {
  check(row.is_object(), "expected a row of named fields, found {}", kind_of(row));
  const bool chat_first = chat_.format != ChatFormat::automatic && chat_.format != ChatFormat::none;
  document_ = {};
  const bool taken = (chat_first && take_conversation(row)) || take_text(row) || take_ids(row) || (!chat_first && take_conversation(row));
  if (taken) return document_;
  if (const Row* text = field(row, text_key_)) fail("field \"{}\": expected a string, found {}", text_key_, kind_of(*text));
  fail("{}", expected_and_found(row));
}

// The value under a key: the field of this name, or a.b for the field b of the object a. Null if there is none.
const Row* RowDocument::field(const Row& row, std::string_view key) const {
  if (const auto exact = row.find(key); exact != row.end()) return &*exact;
  const size_t dot = key.find('.');
  if (dot == std::string_view::npos) return nullptr;
  const auto outer = row.find(key.substr(0, dot));
  return outer != row.end() && outer->is_object() ? field(*outer, key.substr(dot + 1)) : nullptr;
}

bool RowDocument::take_text(const Row& row) {
  const Row* text = field(row, text_key_);
  if (text == nullptr || text->is_null()) return false;
  check(text->is_string(), "field \"{}\": expected a string, found {}", text_key_, kind_of(*text));
  text_ = text->get_ref<const std::string&>();
  set_text(Document::Kind::text, text_);
  return true;
}

bool RowDocument::take_ids(const Row& row) {
  const auto list = row.find("input_ids");
  if (list == row.end() || list->is_null()) return false;
  check(list->is_array(), "input_ids: expected a list of integers, found {}", kind_of(*list));
  ids_.clear(), loss_.clear();
  for (const Row& id : *list) {
    check(id.is_number_integer(), "input_ids: expected a list of integers, found {} in it", kind_of(id));
    const bool fits = id.is_number_unsigned() ? id.get<uint64_t>() < static_cast<uint64_t>(vocab_size_)
                                              : id.get<int64_t>() >= 0 && id.get<int64_t>() < vocab_size_;
    check(fits, "input_ids holds {}: expected ids from 0 to {}", id.dump(), vocab_size_ - 1);
    ids_.push_back(id.get<int32_t>());
  }
  for (const char* name : {"labels", "loss_mask"}) {
    const auto mask = row.find(name);
    if (mask == row.end() || mask->is_null()) continue;
    take_mask(*mask, name);
    break;
  }
  document_.kind = Document::Kind::ids;
  document_.ids = ids_;
  document_.loss = loss_;
  return true;
}

void RowDocument::take_mask(const Row& list, const std::string& name) {
  check(list.is_array() && list.size() == ids_.size(), "{}: expected a list as long as input_ids ({}), found {}", name, ids_.size(),
        list.is_array() ? std::to_string(list.size()) + " values" : kind_of(list));
  for (size_t i = 0; i < ids_.size(); ++i) {
    const Row& value = list[i];
    if (name == "labels") {
      check(value.is_number_integer() && (value == ids_[i] || value == kIgnoredLabel),
            "labels[{}] is {}: expected input_ids[{}] = {} (not shifted), or {} without a loss", i, excerpt(value.dump()), i, ids_[i],
            kIgnoredLabel);
      loss_.push_back(value != kIgnoredLabel ? 1 : 0);
    } else {
      check(value.is_boolean() || (value.is_number_integer() && (value == 0 || value == 1)), "loss_mask[{}] is {}: expected 0 or 1", i,
            excerpt(value.dump()));
      loss_.push_back(value == true || value == 1 ? 1 : 0);
    }
  }
}

bool RowDocument::take_conversation(const Row& row) {
  if (chat_.format == ChatFormat::none || !is_conversation(row, chat_)) return false;
  check(template_ != nullptr, "a conversation (fields {}), but {}; set dataloader.chat_template to a file with a template", names_of(row),
        template_problem_.empty() ? "the tokenizer has no chat template" : template_problem_);
  const Conversation conversation = read_conversation(row, chat_);
  rendered_ = template_->render_for_training(conversation.messages, conversation.tools, chat_.loss_on);
  set_text(Document::Kind::chat, rendered_.text);
  document_.learned = rendered_.learned;
  return true;
}

void RowDocument::set_text(Document::Kind kind, std::string_view text) {
  check(static_cast<int64_t>(text.size()) <= max_bytes_, "a document of {} bytes: expected at most {} (dataloader.max_document_mib)",
        with_commas(static_cast<int64_t>(text.size())), with_commas(max_bytes_));
  if (const size_t valid = valid_utf8_prefix(text); valid < text.size()) fail("{}", not_utf8(text, valid));
  document_.kind = kind;
  document_.text = text;
}

std::string RowDocument::expected_and_found(const Row& row) const {
  std::string found = names_of(row);
  // The names inside a.b's object a.
  if (const auto outer = row.find(text_key_.substr(0, text_key_.find('.'))); outer != row.end() && outer->is_object())
    found += ", and in it " + names_of(*outer, outer.key() + ".");
  return fmt::format(
      "expected a field \"{}\" (string; set dataloader.text_key){} \"input_ids\" (list of integers){}, found {}", text_key_,
      chat_.format == ChatFormat::none ? " or" : ",",
      chat_.format == ChatFormat::none
          ? ""
          : fmt::format(" or a conversation (\"{}\", \"conversations\" or \"instruction\"; dataloader.messages_key)", chat_.messages_key),
      found.empty() ? "no field" : found);
}

}  // namespace halftone
