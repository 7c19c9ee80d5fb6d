#pragma once
#include <span>
#include <string>

namespace halftone {

// `halftone tokenize --dataset text --dataset_path GLOB --tokenizer FOLDER --output FILE.bin [...]`: writes the documents of a
// source as a headerless file of uint16 or uint32 ids, each document ended by EOS, which dataset = "bin" trains on. The same
// bytes whatever the number of threads; the file appears when it is complete. Returns the exit status; throws Error.
int tokenize_command(std::span<const std::string> args);

}  // namespace halftone
