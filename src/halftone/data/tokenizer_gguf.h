#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "halftone/data/tokenizer_json.h"

namespace halftone {

// A tokenizer as GGUF files hold it (the entries tokenizer.ggml.*): tokens and merges in GPT-2's byte-level alphabet, and the name under
// which llama.cpp knows the split pattern.
struct GgufTokenizer {
  // llama_token_type. unused: an id without a token.
  enum class TokenType : int32_t { normal = 1, control = 3, user_defined = 4, unused = 5 };
  std::string model = "gpt2";  // byte-level BPE
  std::string pre{};
  std::vector<std::string> tokens{}, merges{};
  std::vector<int32_t> types{};  // TokenType of every token
  bool add_bos = false, add_eos = false;
};

// `vocab_size`: that of the model, at least the tokenizer's; further ids are unused. Error, one line, if the tokens could differ in
// llama.cpp: an unknown split pattern, a prefixed blank, a word-level model, added tokens with lstrip, rstrip or single_word, or ids other
// than BOS in front and EOS behind. llama.cpp does not normalise to NFC.
GgufTokenizer gguf_tokenizer(const TokenizerSpec& spec, int64_t vocab_size);

}  // namespace halftone
