#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "halftone/data/bpe_model.h"
#include "halftone/data/pretokenize.h"

namespace halftone {

// A token matched in the text before any other processing.
struct AddedToken {
  std::string content;
  int32_t id = -1;
  bool special = false;      // dropped by decode(skip_special_tokens)
  bool single_word = false;  // only between non-word characters
  bool lstrip = false;       // consumes the white space before it
  bool rstrip = false;       // consumes the white space after it
  bool normalized = false;   // matched in the normalised text, after the others
};

enum class TokenizerModel { bpe, word_level };

// Validated contents of a tokenizer.json: every id is in range and every merge names known tokens.
struct TokenizerSpec {
  TokenizerModel model = TokenizerModel::bpe;
  std::vector<std::string> tokens;       // decoded bytes by id; empty: the id is unused
  std::vector<std::string> text_tokens;  // text that the model may map to this id; empty: none (most added tokens)
  std::vector<BpeMerge> merges;
  BpeModel::Options options;
  bool nfc = false;               // normalise to NFC first
  bool add_prefix_space = false;  // prefix a blank to text that does not begin with one
  std::vector<SplitStep> splits;
  std::vector<AddedToken> added;
  std::vector<int32_t> prefix, suffix;  // ids that the post-processor adds
  std::string bos_token, eos_token;     // from tokenizer_config.json; empty: none
  int32_t vocab_size() const { return static_cast<int32_t>(tokens.size()); }
};

// Parses Hugging Face's tokenizer.json (byte-level BPE, or word level) and, if not empty, tokenizer_config.json. Error, one line, for
// anything malformed or that would yield ids different from those of the `tokenizers` package.
TokenizerSpec parse_tokenizer_json(std::string_view json, std::string_view config_json);
// tokenizer_config.json (empty: none), with bos_token and eos_token of special_tokens_map.json if it does not name them itself.
std::string with_special_tokens(const std::string& config_json, std::string_view map_json);
// The older form: vocab.json (object from token to id) or vocab.txt (one token per line) with merges.txt ("a b" per line, GPT-2's
// pattern); without merges a word-level vocabulary with [UNK]. Returns the text of an equivalent tokenizer.json.
std::string tokenizer_json_from_vocab(std::string_view vocab, bool vocab_is_json, std::optional<std::string_view> merges);

// The files for a byte-level BPE tokenizer; `spec.splits` must be one known pattern.
std::string write_tokenizer_json(const TokenizerSpec& spec);
std::string write_tokenizer_config_json(const TokenizerSpec& spec);

}  // namespace halftone
