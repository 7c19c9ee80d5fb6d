#pragma once
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "halftone/cli/data_rows.h"
#include "halftone/data/file_list.h"
#include "halftone/data/inspect.h"

namespace halftone {

// How rows of the chosen packing use the documents of a look.
struct PackingFigures {
  std::string packing;
  int64_t seq_len = 0, rows = 0;
  int64_t longer = 0;    // documents with more predictions than a row has
  int64_t padding = 0;   // positions of the rows
  int64_t left_out = 0;  // tokens (concat) or predictions that no row holds
  int64_t units = 0;     // of them in all
  bool some = false;     // of the first kMostPackedDocuments documents
};
// `name`: of the packing.
PackingFigures pack_figures(const Inspection& look, const RowOptions& options, const std::string& name);

// The report of `halftone data` on one source.
struct SourceReport {
  std::string name;  // of a mixture's source; else the path
  std::string kind;
  int64_t files = 0, bytes = 0, others = 0;
  std::string tokenizer;       // its description; empty: none
  bool stops_at_bad = false;   // a run would: dataloader.on_bad_line
  bool reads_special = false;  // dataloader.special_tokens_in_text
  Inspection look;
  std::optional<PackingFigures> packing;
  double seconds = 0;
};
std::string report_text(const SourceReport& report, const Terminal& terminal);
nlohmann::ordered_json report_json(const SourceReport& report);

// Bars of the counts, as wide as the terminal allows.
std::string histogram(const std::vector<LengthCounts::Bin>& bins, const Terminal& terminal);

// "1.2 GB"
std::string bytes_text(int64_t bytes);

}  // namespace halftone
