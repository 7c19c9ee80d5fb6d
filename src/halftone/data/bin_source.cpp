#include "halftone/data/bin_source.h"

#include <fmt/format.h>

namespace halftone {
namespace {

constexpr size_t kReleaseEvery = size_t{1} << 20;

}  // namespace

BinSource::BinSource(FileList files, int token_bytes, int64_t vocab_size, DocumentEnd end)
    : DocumentSource(std::move(files)), token_bytes_(token_bytes), vocab_size_(vocab_size), end_(end) {}

std::string BinSource::options() const {
  return fmt::format("token_bytes={} vocab={} eos={}{}", token_bytes_, vocab_size_, end_.eos, end_.is_bos ? " bos=eos" : "");
}

void BinSource::read_shard(int64_t shard, const DocumentVisitor& visit) const { read_file(static_cast<size_t>(shard), visit); }

void BinSource::read_file(size_t number, const DocumentVisitor& visit) const {
  const SourceFile& file = files_.files.at(number);
  const MappedFile map(file.path);
  const auto width = static_cast<size_t>(token_bytes_);
  size_t read = 0;
  scan_bin(map.bytes(), token_bytes_, vocab_size_, end_, file.path, [&](size_t first, size_t count) {
    Document document;
    document.kind = Document::Kind::stored;
    document.stored = map.bytes().subspan(first * width, count * width);
    visit(document);
    read += document.stored.size();
    if (read < kReleaseEvery) return;
    map.touched(read);
    read = 0;
  });
}

}  // namespace halftone
