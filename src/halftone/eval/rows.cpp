#include "halftone/eval/rows.h"

#include <filesystem>

#include "halftone/base/error.h"
#include "halftone/data/dataset_folder.h"
#include "halftone/data/json_array.h"
#include "halftone/data/line_reader.h"
#include "halftone/data/parquet_reader.h"
#include "halftone/data/row_document.h"
#include "halftone/storage/byte_file.h"

namespace halftone::eval {
namespace {

class Reader {
 public:
  explicit Reader(std::optional<int64_t> at_most) : most_(at_most.value_or(INT64_MAX)) {}
  bool full() const { return static_cast<int64_t>(rows_.size()) >= most_; }

  void read_lines(const std::string& path) {
    LineReader reader{TextInput(path)};
    std::string_view line;
    while (!full() && reader.next(line)) {
      if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
      add(line, fmt::format("{}:{}", path, reader.line_number()));
    }
  }

  void read_array(const std::string& path) {
    JsonArrayReader reader{TextInput(path)};
    std::string_view element;
    while (!full() && reader.next(element)) add(element, fmt::format("{}:{}", path, line_number(path, reader.offset())));
  }

  void read_parquet(const std::string& path) {
    const SourceOptions options;
    ParquetReader reader(open_bytes(path), options, true);
    for (int group = 0; group < reader.groups() && !full(); ++group) {
      reader.read_rows(group, [&](int64_t row, Json object) {
        if (!full()) rows_.push_back({std::move(object), fmt::format("{}: row {}", path, row)});
      });
    }
  }

  std::vector<Row> take() { return std::move(rows_); }

 private:
  void add(std::string_view json, std::string place) {
    try {
      rows_.push_back({parse_row(json), std::move(place)});
    } catch (const Error& error) {
      fail("{}: {}", place, error.what());
    }
  }

  int64_t most_;
  std::vector<Row> rows_;
};

bool is_array(const std::string& path) {
  TextInput input(path);
  while (input.text().find_first_not_of(" \t\r\n") == std::string_view::npos && input.fill()) {}
  return JsonArrayReader::starts(input.text());
}

// Whether names in the folder begin with the split: "dev" is not "validation" here, as it is for find_data.
bool has_split(const std::filesystem::path& folder, const std::string& split) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(split) && name.size() > split.size() && std::string_view("-._").find(name[split.size()]) != std::string_view::npos)
      return true;
  }
  return false;
}

// In a folder its files of the split, which lie in that of the subset, in data/ or, if it is a copy of one subset alone, in itself.
FoundData find_rows(const std::string& path, const std::string& subset, const std::string& split) {
  for (const char* inside : {subset.c_str(), "data", ""}) {
    const std::filesystem::path folder = std::filesystem::path(path) / inside;
    if (path.find("://") != std::string::npos || !has_split(folder, split)) continue;
    FoundData found{"", path, find_files((folder / (split + "[-._]*")).string(), {})};
    found.kind = kind_of_file(found.files.files[0]);
    return found;
  }
  return find_data(path, subset, split, false);
}

}  // namespace

std::vector<Row> read_rows(const std::string& path, const std::string& subset, const std::string& split, std::optional<int64_t> at_most) {
  const FoundData found = find_rows(path, subset, split);
  check(found.kind == "jsonl" || found.kind == "parquet", "{}: expected JSON lines or Parquet with the rows of a task, found {}", path,
        found.kind.empty() ? "another kind of file" : found.kind);
  Reader reader(at_most);
  for (const SourceFile& file : found.files.files) {
    if (reader.full()) break;
    if (found.kind == "parquet") {
      reader.read_parquet(file.path);
    } else {
      is_array(file.path) ? reader.read_array(file.path) : reader.read_lines(file.path);
    }
  }
  std::vector<Row> rows = reader.take();
  check(!rows.empty(), "{}: expected rows of a task, found none in {} files", path, found.files.files.size());
  return rows;
}

}  // namespace halftone::eval
