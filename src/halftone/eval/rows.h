#pragma once
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace halftone::eval {

using Json = nlohmann::ordered_json;

// A row of a task's data and where it lies, for messages: "hellaswag/validation.jsonl:12", "...parquet: row 11".
struct Row {
  Json fields;
  std::string place;
};

// The data of a task below a folder, in the layout in which they are published: JSON lines (compressed or not) or Parquet, named by split
// as in a Hugging Face data set, of its configuration `subset` if it has several. Or a file. Error naming file and line for a row that is
// not a JSON object, for a file cut short and for one without rows. `at_most`: stops after as many.
std::vector<Row> read_rows(const std::string& path, const std::string& subset, const std::string& split,
                           std::optional<int64_t> at_most = std::nullopt);

}  // namespace halftone::eval
