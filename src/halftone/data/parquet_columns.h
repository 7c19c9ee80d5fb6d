#pragma once
// For parquet_*.cpp only: Arrow's headers are slow to compile.
#include <parquet/arrow/schema.h>

#include <string>
#include <vector>

#include "halftone/data/source.h"

namespace halftone {

// The columns that are read from a Parquet file.
struct ParquetColumns {
  enum class Kind {
    text,  // the strings of one column, which may lie in structs
    ids,   // the integer lists of one column
    rows,  // several columns, as RowDocument reads them: conversations, ids with a loss mask
  } kind = Kind::text;
  std::string names;        // "text"; "messages, tools"
  std::vector<int> leaves;  // Parquet's column numbers, ascending
  size_t depth = 0;         // text: structs around the strings
};

// Chooses by name and type: text_key, else input_ids (or tokens), else a conversation; a conversation first if the options name its
// format. Error, naming the columns with their types, if there is none or the text has another type.
ParquetColumns choose_columns(const parquet::arrow::SchemaManifest& schema, const SourceOptions& options, const std::string& path);

}  // namespace halftone
