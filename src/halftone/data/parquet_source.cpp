#include "halftone/data/parquet_source.h"

#include <algorithm>
#include <thread>

#include "halftone/base/error.h"
#include "halftone/data/parallel_in_order.h"
#include "halftone/data/row_document.h"

namespace halftone {
namespace {

constexpr size_t kMostIdleReaders = 16;
constexpr int kLocalThreads = 4, kRemoteThreads = 16;  // for footers

}  // namespace

ParquetSource::ParquetSource(FileList files, const SourceOptions& options)
    : DocumentSource(std::move(files), options.on_bad_line == "skip"), options_(options) {
  chat_ = describe_chat(options_);
  if (options_.streamed) return;
  const bool remote = !files_.files.empty() && is_remote(files_.files[0].path);
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  in_order(
      static_cast<int64_t>(files_.files.size()), remote ? kRemoteThreads : std::min(kLocalThreads, cores),
      [&](int64_t file) { return open(static_cast<size_t>(file))->groups(); },
      [&](int64_t file, int groups) {
        groups_.push_back(groups);
        for (int g = 0; g < groups; ++g) shards_.push_back({static_cast<uint32_t>(file), g});
      });
}

std::string ParquetSource::options() const { return "text_key=" + options_.text_key; }

std::unique_ptr<ParquetReader> ParquetSource::open(size_t file) const {
  return std::make_unique<ParquetReader>(open_bytes(files_.files.at(file).path), options_);
}

void ParquetSource::read_group(ParquetReader& reader, size_t file, int group, const DocumentVisitor& visit) const {
  reader.read(group, visit, [&](int64_t row, const std::string& reason) {
    bad_line({.file = files_.files[file].path, .reason = reason, .row = row}, visit);
  });
}

void ParquetSource::read_shard(int64_t shard, const DocumentVisitor& visit) const {
  const auto [file, group] = shards_.at(static_cast<size_t>(shard));
  std::unique_ptr<ParquetReader> reader;
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::find_if(idle_.rbegin(), idle_.rend(), [&](const auto& idle) { return idle.first == file; });
    if (found != idle_.rend()) {
      reader = std::move(found->second);
      idle_.erase(std::next(found).base());
    }
  }
  if (reader == nullptr) {
    reader = open(file);
    check(reader->groups() == groups_[file], "{}: {} row groups, {} when the data set was opened: it changed", files_.files[file].path,
          reader->groups(), groups_[file]);
  }
  read_group(*reader, file, group, visit);
  std::unique_ptr<ParquetReader> oldest;  // is closed outside the lock
  const std::lock_guard lock(mutex_);
  idle_.emplace_back(file, std::move(reader));
  if (idle_.size() <= kMostIdleReaders) return;
  oldest = std::move(idle_.front().second);
  idle_.pop_front();
}

void ParquetSource::read_file(size_t file, const DocumentVisitor& visit) const {
  const auto reader = open(file);
  for (int group = 0; group < reader->groups(); ++group) read_group(*reader, file, group, visit);
}

}  // namespace halftone
