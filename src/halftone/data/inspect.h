#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "halftone/data/inspect_lengths.h"
#include "halftone/data/inspect_sketch.h"
#include "halftone/data/source.h"
#include "halftone/data/tokenise.h"

namespace halftone {

constexpr int64_t kSampleBytes = int64_t{512} << 20;
constexpr int64_t kSampleFiles = 40, kMostSampleFiles = 1000;
constexpr int64_t kMostPackedDocuments = int64_t{1} << 21;  // whose lengths are kept, 16 bytes each

struct InspectProgress {
  double done = 0;         // share of what is to be read
  int64_t text_bytes = 0;  // read so far
};

struct InspectOptions {
  const TextCodec* codec = nullptr;                                // null: nothing is tokenised
  std::function<std::string_view(std::string_view)> find_special;  // Tokenizer::find_special_token; empty: not looked for
  int threads = 1;
  // A source with more bytes, or documents if > 0, is read in part: its parts spread evenly over the source, from the first on. With
  // sample_bytes = 0 everything is read.
  int64_t sample_bytes = kSampleBytes;
  int64_t sample_documents = 0;
  bool by_files = false;   // the source is streamed: it has no shards
  int64_t keep_bytes = 0;  // of the first documents, for Inspection::first
  std::function<void(const InspectProgress&)> progress;
  std::function<void(const TokenisedShard&)> take;  // the ids, in order
};

// A document that repeats or resembles an earlier one. Numbers count from 1 in the order read.
struct Repeated {
  int64_t document = 0, earlier = 0;  // earlier: 0 for exact duplicates, of which it is not known
  double similarity = 1;
  std::string begin;  // of its text
};

// Figures of the documents read: every one as the source gives it, except `pieces` and `lengths`.
struct Inspection {
  // The part of the source that was read.
  bool whole = true;                  // every document
  bool by_files = false;              // the parts are files, else shards
  int64_t parts = 0, parts_read = 0;  // of the source; of which read
  bool cut = false;                   // some were read from their start only
  double share() const;               // of the source; 0 if not known, because parts were cut

  int64_t documents = 0, empty = 0, text_bytes = 0, characters = 0;
  int64_t not_utf8 = 0;  // documents, and bad lines for that reason
  BadLines bad;
  std::map<std::string, int64_t> special;  // documents by the first special token that their text spells out
  int64_t special_documents = 0;
  int64_t ready_made = 0;                  // documents of ids
  int64_t conversations = 0, answers = 0;  // answers: stretches with a loss
  int64_t conversation_bytes = 0, learned_bytes = 0;
  LengthCounts answers_each;

  // As a run sees them: an EOS inside a document ends it.
  int64_t pieces = 0, tokens = 0, learned_tokens = 0;  // learned: with a loss
  LengthCounts lengths;                                // tokens; characters without a codec
  std::vector<DocumentEntry> entries;                  // ends in the stream of tokens, of the first kMostPackedDocuments

  SampledShare exact, near;  // near: among documents whose text is new
  std::vector<Repeated> exact_first, near_first;

  std::unique_ptr<DocumentSource> first;  // the first documents; null if there are none, or none were to be kept
  bool first_is_all = false;
};

// Reads a source once, on options.threads threads. The result does not depend on their number. Bad lines are errors unless the source
// skips them; other errors are those of the source.
Inspection inspect_source(const DocumentSource& source, const InspectOptions& options);

}  // namespace halftone
