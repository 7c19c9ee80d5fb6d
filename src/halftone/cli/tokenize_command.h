#pragma once
#include <span>
#include <string>

namespace halftone {

// `halftone tokenize --dataset text --dataset_path GLOB --tokenizer FOLDER --output FILE.bin [...]`: writes the documents of a
// source as a headerless file of uint16 or uint32 ids for dataset = "bin"; EOS ends each document. The bytes do not depend on the number of
// threads, and the file appears when it is complete. Returns the exit status; throws Error.
int tokenize_command(std::span<const std::string> args);

}  // namespace halftone
