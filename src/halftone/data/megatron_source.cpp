#include "halftone/data/megatron_source.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "halftone/base/error.h"
#include "halftone/data/file_io.h"
#include "halftone/storage/byte_file.h"

namespace halftone {
namespace {

constexpr size_t kUnmapEvery = size_t{1} << 20;

std::string without_suffix(const std::string& path) { return path.substr(0, path.size() - 4); }
bool is_bin(const SourceFile& file) { return file.path.ends_with(".bin"); }

// The two files of a prefix, mapped.
struct MegatronPair {
  explicit MegatronPair(const SourceFile& file) : idx(local_copy(without_suffix(file.path) + ".idx")), bin(local_copy(file.path)) {}
  MegatronIndex index(const SourceFile& file) const {
    return {idx.bytes(), static_cast<int64_t>(bin.bytes().size()), without_suffix(file.path) + ".idx"};
  }
  MappedFile idx, bin;
};

}  // namespace

FileList find_megatron(const std::string& pattern) {
  std::error_code ignored;
  const bool prefix =
      !is_remote(pattern) && !std::filesystem::exists(pattern, ignored) && std::filesystem::exists(pattern + ".idx", ignored);
  const bool one = pattern.ends_with(".bin") || pattern.ends_with(".idx");
  FileList found;
  if (prefix || (one && std::filesystem::exists(pattern, ignored))) {
    const std::string start = prefix ? pattern : without_suffix(pattern);
    for (const char* suffix : {".bin", ".idx"})
      check(std::filesystem::exists(start + suffix, ignored), "dataset megatron: {}{} is missing: expected it beside {}", start, suffix,
            pattern);
    return list_files(pattern, {local_file(start + ".bin"), local_file(start + ".idx")});
  }
  found = find_files(pattern, {".bin", ".idx"});
  std::set<std::string> paths;
  for (const SourceFile& file : found.files) paths.insert(file.path);
  std::vector<SourceFile> files;
  for (const SourceFile& file : found.files) {
    const bool part = is_bin(file) || file.path.ends_with(".idx");
    check(part, "dataset megatron: {} is neither .idx nor .bin", file.path);
    const std::string other = without_suffix(file.path) + (is_bin(file) ? ".idx" : ".bin");
    files.push_back(file);
    if (paths.contains(other)) continue;
    // A glob may name only one of the two.
    check(!is_remote(other) && std::filesystem::exists(other, ignored), "dataset megatron: {} is missing: expected it beside {}", other,
          file.path);
    files.push_back(local_file(other));
  }
  return list_files(pattern, std::move(files), found.others);
}

MegatronSource::MegatronSource(FileList files, const SourceOptions& options)
    : DocumentSource(std::move(files)), vocab_size_(options.vocab_size), longest_(options.max_document_bytes) {
  if (options.streamed) return;  // ids are copied: no file is opened before it is read
  bool in_place = true;
  for (const SourceFile& file : files_.files) {
    if (!is_bin(file)) continue;
    const MegatronIndex index = MegatronPair(file).index(file);
    const bool usable = index.contiguous() && ((index.width() == 2 && !index.is_signed()) || index.width() == 4);
    in_place = in_place && usable && (stored_bytes_ == 0 || stored_bytes_ == index.width());
    stored_bytes_ = index.width();
  }
  if (!in_place) stored_bytes_ = 0;
}

std::string MegatronSource::options() const { return fmt::format("vocab={} in_place={}", vocab_size_, stored_bytes_); }

StoredRange MegatronSource::stored_range(size_t file) const { return {0, is_bin(files_.files.at(file)) ? files_.files[file].size : 0}; }

void MegatronSource::read_file(size_t number, const DocumentVisitor& visit) const {
  const SourceFile& file = files_.files.at(number);
  if (!is_bin(file)) return;
  const MegatronPair pair(file);
  const MegatronIndex index = pair.index(file);
  const std::span<const std::byte> all = pair.bin.bytes();
  const auto width = static_cast<size_t>(index.width());
  std::vector<int32_t> ids;
  size_t read = 0;
  for (int64_t d = 0; d < index.documents(); ++d) {
    ids.clear();
    int64_t first = -1, end = 0;
    index.each_sequence(d, [&](int64_t offset, int64_t tokens) {
      if (first < 0) first = offset;
      end = offset + tokens * index.width();
      const auto bytes = all.subspan(static_cast<size_t>(offset), static_cast<size_t>(tokens) * width);
      for (size_t i = 0; i < static_cast<size_t>(tokens); ++i) {
        const int64_t id = megatron_id(bytes, i, index.width(), index.is_signed());
        check(id >= 0 && id < vocab_size_,
              "{}: id {} at byte offset {} is outside the vocabulary of {}; was the set made with another tokenizer?", file.path, id,
              static_cast<size_t>(offset) + i * width, vocab_size_);
        if (stored_bytes_ == 0) ids.push_back(static_cast<int32_t>(id));
      }
      check(static_cast<int64_t>(ids.size()) * 4 <= longest_,
            "{}: document {} takes more than {} bytes, the limit of a document; a larger one needs a larger dataloader.max_document_mib",
            file.path, d, longest_);
    });
    if (first < 0 || end == first) continue;  // no ids
    Document document;
    document.kind = stored_bytes_ == 0 ? Document::Kind::ids : Document::Kind::stored;
    if (stored_bytes_ == 0) document.ids = ids;
    if (stored_bytes_ != 0) document.stored = all.subspan(static_cast<size_t>(first), static_cast<size_t>(end - first));
    visit(document);
    read += static_cast<size_t>(end - first);
    if (read < kUnmapEvery) continue;
    pair.bin.touched(read);
    read = 0;
  }
}

}  // namespace halftone
