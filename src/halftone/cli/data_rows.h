#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "halftone/config/job_config.h"
#include "halftone/data/row_sequence.h"
#include "halftone/data/source.h"
#include "halftone/data/tokenizer.h"

namespace halftone {

// How text is laid out: columns, characters beyond ASCII, colours.
struct Terminal {
  int width = 100;
  bool unicode = false, colors = false;
};
// Read from standard output, the locale, COLUMNS and NO_COLOR.
Terminal find_terminal();

// A row of training, as a batch holds it (RowView).
struct ModelRow {
  explicit ModelRow(int64_t seq_len);
  RowView view() { return {tokens.data(), labels.data(), positions.data(), doc_start.data()}; }
  std::vector<int64_t> tokens, labels;
  std::vector<int32_t> positions, doc_start;
  int64_t filled;  // positions behind are padding
};

// The first `n` rows of an index of these documents.
std::vector<ModelRow> indexed_rows_of(const DocumentSource& documents, const TextCodec& codec, const RowOptions& options, int64_t n);
// The first `n` rows that the run's loader gives: of a stream or a mixture.
std::vector<ModelRow> loader_rows(const JobConfig& config, const Tokenizer& tokenizer, int64_t n);

// The row in words: its documents, their positions and their text, in which [- and -] (or a colour) enclose tokens without a loss. Control
// characters are written as escapes. `joined`: a document's last prediction is the first token of the next (packing concat).
std::string row_text(const ModelRow& row, int64_t number, bool joined, const Tokenizer& tokenizer, const Terminal& terminal);

// Text on one line: \n, \t and \x1b instead of control characters, U+FFFD for bytes that are not UTF-8.
std::string printable(std::string_view text);

}  // namespace halftone
