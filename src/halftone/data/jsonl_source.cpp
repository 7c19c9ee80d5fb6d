#include "halftone/data/jsonl_source.h"

#include "halftone/base/error.h"
#include "halftone/data/file_io.h"
#include "halftone/data/jsonl_line.h"
#include "halftone/data/packed_file.h"
#include "halftone/data/row_document.h"

namespace halftone {

JsonlSource::JsonlSource(FileList files, SourceOptions options)
    : DocumentSource(std::move(files), options.on_bad_line == "skip"), options_(std::move(options)), shards_(make_shards(files_, true)) {
  chat_ = describe_chat(options_);
  for (const SourceFile& file : files_.files) refuse_packed(file.path, "plain JSON lines");
}

std::string JsonlSource::options() const { return "text_key=" + options_.text_key; }

void JsonlSource::read_shard(int64_t shard, const DocumentVisitor& visit) const {
  for (const Piece& piece : shards_.at(static_cast<size_t>(shard))) read_piece(piece, visit);
}

void JsonlSource::read_file(size_t file, const DocumentVisitor& visit) const { read_piece({file, 0, files_.files.at(file).size}, visit); }

void JsonlSource::read_piece(const Piece& piece, const DocumentVisitor& visit) const {
  const SourceFile& file = files_.files[piece.file];
  RowDocument row(options_);
  const bool whole_rows = options_.chat.format != ChatFormat::automatic && options_.chat.format != ChatFormat::none;
  LineReader reader(file.path, piece.begin, piece.end);
  for (std::string_view line; reader.next(line) && reader.line_offset() < piece.end;) {
    if (reader.line_offset() == 0 && line.starts_with("\xEF\xBB\xBF")) line.remove_prefix(3);
    if (line.find_first_not_of(" \t") == std::string_view::npos) continue;
    JsonlDocument parsed;
    Document document;
    try {
      if (!whole_rows) parsed = parse_jsonl_line(line, options_.text_key, options_.vocab_size);
      document.kind = parsed.has_text ? Document::Kind::text : Document::Kind::ids;
      document.text = parsed.text;
      document.ids = parsed.ids;
      if (whole_rows || parsed.whole_row) document = row.read(parse_row(line));
    } catch (const Error& error) {
      bad_line({file.path, reader.line_offset(), error.what()}, visit);
      continue;
    }
    visit(document);
  }
}

}  // namespace halftone
