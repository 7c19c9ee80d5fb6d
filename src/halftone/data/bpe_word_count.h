#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "halftone/data/bpe_trainer.h"
#include "halftone/data/pretokenize.h"

namespace halftone {

// A piece of text and how often it occurs.
using WordCount = std::pair<std::string, int64_t>;

// Splits all documents into pieces on `threads` threads; returns the distinct pieces of at least two bytes, sorted by their bytes. Pieces
// do not span bytes that are not valid UTF-8.
std::vector<WordCount> count_words(const std::function<bool(std::string&)>& next_document, const Pretokenizer& pretokenizer, int threads,
                                   const std::function<void(std::string_view, double)>& progress);

}  // namespace halftone
