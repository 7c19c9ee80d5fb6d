#include "halftone/data/bin_source.h"

#include <fmt/format.h>

#include "halftone/base/error.h"
#include "halftone/data/packed_file.h"
#include "halftone/storage/byte_file.h"

namespace halftone {
namespace {

constexpr size_t kReleaseEvery = size_t{1} << 20;

}  // namespace

BinSource::BinSource(FileList files, int token_bytes, int64_t vocab_size, DocumentEnd end)
    : DocumentSource(std::move(files)), token_bytes_(token_bytes), vocab_size_(vocab_size), end_(end) {
  token_bytes_ = layout(0).width;
  check(token_bytes_ > 2 || vocab_size <= 65536,
        "dataset bin: uint16 holds ids below 65,536, the tokenizer has {}; set dataloader.token_dtype = \"uint32\", as halftone tokenize "
        "writes them",
        with_commas(vocab_size));
}

BinLayout BinSource::layout(size_t number) const {
  const SourceFile& file = files_.files.at(number);
  const auto bytes = open_bytes(file.path);
  refuse_lfs_pointer(first_bytes(file.path), file.path, "token ids");
  std::byte first[12];
  const size_t n = bytes->read(0, reinterpret_cast<char*>(first), sizeof first);
  const BinLayout found = bin_layout(std::span(first, n), bytes->size(), token_bytes_, file.path);
  check(number == 0 || found.width == token_bytes_, "{}: holds uint{} ids, {} uint{}: read them as two data sets", file.path,
        8 * found.width, files_.files[0].path, 8 * token_bytes_);
  return found;
}

StoredRange BinSource::stored_range(size_t file) const {
  const BinLayout found = layout(file);
  return {found.first, found.bytes};
}

std::string BinSource::options() const {
  return fmt::format("token_bytes={} vocab={} eos={}{}", token_bytes_, vocab_size_, end_.eos, end_.is_bos ? " bos=eos" : "");
}

void BinSource::read_shard(int64_t shard, const DocumentVisitor& visit) const { read_file(static_cast<size_t>(shard), visit); }

void BinSource::read_file(size_t number, const DocumentVisitor& visit) const {
  const SourceFile& file = files_.files.at(number);
  const BinLayout where = layout(number);
  const MappedFile map(local_copy(file.path));
  check(map.bytes().size() >= static_cast<size_t>(where.first + where.bytes), "{}: the file changed while it was read", file.path);
  const auto ids = map.bytes().subspan(static_cast<size_t>(where.first), static_cast<size_t>(where.bytes));
  const auto width = static_cast<size_t>(token_bytes_);
  size_t read = 0;
  scan_bin(ids, token_bytes_, vocab_size_, end_, file.path, [&](size_t first, size_t count) {
    Document document;
    document.kind = Document::Kind::stored;
    document.stored = ids.subspan(first * width, count * width);
    visit(document);
    read += document.stored.size();
    if (read < kReleaseEvery) return;
    map.touched(read);
    read = 0;
  });
}

}  // namespace halftone
