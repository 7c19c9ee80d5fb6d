#pragma once
#include "halftone/train/export_formats.h"

namespace halftone {

// Writes the file `to` (checkpoint/gguf.h) with the tokenizer and chat template of the source, and reports on the log which codes are
// those of the training and what the others add. A row of export_formats().
void write_gguf_file(const ExportFormat& format, const ExportInput& input);

}  // namespace halftone
