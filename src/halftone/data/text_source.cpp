#include "halftone/data/text_source.h"

#include <algorithm>

#include "halftone/base/error.h"
#include "halftone/base/log.h"
#include "halftone/data/file_io.h"
#include "halftone/data/packed_file.h"
#include "halftone/data/unicode.h"

namespace halftone {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
constexpr int64_t kLargeDocument = int64_t{256} << 20;

bool blank(std::string_view line) { return line.find_first_not_of(" \t") == std::string_view::npos; }

void visit_text(std::string_view text, const DocumentVisitor& visit) {
  Document document;
  document.text = text;
  visit(document);
}

void strip_mark(std::string_view& text) {
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
}

}  // namespace

TextSplit parse_text_split(const std::string& name) {
  if (name == "file") return TextSplit::file;
  if (name == "line") return TextSplit::line;
  if (name == "blank_line") return TextSplit::blank_line;
  fail("dataloader.text_split = \"{}\": expected file, line or blank_line", name);
}

TextSource::TextSource(FileList files, TextSplit split, bool skip_bad_lines)
    : DocumentSource(std::move(files), skip_bad_lines), split_(split), shards_(make_shards(files_, split != TextSplit::file)) {
  if (split != TextSplit::file) return;
  const auto largest = std::max_element(files_.files.begin(), files_.files.end(), [](auto& a, auto& b) { return a.size < b.size; });
  if (largest == files_.files.end() || largest->size < kLargeDocument) return;
  log_warning(
      "{}: its {} MB are one document (dataloader.text_split = \"file\"), and tokenising it takes three to seven times as much memory; "
      "line and blank_line read files piece by piece",
      largest->path, largest->size / 1'000'000);
}

bool TextSource::is_text(std::string_view line, const SourceFile& file, int64_t offset, const DocumentVisitor& visit) const {
  const size_t valid = valid_utf8_prefix(line);
  if (valid == line.size()) return true;
  bad_line({file.path, offset, not_utf8(line, valid)}, visit);
  return false;
}

void TextSource::read_lines(const SourceFile& file, const Piece& piece, const DocumentVisitor& visit) const {
  LineReader reader(file.path, piece.begin, piece.end);
  for (std::string_view line; reader.next(line) && reader.line_offset() < piece.end;) {
    if (reader.line_offset() == 0) strip_mark(line);
    if (!blank(line) && is_text(line, file, reader.line_offset(), visit)) visit_text(line, visit);
  }
}

// A piece that does not start the file begins after the first blank line that starts in it or later, and every piece continues to the
// first blank line that starts at its end or later: the same line, so that nothing is lost or read twice. A piece without a blank line is
// empty.
void TextSource::read_paragraphs(const SourceFile& file, const Piece& piece, const DocumentVisitor& visit) const {
  LineReader reader(file.path, piece.begin, piece.end);
  std::string paragraph;
  bool inside = piece.begin == 0;
  for (std::string_view line; reader.next(line);) {
    if (reader.line_offset() == 0) strip_mark(line);
    if (!inside && reader.line_offset() >= piece.end) return;
    if (blank(line)) {
      if (!paragraph.empty()) visit_text(paragraph, visit);
      paragraph.clear();
      if (reader.line_offset() >= piece.end) return;
      inside = true;
    } else if (inside && is_text(line, file, reader.line_offset(), visit)) {
      if (!paragraph.empty()) paragraph += '\n';
      paragraph += line;
    }
  }
  if (!paragraph.empty()) visit_text(paragraph, visit);
}

void TextSource::read_whole(const SourceFile& file, std::string& buffer, const DocumentVisitor& visit) const {
  buffer.resize(static_cast<size_t>(file.size));
  InputFile(file.path).read_exactly(0, buffer.data(), buffer.size());
  std::string_view text = buffer;
  strip_mark(text);
  if (is_valid_utf8(text)) return visit_text(text, visit);
  std::string kept;
  for (size_t at = buffer.size() - text.size(); at < buffer.size();) {
    const size_t end = std::min(buffer.find('\n', at), buffer.size() - 1) + 1;
    const std::string_view line(buffer.data() + at, end - at);
    if (is_text(line, file, static_cast<int64_t>(at), visit)) kept += line;
    at = end;
  }
  if (!kept.empty()) visit_text(kept, visit);
}

std::string TextSource::options() const {
  return split_ == TextSplit::file ? "split=file" : split_ == TextSplit::line ? "split=line" : "split=blank_line";
}

void TextSource::read_shard(int64_t shard, const DocumentVisitor& visit) const {
  for (const Piece& piece : shards_.at(static_cast<size_t>(shard))) read_piece(piece, visit);
}

void TextSource::read_file(size_t file, const DocumentVisitor& visit) const { read_piece({file, 0, files_.files.at(file).size}, visit); }

void TextSource::read_piece(const Piece& piece, const DocumentVisitor& visit) const {
  const SourceFile& file = files_.files[piece.file];
  if (piece.begin == 0) refuse_packed(file.path, "plain text");
  if (split_ == TextSplit::line) {
    read_lines(file, piece, visit);
  } else if (split_ == TextSplit::blank_line) {
    read_paragraphs(file, piece, visit);
  } else {
    std::string buffer;
    read_whole(file, buffer, visit);
  }
}

}  // namespace halftone
