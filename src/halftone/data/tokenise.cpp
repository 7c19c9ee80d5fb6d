#include "halftone/data/tokenise.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <utility>

#include "halftone/base/error.h"
#include "halftone/base/log.h"
#include "halftone/data/bin_format.h"
#include "halftone/data/digest.h"
#include "halftone/data/parallel_in_order.h"

namespace halftone {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kProgressInterval{2};

// Documents of one shard, copied: what a thread encodes at a time. About kChunkBytes of text and ids, or one larger document.
constexpr size_t kChunkBytes = size_t{1} << 20;
class Chunk {
 public:
  bool full() const { return text_.size() + ids_.size() * sizeof(int32_t) >= kChunkBytes; }
  bool empty() const { return held_.empty() && ready.documents == 0 && ready.bad_lines.count == 0; }
  void add(const Document& d) {
    held_.push_back({d.kind,
                     {text_.size(), d.text.size()},
                     {ids_.size(), d.ids.size()},
                     {loss_.size(), d.loss.size()},
                     {learned_.size(), d.learned.size()}});
    text_.append(d.text);
    ids_.insert(ids_.end(), d.ids.begin(), d.ids.end());
    loss_.insert(loss_.end(), d.loss.begin(), d.loss.end());
    learned_.insert(learned_.end(), d.learned.begin(), d.learned.end());
  }
  template <class Visit>
  void each(Visit&& visit) const {
    for (const Held& h : held_) {
      Document d;
      d.kind = h.kind;
      d.text = std::string_view(text_).substr(h.text.first, h.text.count);
      d.ids = std::span(ids_).subspan(h.ids.first, h.ids.count);
      d.loss = std::span(loss_).subspan(h.loss.first, h.loss.count);
      d.learned = std::span(learned_).subspan(h.learned.first, h.learned.count);
      visit(d);
    }
  }
  TokenisedShard ready;  // bad lines, and documents that are used in place

 private:
  struct Part {
    size_t first, count;
  };
  struct Held {
    Document::Kind kind;
    Part text, ids, loss, learned;
  };
  std::vector<Held> held_;
  std::string text_;
  std::vector<int32_t> ids_;
  std::vector<uint8_t> loss_;
  std::vector<ByteRange> learned_;
};

template <class Id>
void append_as(std::span<const int32_t> ids, int64_t vocab_size, std::vector<std::byte>& out) {
  const size_t at = out.size();
  out.resize(at + ids.size() * sizeof(Id));
  uint32_t largest = 0;  // negative ids become large ones
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto id = static_cast<uint32_t>(ids[i]);
    largest = std::max(largest, id);
    const auto stored = static_cast<Id>(id);
    std::memcpy(out.data() + at + i * sizeof(Id), &stored, sizeof(Id));
  }
  check(largest < static_cast<uint64_t>(vocab_size), "the tokenizer gave id {}, outside its vocabulary of {}",
        static_cast<int32_t>(largest), vocab_size);
}

void append_ids(std::span<const int32_t> ids, int width, int64_t vocab_size, std::vector<std::byte>& out) {
  width == 2 ? append_as<uint16_t>(ids, vocab_size, out) : append_as<uint32_t>(ids, vocab_size, out);
}

// The text of ids, in a buffer that is kept.
class IdText {
 public:
  explicit IdText(const std::vector<std::string>& token_text) : token_text_(token_text) {}
  void clear() { size_ = 0; }
  void add(size_t id) {
    const std::string& text = token_text_.at(id);
    const size_t n = text.size();
    if (buffer_.size() < size_ + n + kBlock) buffer_.resize(2 * buffer_.size() + n + kBlock);
    // Most tokens are short: one copy of fixed size, within the string's own buffer.
    n < kBlock ? std::memcpy(buffer_.data() + size_, text.data(), kBlock) : std::memcpy(buffer_.data() + size_, text.data(), n);
    size_ += n;
  }
  uint64_t hash() const { return hash_bytes(buffer_.data(), size_); }

 private:
  static constexpr size_t kBlock = 16;  // std::string holds as many bytes at least, its terminator included
  const std::vector<std::string>& token_text_;
  std::vector<char> buffer_;
  size_t size_ = 0;
};

// Turns documents into ids and table rows.
class ShardEncoder {
 public:
  // `lengths`: of codec.token_text.
  ShardEncoder(const TextCodec& codec, const std::vector<uint32_t>& lengths, int width, TokenisedShard& out)
      : codec_(codec),
        lengths_(lengths),
        width_(width),
        out_(out),
        document_ends_(document_end(codec.bos_id, codec.eos_id)),
        text_(codec.token_text) {}

  void add_stored(std::span<const std::byte> stored, int stored_width) {
    add(stored.size() / static_cast<size_t>(stored_width), [&](size_t i) { return stored_id(stored, i, stored_width); });
  }
  void add_encoded(const Document& document) {
    const bool whole = encode_ids(document, codec_, ids_, loss_), masked = !loss_.empty();
    out_.text_bytes += static_cast<int64_t>(document.text.size());
    out_.empty_documents += ids_.empty() ? 1 : 0;
    out_.chats += document.kind == Document::Kind::chat ? 1 : 0;
    out_.masked_documents += masked ? 1 : 0;
    append_ids(ids_, width_, codec_.vocab_size, out_.tokens);
    if (masked) {
      out_.loss.resize(end_, 1);
      out_.loss.insert(out_.loss.end(), loss_.begin(), loss_.end());
    } else if (!out_.loss.empty()) {
      out_.loss.resize(end_ + ids_.size(), 1);
    }
    // The usual case: a text that the tokenizer keeps, as the sum of lengths confirms, is what its ids would be joined to.
    if (codec_.keeps_text && document.kind == Document::Kind::text && !ids_.empty() && length_of(ids_) == document.text.size() &&
        document_ends_.length(ids_.size(), [&](size_t i) { return ids_[i]; }) == ids_.size()) {
      end_ += ids_.size();
      ++out_.documents;
      out_.entries.push_back({end_, hash_bytes(document.text.data(), document.text.size())});
      return;
    }
    // An EOS inside the text ends a document, as in a .bin file, but a turn of a conversation.
    for (std::span<const int32_t> rest = ids_; !rest.empty();) {
      const auto id_at = [rest](size_t i) { return rest[i]; };
      const size_t length = whole ? rest.size() : document_ends_.length(rest.size(), id_at);
      add(length, id_at);
      rest = rest.subspan(length);
    }
  }

 private:
  template <class IdAt>
  void add(size_t count, IdAt&& id_at) {
    text_.clear();
    for (size_t i = 0; i < count; ++i) text_.add(static_cast<size_t>(id_at(i)));
    end_ += count;
    ++out_.documents;
    out_.entries.push_back({end_, text_.hash()});
  }

  // Of the ids' texts.
  size_t length_of(std::span<const int32_t> ids) const {
    size_t sum = 0;
    for (const int32_t id : ids) sum += lengths_[static_cast<size_t>(id)];
    return sum;
  }

  const TextCodec& codec_;
  const std::vector<uint32_t>& lengths_;
  int width_;
  TokenisedShard& out_;
  DocumentEnd document_ends_;
  IdText text_;
  std::vector<int32_t> ids_;
  std::vector<uint8_t> loss_;
  uint64_t end_ = 0;
};

template <class Emit>
void read_chunks(const DocumentSource& source, const TextCodec& codec, const std::vector<uint32_t>& lengths, int width, int64_t shard,
                 Emit&& emit) {
  Chunk chunk;
  std::optional<ShardEncoder> in_place;
  if (source.stored_token_bytes() != 0) in_place.emplace(codec, lengths, width, chunk.ready);
  source.read_shard(shard, [&](const Document& document) {
    if (document.kind == Document::Kind::bad) {
      chunk.ready.bad_lines.add(*document.bad);
    } else if (document.kind == Document::Kind::stored) {
      in_place->add_stored(document.stored, source.stored_token_bytes());
    } else {
      chunk.add(document);
      if (chunk.full()) emit(std::exchange(chunk, Chunk()));
    }
  });
  if (!chunk.empty()) emit(std::move(chunk));
}

TokenisedShard encode(Chunk chunk, const TextCodec& codec, const std::vector<uint32_t>& lengths, int width) {
  TokenisedShard out = std::move(chunk.ready);
  ShardEncoder encoder(codec, lengths, width, out);
  chunk.each([&](const Document& document) { encoder.add_encoded(document); });
  return out;
}

}  // namespace

bool encode_ids(const Document& document, const TextCodec& codec, std::vector<int32_t>& ids, std::vector<uint8_t>& loss) {
  const bool chat = document.kind == Document::Kind::chat;
  ids.assign(document.ids.begin(), document.ids.end());
  loss.assign(document.loss.begin(), document.loss.end());
  if (chat) {
    codec.encode_chat(document.text, document.learned, ids, loss);
  } else if (!document.text.empty()) {
    codec.encode_document(document.text, ids);
  }
  // The first id is not predicted.
  if (!loss.empty() && std::find(loss.begin() + 1, loss.end(), 0) == loss.end()) loss.clear();
  return chat || !loss.empty();
}

void tokenise_source(const DocumentSource& source, const TextCodec& codec, int width, int threads,
                     const std::function<void(TokenisedShard&&)>& take) {
  const int64_t shards = source.shard_count();
  const auto start = Clock::now();
  auto reported = start;
  const double megabytes = static_cast<double>(source.files().bytes()) / 1e6;
  int64_t text_bytes = 0;
  std::vector<uint32_t> lengths;
  for (const std::string& text : codec.token_text) lengths.push_back(static_cast<uint32_t>(text.size()));
  in_order_chunks<Chunk>(
      shards, threads, [&](int64_t shard, auto&& emit) { read_chunks(source, codec, lengths, width, shard, emit); },
      [&](Chunk&& chunk) { return encode(std::move(chunk), codec, lengths, width); },
      [&](int64_t shard, TokenisedShard&& result) {
        text_bytes += result.text_bytes;
        take(std::move(result));
        const auto now = Clock::now();
        if (now - reported < kProgressInterval) return;
        reported = now;
        const double seconds = std::chrono::duration<double>(now - start).count();
        const char* doing = source.stored_token_bytes() == 0 ? "Tokenising" : "Indexing";
        // Shards of one piece are about equally large; how far one large shard is read is not known.
        if (shard == 0) {
          const double done = static_cast<double>(text_bytes) / 1e6;
          return log_info("{} {}: {:.1f} MB of text so far, {:.1f} MB/s", doing, source.kind(), done, done / seconds);
        }
        const double done = static_cast<double>(shard) / static_cast<double>(shards);
        log_info("{} {}: {:.0f}% of {:.1f} MB, {:.1f} MB/s, {:.0f} s left", doing, source.kind(), 100 * done, megabytes,
                 megabytes * done / seconds, seconds / done - seconds);
      });
}

}  // namespace halftone
