#include "halftone/data/jsonl_source.h"

#include "halftone/base/error.h"
#include "halftone/data/file_io.h"
#include "halftone/data/jsonl_line.h"
#include "halftone/data/packed_file.h"

namespace halftone {

JsonlSource::JsonlSource(FileList files, std::string text_key, int64_t vocab_size, bool skip_bad_lines)
    : DocumentSource(std::move(files), skip_bad_lines),
      text_key_(std::move(text_key)),
      vocab_size_(vocab_size),
      shards_(make_shards(files_, true)) {
  for (const SourceFile& file : files_.files) refuse_packed(file.path, "plain JSON lines");
}

std::string JsonlSource::options() const { return "text_key=" + text_key_; }

void JsonlSource::read_shard(int64_t shard, const DocumentVisitor& visit) const {
  for (const Piece& piece : shards_.at(static_cast<size_t>(shard))) read_piece(piece, visit);
}

void JsonlSource::read_file(size_t file, const DocumentVisitor& visit) const { read_piece({file, 0, files_.files.at(file).size}, visit); }

void JsonlSource::read_piece(const Piece& piece, const DocumentVisitor& visit) const {
  const SourceFile& file = files_.files[piece.file];
  LineReader reader(file.path, piece.begin, piece.end);
  for (std::string_view line; reader.next(line) && reader.line_offset() < piece.end;) {
    if (reader.line_offset() == 0 && line.starts_with("\xEF\xBB\xBF")) line.remove_prefix(3);
    if (line.find_first_not_of(" \t") == std::string_view::npos) continue;
    JsonlDocument parsed;
    try {
      parsed = parse_jsonl_line(line, text_key_, vocab_size_);
    } catch (const Error& error) {
      bad_line({file.path, reader.line_offset(), error.what()}, visit);
      continue;
    }
    Document document;
    document.kind = parsed.has_text ? Document::Kind::text : Document::Kind::ids;
    document.text = parsed.text;
    document.ids = parsed.ids;
    visit(document);
  }
}

}  // namespace halftone
