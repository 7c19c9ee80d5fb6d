#include "halftone/data/inspect.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

#include "halftone/base/error.h"
#include "halftone/base/utf8.h"
#include "halftone/data/bin_format.h"
#include "halftone/data/digest.h"
#include "halftone/data/parallel_in_order.h"

namespace halftone {
namespace {

constexpr size_t kRepeatedShown = 3;
constexpr size_t kBeginBytes = 64;
constexpr int64_t kFewestParts = 16;  // of a sample, where the source has as many

// A part of the source: a shard, or a file from its start.
struct Part {
  int64_t number;
  int64_t most_bytes, most_documents;
};

// Documents that are copied, as one shard.
class CopiedDocuments : public DocumentSource {
 public:
  struct Copy {
    Document::Kind kind;
    std::string text;
    std::vector<ByteRange> learned;
    std::vector<int32_t> ids;
    std::vector<uint8_t> loss;
    int64_t bytes() const { return static_cast<int64_t>(text.size() + ids.size() * sizeof(int32_t)); }
  };
  CopiedDocuments(std::string kind, std::vector<Copy> copies) : DocumentSource({}), kind_(std::move(kind)), copies_(std::move(copies)) {}
  std::string kind() const override { return kind_; }
  std::string options() const override { return ""; }
  int64_t shard_count() const override { return 1; }
  void read_shard(int64_t, const DocumentVisitor& visit) const override {
    for (const Copy& copy : copies_) {
      Document document;
      document.kind = copy.kind;
      document.text = copy.text, document.learned = copy.learned;
      document.ids = copy.ids, document.loss = copy.loss;
      visit(document);
    }
  }
  void read_file(size_t, const DocumentVisitor& visit) const override { read_shard(0, visit); }

 private:
  std::string kind_;
  std::vector<Copy> copies_;
};

CopiedDocuments::Copy copy_of(const Document& document, int stored_width) {
  CopiedDocuments::Copy copy{document.kind,
                             std::string(document.text),
                             {document.learned.begin(), document.learned.end()},
                             {document.ids.begin(), document.ids.end()},
                             {document.loss.begin(), document.loss.end()}};
  if (document.kind == Document::Kind::stored) {
    copy.kind = Document::Kind::ids;
    const size_t count = document.stored.size() / static_cast<size_t>(stored_width);
    for (size_t i = 0; i < count; ++i) copy.ids.push_back(static_cast<int32_t>(stored_id(document.stored, i, stored_width)));
  }
  return copy;
}

// The key by which duplicates are found.
struct Print {
  int64_t document;  // in the part, from 1
  uint64_t hash;
  bool sketched = false;
  Sketch sketch;
  std::string begin;
};

// The figures of one part, before they are added up in the order of the parts.
struct PartNotes {
  Inspection figures;  // without what needs the parts before
  std::vector<Print> prints;
  std::vector<CopiedDocuments::Copy> copies;
  int64_t copied_bytes = 0;
  std::vector<int64_t> characters;  // of each document
};

int64_t count_characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

// The parts of a source that are read, as a source: it takes notes on the documents as they pass.
class WatchedSource : public DocumentSource {
 public:
  WatchedSource(const DocumentSource& source, const InspectOptions& options, std::vector<Part> parts, bool by_files)
      : DocumentSource({}), source_(source), options_(options), parts_(std::move(parts)), by_files_(by_files), notes_(parts_.size()) {
    chat_ = source.chat();
  }
  std::string kind() const override { return source_.kind(); }
  std::string options() const override { return source_.options(); }
  int64_t shard_count() const override { return static_cast<int64_t>(parts_.size()); }
  int stored_token_bytes() const override { return source_.stored_token_bytes(); }
  void read_file(size_t, const DocumentVisitor&) const override { fail("WatchedSource has no files"); }
  void read_shard(int64_t shard, const DocumentVisitor& visit) const override {
    struct EnoughRead {};
    const Part& part = parts_[static_cast<size_t>(shard)];
    auto notes = std::make_unique<PartNotes>();
    int64_t bytes = 0, documents = 0;
    const auto pass_on = [&](const Document& document) {
      if (document.kind != Document::Kind::bad) {
        if (bytes >= part.most_bytes || documents >= part.most_documents) throw EnoughRead{};
        bytes += static_cast<int64_t>(document.text.size() + document.ids.size_bytes() + document.stored.size());
        ++documents;
      }
      note(document, *notes);
      visit(document);
    };
    try {
      by_files_ ? source_.read_file(static_cast<size_t>(part.number), pass_on) : source_.read_shard(part.number, pass_on);
    } catch (const EnoughRead&) {
      notes->figures.cut = true;
    }
    const std::lock_guard lock(mutex_);
    notes_[static_cast<size_t>(shard)] = std::move(notes);
  }

  // The notes of the part, if it has been read.
  std::unique_ptr<PartNotes> take(size_t part) const {
    const std::lock_guard lock(mutex_);
    return std::move(notes_[part]);
  }
  void keep_no_more() const { keep_ = false; }

 private:
  void note(const Document& document, PartNotes& notes) const {
    Inspection& f = notes.figures;
    if (document.kind == Document::Kind::bad) {
      f.bad.add(*document.bad);
      f.not_utf8 += document.bad->reason.find("not UTF-8") != std::string::npos ? 1 : 0;
      return;
    }
    ++f.documents;
    const std::string_view text = document.text;
    const bool empty = text.empty() && document.ids.empty() && document.stored.empty();
    const int64_t characters = count_characters(text);
    f.empty += empty ? 1 : 0;
    f.text_bytes += static_cast<int64_t>(text.size());
    f.characters += characters;
    f.not_utf8 += is_valid_utf8(text) ? 0 : 1;
    if (options_.codec == nullptr && document.kind != Document::Kind::ids && !empty) notes.characters.push_back(characters);
    if (document.kind == Document::Kind::chat) {
      ++f.conversations;
      f.answers += static_cast<int64_t>(document.learned.size());
      f.answers_each.add(static_cast<int64_t>(document.learned.size()));
      f.conversation_bytes += static_cast<int64_t>(text.size());
      for (const ByteRange& range : document.learned) f.learned_bytes += static_cast<int64_t>(range.end - range.begin);
    } else if (document.kind == Document::Kind::text && options_.find_special) {
      if (const std::string_view token = options_.find_special(text); !token.empty())
        ++f.special[std::string(token)], ++f.special_documents;
    } else if (document.kind != Document::Kind::text) {
      ++f.ready_made;
    }
    const bool keep = keep_ && notes.copied_bytes < options_.keep_bytes;
    if (empty && !keep) return;
    if (keep) {
      notes.copies.push_back(copy_of(document, source_.stored_token_bytes()));
      notes.copied_bytes += notes.copies.back().bytes();
    }
    if (!empty) add_print(document, notes);
  }

  void add_print(const Document& document, PartNotes& notes) const {
    Print print;
    print.document = notes.figures.documents;
    if (!document.text.empty()) {
      print.hash = hash_bytes(document.text.data(), document.text.size());
      print.sketched = sketch_text(document.text, print.sketch);
      print.begin = document.text.substr(0, kBeginBytes);
    } else if (!document.ids.empty()) {
      print.hash = hash_bytes(document.ids.data(), document.ids.size_bytes());
      print.sketched = sketch_ids(document.ids, print.sketch);
    } else {
      print.hash = hash_bytes(document.stored.data(), document.stored.size());
      print.sketched = sketch_ids(copy_of(document, source_.stored_token_bytes()).ids, print.sketch);
    }
    notes.prints.push_back(std::move(print));
  }

  const DocumentSource& source_;
  const InspectOptions& options_;
  std::vector<Part> parts_;
  bool by_files_;
  mutable std::atomic<bool> keep_ = true;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<PartNotes>> notes_;
};

// Parts that are read: all of them, or as many as the sample asks for, evenly spread from the first on. Depends on sizes and options only.
std::vector<Part> choose_parts(const DocumentSource& source, const InspectOptions& o, Inspection& out) {
  const int64_t bytes = source.files().bytes(), files = static_cast<int64_t>(source.files().files.size());
  const bool by_bytes = o.sample_documents == 0;
  out.whole = by_bytes && (o.sample_bytes == 0 || bytes <= o.sample_bytes);
  out.by_files = o.by_files || (!out.whole && files > kSampleFiles);
  out.parts = out.by_files ? files : source.shard_count();
  int64_t n = out.parts;
  if (!by_bytes) {
    n = std::min({n, kSampleFiles, std::max<int64_t>(o.sample_documents, 1)});
  } else if (!out.whole) {
    const auto fill = static_cast<int64_t>(static_cast<double>(o.sample_bytes) / static_cast<double>(bytes) * static_cast<double>(n));
    n = std::min(n, out.by_files ? std::clamp(fill, kSampleFiles, kMostSampleFiles) : std::max(fill, kFewestParts));
  }
  out.parts_read = n;
  std::vector<Part> parts;
  for (int64_t k = 0; k < n; ++k) {
    // Shards are about equally large, except for files that cannot be read from their middle: the limit cuts only these.
    const int64_t most_bytes = out.whole || !by_bytes ? INT64_MAX : (out.by_files ? 1 : 2) * o.sample_bytes / n;
    const int64_t most_documents = by_bytes ? INT64_MAX : (k + 1) * o.sample_documents / n - k * o.sample_documents / n;
    parts.push_back({static_cast<int64_t>(static_cast<__int128>(k) * out.parts / n), most_bytes, most_documents});
  }
  return parts;
}

// Adds up the parts in their order.
class Sum {
 public:
  Sum(const WatchedSource& source, const InspectOptions& options, Inspection& out) : source_(source), options_(options), out_(out) {}

  void add_ids(const TokenisedShard& shard) {
    uint64_t end = 0;
    for (const DocumentEntry& entry : shard.entries) {
      out_.lengths.add(static_cast<int64_t>(entry.end - end));
      end = entry.end;
      if (static_cast<int64_t>(out_.entries.size()) < kMostPackedDocuments)
        out_.entries.push_back({static_cast<uint64_t>(out_.tokens) + entry.end, entry.hash});
    }
    out_.tokens += static_cast<int64_t>(end);
    out_.learned_tokens += shard.loss.empty() ? static_cast<int64_t>(end) : std::count(shard.loss.begin(), shard.loss.end(), 1);
    out_.pieces += static_cast<int64_t>(shard.entries.size());
    text_passed_ += shard.text_bytes;
  }
  // The notes that are there, in order.
  void add_notes() {
    for (; next_ < static_cast<size_t>(source_.shard_count()); ++next_) {
      const std::unique_ptr<PartNotes> notes = source_.take(next_);
      if (notes == nullptr) return;
      add(*notes);
    }
  }
  void report(int64_t text_bytes) const {
    if (options_.progress)
      options_.progress({static_cast<double>(next_) / static_cast<double>(std::max<int64_t>(source_.shard_count(), 1)), text_bytes});
  }
  int64_t text_passed() const { return text_passed_; }
  void finish(const std::string& kind) {
    out_.exact = exact_.share(), out_.near = near_.share();
    out_.whole = out_.parts_read == out_.parts && !out_.cut;
    out_.first_is_all = out_.whole && copied_all_;
    if (!copies_.empty()) out_.first = std::make_unique<CopiedDocuments>(kind, std::move(copies_));
  }

 private:
  void add(PartNotes& notes) {
    const Inspection& f = notes.figures;
    for (const Print& print : notes.prints) {
      const int64_t number = out_.documents + print.document;
      if (exact_.add(print.hash)) {
        if (out_.exact_first.size() < kRepeatedShown) out_.exact_first.push_back({number, 0, 1, print.begin});
      } else if (int64_t earlier = 0; print.sketched) {
        const double alike = near_.add(print.sketch, number, earlier);
        if (alike > 0 && out_.near_first.size() < kRepeatedShown) out_.near_first.push_back({number, earlier, alike, print.begin});
      }
    }
    if (copied_all_) {
      for (CopiedDocuments::Copy& copy : notes.copies) {
        if (copied_bytes_ >= options_.keep_bytes) break;
        copied_bytes_ += copy.bytes();
        copies_.push_back(std::move(copy));
      }
      copied_documents_ += f.documents;
      // A part whose end is missing ends the sequence of first documents.
      copied_all_ = static_cast<int64_t>(copies_.size()) == copied_documents_ && (out_.whole || copied_documents_ == 0);
      if (!copied_all_) source_.keep_no_more();
    }
    out_.cut = out_.cut || f.cut;
    out_.documents += f.documents, out_.empty += f.empty;
    out_.text_bytes += f.text_bytes, out_.characters += f.characters;
    out_.not_utf8 += f.not_utf8;
    out_.bad.add(f.bad);
    for (const auto& [token, count] : f.special) out_.special[token] += count;
    out_.special_documents += f.special_documents;
    out_.ready_made += f.ready_made;
    out_.conversations += f.conversations, out_.answers += f.answers;
    out_.conversation_bytes += f.conversation_bytes, out_.learned_bytes += f.learned_bytes;
    out_.answers_each.add(f.answers_each);
    for (const int64_t characters : notes.characters) out_.lengths.add(characters);
  }

  const WatchedSource& source_;
  const InspectOptions& options_;
  Inspection& out_;
  ExactDuplicates exact_;
  NearDuplicates near_;
  std::vector<CopiedDocuments::Copy> copies_;
  size_t next_ = 0;
  int64_t copied_bytes_ = 0, copied_documents_ = 0, text_passed_ = 0;
  bool copied_all_ = true;
};

}  // namespace

double Inspection::share() const {
  if (whole) return 1;
  return cut || parts == 0 ? 0 : static_cast<double>(parts_read) / static_cast<double>(parts);
}

Inspection inspect_source(const DocumentSource& source, const InspectOptions& options) {
  Inspection out;
  std::vector<Part> parts = choose_parts(source, options, out);
  const WatchedSource watched(source, options, std::move(parts), out.by_files);
  Sum sum(watched, options, out);
  if (options.codec != nullptr) {
    tokenise_source(watched, *options.codec, width_for(options.codec->vocab_size), options.threads, [&](TokenisedShard&& shard) {
      sum.add_ids(shard);
      if (options.take) options.take(shard);
      sum.add_notes();
      sum.report(sum.text_passed());
    });
  } else {
    in_order(
        watched.shard_count(), options.threads,
        [&](int64_t shard) {
          watched.read_shard(shard, [](const Document&) {});
          return true;
        },
        [&](int64_t, bool) {
          sum.add_notes();
          sum.report(out.text_bytes);
        });
  }
  sum.add_notes();
  sum.finish(source.kind());
  return out;
}

}  // namespace halftone
