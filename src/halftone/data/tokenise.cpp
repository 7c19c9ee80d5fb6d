#include "halftone/data/tokenise.h"

#include <chrono>

#include "halftone/base/error.h"
#include "halftone/base/log.h"
#include "halftone/data/bin_format.h"
#include "halftone/data/digest.h"
#include "halftone/data/ordered.h"

namespace halftone {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kProgressInterval{2};

void append_ids(std::span<const int32_t> ids, int width, int64_t vocab_size, std::vector<std::byte>& out) {
  size_t at = out.size();
  out.resize(at + ids.size() * static_cast<size_t>(width));
  for (const int32_t id : ids) {
    check(id >= 0 && id < vocab_size, "the tokenizer gave id {}, outside its vocabulary of {}", id, vocab_size);
    const auto u = static_cast<uint32_t>(id);
    for (int b = 0; b < width; ++b) out[at++] = static_cast<std::byte>(u >> (8 * b));
  }
}

TokenisedShard tokenise_shard(const DocumentSource& source, const TextCodec& codec, int width, int64_t shard) {
  TokenisedShard out;
  const DocumentEnd document_ends = document_end(codec.bos_id, codec.eos_id);
  std::vector<int32_t> ids;
  std::string text;
  uint64_t end = 0;
  const auto add = [&](size_t count, auto&& id_at) {
    text.clear();
    for (size_t i = 0; i < count; ++i) text += codec.token_text.at(static_cast<size_t>(id_at(i)));
    end += count;
    ++out.documents;
    out.entries.push_back({end, hash_bytes(text.data(), text.size())});
  };
  source.read_shard(shard, [&](const Document& document) {
    if (document.kind == Document::Kind::bad) return out.bad_lines.add(*document.bad);
    if (document.kind == Document::Kind::stored) {
      const int stored = source.stored_token_bytes();
      return add(document.stored.size() / static_cast<size_t>(stored), [&](size_t i) { return stored_id(document.stored, i, stored); });
    }
    ids.assign(document.ids.begin(), document.ids.end());
    if (!document.text.empty()) codec.encode_document(document.text, ids);
    out.text_bytes += static_cast<int64_t>(document.text.size());
    out.empty_documents += ids.empty() ? 1 : 0;
    append_ids(ids, width, codec.vocab_size, out.tokens);
    // An EOS inside the text ends a document, as in a .bin file.
    for (std::span<const int32_t> rest = ids; !rest.empty();) {
      const auto id_at = [rest](size_t i) { return rest[i]; };
      const size_t length = document_ends.length(rest.size(), id_at);
      add(length, id_at);
      rest = rest.subspan(length);
    }
  });
  return out;
}

}  // namespace

void tokenise_source(const DocumentSource& source, const TextCodec& codec, int width, int threads,
                     const std::function<void(TokenisedShard&&)>& take) {
  const int64_t shards = source.shard_count();
  const auto start = Clock::now();
  auto reported = start;
  const double megabytes = static_cast<double>(source.files().bytes()) / 1e6;
  in_order(
      shards, threads, [&](int64_t shard) { return tokenise_shard(source, codec, width, shard); },
      [&](int64_t shard, TokenisedShard&& result) {
        take(std::move(result));
        const auto now = Clock::now();
        if (now - reported < kProgressInterval || shard + 1 == shards) return;
        reported = now;
        const double done = static_cast<double>(shard + 1) / static_cast<double>(shards);
        const double seconds = std::chrono::duration<double>(now - start).count();
        log_info("{} {}: {:.0f}% of {:.1f} MB, {:.1f} MB/s, {:.0f} s left", source.stored_token_bytes() == 0 ? "Tokenising" : "Indexing",
                 source.kind(), 100 * done, megabytes, megabytes * done / seconds, seconds / done - seconds);
      });
}

}  // namespace halftone
