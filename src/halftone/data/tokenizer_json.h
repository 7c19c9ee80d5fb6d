#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "halftone/data/bpe_model.h"
#include "halftone/data/pretokenize.h"

namespace halftone {

// A token found in the text before anything else happens to it.
struct AddedToken {
  std::string content;
  int32_t id = -1;
  bool special = false;      // left out by decode(skip_special_tokens)
  bool single_word = false;  // only between characters that are no word characters
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // takes the white space behind it
  bool normalized = false;   // searched for in the normalised text, after the others
};

enum class TokenizerModel { bpe, word_level };

// What a tokenizer.json says, checked: every id is in range and every merge names known tokens.
struct TokenizerSpec {
  TokenizerModel model = TokenizerModel::bpe;
  std::vector<std::string> tokens;       // what an id stands for in decoded text, as bytes; empty: the id is not used
  std::vector<std::string> text_tokens;  // what the model may turn into this id; empty: nothing (most added tokens)
  std::vector<BpeMerge> merges;
  BpeModel::Options options;
  bool nfc = false;               // normalise to NFC first
  bool add_prefix_space = false;  // a blank in front of text that does not begin with one
  std::vector<SplitStep> splits;
  std::vector<AddedToken> added;
  std::vector<int32_t> prefix, suffix;  // of the post-processor
  std::string bos_token, eos_token;     // of tokenizer_config.json; empty: none
  int32_t vocab_size() const { return static_cast<int32_t>(tokens.size()); }
};

// Reads Hugging Face's tokenizer.json (byte-level BPE, or word level) and, when not empty, tokenizer_config.json.
// Error, one line, for anything that is malformed or that would not give the ids of the `tokenizers` package.
TokenizerSpec parse_tokenizer_json(std::string_view json, std::string_view config_json);
// tokenizer_config.json (empty: none) with the bos_token and eos_token of special_tokens_map.json where it names none itself.
std::string with_special_tokens(const std::string& config_json, std::string_view map_json);
// The older form: vocab.json (object from token to id) or vocab.txt (one token a line) with merges.txt ("a b" a line, GPT-2's
// pattern); without merges a word-level vocabulary with [UNK]. Returns the text of an equivalent tokenizer.json.
std::string tokenizer_json_from_vocab(std::string_view vocab, bool vocab_is_json, std::optional<std::string_view> merges);

// The files for a byte-level BPE tokenizer; `spec.splits` must be one known pattern.
std::string write_tokenizer_json(const TokenizerSpec& spec);
std::string write_tokenizer_config_json(const TokenizerSpec& spec);

}  // namespace halftone
