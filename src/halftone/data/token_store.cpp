#include "halftone/data/token_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "halftone/base/error.h"
#include "halftone/base/log.h"
#include "halftone/data/bin_format.h"
#include "halftone/data/digest.h"
#include "halftone/data/tokenise.h"
#include "halftone/storage/byte_file.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr int kFormat = 1;
constexpr int64_t kVerifyLimit = int64_t{256} << 20;  // bytes verified against their checksum when an index is opened
constexpr int64_t kMetaLimit = int64_t{1} << 20;

constexpr const char* kUnfinished = ".tmp.";  // in the names of AtomicFile

constexpr const char* kElsewhere = "set HALFTONE_CACHE or job.dump_folder to a writable folder";

// Held while an index is looked up and built, so that the processes of a node build it once. In a read-only folder nothing is built and
// no lock is taken.
class FolderLock {
 public:
  explicit FolderLock(const std::string& path) : fd_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666)) {
    if (fd_ < 0) {
      problem_ = fmt::format("cannot write {}: {}; {}", path, std::strerror(errno), kElsewhere);
      return;
    }
    if (::flock(fd_, LOCK_EX | LOCK_NB) == 0) return;
    if (errno == EWOULDBLOCK) log_info("Waiting for another process to build the token index");
    int error = 0;
    do {
      error = ::flock(fd_, LOCK_EX) == 0 ? 0 : errno;
    } while (error == EINTR);
    if (error != 0) log_warning("{} cannot be locked ({}): start one process to build the token index first", path, std::strerror(error));
  }
  ~FolderLock() {
    if (fd_ >= 0) ::close(fd_);
  }
  // Why nothing can be written; empty if the folder is writable.
  const std::string& problem() const { return problem_; }
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int fd_;
  std::string problem_;
};

// File names need not be UTF-8; JSON must be.
std::string json_text(const Json& json, int indent) { return json.dump(indent, ' ', false, Json::error_handler_t::replace); }

std::string hex(uint64_t v) { return fmt::format("{:016x}", v); }

std::string checksum_of(const Json& meta) {
  Json copy = meta;
  copy.erase("checksum");
  return digest_hex(json_text(copy, -1));
}

void pad_to_16(AtomicFile& file) {
  const char zeros[16] = {};
  file.write(zeros, static_cast<size_t>((16 - file.size() % 16) % 16));
}

// A bit for each token, in a file that is only made for the first token without a loss.
class LossBits {
 public:
  explicit LossBits(std::string path) : path_(std::move(path)) {}
  // `loss`: of `tokens` tokens; empty: all have one.
  void add(int64_t tokens, const std::vector<uint8_t>& loss) {
    if (!file_ && !loss.empty()) {
      file_.emplace(path_);
      const int64_t before = std::exchange(tokens_, 0);
      push(before, {});
    }
    file_ ? push(tokens, loss) : void(tokens_ += tokens);
  }
  // Null if every token has a loss.
  AtomicFile* finish() {
    if (file_ && tokens_ % 8 != 0) file_->write(&byte_, 1);
    return file_ ? &*file_ : nullptr;
  }

 private:
  void push(int64_t tokens, const std::vector<uint8_t>& loss) {
    for (int64_t i = 0; i < tokens; ++i) {
      const int bit = loss.empty() || loss[static_cast<size_t>(i)] != 0 ? 1 : 0;
      byte_ = static_cast<uint8_t>(byte_ | bit << (tokens_ % 8));
      if (++tokens_ % 8 != 0) continue;
      file_->write(&byte_, 1);
      byte_ = 0;
    }
  }
  std::string path_;
  std::optional<AtomicFile> file_;
  int64_t tokens_ = 0;
  uint8_t byte_ = 0;
};

int64_t loss_bytes_of(int64_t tokens, bool masked) { return masked ? (tokens + 7) / 8 : 0; }

// Hash of what is checked when an index is opened.
std::string checked_hash(std::span<const std::byte> bytes) {
  return hex(static_cast<int64_t>(bytes.size()) <= kVerifyLimit ? hash_bytes(bytes.data(), bytes.size()) : 0);
}

}  // namespace

int64_t TokenStore::length(int64_t document) const {
  const auto i = static_cast<size_t>(document);
  return std::max<int64_t>(0, static_cast<int64_t>(table_[i].end - (i == 0 ? 0 : table_[i - 1].end)));
}

uint64_t TokenStore::place(int64_t document, int64_t first, size_t n) const {
  const auto i = static_cast<size_t>(document);
  const uint64_t begin = i == 0 ? 0 : table_[i - 1].end, end = table_[i].end;
  const uint64_t from = begin + static_cast<uint64_t>(first);
  check(begin <= end && end <= static_cast<uint64_t>(stats_.tokens) && first >= 0 && from + n <= end,
        "token index: document {} holds tokens {} to {}, asked for {} from {}; the index is damaged, delete it", document, begin, end, n,
        from);
  return from;
}

void TokenStore::read_loss(int64_t document, int64_t first, std::span<uint8_t> out) const {
  const uint64_t from = place(document, first, out.size());
  for (size_t k = 0; k < out.size(); ++k) {
    const uint64_t at = from + k;
    out[k] = loss_.empty() ? 1 : static_cast<uint8_t>(static_cast<uint8_t>(loss_[at / 8]) >> (at % 8) & 1);
  }
}

int64_t TokenStore::count_loss(int64_t document, int64_t first, int64_t n) const {
  uint64_t at = place(document, first, static_cast<size_t>(n));
  if (loss_.empty()) return n;
  const uint64_t end = at + static_cast<uint64_t>(n);
  int64_t count = 0;
  while (at < end) {
    const uint64_t bits = at % 8 == 0 && end - at >= 64 ? 64 : std::min(8 - at % 8, end - at);
    uint64_t word = 0;
    std::memcpy(&word, loss_.data() + at / 8, bits == 64 ? 8 : 1);
    count += std::popcount(bits == 64 ? word : word >> (at % 8) & ((uint64_t{1} << bits) - 1));
    at += bits;
  }
  return count;
}

void TokenStore::read(int64_t document, int64_t first, std::span<int32_t> out) const {
  const uint64_t from = place(document, first, out.size());
  const auto segment = std::prev(std::upper_bound(segments_.begin(), segments_.end(), static_cast<int64_t>(from),
                                                  [](int64_t token, const Segment& s) { return token < s.first_token; }));
  const size_t offset = from - static_cast<size_t>(segment->first_token);
  check((offset + out.size()) * static_cast<size_t>(token_bytes_) <= segment->bytes.size(), "token index: document {} leaves its file",
        document);
  const auto ids = segment->bytes.subspan(offset * static_cast<size_t>(token_bytes_));
  for (size_t k = 0; k < out.size(); ++k) {
    const uint32_t id = stored_id(ids, k, token_bytes_);
    check(id < vocab_size_, "token index: id {} in document {} is outside the vocabulary of {}; did the file change?", id, document,
          vocab_size_);
    out[k] = static_cast<int32_t>(id);
  }
  maps_[segment->map].touched(out.size() * static_cast<size_t>(token_bytes_));
}

// Index files: <key>.tokens holds the ids (none for sources used in place), zero-padded to a multiple of 16, then the document table, then
// a bit for each token that says whether it has a loss (only if one has none); <key>.json, written after it, describes its inputs. The key
// identifies source, options and tokenizer, not the contents, so that a changed corpus replaces its old index.
class TokenStoreBuilder {
 public:
  TokenStoreBuilder(const DocumentSource& source, const TextCodec& codec, const std::string& folder, int threads)
      : source_(source), codec_(codec), threads_(threads) {
    std::error_code error;
    fs::create_directories(folder, error);
    check(!error, "cannot create {}: {}; {}", folder, error.message(), kElsewhere);
    const std::string pattern = fs::absolute(source.files().pattern, error).lexically_normal().string();
    key_ = digest_hex(fmt::format("{}\n{}\n{} {}\n{}", source.kind(), source.options(), codec.digest, kEncoderVersion, pattern) +
                      (source.chat().empty() ? "" : "\n" + source.chat()));
    tokens_path_ = (fs::path(folder) / (key_ + ".tokens")).string();
    meta_path_ = (fs::path(folder) / (key_ + ".json")).string();
    lock_path_ = (fs::path(folder) / (key_ + ".lock")).string();
  }

  std::shared_ptr<const TokenStore> open() {
    const FolderLock lock(lock_path_);
    const std::string fingerprint = source_.files().fingerprint();
    if (std::shared_ptr<const TokenStore> store = reuse(fingerprint, lock.problem().empty())) return warned(std::move(store));
    check(lock.problem().empty(), "the token index has to be built: {}", lock.problem());
    build(fingerprint);
    std::string reason;
    std::shared_ptr<TokenStore> store = load(reason);
    check(store != nullptr, "{}: {} right after it was written; is the disk faulty?", tokens_path_, reason);
    return warned(std::move(store));
  }

 private:
  std::shared_ptr<const TokenStore> warned(std::shared_ptr<const TokenStore> store) const {
    const int64_t bad = store->stats().bad_lines;
    if (bad > 0) log_warning("{}: {}", source_.kind(), skipped_lines(bad, meta_.at("bad_places").get<std::vector<std::string>>()));
    return store;
  }
  int width() const { return source_.stored_token_bytes() != 0 ? source_.stored_token_bytes() : width_for(codec_.vocab_size); }

  std::shared_ptr<const TokenStore> reuse(const std::string& fingerprint, bool writable) {
    if (!fs::exists(meta_path_)) return nullptr;
    std::string reason;
    std::shared_ptr<TokenStore> store = load(reason);
    if (store == nullptr) {
      log_warning("Token index {} is damaged ({}): rebuilding it", meta_path_, reason);
      return nullptr;
    }
    if (store->stats().bad_lines > 0 && !source_.skips_bad_lines()) return nullptr;  // a rebuild names them
    if (meta_.at("fingerprint") == fingerprint) return store;
    // Times or sizes differ: only different contents invalidate the index.
    if (content_digest(source_.files(), threads_) != store->digest_) {
      log_info("{}: the files differ from those of the token index: rebuilding it", source_.files().pattern);
      return nullptr;
    }
    meta_["fingerprint"] = fingerprint;
    if (writable) write_meta();
    return store;
  }

  // Partial indices of a killed builder; the lock guarantees that no other process is writing them.
  void remove_leftovers() const {
    std::error_code ignored;
    const fs::path folder = fs::path(tokens_path_).parent_path();
    for (const auto& entry : fs::directory_iterator(folder, ignored)) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with(key_) && name.find(kUnfinished) != std::string::npos) fs::remove(entry.path(), ignored);
    }
  }

  void build(const std::string& fingerprint) {
    remove_leftovers();
    const auto start = std::chrono::steady_clock::now();
    const bool in_place = source_.stored_token_bytes() != 0;
    const std::string digest = content_digest(source_.files(), threads_);
    TokenStore::Stats stats;
    BadLines bad;
    int64_t token_file_bytes = 0;
    std::string tokens_hash, table_hash, loss_hash;
    {
      AtomicFile out(tokens_path_);
      AtomicFile table(tokens_path_ + ".table");  // joined to the ids when these are complete, as is `loss`
      LossBits loss(tokens_path_ + ".loss");
      tokenise_source(source_, codec_, width(), threads_, [&](TokenisedShard&& shard) {
        out.write(shard.tokens.data(), shard.tokens.size());
        uint64_t last = 0;
        for (DocumentEntry& entry : shard.entries) {
          last = entry.end;
          entry.end += static_cast<uint64_t>(stats.tokens);
        }
        table.write(shard.entries.data(), shard.entries.size() * sizeof(DocumentEntry));
        loss.add(static_cast<int64_t>(last), shard.loss);
        stats.tokens += static_cast<int64_t>(last);
        stats.chats += shard.chats;
        stats.masked_documents += shard.masked_documents;
        stats.documents += shard.documents;
        stats.empty_documents += shard.empty_documents;
        stats.text_bytes += shard.text_bytes;
        bad.add(shard.bad_lines);
      });
      check(stats.documents > 0, "{} holds no document with text{}", describe(),
            bad.count > 0 ? "; " + skipped_lines(bad.count, bad.places()) : "");
      token_file_bytes = out.size();
      pad_to_16(out);
      const auto join = [&out](AtomicFile& part) {
        part.flush();
        const MappedFile map(part.temporary_path());
        for (size_t at = 0; at < map.bytes().size(); at += size_t{1} << 24)
          out.write(map.bytes().data() + at, std::min(map.bytes().size() - at, size_t{1} << 24));
        return checked_hash(map.bytes());
      };
      table_hash = join(table);
      if (AtomicFile* bits = loss.finish()) loss_hash = join(*bits);
      out.flush();
      tokens_hash = checked_hash(MappedFile(out.temporary_path()).bytes().first(static_cast<size_t>(token_file_bytes)));
      out.commit();
    }
    meta_ = Json{{"format", kFormat},
                 {"key", key_},
                 {"source", source_.kind()},
                 {"root", source_.files().root},
                 {"options", source_.options()},
                 {"fingerprint", fingerprint},
                 {"content_digest", digest},
                 {"token_bytes", width()},
                 {"in_place", in_place},
                 {"token_file_bytes", token_file_bytes},
                 {"documents", stats.documents},
                 {"empty_documents", stats.empty_documents},
                 {"tokens", stats.tokens},
                 {"text_bytes", stats.text_bytes},
                 {"bad_lines", bad.count},
                 {"bad_places", bad.places()},
                 {"chats", stats.chats},
                 {"masked_documents", stats.masked_documents},
                 {"tokens_hash", tokens_hash},
                 {"table_hash", table_hash},
                 {"loss_hash", loss_hash}};
    write_meta();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const std::string empty = stats.empty_documents == 0 ? "" : fmt::format(", skipped {} empty", with_commas(stats.empty_documents));
    log_info("{} {} documents to {} tokens in {:.1f} s ({:.1f} MB/s){}", in_place ? "Indexed" : "Tokenised", with_commas(stats.documents),
             with_commas(stats.tokens), seconds, static_cast<double>(source_.files().bytes()) / 1e6 / std::max(seconds, 1e-9), empty);
    log_debug("Token index {}", tokens_path_);
  }

  void write_meta() {
    meta_["checksum"] = checksum_of(meta_);
    AtomicFile file(meta_path_);
    const std::string text = json_text(meta_, 1) + "\n";
    file.write(text.data(), text.size());
    file.commit();
  }

  std::string describe() const {
    return fmt::format("{} ({} files below {})", source_.kind(), source_.files().files.size(),
                       source_.files().root.empty() ? "." : source_.files().root);
  }

  // Null with a reason if the index does not match its description.
  std::shared_ptr<TokenStore> load(std::string& reason) {
    try {
      return load_checked();
    } catch (const Error& error) {
      reason = error.what();
    } catch (const Json::exception& error) {
      reason = error.what();
    }
    return nullptr;
  }

  std::shared_ptr<TokenStore> load_checked() {
    meta_ = Json::parse(read_file(meta_path_, kMetaLimit));
    check(meta_.is_object() && meta_.value("checksum", "") == checksum_of(meta_), "its description has another checksum");
    check(meta_.at("format") == kFormat && meta_.at("key") == key_ && meta_.at("token_bytes") == width(), "it has another format");
    auto store = std::make_shared<TokenStore>();
    TokenStore::Stats& stats = store->stats_;
    stats = {meta_.at("documents"),
             meta_.at("empty_documents"),
             meta_.at("tokens"),
             meta_.at("text_bytes"),
             meta_.value("bad_lines", int64_t{0}),
             meta_.value("chats", int64_t{0}),  // older builds wrote none of these
             meta_.value("masked_documents", int64_t{0})};
    store->token_bytes_ = width();
    store->vocab_size_ = codec_.vocab_size;
    store->digest_ = meta_.at("content_digest");
    store->ready_made_ = source_.stored_token_bytes() != 0;
    store->codec_digest_ = codec_.digest;
    store->summary_ = source_summary(source_, store->digest_);
    store->made_by_ = fmt::format("{} {}{}{}", source_.kind(), source_.options(), stats.chats == 0 ? "" : " " + source_.chat(),
                                  stats.bad_lines == 0 ? "" : fmt::format(" bad_lines={}", stats.bad_lines));

    MappedFile map(tokens_path_);
    const std::span<const std::byte> bytes = map.bytes();
    const bool in_place = source_.stored_token_bytes() != 0;
    const int64_t token_bytes = in_place ? 0 : stats.tokens * width();
    const int64_t table_at = (token_bytes + 15) / 16 * 16, table_bytes = stats.documents * static_cast<int64_t>(sizeof(DocumentEntry));
    check(stats.documents > 0 && stats.tokens > 0 && meta_.at("token_file_bytes") == token_bytes, "its counts do not match");
    const bool masked = stats.masked_documents > 0;
    const int64_t loss_at = table_at + table_bytes, loss_bytes = loss_bytes_of(stats.tokens, masked);
    check(static_cast<int64_t>(bytes.size()) == loss_at + loss_bytes, "expected {} bytes, found {}", loss_at + loss_bytes, bytes.size());
    const auto section = [&](int64_t at, int64_t size) { return bytes.subspan(static_cast<size_t>(at), static_cast<size_t>(size)); };
    const auto table = section(table_at, table_bytes);
    check(checked_hash(section(0, token_bytes)) == meta_.at("tokens_hash").get<std::string>(), "its ids have another checksum");
    check(checked_hash(table) == meta_.at("table_hash").get<std::string>(), "its table has another checksum");
    if (masked) {
      store->loss_ = section(loss_at, loss_bytes);
      check(checked_hash(store->loss_) == meta_.at("loss_hash").get<std::string>(), "its loss mask has another checksum");
    }
    map.touched(bytes.size());
    store->table_ = {reinterpret_cast<const DocumentEntry*>(table.data()), static_cast<size_t>(stats.documents)};
    check(store->table_.back().end == static_cast<uint64_t>(stats.tokens), "its table ends at another token");
    if (in_place) {
      int64_t first = 0;
      for (size_t file = 0; file < source_.files().files.size(); ++file) {
        const StoredRange range = source_.stored_range(file);
        if (range.bytes == 0) continue;
        store->maps_.emplace_back(local_copy(source_.files().files[file].path));
        const auto all = store->maps_.back().bytes();
        check(all.size() >= static_cast<size_t>(range.first + range.bytes), "{} is shorter than before", source_.files().files[file].path);
        const auto ids = all.subspan(static_cast<size_t>(range.first), static_cast<size_t>(range.bytes));
        store->segments_.push_back({first, ids, store->maps_.size() - 1});
        first += range.bytes / width();
      }
      check(first == stats.tokens, "the files hold {} tokens, the table {}", first, stats.tokens);
    } else {
      store->segments_.push_back({0, bytes.first(static_cast<size_t>(token_bytes)), 0});
    }
    store->maps_.push_back(std::move(map));
    return store;
  }

  const DocumentSource& source_;
  const TextCodec& codec_;
  int threads_;
  std::string key_, tokens_path_, meta_path_, lock_path_;
  Json meta_;
};

void remove_index_leftovers(const std::string& cache_folder) {
  std::error_code ignored;
  for (fs::directory_iterator it(cache_folder, ignored), end; !ignored && it != end; it.increment(ignored)) {
    const std::string name = it->path().filename().string();
    if (name.find(kUnfinished) == std::string::npos) continue;
    // Whoever builds an index holds its lock.
    const std::string lock = (fs::path(cache_folder) / (name.substr(0, name.find('.')) + ".lock")).string();
    const int fd = ::open(lock.c_str(), O_RDWR | O_CLOEXEC);
    if (fd >= 0 && ::flock(fd, LOCK_EX | LOCK_NB) == 0) {
      log_info("Removing {}, left by an interrupted run", it->path().string());
      std::error_code code;
      fs::remove(it->path(), code);
      if (code) log_warning("cannot remove {}: {}", it->path().string(), code.message());
    }
    if (fd >= 0) ::close(fd);
  }
}

std::shared_ptr<const TokenStore> open_token_store(const DocumentSource& source, const TextCodec& codec, const std::string& cache_folder,
                                                   int threads) {
  return TokenStoreBuilder(source, codec, cache_folder, threads).open();
}

}  // namespace halftone
