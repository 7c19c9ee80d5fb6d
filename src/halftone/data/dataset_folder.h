#pragma once
#include <set>
#include <string>

#include "halftone/data/file_list.h"

namespace halftone {

// The result of dataset = "auto": a kind of open_source, and its files (not of mds and megatron, which look for theirs at `path`).
struct FoundData {
  std::string kind, path;
  FileList files;
};

// Looks at a file, a folder or a glob. The kind follows from suffixes and contents, which win. A folder of a Hugging Face data set is read
// by `subset` (its configuration; empty: the default one) and `split`: as the YAML at the top of README.md lists its files (configs,
// data_files), else by the usual names (data/train-00000-of-00002.parquet, train.jsonl, SUBSET/train-*.parquet, train/*.parquet). A folder
// of the hub's cache (refs/, snapshots/, blobs/) means its snapshot. Errors list what is there.
// `always`: subset and split are an error where no name says any; else they then choose everything.
FoundData find_data(const std::string& path, const std::string& subset, const std::string& split, bool always = true);

// The splits that the names of the files and of their folders say.
std::set<std::string> splits_of(const FileList& files);

// The kind by the name and the first bytes of a file: text, jsonl, parquet, bin or megatron; empty if neither says.
std::string kind_of_file(const SourceFile& file);

}  // namespace halftone
