#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace halftone {

struct TokenizerSpec;

// Text to token ids and back, with the ids of Hugging Face's `tokenizers` package for the same tokenizer.json. Immutable and
// thread-safe; copies share one state.
//
// Bytes that are no part of well-formed UTF-8 are encoded one by one as their byte tokens and no pair is merged across them,
// so decode(encode(text)) == text for any bytes, as long as the tokenizer neither normalises nor adds a prefix space.
class Tokenizer {
 public:
  // From a folder: tokenizer.json; else vocab.json or vocab.txt with merges.txt; else either of these alone (word level, [UNK]).
  // Or from a tokenizer.json by its path. tokenizer_config.json beside it names BOS and EOS and may add tokens.
  // Error (one line, naming the file) when there is none, or it is damaged or of a kind that is not supported.
  static Tokenizer load(const std::filesystem::path& folder_or_file);
  static Tokenizer parse(std::string_view tokenizer_json, std::string_view tokenizer_config_json = {});
  // From a specification made in memory, by the trainer for one.
  static Tokenizer from_spec(const TokenizerSpec& spec);

  // Writes tokenizer.json and tokenizer_config.json, each replaced in one step. What was loaded is written back byte for byte.
  void save(const std::filesystem::path& folder) const;
  const std::string& tokenizer_json() const;
  const std::string& tokenizer_config_json() const;  // empty when there was none

  // With add_special_tokens the post-processor's ids (BOS, EOS) stand around the text's.
  std::vector<int32_t> encode(std::string_view text, bool add_special_tokens = true) const;
  void encode_append(std::string_view text, std::vector<int32_t>& out, bool add_special_tokens) const;
  // A document: the text's ids with BOS and EOS, each added unless the post-processor adds it by itself (seen by encoding the
  // empty text) or the tokenizer has none. The letters of special tokens stay letters: no text gives the id of one. With
  // `special_tokens` they are tokens, as in encode(), and a text with a BOS or EOS of its own gets no second one.
  std::vector<int32_t> encode_document(std::string_view text, bool add_bos, bool add_eos, bool special_tokens = false) const;
  void encode_document_append(std::string_view text, std::vector<int32_t>& out, bool add_bos, bool add_eos,
                              bool special_tokens = false) const;
  // The first special token whose letters stand in the text; empty where there is none.
  std::string_view find_special_token(std::string_view text) const;

  // The ids' bytes one after another (word level: with blanks between). May end inside a character: unicode.h has
  // replace_invalid_utf8. Error for an id outside the vocabulary.
  std::string decode(std::span<const int32_t> ids, bool skip_special_tokens = false) const;
  // Bytes of one token, valid as long as the tokenizer; empty for ids in a gap of the vocabulary.
  std::string_view token_bytes(int32_t id) const;

  int32_t vocab_size() const;  // largest id + 1
  std::optional<int32_t> bos_id() const, eos_id() const;
  // Id of an added token or of the token with exactly these bytes.
  std::optional<int32_t> token_id(std::string_view bytes) const;
  bool is_special(int32_t id) const;
  // What the tokenizer is made of, for people: "byte-level BPE, 4096 entries, ...".
  std::string description() const;

 private:
  struct Impl;
  explicit Tokenizer(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<const Impl> impl_;
};

}  // namespace halftone
