#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "halftone/data/tokenizer.h"

namespace halftone {

struct BpeTrainerOptions {
  int vocab_size = 4096;      // total number of ids: 256 bytes, merges, special tokens
  int threads = 0;            // threads that split and count the text; 0: one per core
  int64_t min_frequency = 2;  // pairs seen less often are not merged; the vocabulary is smaller if none is left
  std::string pattern = "llama3";
  std::vector<std::string> special_tokens = {"<|begin_of_text|>", "<|end_of_text|>"};
  bool special_tokens_in_text = false;  // special tokens spelled out in documents are those tokens: nothing is learned from them
  std::string bos_token = "<|begin_of_text|>", eos_token = "<|end_of_text|>";  // recorded when they are special tokens
  std::function<void(std::string_view phase, double fraction)> progress;       // "reading" (fraction -1: unknown), "merging"
};

// Learns byte-level BPE from documents. `next_document` fills its argument and returns true until there is none; only the calling thread
// calls it. Ids 0..255 are the bytes by value, then the merges in the order learned, then the special tokens. Every step merges the most
// frequent pair; ties go to the smaller left id, then to the smaller right id. The result depends neither on the thread count nor on the
// order of documents. Error for invalid options and for text without any pair.
Tokenizer train_bpe(const std::function<bool(std::string&)>& next_document, const BpeTrainerOptions& options);

}  // namespace halftone
