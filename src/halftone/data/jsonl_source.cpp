#include "halftone/data/jsonl_source.h"

#include "halftone/base/error.h"
#include "halftone/data/file_io.h"
#include "halftone/data/jsonl_line.h"

namespace halftone {

JsonlSource::JsonlSource(FileList files, std::string text_key, int64_t vocab_size)
    : DocumentSource(std::move(files)), text_key_(std::move(text_key)), vocab_size_(vocab_size), shards_(make_shards(files_, true)) {
  for (const SourceFile& file : files_.files) {
    unsigned char head[4] = {};
    const size_t n = InputFile(file.path).read(0, reinterpret_cast<char*>(head), 4);
    check(!(n >= 2 && head[0] == 0x1F && head[1] == 0x8B), "{}: expected plain JSON lines, found gzip; unpack it with: gzip -dk {}",
          file.path, file.path);
    check(!(n >= 4 && head[0] == 0x28 && head[1] == 0xB5 && head[2] == 0x2F && head[3] == 0xFD),
          "{}: expected plain JSON lines, found zstd; unpack it with: zstd -d {}", file.path, file.path);
  }
}

std::string JsonlSource::options() const { return "text_key=" + text_key_; }

void JsonlSource::read_shard(int64_t shard, const DocumentVisitor& visit) const {
  for (const Piece& piece : shards_.at(static_cast<size_t>(shard))) {
    const SourceFile& file = files_.files[piece.file];
    LineReader reader(file.path, piece.begin);
    for (std::string_view line; reader.next(line) && reader.line_offset() < piece.end;) {
      if (reader.line_offset() == 0 && line.starts_with("\xEF\xBB\xBF")) line.remove_prefix(3);
      if (line.find_first_not_of(" \t") == std::string_view::npos) continue;
      JsonlDocument parsed;
      try {
        parsed = parse_jsonl_line(line, text_key_, vocab_size_);
      } catch (const Error& error) {
        fail("{}:{}: {}", file.path, line_number(file.path, reader.line_offset()), error.what());
      }
      Document document;
      document.kind = parsed.has_text ? Document::Kind::text : Document::Kind::ids;
      document.text = parsed.text;
      document.ids = parsed.ids;
      visit(document);
    }
  }
}

}  // namespace halftone
