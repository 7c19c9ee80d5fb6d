#include "halftone/data/jsonl_source.h"

#include "halftone/base/error.h"
#include "halftone/data/json_array.h"
#include "halftone/data/jsonl_line.h"
#include "halftone/data/line_reader.h"
#include "halftone/data/packed_file.h"
#include "halftone/data/row_document.h"

namespace halftone {
namespace {

// Whether pieces of a file can be read apart.
bool is_lines(const SourceFile& file) {
  const std::string first = first_bytes(file.path);
  return compression_of_bytes(first) == Compression::none && !JsonArrayReader::starts(first);
}

}  // namespace

JsonlSource::JsonlSource(FileList files, SourceOptions options)
    : DocumentSource(std::move(files), options.on_bad_line == "skip"), options_(std::move(options)) {
  chat_ = describe_chat(options_);
  if (!options_.streamed) shards_ = make_shards(files_, is_lines);
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
  const auto take = [&](std::string_view json, int64_t offset, int64_t line) {
    JsonlDocument parsed;
    Document document;
    try {
      if (!whole_rows) parsed = parse_jsonl_line(json, options_.text_key, options_.vocab_size);
      document.kind = parsed.has_text ? Document::Kind::text : Document::Kind::ids;
      document.text = parsed.text;
      document.ids = parsed.ids;
      if (whole_rows || parsed.whole_row) document = row.read(parse_row(json));
    } catch (const Error& error) {
      return bad_line({file.path, offset, error.what(), line}, visit);
    }
    visit(document);
  };
  const auto take_lines = [&](LineReader reader) {
    const bool to_the_end = piece.begin == 0 && piece.end == file.size;
    for (std::string_view line; reader.next(line) && (to_the_end || reader.line_offset() < piece.end);) {
      if (reader.line_offset() == 0 && line.starts_with("\xEF\xBB\xBF")) line.remove_prefix(3);
      if (line.find_first_not_of(" \t") != std::string_view::npos) take(line, reader.line_offset(), reader.line_number());
    }
  };
  if (piece.begin > 0) return take_lines(LineReader(file.path, piece.begin, piece.end, options_.max_document_bytes));
  TextInput input(file.path);
  input.fill();
  refuse_packed(input.text(), file.path, "JSON lines");
  if (!JsonArrayReader::starts(input.text())) return take_lines(LineReader(std::move(input), options_.max_document_bytes));
  JsonArrayReader elements(std::move(input), options_.max_document_bytes);
  for (std::string_view element; elements.next(element);) take(element, elements.offset(), 0);
}

}  // namespace halftone
