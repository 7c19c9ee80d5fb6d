#include "halftone/data/parquet_values.h"

#include <arrow/array/array_dict.h>
#include <arrow/extension_type.h>
#include <arrow/scalar.h>
#include <arrow/util/float16.h>

#include <algorithm>

#include "halftone/base/error.h"
#include "halftone/base/utf8.h"
#include "halftone/data/bad_lines.h"

namespace halftone {
namespace {

using arrow::Type;
using Json = nlohmann::ordered_json;

template <class A>
const A& as(const arrow::Array& array) {
  return static_cast<const A&>(array);
}

// Entry of the dictionary that row i names; -1 for null.
int64_t entry_of(const arrow::DictionaryArray& array, int64_t i) {
  if (array.IsNull(i)) return -1;
  const int64_t entry = array.GetValueIndex(i);
  check(entry >= 0 && entry < array.dictionary()->length(), "entry {} of a dictionary of {}: the file is damaged", entry,
        array.dictionary()->length());
  return entry;
}

struct List {
  const arrow::Array* values = nullptr;
  int64_t begin = 0, size = 0;
};

template <class A>
List list_of(const arrow::Array& array, int64_t i) {
  const A& list = as<A>(array);
  return {list.values().get(), list.value_offset(i), list.value_length(i)};
}

List list_at(const arrow::Array& array, int64_t i) {
  List out;
  switch (array.type_id()) {
    case Type::LIST:
    case Type::MAP:
      out = list_of<arrow::ListArray>(array, i);
      break;
    case Type::LARGE_LIST:
      out = list_of<arrow::LargeListArray>(array, i);
      break;
    case Type::LIST_VIEW:
      out = list_of<arrow::ListViewArray>(array, i);
      break;
    case Type::LARGE_LIST_VIEW:
      out = list_of<arrow::LargeListViewArray>(array, i);
      break;
    case Type::FIXED_SIZE_LIST:
      out = list_of<arrow::FixedSizeListArray>(array, i);
      break;
    default:
      fail("expected a list, found {}", array.type()->ToString());
  }
  check(out.begin >= 0 && out.size >= 0 && out.begin <= out.values->length() - out.size, "values {} to {} of {}: the file is damaged",
        out.begin, out.begin + out.size, out.values->length());
  return out;
}

template <class A>
void append_ids(const List& list, int64_t vocab_size, std::vector<int32_t>& out) {
  const A& values = as<A>(*list.values);
  for (int64_t k = list.begin; k < list.begin + list.size; ++k) {
    const auto id = values.Value(k);
    check(std::cmp_greater_equal(id, 0) && std::cmp_less(id, vocab_size), "the list of ids holds {}: expected ids from 0 to {}", id,
          vocab_size - 1);
    out.push_back(static_cast<int32_t>(id));
  }
}

std::string checked_text(std::string_view text, int64_t& bytes_left) {
  bytes_left -= static_cast<int64_t>(text.size());
  check(bytes_left >= 0, "the row is larger than a document may be (dataloader.max_document_mib)");
  if (const size_t valid = valid_utf8_prefix(text); valid < text.size()) fail("{}", not_utf8(text, valid));
  return std::string(text);
}

Json object_of(const arrow::StructArray& array, int64_t i, int64_t& bytes_left) {
  Json out = Json::object();
  const arrow::FieldVector& fields = array.struct_type()->fields();
  for (int f = 0; f < array.num_fields(); ++f) {
    const arrow::Array& values = *array.field(f);
    check(i < values.length(), "a column is shorter than its table: the file is damaged");
    if (Json value = json_at(values, i, bytes_left); !value.is_null()) out[fields[static_cast<size_t>(f)]->name()] = std::move(value);
  }
  return out;
}

Json list_or_map(const arrow::Array& array, int64_t i, int64_t& bytes_left) {
  const List list = list_at(array, i);
  bytes_left -= list.size;  // bounds a list of nulls as well
  check(bytes_left >= 0, "the row is larger than a document may be (dataloader.max_document_mib)");
  if (array.type_id() == Type::MAP) {
    const auto& map = as<arrow::MapArray>(array);
    Json out = Json::object();
    for (int64_t k = list.begin; k < list.begin + list.size; ++k) {
      const Json key = json_at(*map.keys(), k, bytes_left);
      out[key.is_string() ? key.get<std::string>() : key.dump()] = json_at(*map.items(), k, bytes_left);
    }
    return out;
  }
  Json out = Json::array();
  for (int64_t k = list.begin; k < list.begin + list.size; ++k) out.push_back(json_at(*list.values, k, bytes_left));
  return out;
}

}  // namespace

std::string_view text_at(const arrow::Array& array, int64_t i) {
  if (array.IsNull(i)) return {};
  switch (array.type_id()) {
    case Type::STRING:
    case Type::BINARY:
      return as<arrow::BinaryArray>(array).GetView(i);
    case Type::LARGE_STRING:
    case Type::LARGE_BINARY:
      return as<arrow::LargeBinaryArray>(array).GetView(i);
    case Type::STRING_VIEW:
    case Type::BINARY_VIEW:
      return as<arrow::BinaryViewArray>(array).GetView(i);
    case Type::DICTIONARY: {
      const auto& dictionary = as<arrow::DictionaryArray>(array);
      const int64_t entry = entry_of(dictionary, i);
      return entry < 0 ? std::string_view() : text_at(*dictionary.dictionary(), entry);
    }
    case Type::EXTENSION:
      return text_at(*as<arrow::ExtensionArray>(array).storage(), i);
    default:
      fail("expected strings, found {}", array.type()->ToString());
  }
}

void ids_at(const arrow::Array& lists, int64_t i, int64_t vocab_size, int64_t most, std::vector<int32_t>& out) {
  out.clear();
  if (lists.IsNull(i)) return;
  const List list = list_at(lists, i);
  check(list.size <= most, "a document of {} ids: expected at most {} (dataloader.max_document_mib)", list.size, most);
  if (list.values->null_count() > 0) {
    for (int64_t k = list.begin; k < list.begin + list.size; ++k) check(!list.values->IsNull(k), "null among the ids: expected integers");
  }
  switch (list.values->type_id()) {
    case Type::INT8:
      return append_ids<arrow::Int8Array>(list, vocab_size, out);
    case Type::UINT8:
      return append_ids<arrow::UInt8Array>(list, vocab_size, out);
    case Type::INT16:
      return append_ids<arrow::Int16Array>(list, vocab_size, out);
    case Type::UINT16:
      return append_ids<arrow::UInt16Array>(list, vocab_size, out);
    case Type::INT32:
      return append_ids<arrow::Int32Array>(list, vocab_size, out);
    case Type::UINT32:
      return append_ids<arrow::UInt32Array>(list, vocab_size, out);
    case Type::INT64:
      return append_ids<arrow::Int64Array>(list, vocab_size, out);
    case Type::UINT64:
      return append_ids<arrow::UInt64Array>(list, vocab_size, out);
    case Type::NA:
      return;  // every list is empty
    default:
      fail("expected lists of integers, found {}", lists.type()->ToString());
  }
}

Json json_at(const arrow::Array& array, int64_t i, int64_t& bytes_left) {
  if (array.IsNull(i)) return nullptr;
  switch (array.type_id()) {
    case Type::STRING:
    case Type::BINARY:
    case Type::LARGE_STRING:
    case Type::LARGE_BINARY:
    case Type::STRING_VIEW:
    case Type::BINARY_VIEW:
      return checked_text(text_at(array, i), bytes_left);
    case Type::BOOL:
      return as<arrow::BooleanArray>(array).Value(i);
    case Type::INT8:
      return as<arrow::Int8Array>(array).Value(i);
    case Type::UINT8:
      return as<arrow::UInt8Array>(array).Value(i);
    case Type::INT16:
      return as<arrow::Int16Array>(array).Value(i);
    case Type::UINT16:
      return as<arrow::UInt16Array>(array).Value(i);
    case Type::INT32:
      return as<arrow::Int32Array>(array).Value(i);
    case Type::UINT32:
      return as<arrow::UInt32Array>(array).Value(i);
    case Type::INT64:
      return as<arrow::Int64Array>(array).Value(i);
    case Type::UINT64:
      return as<arrow::UInt64Array>(array).Value(i);
    case Type::HALF_FLOAT:
      return arrow::util::Float16::FromBits(as<arrow::HalfFloatArray>(array).Value(i)).ToFloat();
    case Type::FLOAT:
      return as<arrow::FloatArray>(array).Value(i);
    case Type::DOUBLE:
      return as<arrow::DoubleArray>(array).Value(i);
    case Type::STRUCT:
      return object_of(as<arrow::StructArray>(array), i, bytes_left);
    case Type::LIST:
    case Type::LARGE_LIST:
    case Type::LIST_VIEW:
    case Type::LARGE_LIST_VIEW:
    case Type::FIXED_SIZE_LIST:
    case Type::MAP:
      return list_or_map(array, i, bytes_left);
    case Type::DICTIONARY: {
      const auto& dictionary = as<arrow::DictionaryArray>(array);
      const int64_t entry = entry_of(dictionary, i);
      return entry < 0 ? Json(nullptr) : json_at(*dictionary.dictionary(), entry, bytes_left);
    }
    case Type::EXTENSION:
      return json_at(*as<arrow::ExtensionArray>(array).storage(), i, bytes_left);
    default: {
      const auto scalar = array.GetScalar(i);
      check(scalar.ok(), "a value of type {}: {}", array.type()->ToString(), scalar.status().message());
      return checked_text((*scalar)->ToString(), bytes_left);
    }
  }
}

}  // namespace halftone
