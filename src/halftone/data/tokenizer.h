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

// Text to token ids and back, with the ids of Hugging Face's `tokenizers` package for the same tokenizer.json. Immutable and thread-safe;
// copies share one state.
//
// Bytes outside well-formed UTF-8 are encoded one by one as their byte tokens, and no pair is merged across them, so that
// decode(encode(text)) == text for any bytes, unless the tokenizer normalises or adds a prefix space.
class Tokenizer {
 public:
  // From a folder: tokenizer.json; otherwise vocab.json or vocab.txt with merges.txt; otherwise one of these alone (word level, [UNK]).
  // Or from a tokenizer.json by its path. tokenizer_config.json beside it names BOS and EOS and may add tokens. Error (one line, naming
  // the file) if there is none, or if it is damaged or unsupported.
  static Tokenizer load(const std::filesystem::path& folder_or_file);
  static Tokenizer parse(std::string_view tokenizer_json, std::string_view tokenizer_config_json = {});
  // From a specification in memory, for example the trainer's.
  static Tokenizer from_spec(const TokenizerSpec& spec);

  // Writes tokenizer.json and tokenizer_config.json, each replaced atomically. Loaded files are written back byte for byte.
  void save(const std::filesystem::path& folder) const;
  const std::string& tokenizer_json() const;
  const std::string& tokenizer_config_json() const;  // empty if there was none

  // With add_special_tokens the post-processor's ids (BOS, EOS) surround those of the text.
  std::vector<int32_t> encode(std::string_view text, bool add_special_tokens = true) const;
  void encode_append(std::string_view text, std::vector<int32_t>& out, bool add_special_tokens) const;
  // encode(text, false) of well-formed UTF-8, with a mark for each id: whether its first byte is behind an odd number of `switches`
  // (ascending positions in the text). Error for tokens on both sides of a switch whose bytes do not add up to the text (word level).
  void encode_marked_append(std::string_view text, std::span<const size_t> switches, std::vector<int32_t>& out,
                            std::vector<uint8_t>& marks) const;
  // Encodes a document: the text's ids with BOS and EOS, each added unless the post-processor adds it itself (detected by encoding the
  // empty text) or the tokenizer has none. Spelled-out special tokens remain plain text: no text yields a special id. With
  // `special_tokens` they become tokens, as in encode(), and a text with its own BOS or EOS gets no second one.
  std::vector<int32_t> encode_document(std::string_view text, bool add_bos, bool add_eos, bool special_tokens = false) const;
  void encode_document_append(std::string_view text, std::vector<int32_t>& out, bool add_bos, bool add_eos,
                              bool special_tokens = false) const;
  // The first special token spelled out in the text; empty if there is none.
  std::string_view find_special_token(std::string_view text) const;

  // The concatenated bytes of the ids (word level: separated by blanks). May end inside a character: see replace_invalid_utf8 in
  // unicode.h. Error for an id outside the vocabulary.
  std::string decode(std::span<const int32_t> ids, bool skip_special_tokens = false) const;
  // Bytes of one token, valid as long as the tokenizer; empty for unused ids.
  std::string_view token_bytes(int32_t id) const;

  int32_t vocab_size() const;  // largest id + 1
  std::optional<int32_t> bos_id() const, eos_id() const;
  // Id of an added token, or of the token with exactly these bytes.
  std::optional<int32_t> token_id(std::string_view bytes) const;
  bool is_special(int32_t id) const;
  // A readable description: "byte-level BPE, 4096 entries, ...".
  std::string description() const;

 private:
  struct Impl;
  explicit Tokenizer(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<const Impl> impl_;
};

}  // namespace halftone
