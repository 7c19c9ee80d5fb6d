#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "halftone/base/error.h"
#include "halftone/base/log.h"
#include "halftone/data/bin_format.h"
#include "halftone/data/bin_source.h"
#include "halftone/data/dataset_folder.h"
#include "halftone/data/jsonl_source.h"
#include "halftone/data/mds_source.h"
#include "halftone/data/megatron_source.h"
#include "halftone/data/parquet_source.h"
#include "halftone/data/source.h"
#include "halftone/data/text_source.h"
#include "halftone/storage/glob.h"

namespace halftone {
namespace {

const std::vector<std::string> kTextSuffixes = {".txt", ".txt.gz", ".txt.zst", ".txt.xz"};
const std::vector<std::string> kJsonSuffixes = {".jsonl",     ".json",     ".ndjson",     ".jsonl.gz", ".json.gz", ".ndjson.gz",
                                                ".jsonl.zst", ".json.zst", ".ndjson.zst", ".jsonl.xz", ".json.xz", ".ndjson.xz"};
constexpr const char* kC4Test = "tests/assets/c4_test";

using Opened = std::unique_ptr<DocumentSource>;
struct Kind {
  const char* name;
  std::vector<std::string> suffixes;  // of the files of a folder; none: the source looks for them
  bool by_folder;                     // whether files may be chosen by subset and split
  Opened (*open)(FileList files, const SourceOptions& o);
};
const Kind kKinds[] = {
    {"text", kTextSuffixes, true,
     [](FileList f, const SourceOptions& o) -> Opened { return std::make_unique<TextSource>(std::move(f), o); }},
    {"jsonl", kJsonSuffixes, true,
     [](FileList f, const SourceOptions& o) -> Opened { return std::make_unique<JsonlSource>(std::move(f), o); }},
    {"parquet",
     {".parquet"},
     true,
     [](FileList f, const SourceOptions& o) -> Opened { return std::make_unique<ParquetSource>(std::move(f), o); }},
    {"bin",
     {".bin"},
     true,
     [](FileList f, const SourceOptions& o) -> Opened {
       return std::make_unique<BinSource>(std::move(f), token_bytes_of(o.token_dtype), o.vocab_size, document_end(o.bos_id, o.eos_id));
     }},
    {"megatron",
     {},
     false,
     [](FileList, const SourceOptions& o) -> Opened { return std::make_unique<MegatronSource>(find_megatron(o.path), o); }},
    {"mds", {}, false, [](FileList, const SourceOptions& o) -> Opened { return std::make_unique<MdsSource>(o); }},
};

FileList find_of(const Kind& kind, const std::string& path) { return kind.suffixes.empty() ? FileList() : find_files(path, kind.suffixes); }

// A kind takes all files of a folder; so a folder with splits has its validation data read too.
FileList find_all_of(const Kind& kind, const std::string& path) {
  FileList files = find_of(kind, path);
  const std::set<std::string> splits = files.files.size() > 1 && !has_wildcard(path) ? splits_of(files) : std::set<std::string>();
  if (kind.by_folder && splits.contains("train") && splits.size() > 1) {
    log_warning("{}: dataset = \"{}\" reads all of its splits ({}); dataset = \"auto\" reads one, dataloader.split", path, kind.name,
                fmt::join(splits, ", "));
  }
  return files;
}

[[noreturn]] void fail_unknown(const std::string& dataset) {
  std::string kinds;
  for (const Kind& kind : kKinds) kinds += fmt::format("{}, ", kind.name);
  fail(
      "dataset = \"{}\": expected auto, {}c4, c4_validation, c4_test or a name of [data.names]; nothing is downloaded, add [data.names.{}] "
      "with path = ...",
      dataset, kinds, dataset);
}

void require_path(const SourceOptions& o) {
  check(!o.path.empty(), "dataset = \"{}\" needs {}: a file, a folder or a glob", o.dataset, o.path_field);
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
  SourceOptions options = o;
  const bool c4 = o.dataset == "c4" || o.dataset == "c4_validation" || o.dataset == "c4_test";
  if (c4) {
    // The C4 names mean the field `text`, and their split.
    options.text_key = "text", options.chat.format = ChatFormat::none;
    if (o.dataset == "c4_validation" && o.split == "train") options.split = "validation";
    if (o.path.empty() && o.dataset == "c4_test") {
      options.path = kC4Test;
      check(
          std::filesystem::exists(options.path),
          "dataset = \"c4_test\" reads {} below the working directory, which is not there; run in halftone's or torchtitan's checkout, or "
          "set dataset and dataset_path to your own text",
          kC4Test);
    }
    check(!options.path.empty(), "dataset = \"{}\" needs {}: the folder of its files (nothing is downloaded)", o.dataset, o.path_field);
  }
  const auto kind = std::find_if(std::begin(kKinds), std::end(kKinds), [&](const Kind& k) { return o.dataset == k.name; });
  if (!c4 && o.dataset != "auto" && kind == std::end(kKinds)) fail_unknown(o.dataset);
  require_path(options);
  // A choice of files by split or subset needs the folder's layout, whatever its kind.
  const bool chosen = !o.subset.empty() || o.split != "train";
  if (!c4 && o.dataset != "auto" && !(chosen && kind->by_folder)) return kind->open(find_all_of(*kind, o.path), o);
  FoundData found = find_data(options.path, options.subset, options.split, !c4);
  check(c4 || o.dataset == "auto" || found.kind == o.dataset, "dataset = \"{}\": {} is of the kind {}", o.dataset, o.path, found.kind);
  check(!c4 || found.kind == "jsonl" || found.kind == "parquet", "dataset = \"{}\": {} is of the kind {}: expected jsonl or parquet",
        o.dataset, options.path, found.kind);
  options.dataset = found.kind, options.path = found.path;
  const Kind& open = *std::find_if(std::begin(kKinds), std::end(kKinds), [&](const Kind& k) { return found.kind == k.name; });
  if (o.dataset == "auto") log_debug("dataset auto: {} is of the kind {}", o.path, found.kind);
  return open.open(found.files.files.empty() ? find_of(open, options.path) : std::move(found.files), options);
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
