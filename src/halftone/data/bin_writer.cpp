#include "halftone/data/bin_writer.h"

#include <fmt/format.h>

#include <filesystem>

#include "halftone/base/error.h"
#include "halftone/base/log.h"
#include "halftone/data/bin_format.h"

namespace halftone {
namespace {

// Refused before the file is opened.
std::string output_path(const DocumentSource& source, std::string path, const std::string& option) {
  check(source.stored_token_bytes() == 0, "{} {}: the source, {}, holds ids already", option, path, source.files().pattern);
  for (const SourceFile& file : source.files().files) {
    std::error_code none;
    if (std::filesystem::equivalent(path, file.path, none)) fail("{} {} is one of the input files", option, path);
  }
  return path;
}

}  // namespace

BinWriter::BinWriter(const DocumentSource& source, std::string path, int width, int32_t eos, const std::string& option)
    : path_(output_path(source, std::move(path), option)), out_(path_), width_(width), eos_(eos) {}

void BinWriter::add(const TokenisedShard& shard) {
  check(shard.loss.empty(),
        "{}: a .bin file holds no loss mask, which {} documents need; train on the source itself, or set loss_on to all", path_,
        with_commas(shard.masked_documents));
  const std::span<const std::byte> ids = shard.tokens;
  const auto width = static_cast<size_t>(width_);
  size_t begin = 0;
  for (const DocumentEntry& entry : shard.entries) {
    const size_t end = entry.end;
    out_.write(ids.data() + begin * width, (end - begin) * width);
    // Token ids of JSONL may lack it.
    if (stored_id(ids, end - 1, width_) != static_cast<uint32_t>(eos_)) {
      unsigned char bytes[4];
      for (int b = 0; b < width_; ++b) bytes[b] = static_cast<unsigned char>(static_cast<uint32_t>(eos_) >> (8 * b));
      out_.write(bytes, width);
      ++ended_;
    }
    begin = end;
  }
}

std::string BinWriter::commit() {
  if (ended_ > 0)
    log_warning("{} documents of ready-made ids end without EOS ({}), which they have in {}: there a document ends with one", ended_, eos_,
                path_);
  out_.commit();
  return fmt::format("{}: uint{}, {} bytes", path_, 8 * width_, with_commas(out_.size()));
}

}  // namespace halftone
