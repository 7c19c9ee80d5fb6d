#include "halftone/data/parquet_columns.h"

#include <arrow/type.h>
#include <arrow/type_traits.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "halftone/base/error.h"

namespace halftone {
namespace {

using Field = parquet::arrow::SchemaField;
using Fields = std::vector<Field>;

constexpr size_t kMostListed = 40, kLongestType = 100;

bool is_text(const arrow::DataType& type) {
  if (type.id() == arrow::Type::DICTIONARY) return is_text(*static_cast<const arrow::DictionaryType&>(type).value_type());
  return arrow::is_base_binary_like(type.id()) || arrow::is_binary_view_like(type.id()) || type.id() == arrow::Type::NA;
}

bool is_ids(const arrow::DataType& type) {
  if (!arrow::is_list_like(type.id()) && !arrow::is_list_view(type.id())) return false;
  return arrow::is_integer(type.field(0)->type()->id()) || type.field(0)->type()->id() == arrow::Type::NA;
}

std::string shown(std::string text, size_t most) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < ' '; }, ' ');
  if (text.size() <= most) return text;
  text.resize(most);
  return text + "...";
}

std::string listed(const Fields& fields) {
  std::string out;
  for (size_t i = 0; i < fields.size() && i < kMostListed; ++i) {
    const arrow::Field& field = *fields[i].field;
    out += fmt::format("{}{} ({})", i == 0 ? "" : ", ", shown(field.name(), kLongestType), shown(field.type()->ToString(), kLongestType));
  }
  if (fields.size() > kMostListed) out += fmt::format(" and {} more", fields.size() - kMostListed);
  return out.empty() ? "none" : out;
}

const Field* named(const Fields& fields, const std::string& name, const std::string& path) {
  const auto is_it = [&](const Field& f) { return f.field->name() == name; };
  const auto found = std::find_if(fields.begin(), fields.end(), is_it);
  if (found == fields.end()) return nullptr;
  check(std::count_if(found, fields.end(), is_it) == 1, "{}: several columns are named \"{}\"", path, name);
  return &*found;
}

// The field of this name; else a.b is the field b of the struct a.
const Field* nested(const Fields& fields, const std::string& name, const std::string& path, size_t& depth) {
  if (const Field* exact = named(fields, name, path)) return exact;
  for (size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1)) {
    const Field* outer = named(fields, name.substr(0, dot), path);
    if (outer == nullptr || outer->field->type()->id() != arrow::Type::STRUCT) continue;
    ++depth;
    return nested(outer->children, name.substr(dot + 1), path, depth);
  }
  return nullptr;
}

void add_leaves(const Field& field, std::vector<int>& leaves) {
  if (field.is_leaf()) leaves.push_back(field.column_index);
  for (const Field& child : field.children) add_leaves(child, leaves);
}

void finish(ParquetColumns& columns, const std::vector<const Field*>& fields, const std::string& path) {
  for (const Field* field : fields) {
    if (field != nullptr) add_leaves(*field, columns.leaves);
  }
  std::sort(columns.leaves.begin(), columns.leaves.end());
  columns.leaves.erase(std::unique(columns.leaves.begin(), columns.leaves.end()), columns.leaves.end());
  check(!columns.leaves.empty(), "{}: the column {} holds nothing", path, columns.names);
}

}  // namespace

ParquetColumns choose_columns(const parquet::arrow::SchemaManifest& schema, const SourceOptions& o, const std::string& path) {
  const Fields& fields = schema.schema_fields;
  ParquetColumns out;
  const Field* text = nested(fields, o.text_key, path, out.depth);
  const Field* ids = named(fields, "input_ids", path);
  const Field* tokens = named(fields, "tokens", path);

  std::vector<const Field*> rows;
  const auto take_rows = [&](std::initializer_list<std::string> names) {
    for (const std::string& name : names) {
      const Field* field = named(fields, name, path);
      if (field == nullptr || std::find(rows.begin(), rows.end(), field) != rows.end()) continue;
      rows.push_back(field);
      out.names += (out.names.empty() ? "" : ", ") + name;
    }
    out.kind = ParquetColumns::Kind::rows;
  };
  const auto take_one = [&](const Field& field, ParquetColumns::Kind kind, const std::string& name) {
    out.kind = kind, out.names = name;
    finish(out, {&field}, path);
  };
  const std::initializer_list<std::string> masked = {"input_ids", "labels", "loss_mask"};
  const auto take_chat = [&] {
    take_rows({o.chat.messages_key, "conversations", "tools", "instruction", "input", "output", "history", "system"});
  };
  const auto any = [&](std::initializer_list<std::string> names) {
    return std::any_of(names.begin(), names.end(), [&](const std::string& name) { return named(fields, name, path) != nullptr; });
  };
  const bool chat = o.chat.format != ChatFormat::none && any({o.chat.messages_key, "conversations", "instruction"});

  if (chat && o.chat.format != ChatFormat::automatic) {  // other rows, as in JSONL, are text or ids
    take_chat();
    rows.push_back(text);
    take_rows(masked);
  } else if (text != nullptr) {
    check(is_text(*text->field->type()), "{}: column \"{}\": expected strings, found {}; dataloader.text_key names another: {}", path,
          o.text_key, shown(text->field->type()->ToString(), kLongestType), listed(fields));
    take_one(*text, ParquetColumns::Kind::text, o.text_key);
    return out;
  } else if (ids != nullptr && any({"labels", "loss_mask"})) {
    take_rows(masked);
  } else if (ids != nullptr || (tokens != nullptr && is_ids(*tokens->field->type()))) {
    const Field& list = ids != nullptr ? *ids : *tokens;
    check(is_ids(*list.field->type()), "{}: column input_ids: expected lists of integers, found {}; the columns are {}", path,
          shown(list.field->type()->ToString(), kLongestType), listed(fields));
    take_one(list, ParquetColumns::Kind::ids, list.field->name());
    return out;
  } else if (chat) {
    take_chat();
  } else {
    fail(
        "{}: expected a column \"{}\" (strings; dataloader.text_key), input_ids (lists of integers) or a conversation "
        "(dataloader.messages_key), found {}",
        path, o.text_key, listed(fields));
  }
  finish(out, rows, path);
  return out;
}

}  // namespace halftone
