#pragma once
// For parquet_*.cpp only: Arrow's headers are slow to compile.
#include <arrow/array.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

namespace halftone {

// Values of arrays that a Parquet file filled: indices and lengths are checked, nothing else of them is trusted. Errors are without file
// and row.

// Strings or binary data, plain, large, views or dictionary-encoded. The view lies in the array's buffers; empty for null.
std::string_view text_at(const arrow::Array& array, int64_t i);

// The integers of a list, replacing `out`; none for null. Error for an id not in [0, vocab_size), for a null among them, and for more than
// `most` of them.
void ids_at(const arrow::Array& lists, int64_t i, int64_t vocab_size, int64_t most, std::vector<int32_t>& out);

// Any value. Fields that are null are left out of objects, a map with string keys is an object, a time or decimal is a string. Takes the
// bytes of strings off `bytes_left`; Error when it falls below 0, and for strings that are not UTF-8.
nlohmann::ordered_json json_at(const arrow::Array& array, int64_t i, int64_t& bytes_left);

}  // namespace halftone
