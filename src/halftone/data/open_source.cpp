#include <fmt/format.h>

#include <filesystem>

#include "halftone/base/error.h"
#include "halftone/data/bin_format.h"
#include "halftone/data/bin_source.h"
#include "halftone/data/jsonl_source.h"
#include "halftone/data/parquet_source.h"
#include "halftone/data/source.h"
#include "halftone/data/text_source.h"

namespace halftone {
namespace {

const std::vector<std::string> kTextSuffixes = {".txt", ".txt.gz", ".txt.zst", ".txt.xz"};
const std::vector<std::string> kJsonSuffixes = {".jsonl",     ".json",     ".ndjson",     ".jsonl.gz", ".json.gz", ".ndjson.gz",
                                                ".jsonl.zst", ".json.zst", ".ndjson.zst", ".jsonl.xz", ".json.xz", ".ndjson.xz"};
constexpr const char* kC4Test = "tests/assets/c4_test";

void require_path(const SourceOptions& o) {
  check(!o.path.empty(), "dataset = \"{}\" needs dataset_path: a file, a folder or a glob", o.dataset);
}

}  // namespace

void DocumentSource::bad_line(const BadLine& line, const DocumentVisitor& visit) const {
  if (!skip_bad_lines_) fail("{}; dataloader.on_bad_line = \"skip\" skips such lines", line.text());
  Document document;
  document.kind = Document::Kind::bad;
  document.bad = &line;
  visit(document);
}

std::unique_ptr<DocumentSource> open_source(const SourceOptions& o) {
  check(o.on_bad_line == "error" || o.on_bad_line == "skip", "on_bad_line = \"{}\": expected error or skip", o.on_bad_line);
  if (o.dataset == "text") {
    require_path(o);
    return std::make_unique<TextSource>(find_files(o.path, kTextSuffixes), o);
  }
  if (o.dataset == "jsonl") {
    require_path(o);
    return std::make_unique<JsonlSource>(find_files(o.path, kJsonSuffixes), o);
  }
  if (o.dataset == "parquet") {
    require_path(o);
    return std::make_unique<ParquetSource>(find_files(o.path, {".parquet"}), o);
  }
  // The C4 names mean JSONL with the field `text`.
  if (o.dataset == "c4" || o.dataset == "c4_validation" || o.dataset == "c4_test") {
    SourceOptions c4 = o;
    c4.text_key = "text", c4.chat.format = ChatFormat::none;
    if (c4.path.empty() && o.dataset == "c4_test") {
      c4.path = kC4Test;
      check(
          std::filesystem::exists(c4.path),
          "dataset = \"c4_test\" reads {} below the working directory, which is not there; run in halftone's or torchtitan's checkout, or "
          "set dataset and dataset_path to your own text",
          kC4Test);
    }
    check(!c4.path.empty(), "dataset = \"{}\" needs dataset_path: the folder of its unpacked *.json files (nothing is downloaded)",
          o.dataset);
    require_path(c4);
    return std::make_unique<JsonlSource>(find_files(c4.path, kJsonSuffixes), c4);
  }
  if (o.dataset == "bin") {
    require_path(o);
    const int bytes = token_bytes_of(o.token_dtype);
    check(bytes > 2 || o.vocab_size <= 65536,
          "dataset bin: uint16 holds ids below 65,536, the tokenizer has {}; set dataloader.token_dtype = \"uint32\", as halftone tokenize "
          "writes them",
          with_commas(o.vocab_size));
    return std::make_unique<BinSource>(find_files(o.path, {".bin"}), bytes, o.vocab_size, document_end(o.bos_id, o.eos_id));
  }
  fail("dataset: this build reads text, jsonl, parquet, bin, c4, c4_validation and c4_test; found \"{}\"", o.dataset);
}

std::string with_commas(int64_t n) {
  std::string text = std::to_string(n);
  for (int64_t at = static_cast<int64_t>(text.size()) - 3; at > 0; at -= 3) text.insert(static_cast<size_t>(at), 1, ',');
  return text;
}

std::string source_summary(const DocumentSource& source, std::string_view digest) {
  return fmt::format("{}: {} files, {:.1f} MB, digest {}", source.kind(), with_commas(static_cast<int64_t>(source.files().files.size())),
                     static_cast<double>(source.files().bytes()) / 1e6, digest);
}

}  // namespace halftone
